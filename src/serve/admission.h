// Admission: decides from the head of a request whether the server accepts it: the Host and Origin
// that a browser sends, the API key, the route and the type of the body. No sockets, no state.
#pragma once

#include <span>

#include "http/access.h"
#include "serve/config.h"

namespace hearth::inline serve {

struct Route {
  enum Id {
    health,
    metrics,
    models,
    tokenizer_info,
    tokenize,
    detokenize,
    completions,
    chat,
    page,  // a file of the web app
    info
  };
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

  const AccessCheck& access() const { return access_; }
  void check_browser(const HttpRequest& r) const { access_.check_browser(r); }
  bool is_preflight(const HttpRequest& r) const { return access_.is_preflight(r); }
  // The route of a request, after checking its key and the type of its body. 401, 404, 405, 415.
  const Route& route(const HttpRequest&) const;

 private:
  const AccessCheck access_;
};

}  // namespace hearth::inline serve
