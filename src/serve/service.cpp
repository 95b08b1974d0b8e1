#include "serve/service.h"

#include <algorithm>
#include <ctime>

#include "board/pages.h"
#include "formats/json.h"
#include "http/url.h"
#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

}  // namespace

Service::Service(const ServeConfig& config, Post post, Post work, bool loopback)
    : admission(config, loopback),
      bodies(config.http.pending_bytes()),
      config_(config),
      post_(std::move(post)),
      work_(std::move(work)),
      created_(std::time(nullptr)) {}

void Service::open(std::span<const NamedModel> models) {
  for (const NamedModel& m : models) models_.push_back({.name = m.name, .model = *m.model});
  preparer_.emplace(config_, models);
}

void Service::cancel_all() {
  cancelled_ = true;
  for (const auto& e : exchanges_) e->cancel();
}

// --- routes ---

const Route& Service::check_head(const HttpRequest& r) const {
  const Route& at = admission.route(r);
  if (closing_) throw HttpError(503, "[server] the server is shutting down");
  if (models_.empty() && at.id != Route::metrics && at.id != Route::page)
    throw HttpError(503, "[server] the model is still loading", "loading");
  return at;
}

HttpResponse Service::answer(const Route& at, const HttpRequest& r) const {
  switch (at.id) {
    case Route::health:
      return health();
    case Route::metrics:
      return metrics();
    case Route::models:
      return models(r);
    case Route::tokenizer_info:
      return {.body = dump_json(models_[preparer_->find(query_value(r.query, "model").value_or(""))]
                                    .model.tokenizer_info())};
    case Route::page:
      return page_response(r);
    case Route::info:
      return info_response({"chat"}, names());
    default:
      fail("serve", "expected a route without a body, got {}", at.path);
  }
}

HttpResponse Service::health() const {
  for (const Served& m : models_)
    if (const std::string failure = m.model.engine().failure(); !failure.empty())
      throw HttpError(
          503,
          fmt::format("[engine] the last step of {} failed: {}",
                      models_.size() > 1 ? "the engine of " + m.name : "the engine",
                      config_.http.api_key.empty() ? failure : "see the server's stderr"),
          "engine_failed");
  return {.body = dump_json({{"status", "ok"}, {"model", names()}})};
}

HttpResponse Service::metrics() const {
  ServerReport r{.http = &counters, .body_bytes = bodies.used()};
  for (const Served& m : models_)
    r.models.push_back({m.name, m.model.engine().stats(), &m.metrics});
  if (sensors_) r.device = sensors_();
  return {.body = metrics_text(r), .type = "text/plain; version=0.0.4; charset=utf-8"};
}

std::string Service::names() const {
  std::string all;
  for (const Served& m : models_) all += (all.empty() ? "" : ", ") + m.name;
  return all;
}

ordered_json Service::model_json(const Served& m) const {
  return {{"id", m.name},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "hearth"},
          {"max_model_len", m.model.context()},
          {"chat_template", m.model.chat().has_template()}};
}

HttpResponse Service::models(const HttpRequest& r) const {
  if (r.path.starts_with(model_prefix)) {
    const std::string_view written = std::string_view(r.path).substr(model_prefix.size());
    const std::string name = percent_decoded(written).value_or(std::string(written));
    return {.body = dump_json(model_json(models_[preparer_->find(name)]))};
  }
  ordered_json all = ordered_json::array();
  for (const Served& m : models_) all.push_back(model_json(m));
  return {.body = dump_json({{"object", "list"}, {"data", all}})};
}

// --- completions ---

void Service::refuse_full(const Served& m, int64_t wanted) const {
  const int64_t most = config_.batch + config_.queue;
  if (m.sequences + wanted > most)
    throw HttpError(
        429,
        fmt::format(
            "[queue] the queue is full: at most {} sequences at once, got {} more; try again later",
            most, wanted));
}

void Service::check_queue(const Route& at) const {
  if (at.id != Route::completions && at.id != Route::chat) return;
  // The body, which names the model, was not read yet: there is room if any model has some.
  refuse_full(*std::ranges::min_element(models_, {}, &Served::sequences), 1);
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
  } catch (const Error& e) { throw http_error(e); }
}

std::shared_ptr<Exchange> Service::start(PreparedCall p, const std::shared_ptr<Client>& client) {
  CompletionCall& call = p.call;
  Served& m = models_[p.model];
  refuse_full(m, int64_t(p.prompts.size()) * int64_t(call.request.n));
  const ResponseHead head{
      .chat = call.chat,
      .id = fmt::format("{}-{:x}-{}", call.chat ? "chatcmpl" : "cmpl", created_, ++ids_),
      .model = m.name,
      .created = std::time(nullptr)};
  const bool stream = call.stream;
  const auto exchange = std::make_shared<Exchange>(
      Exchange::Place{m.model.engine(), m.model.tokenizer(), m.metrics, post_, work_,
                      [this, &m](Exchange& e) {
                        m.sequences -= e.choices();
                        exchanges_.erase(e.shared_from_this());
                      }},
      head, std::move(p), client);
  exchange->start();
  exchanges_.insert(exchange);
  m.sequences += exchange->choices();
  if (stream) client->begin_events();
  return exchange;
}

}  // namespace hearth::inline serve
