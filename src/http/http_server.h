// HttpServer: listens on an address and runs all connections in one thread, with a few workers
// beside it. What it answers is up to its handler.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "http/handler.h"

namespace hearth::inline http {

struct HttpServerSpec {
  std::string command;  // named in errors
  std::string exposes;  // what anybody could do without a key: "use the model"
  std::string remedy = "choose another --port or --host";  // if the port is taken
  // Shut down after SIGTERM or SIGINT: running requests may finish within drain_seconds; a second
  // signal ends the server at once. `signalled` is called first, on the network thread.
  bool handles_signals = true;
  std::function<void()> signalled = {};
};

class HttpServer {
 public:
  using MakeHandler = std::function<std::unique_ptr<HttpHandler>(const HttpPlace&)>;
  // Listens at once and owns the handler. Throws if it cannot listen.
  HttpServer(const HttpConfig&, const HttpServerSpec&, const MakeHandler&);
  ~HttpServer();

  std::string url() const;
  void run();   // answers requests until stop() or the end of a shutdown
  void stop();  // thread-safe

 private:
  class Loop;
  std::unique_ptr<Loop> loop_;
};

}  // namespace hearth::inline http
