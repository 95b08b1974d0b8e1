// Service: implements the routes. It answers directly, or prepares a request on a worker and
// submits it to the engine of its model. It has no sockets.
#pragma once

#include <deque>
#include <optional>
#include <set>

#include "http/workers.h"
#include "serve/completion_stream.h"
#include "serve/preparer.h"

namespace hearth::inline serve {

// Everything except prepare() runs on the network thread.
class Service {
 public:
  // `work` runs a task on a worker. `loopback`: only this machine can reach the server.
  Service(const ServeConfig&, Post post, Post work, bool loopback = true);

  // Before this call every route except /metrics answers 503. The models, at least one, must
  // outlive the service.
  void open(std::span<const NamedModel>);
  // The last reading of the device's sensors, for /metrics. Must return at once.
  void set_sensors(std::function<std::optional<DeviceState>()> last) { sensors_ = std::move(last); }
  void close() { closing_ = true; }  // new requests get 503; running ones continue
  bool closing() const { return closing_; }
  void cancel_all();  // requests still being prepared get 503
  int64_t running() const { return int64_t(exchanges_.size()); }

  // Checks that need no body: throws HttpError.
  const Route& check_head(const HttpRequest&) const;
  // For a route that reads a body, before a worker spends time on it: 429 if the queue is full.
  void check_queue(const Route&) const;
  // For a route without a body. Throws HttpError.
  HttpResponse answer(const Route&, const HttpRequest&) const;
  // For a route with a body: prepare() on any thread, then begin() with its result. Both throw
  // HttpError. Without an exchange the client already has its answer; else it gets it later.
  Prepared prepare(const Route&, const HttpRequest&, const std::stop_token& = {}) const;
  std::shared_ptr<Exchange> begin(Prepared, const std::shared_ptr<Client>&);

  const Admission admission;
  ByteBudget bodies;  // received, waiting for a worker, or being prepared
  HttpCounters counters;

 private:
  struct Served {
    const std::string& name;
    ServedModel& model;
    ModelMetrics metrics = {};
    int64_t sequences = 0;  // of its exchanges
  };
  HttpResponse health() const;
  HttpResponse metrics() const;
  HttpResponse models(const HttpRequest&) const;
  nlohmann::ordered_json model_json(const Served&) const;
  std::string names() const;
  void refuse_full(const Served&, int64_t wanted) const;
  std::shared_ptr<Exchange> start(PreparedCall, const std::shared_ptr<Client>&);

  const ServeConfig config_;
  const Post post_, work_;
  const int64_t created_;
  std::deque<Served> models_;  // empty while they are loading
  std::optional<Preparer> preparer_;
  std::function<std::optional<DeviceState>()> sensors_;
  bool closing_ = false, cancelled_ = false;
  std::set<std::shared_ptr<Exchange>> exchanges_;
  uint64_t ids_ = 0;
};

}  // namespace hearth::inline serve
