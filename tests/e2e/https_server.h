// A small HTTPS server inside the test, which decides its replies, including cuts and hangs.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

namespace hearth {

struct ServerRequest {
  std::string path;
  std::map<std::string, std::string> headers;  // names in lower case
};

struct ServerReply {
  int status = 200;
  std::vector<std::string> headers;
  std::string body;
  int64_t cut_after = -1;  // bytes of the body, then the connection is closed
  bool hang = false;       // then send nothing more and keep the connection open
  bool tells_length = true;
};

class HttpsServer {
 public:
  virtual ~HttpsServer() = default;
  virtual int port() const = 0;
};

// Listens on 127.0.0.1 with the certificate and key of a file; `answer` is called for one
// connection at a time. nullptr if the tests were built without OpenSSL.
std::unique_ptr<HttpsServer> start_https_server(
    const std::filesystem::path& certificate,
    std::function<ServerReply(const ServerRequest&)> answer);

}  // namespace hearth
