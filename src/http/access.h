// AccessCheck: whether the head of a request may use the server: the Host and Origin that a browser
// sends, and the API key. No sockets, no state.
#pragma once

#include <string>
#include <string_view>

#include "http/config.h"
#include "http/http.h"

namespace hearth::inline http {

// Names and media types are compared in ASCII lower case, independent of the locale.
std::string lower_case(std::string_view);

class AccessCheck {
 public:
  // `loopback`: the server listens only on a loopback address.
  AccessCheck(const HttpConfig&, bool loopback);

  // Protects against DNS rebinding: a page that reaches a local server through its own domain name
  // sends that name as Host and its address as Origin. 403.
  void check_browser(const HttpRequest&) const;
  // The preflight that a browser sends before a request from the allowed origin. It has no key.
  bool is_preflight(const HttpRequest&) const;
  // 401 unless the request has the server's key, or the server has none.
  void check_key(const HttpRequest&) const;

 private:
  void check_host(const HttpRequest&) const;

  const HttpConfig config_;
  const bool checks_host_;
};

}  // namespace hearth::inline http
