// Service: what the routes do. It answers at once, or prepares a request on a worker and hands it
// to the engine. It knows no sockets.
#pragma once

#include <optional>
#include <set>

#include "serve/exchange.h"
#include "serve/prepare.h"
#include "serve/workers.h"

namespace hearth {

// Everything but prepare() belongs to the loop's thread.
class Service {
 public:
  // `work` runs a task on a worker. `loopback`: only this machine reaches the server.
  Service(const ServeConfig&, Post post, Post work, bool loopback = true);

  // Until then every route but /metrics is 503.
  void open(ServedModel&, std::string name);
  void close() { closing_ = true; }  // new requests are 503; what runs goes on
  bool closing() const { return closing_; }
  void cancel_all();  // and what is still being prepared will be 503
  int64_t running() const { return int64_t(exchanges_.size()); }

  // What can be refused before the body is read: throws HttpError.
  const Route& check_head(const HttpRequest&) const;
  // For a route that reads a body, before a worker spends time on it: 429 when the queue is full.
  void check_queue(const Route&) const;
  // For a route that reads no body. Throws HttpError.
  HttpResponse answer(const Route&, const HttpRequest&) const;
  // For a route that reads its body: prepare() on any thread, then begin() with what it returned.
  // Both throw HttpError. The client hears its answer now or later; without an exchange it has it.
  Prepared prepare(const Route&, const HttpRequest&, const std::stop_token& = {}) const;
  std::shared_ptr<Exchange> begin(Prepared, const std::shared_ptr<Client>&);

  const Admission admission;
  ByteBudget bodies;  // received, waiting for a worker, or being prepared
  Metrics metrics;

 private:
  HttpResponse health() const;
  HttpResponse models(const HttpRequest&) const;
  nlohmann::ordered_json model_json() const;
  void refuse_full(int64_t wanted) const;
  std::shared_ptr<Exchange> start(PreparedCall, const std::shared_ptr<Client>&);

  const ServeConfig config_;
  const Post post_, work_;
  const int64_t created_;
  ServedModel* model_ = nullptr;
  std::string name_;
  std::optional<Preparer> preparer_;
  bool closing_ = false, cancelled_ = false;
  std::set<std::shared_ptr<Exchange>> exchanges_;
  int64_t sequences_ = 0;  // of exchanges_
  uint64_t ids_ = 0;
};

}  // namespace hearth
