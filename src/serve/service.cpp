#include "serve/service.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "board/pages.h"
#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

uint64_t fresh_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

}  // namespace

Service::Service(const ServeConfig& config, Post post, Post work, bool loopback)
    : admission(config, loopback),
      bodies(config.http.pending_bytes()),
      config_(config),
      post_(std::move(post)),
      work_(std::move(work)),
      created_(std::time(nullptr)) {}

void Service::open(ServedModel& model, std::string name) {
  model_ = &model;
  name_ = std::move(name);
  preparer_.emplace(config_, model, name_);
}

void Service::cancel_all() {
  cancelled_ = true;
  for (const auto& e : exchanges_) e->cancel();
}

// --- routes ---

const Route& Service::check_head(const HttpRequest& r) const {
  const Route& at = admission.route(r);
  if (closing_) throw HttpError(503, "[server] the server is shutting down");
  if (!model_ && at.id != Route::metrics && at.id != Route::page)
    throw HttpError(503, "[server] the model is still loading", "loading");
  return at;
}

HttpResponse Service::answer(const Route& at, const HttpRequest& r) const {
  switch (at.id) {
    case Route::health:
      return health();
    case Route::metrics:
      return {.body = metrics.text(model_ ? model_->engine().stats() : EngineStats(), name_,
                                   bodies.used()),
              .type = "text/plain; version=0.0.4; charset=utf-8"};
    case Route::models:
      return models(r);
    case Route::tokenizer_info:
      return {.body = dump_json(model_->tokenizer_info())};
    case Route::page:
      return page_response(r);
    case Route::info:
      return info_response({"chat"}, name_);
    default:
      fail("serve", "expected a route without a body, got {}", at.path);
  }
}

HttpResponse Service::health() const {
  if (const std::string failure = model_->engine().failure(); !failure.empty())
    throw HttpError(
        503,
        "[engine] the last step of the engine failed: " +
            (config_.http.api_key.empty() ? failure : std::string("see the server's stderr")),
        "engine_failed");
  return {.body = dump_json({{"status", "ok"}, {"model", name_}})};
}

ordered_json Service::model_json() const {
  return {{"id", name_},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "hearth"},
          {"max_model_len", model_->context()}};
}

HttpResponse Service::models(const HttpRequest& r) const {
  if (!r.path.starts_with(model_prefix))
    return {.body = dump_json({{"object", "list"}, {"data", ordered_json::array({model_json()})}})};
  preparer_->check_model(r.path.substr(model_prefix.size()));
  return {.body = dump_json(model_json())};
}

// --- completions ---

void Service::refuse_full(int64_t wanted) const {
  const int64_t most = config_.batch + config_.queue;
  if (sequences_ + wanted > most)
    throw HttpError(
        429,
        fmt::format(
            "[queue] the queue is full: at most {} sequences at once, got {} more; try again later",
            most, wanted));
}

void Service::check_queue(const Route& at) const {
  if (at.id == Route::completions || at.id == Route::chat) refuse_full(1);
}

Prepared Service::prepare(const Route& at, const HttpRequest& r,
                          const std::stop_token& stop) const {
  return preparer_->prepare(at.id, r, stop);
}

std::shared_ptr<Exchange> Service::begin(Prepared prepared, const std::shared_ptr<Client>& client) {
  if (auto* response = std::get_if<HttpResponse>(&prepared)) {
    client->respond(std::move(*response));
    return {};
  }
  if (cancelled_) throw HttpError(503, "[server] the server is shutting down");
  try {
    return start(std::get<PreparedCall>(std::move(prepared)), client);
  } catch (const Error& e) { throw HttpError(e.usage() ? 400 : 500, e.what()); }
}

std::shared_ptr<Exchange> Service::start(PreparedCall p, const std::shared_ptr<Client>& client) {
  CompletionCall& call = p.call;
  refuse_full(int64_t(p.prompts.size()) * int64_t(call.request.n));
  call.request.sampling.seed = call.seed ? *call.seed : fresh_seed();
  const ResponseHead head{
      .chat = call.chat,
      .id = fmt::format("{}-{:x}-{}", call.chat ? "chatcmpl" : "cmpl", created_, ++ids_),
      .model = name_,
      .created = std::time(nullptr)};
  const bool stream = call.stream;
  const auto exchange = std::make_shared<Exchange>(
      Exchange::Place{model_->engine(), model_->tokenizer(), metrics, post_, work_,
                      [this](Exchange& e) {
                        sequences_ -= e.choices();
                        exchanges_.erase(e.shared_from_this());
                      }},
      head, std::move(p), client);
  exchange->start();
  exchanges_.insert(exchange);
  sequences_ += exchange->choices();
  if (stream) client->begin_events();
  return exchange;
}

}  // namespace hearth::inline serve
