// HttpHandler: what a server does with the requests of its connections. It has no sockets.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>

#include "http/access.h"
#include "http/http.h"
#include "http/workers.h"

namespace hearth::inline http {

using Post = std::function<void(std::function<void()>)>;  // runs a task later on another thread

// How a handler reaches the threads of its server.
struct HttpPlace {
  Post post, work;  // to the network thread; to a worker
  std::function<void(double seconds, std::function<void()>)> after;  // later, on the network thread
  bool loopback = true;  // only this machine can reach the server
};

struct HttpCounters {
  int64_t connections = 0;           // currently open
  std::map<int, int64_t> responses;  // by status
};

// An answer that is still being produced, such as an event stream.
class OpenAnswer {
 public:
  virtual ~OpenAnswer() = default;
  virtual void leave() = 0;  // the client has left: send nothing more
};

// Starts the answer to a prepared request. Nothing is returned if the client already has its
// answer.
using BeginAnswer = std::function<std::shared_ptr<OpenAnswer>(const std::shared_ptr<Client>&)>;

// Everything except prepare() runs on the network thread. Errors are thrown as HttpError.
class HttpHandler {
 public:
  virtual ~HttpHandler() = default;
  virtual const AccessCheck& access() const = 0;
  virtual HttpCounters& counters() = 0;
  virtual ByteBudget& bodies() = 0;  // received, waiting for a worker, or being prepared

  // Checks that need no body.
  virtual void check_head(const HttpRequest&) const = 0;
  // For a whole request: the answer, or nothing if a worker has to prepare it.
  virtual std::optional<HttpResponse> answer(const HttpRequest&) = 0;
  // The slow part of a request, on any thread. A stop request ends it early.
  virtual BeginAnswer prepare(const HttpRequest&, const std::stop_token&) = 0;

  virtual void close() = 0;  // the server shuts down: new requests get 503; running ones continue
  virtual bool closing() const = 0;
  virtual void cancel_all() = 0;  // ends the running ones
  virtual int64_t running() const = 0;
};

}  // namespace hearth::inline http
