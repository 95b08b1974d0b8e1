// Replaces the HTTP server in a build without Boost.Beast.
#include "http/http_server.h"
#include "sys/error.h"

namespace hearth::inline http {

class HttpServer::Loop {};

HttpServer::HttpServer(const HttpConfig&, const HttpServerSpec& spec, const MakeHandler&) {
  fail(spec.command,
       "this build has no server, because Boost.Beast was missing: install libboost-dev (1.74 or "
       "later) and build again");
}
HttpServer::~HttpServer() = default;
std::string HttpServer::url() const { return {}; }
void HttpServer::run() {}
void HttpServer::stop() {}

}  // namespace hearth::inline http
