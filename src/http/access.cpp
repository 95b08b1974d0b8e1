#include "http/access.h"

#include <algorithm>

#include "formats/json.h"

namespace hearth::inline http {

std::string lower_case(std::string_view s) {
  std::string lower(s);
  for (char& c : lower)
    if (c >= 'A' && c <= 'Z') c = char(c - 'A' + 'a');
  return lower;
}

namespace {

// Removes the port from "name:80" and "[::1]:80". Any other suffix stays, so that the result
// matches no allowed name.
std::string_view without_port(std::string_view host) {
  const size_t colon = host.rfind(':');
  if (colon == host.npos || host.find(']', colon) != host.npos) return host;
  const std::string_view port = host.substr(colon + 1);
  const bool digits = std::ranges::all_of(port, [](char c) { return c >= '0' && c <= '9'; });
  return digits && port.size() <= 5 ? host.substr(0, colon) : host;
}

}  // namespace

// A server that other machines reach is called by names it cannot know unless they are configured.
AccessCheck::AccessCheck(const HttpConfig& config, bool loopback)
    : config_(config), checks_host_(loopback || !config.allowed_host.empty()) {}

void AccessCheck::check_browser(const HttpRequest& r) const {
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

void AccessCheck::check_host(const HttpRequest& r) const {
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

bool AccessCheck::is_preflight(const HttpRequest& r) const {
  return !config_.cors_origin.empty() && r.method == "OPTIONS";
}

void AccessCheck::check_key(const HttpRequest& r) const {
  constexpr std::string_view scheme = "Bearer ";
  if (config_.api_key.empty()) return;
  const bool bearer = r.authorization.starts_with(scheme);
  const std::string given = bearer ? r.authorization.substr(scheme.size()) : std::string();
  if (!same_secret(given, config_.api_key))
    throw HttpError(401, "[authorization] expected the server's key as a Bearer token, got " +
                             std::string(given.empty() ? "none" : "a different one"));
}

}  // namespace hearth::inline http
