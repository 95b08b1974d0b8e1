#include "serve/admission.h"

#include <algorithm>
#include <array>

#include "board/pages.h"
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
    {"GET", "/", Route::page},
    {"GET", "/app.js", Route::page},
    {"GET", "/app.css", Route::page},
    {"GET", "/api/info", Route::info},
});

constexpr size_t longest_near = 64;  // a longer path resembles no route

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

// The routes of the API; the page is no part of it.
std::vector<Route> api_routes() {
  std::vector<Route> all;
  for (const Route& r : all_routes)
    if (r.id != Route::page && r.id != Route::info) all.push_back(r);
  return all;
}

// The route that is most likely meant by a path without its /v1, with a slash at its end or with a
// typing error; empty: none.
std::string meant_route(std::string_view path) {
  while (path.ends_with('/')) path.remove_suffix(1);
  std::vector<std::string> known;
  for (const Route& r : api_routes()) known.emplace_back(r.path);
  const std::string whole = std::string(path), versioned = "/v1" + whole;
  for (const std::string& full : {whole, versioned})
    if (std::ranges::find(known, full) != known.end()) return full;
  if (path.size() > longest_near) return {};
  const bool has_version = whole.starts_with("/v1/");
  const std::string found = near(has_version ? whole : versioned, known);
  return found.empty() ? near(whole, known) : found;
}

[[noreturn]] void refuse_path(const HttpRequest& r) {
  const std::string meant = meant_route(r.path);
  std::string remedy = fmt::format("did you mean {}?", meant), routes;
  for (const Route& known : api_routes())
    routes += fmt::format("{}{} {}", routes.empty() ? "" : ", ", known.method, known.path);
  if (meant.empty()) remedy = "the routes are " + routes;
  throw HttpError(404, fmt::format("[path] expected a route of this server, got {} {}; {}",
                                   in_quotes(r.method.substr(0, 16)), in_quotes(r.path), remedy));
}

}  // namespace

std::span<const Route> routes() { return all_routes; }

Admission::Admission(const ServeConfig& config, bool loopback) : access_(config.http, loopback) {}

const Route& Admission::route(const HttpRequest& r) const {
  // Before the route is looked up, so that clients without the key do not learn the routes.
  // The pages are the same for everybody and ask for the key themselves.
  if (r.path != "/health" && !is_page(r.path)) access_.check_key(r);
  std::string_view path = r.path;
  if (path.size() > model_prefix.size() && path.starts_with(model_prefix)) path = "/v1/models";
  const auto at = std::ranges::find(all_routes, path, &Route::path);
  if (at == all_routes.end()) refuse_path(r);
  if (r.method != at->method && !(r.is_head() && !at->reads_body()))
    throw HttpError(405, fmt::format("[method] expected {} for {}, got {}", at->method, at->path,
                                     in_quotes(r.method.substr(0, 16))));
  if (at->reads_body()) check_body_type(r);
  return *at;
}

}  // namespace hearth::inline serve
