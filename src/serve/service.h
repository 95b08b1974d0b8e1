// Service: the routes. It takes requests, checks them against the limits and answers at once or
// hands them to the engine. One thread, the loop's; it knows no sockets.
#pragma once

#include <set>

#include "serve/exchange.h"
#include "serve/model.h"

namespace hearth {

class Service {
 public:
  Service(const ServeConfig&, Post);

  // Until then every route but /metrics is 503.
  void open(ServedModel&, std::string name);
  void close() { closing_ = true; }  // new requests are 503; what runs goes on
  bool closing() const { return closing_; }
  void cancel_all();
  int64_t running() const { return int64_t(exchanges_.size()); }

  // What can be refused before the body is read; throws HttpError.
  void check_head(const HttpRequest&) const;
  // The answer goes to the client, now or later; null when it has gone already. Throws HttpError.
  std::shared_ptr<Exchange> handle(const HttpRequest&, const std::shared_ptr<Client>&);

  Metrics metrics;

 private:
  using Handler = std::shared_ptr<Exchange> (Service::*)(const HttpRequest&,
                                                         const std::shared_ptr<Client>&);
  struct Route {
    const char *method, *path;
    Handler handler;
  };
  static const std::vector<Route>& routes();
  const Route& route(const HttpRequest&) const;

  using Answer = std::shared_ptr<Exchange>;
  Answer health(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer metrics_text(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer models(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer tokenize(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer detokenize(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer tokenizer_info(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer complete(const HttpRequest&, const std::shared_ptr<Client>&);
  Answer chat(const HttpRequest&, const std::shared_ptr<Client>&);

  Answer begin(CompletionCall, const std::shared_ptr<Client>&);
  PreparedCall prepare(CompletionCall) const;
  Tokens tokens_of(const Prompt&) const;
  std::string tokens_text(const Tokens&) const;
  int64_t most_prompt_tokens() const;
  void fit(PreparedCall&) const;
  void bound(CompletionCall&, int64_t made, int64_t echoed) const;
  void check_model(const std::string& asked) const;
  nlohmann::ordered_json model_json() const;

  const ServeConfig config_;
  const Post post_;
  const int64_t created_;
  ServedModel* model_ = nullptr;
  std::string name_;
  bool closing_ = false;
  std::set<std::shared_ptr<Exchange>> exchanges_;
  int64_t sequences_ = 0;  // of exchanges_
  uint64_t ids_ = 0;
};

}  // namespace hearth
