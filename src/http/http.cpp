#include "http/http.h"

#include <nlohmann/json.hpp>

#include "sys/hash/hash.h"

namespace hearth::inline http {
namespace {

const char* error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 429:
      return "rate_limit_error";
    default:
      return status < 500 ? "invalid_request_error" : "server_error";
  }
}

const char* default_code(int status) {
  switch (status) {
    case 401:
      return "invalid_api_key";
    case 404:
      return "not_found";
    case 405:
      return "method_not_allowed";
    case 408:
      return "timeout";
    case 413:
      return "body_too_large";
    case 429:
      return "queue_full";
    case 431:
      return "header_too_large";
    case 503:
      return "unavailable";
    default:
      return status < 500 ? "invalid_request" : "internal_error";
  }
}

}  // namespace

HttpError http_error(const Error& e) {
  const std::string text = e.what();  // "[field] what"
  if (!e.usage()) return HttpError(500, text);
  return HttpError(400, text, "invalid_value", text.substr(1, text.find(']') - 1));
}

std::string error_body(const HttpError& e) {
  nlohmann::ordered_json error{{"message", e.what()},
                               {"type", error_type(e.status)},
                               {"param", nullptr},
                               {"code", e.code.empty() ? default_code(e.status) : e.code}};
  if (!e.param.empty()) error["param"] = e.param;
  return nlohmann::ordered_json{{"error", std::move(error)}}.dump(
      -1, ' ', false, nlohmann::json::error_handler_t::replace);
}

HttpResponse error_response(const HttpError& e) {
  HttpResponse r{.status = e.status, .body = error_body(e)};
  if (e.status == 429 || e.status == 503) r.headers.emplace_back("Retry-After", "1");
  if (e.status == 401) r.headers.emplace_back("WWW-Authenticate", "Bearer");
  return r;
}

bool same_secret(std::string_view a, std::string_view b) {
  // Hashes have equal length for any input and do not reveal how much of a secret matches.
  const std::string x = sha256_hex(to_bytes(a)), y = sha256_hex(to_bytes(b));
  unsigned char different = 0;
  for (size_t i = 0; i < x.size(); ++i) different |= static_cast<unsigned char>(x[i] ^ y[i]);
  return different == 0;
}

}  // namespace hearth::inline http
