// Heads of HTTP requests: Boost.Beast's parser with the server's limits, then every check that a
// connection makes before it reads a body. The first byte chooses the server's settings.
#include "fuzz.h"

#include <boost/asio/buffer.hpp>

#include "http/http_head.h"
#include "serve/admission.h"

namespace {

hearth::ServeConfig settings(uint8_t choice) {
  hearth::ServeConfig c;
  c.http.max_header_bytes = 4096;
  if (choice & 1) c.http.api_key = "sk-key";
  if (choice & 2) c.http.cors_origin = choice & 4 ? "*" : "https://example.org";
  if (choice & 8) c.http.allowed_host = {"model.example.org"};
  return c;
}

// What a connection does with a head that is whole: the route, null for a preflight. Throws
// HttpError.
const hearth::Route* decide(std::string_view bytes, const hearth::ServeConfig& config,
                            bool loopback) {
  hearth::RequestParser parser;
  hearth::set_limits(parser, config.http);
  boost::system::error_code e;
  parser.put(boost::asio::buffer(bytes.data(), bytes.size()), e);
  if (e && e != boost::beast::http::error::need_more) throw hearth::read_error(e);
  if (!parser.is_header_done()) throw hearth::HttpError(400, "the head ends early");
  const hearth::RequestHead head = hearth::read_head(parser);
  const hearth::HttpRequest& r = head.request;
  const hearth::Admission admission(config, loopback);
  admission.check_browser(r);
  if (admission.is_preflight(r)) return nullptr;
  const hearth::Route& route = admission.route(r);

  using boost::beast::http::field;
  using hearth::fuzz::require;
  const auto& fields = parser.get();
  require(r.path.find('?') == std::string::npos);
  require(r.method == route.method || (r.method == "HEAD" && !route.reads_body()));
  // A body has one length, whoever reads it.
  require(fields.count(field::transfer_encoding) + fields.count(field::content_length) <= 1);
  require(fields.count(field::transfer_encoding) == (parser.chunked() ? 1u : 0u));
  require(!head.length || *head.length <= uint64_t(config.http.max_body_bytes));
  require(!head.http11 || fields.count(field::host) == 1);
  // No page of another site gets through, and a key that is asked for was given.
  if (loopback && config.http.cors_origin.empty() && !r.origin.empty())
    require(r.origin.find(':') != std::string::npos && r.origin.size() > r.host.size());
  const bool open = route.id == hearth::Route::health || route.id == hearth::Route::page;
  if (!config.http.api_key.empty() && !open)
    require(r.authorization == "Bearer " + config.http.api_key);
  return &route;
}

}  // namespace

int fuzz_http_head(const uint8_t* data, size_t size) {
  if (size == 0) return 0;
  const std::string_view bytes = hearth::fuzz::text_of(data + 1, size - 1);
  return hearth::fuzz::taken([&] {
    try {
      decide(bytes, settings(data[0]), !(data[0] & 16));
    } catch (const hearth::HttpError& e) {
      hearth::fuzz::require(e.status >= 400 && e.status < 500);
      hearth::fuzz::require(std::string_view(e.what()).find('\n') == std::string_view::npos);
      hearth::fail("http", "expected a request, got one that is refused");
    }
  });
}

hearth::fuzz::Seeds seeds_http_head() {
  using namespace std::string_literals;
  return {
      "\0POST /v1/completions HTTP/1.1\r\nHost: localhost:8080\r\nContent-Type: "
      "application/json\r\n"
      "Content-Length: 29\r\n\r\n"s,
      "\0POST /tokenize HTTP/1.1\r\nHost: [::1]:8080\r\nTransfer-Encoding: chunked\r\n"
      "Content-Type: application/json; charset=utf-8\r\nExpect: 100-continue\r\n\r\n"s,
      "\1GET /v1/models?x=1 HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer sk-key\r\n"
      "Connection: keep-alive\r\n\r\n"s,
      "\2OPTIONS /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nOrigin: "
      "https://example.org\r\n\r\n"s,
      "\16POST /v1/chat/completions HTTP/1.1\r\nHost: MODEL.example.org:1\r\nOrigin: http://a\r\n"
      "Content-Type: application/json\r\nContent-Encoding: identity\r\n\r\n"s,
      "\0HEAD /health HTTP/1.0\r\n\r\n"s,
      "\20GET /metrics HTTP/1.1\r\nHost: 10.0.0.1:8080\r\nOrigin: http://other\r\n\r\n"s};
}
