// Admission: decides from the head of a request whether the server accepts it: the Host and Origin
// that a browser sends, the API key, the route and the type of the body. No sockets, no state.
#pragma once

#include <span>

#include "serve/config.h"
#include "serve/http.h"

namespace hearth::inline serve {

struct Route {
  enum Id { health, metrics, models, tokenizer_info, tokenize, detokenize, completions, chat };
  const char *method, *path;
  Id id;

  bool reads_body() const { return std::string_view(method) == "POST"; }
};
std::span<const Route> routes();

// Routes below this prefix name one model each.
constexpr std::string_view model_prefix = "/v1/models/";

class Admission {
 public:
  // `loopback`: the server listens only on a loopback address.
  Admission(const ServeConfig&, bool loopback);

  // Protects against DNS rebinding: a page that reaches a local server through its own domain name
  // sends that name as Host and its address as Origin. 403.
  void check_browser(const HttpRequest&) const;
  // The preflight that a browser sends before a request from the allowed origin. It has no key.
  bool is_preflight(const HttpRequest&) const;
  // The route of a request, after checking its key and the type of its body. 401, 404, 405, 415.
  const Route& route(const HttpRequest&) const;

 private:
  void check_host(const HttpRequest&) const;
  void check_key(const HttpRequest&) const;

  const ServeConfig config_;
  const bool checks_host_;
};

}  // namespace hearth::inline serve
