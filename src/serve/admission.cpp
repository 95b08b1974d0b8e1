#include "serve/admission.h"

#include <algorithm>
#include <array>

#include "formats/json.h"

namespace hearth::inline serve {
namespace {

constexpr auto all_routes = std::to_array<Route>({
    {"GET", "/health", Route::health},
    {"GET", "/metrics", Route::metrics},
    {"GET", "/v1/models", Route::models},
    {"GET", "/tokenizer_info", Route::tokenizer_info},
    {"POST", "/tokenize", Route::tokenize},
    {"POST", "/detokenize", Route::detokenize},
    {"POST", "/v1/completions", Route::completions},
    {"POST", "/v1/chat/completions", Route::chat},
});

// Names and media types are compared in ASCII lower case, independent of the locale.
std::string lower_case(std::string_view s) {
  std::string lower(s);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return lower;
}

// Removes the port from "name:80" and "[::1]:80". Any other suffix stays, so that the result
// matches no allowed name.
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == host.npos || host.find(']', colon) != host.npos) return host;
  const std::string_view port = host.substr(colon + 1);
  const bool digits = std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
  return digits && port.size() <= 5 ? host.substr(0, colon) : host;
}

std::string_view media_type(std::string_view content_type) {
  std::string_view type = content_type.substr(0, content_type.find(';'));
  while (!type.empty() && (type.back() == ' ' || type.back() == '\t')) type.remove_suffix(1);
  return type;
}

void check_body_type(const HttpRequest& r) {
  if (lower_case(media_type(r.content_type)) != "application/json")
    throw HttpError(415,
                    fmt::format("[content-type] expected application/json, got {}; send the header "
                                "\"Content-Type: application/json\" (with curl: -H 'Content-Type: "
                                "application/json')",
                                r.content_type.empty() ? "none" : in_quotes(r.content_type)),
                    "unsupported_media_type");
  if (!r.content_encoding.empty() && lower_case(r.content_encoding) != "identity")
    throw HttpError(415,
                    fmt::format("[content-encoding] expected an uncompressed body, got {}",
                                in_quotes(r.content_encoding)),
                    "unsupported_media_type");
}

}  // namespace

std::span<const Route> routes() { return all_routes; }

// A server that other machines reach is called by names it cannot know unless they are configured.
Admission::Admission(const ServeConfig& config, bool loopback)
    : config_(config), checks_host_(loopback || !config.allowed_host.empty()) {}

void Admission::check_browser(const HttpRequest& r) const {
  if (!checks_host_) return;
  check_host(r);
  if (r.origin.empty() || config_.cors_origin == "*" || r.origin == config_.cors_origin) return;
  // A page served from this server's own address is not foreign.
  const std::string origin = lower_case(r.origin), host = lower_case(r.host);
  if (!host.empty() && (origin == "http://" + host || origin == "https://" + host)) return;
  throw HttpError(403,
                  fmt::format("[origin] requests from the web page {} are not allowed; "
                              "--cors-origin permits one origin",
                              in_quotes(r.origin)),
                  "origin_not_allowed");
}

void Admission::check_host(const HttpRequest& r) const {
  if (r.host.empty()) return;  // only HTTP/1.0 may omit it, and browsers do not use that
  const std::string name = lower_case(without_port(r.host));
  for (const char* own : {"localhost", "127.0.0.1", "[::1]"})
    if (name == own) return;
  if (name == lower_case(config_.host) || name == "[" + lower_case(config_.host) + "]") return;
  for (const std::string& allowed : config_.allowed_host)
    if (name == lower_case(allowed)) return;
  throw HttpError(
      403,
      fmt::format(
          "[host] expected localhost, 127.0.0.1, [::1] or a name given with --allowed-host, got {}",
          in_quotes(r.host)),
      "host_not_allowed");
}

bool Admission::is_preflight(const HttpRequest& r) const {
  return !config_.cors_origin.empty() && r.method == "OPTIONS";
}

void Admission::check_key(const HttpRequest& r) const {
  constexpr std::string_view scheme = "Bearer ";
  if (r.path == "/health" || config_.api_key.empty()) return;
  const bool bearer = r.authorization.starts_with(scheme);
  const std::string given = bearer ? r.authorization.substr(scheme.size()) : std::string();
  if (!same_secret(given, config_.api_key))
    throw HttpError(401, "[authorization] expected the server's key as a Bearer token, got " +
                             std::string(given.empty() ? "none" : "a different one"));
}

const Route& Admission::route(const HttpRequest& r) const {
  check_key(r);  // first, so that clients without the key do not learn the routes
  std::string_view path = r.path;
  if (path.starts_with(model_prefix)) path = "/v1/models";
  const auto at = std::ranges::find(all_routes, path, &Route::path);
  if (at == all_routes.end())
    throw HttpError(404, fmt::format("[path] expected a route of this server, got {} {}",
                                     in_quotes(r.method.substr(0, 16)), in_quotes(r.path)));
  if (r.method != at->method && !(r.is_head() && !at->reads_body()))
    throw HttpError(405, fmt::format("[method] expected {} for {}, got {}", at->method, at->path,
                                     in_quotes(r.method.substr(0, 16))));
  if (at->reads_body()) check_body_type(r);
  return *at;
}

}  // namespace hearth::inline serve
