#include "http/http_head.h"

#include <algorithm>

namespace hearth::inline http {
namespace {

namespace beast_http = boost::beast::http;
using beast_http::field;

std::string as_string(boost::beast::string_view s) { return {s.data(), s.size()}; }

[[noreturn]] void refuse_head(const std::string& message) { throw HttpError(400, message); }

// Transfer-Encoding must be "chunked" or absent. A proxy in front may interpret other codings,
// several codings, or an additional length differently: the body for one would be the next request
// for the other.
void check_framing(const beast_http::fields& head, bool http11) {
  const size_t encodings = head.count(field::transfer_encoding);
  const size_t lengths = head.count(field::content_length);
  if (encodings > 0) {
    if (!http11) refuse_head("[transfer-encoding] HTTP/1.0 requests must not have one");
    if (encodings > 1 || !boost::beast::iequals(head[field::transfer_encoding], "chunked"))
      refuse_head("[transfer-encoding] expected only chunked, got another coding or several");
    if (lengths > 0) refuse_head("[content-length] must not be combined with Transfer-Encoding");
  }
  const auto length = head[field::content_length];
  if (lengths > 1 ||
      std::any_of(length.begin(), length.end(), [](char c) { return c < '0' || c > '9'; }))
    refuse_head("[content-length] expected one number, got several or other text");
}

void check_host_field(const beast_http::fields& head, bool http11) {
  const size_t hosts = head.count(field::host);
  if (hosts > 1) refuse_head("[host] expected one Host header, got several");
  if (http11 && head[field::host].empty())
    refuse_head("[host] expected a Host header with HTTP/1.1, got none");
}

}  // namespace

void set_limits(RequestParser& parser, const HttpConfig& config) {
  parser.header_limit(uint32_t(config.max_header_bytes));
  parser.body_limit(uint64_t(config.max_body_bytes));
}

RequestHead read_head(const RequestParser& parser) {
  const auto& head = parser.get();
  if (head.version() != 10 && head.version() != 11)
    refuse_head("[http] expected HTTP/1.0 or HTTP/1.1, got another version");
  const bool http11 = head.version() == 11;
  check_framing(head, http11);
  check_host_field(head, http11);
  for (const field single : {field::origin, field::authorization, field::content_type})
    if (head.count(single) > 1)
      refuse_head(
          "[http] expected Origin, Authorization and Content-Type at most once each, got one "
          "twice");
  const std::string target = as_string(head.target());
  const size_t mark = target.find('?');
  RequestHead h{
      .request = {.method = as_string(head.method_string()),
                  .path = target.substr(0, mark),
                  .query = mark == target.npos ? "" : target.substr(mark + 1),
                  .authorization = as_string(head[field::authorization]),
                  .host = as_string(head[field::host]),
                  .origin = as_string(head[field::origin]),
                  .content_type = as_string(head[field::content_type]),
                  .content_encoding = as_string(head[field::content_encoding]),
                  .if_none_match = as_string(head[field::if_none_match]),
                  .accept_encoding = as_string(head[field::accept_encoding]),
                  .last_event_id = as_string(head["Last-Event-ID"])},
      .http11 = http11,
      .expects_continue = http11 && boost::beast::iequals(head[field::expect], "100-continue")};
  if (const auto length = parser.content_length()) h.length = *length;
  return h;
}

HttpError read_error(const boost::system::error_code& e) {
  if (e == beast_http::error::body_limit)
    return HttpError(413, "[body] the body exceeds the server's limit, --max-body-bytes");
  if (e == beast_http::error::header_limit || e == beast_http::error::buffer_overflow)
    return HttpError(431, "[header] the header exceeds the server's limit, --max-header-bytes");
  return HttpError(400, "[http] this is not a valid HTTP request: " + e.message());
}

}  // namespace hearth::inline http
