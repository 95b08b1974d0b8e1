// Tests built without OpenSSL.
#include "e2e/https_server.h"

namespace hearth {

std::unique_ptr<HttpsServer> start_https_server(const std::filesystem::path&,
                                                std::function<ServerReply(const ServerRequest&)>) {
  return nullptr;
}

}  // namespace hearth
