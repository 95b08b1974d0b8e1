#include "serve/service.h"

#include <algorithm>
#include <ctime>
#include <random>

#include "core/error.h"
#include "io/json.h"

namespace hearth {
namespace {

using nlohmann::ordered_json;

void respond_json(const std::shared_ptr<Client>& client, const ordered_json& j) {
  client->respond({.body = dump_json(j)});
}

uint64_t fresh_seed() {
  thread_local std::mt19937_64 random{std::random_device{}()};
  return random();
}

constexpr std::string_view model_prefix = "/v1/models/";

}  // namespace

Service::Service(const ServeConfig& config, Post post)
    : config_(config), post_(std::move(post)), created_(std::time(nullptr)) {}

void Service::open(ServedModel& model, std::string name) {
  model_ = &model;
  name_ = std::move(name);
}

void Service::cancel_all() {
  for (const auto& e : exchanges_) e->cancel();
}

// --- routes ---

const std::vector<Service::Route>& Service::routes() {
  static const std::vector<Route> all{
      {"GET", "/health", &Service::health},
      {"GET", "/metrics", &Service::metrics_text},
      {"GET", "/v1/models", &Service::models},
      {"GET", "/tokenizer_info", &Service::tokenizer_info},
      {"POST", "/tokenize", &Service::tokenize},
      {"POST", "/detokenize", &Service::detokenize},
      {"POST", "/v1/completions", &Service::complete},
      {"POST", "/v1/chat/completions", &Service::chat},
  };
  return all;
}

const Service::Route& Service::route(const HttpRequest& r) const {
  std::string_view path = r.path;
  if (path.starts_with(model_prefix)) path = "/v1/models";
  const auto at = std::ranges::find(routes(), path, &Route::path);
  if (at == routes().end())
    throw HttpError(404, fmt::format("[path] expected a route of this server, got {} {}",
                                     r.method.substr(0, 16), in_quotes(r.path)));
  if (r.method != at->method)
    throw HttpError(405, fmt::format("[method] expected {} for {}, got {}", at->method, at->path,
                                     r.method.substr(0, 16)));
  return *at;
}

void Service::check_head(const HttpRequest& r) const {
  // The key comes first: without it a client learns nothing of what there is.
  constexpr std::string_view scheme = "Bearer ";
  if (r.path != "/health" && !config_.api_key.empty()) {
    const bool bearer = r.authorization.starts_with(scheme);
    const std::string given = bearer ? r.authorization.substr(scheme.size()) : std::string();
    if (!same_secret(given, config_.api_key))
      throw HttpError(401, "[authorization] expected the server's key as Bearer, got " +
                               std::string(given.empty() ? "none" : "another"));
  }
  const Route& at = route(r);
  if (closing_) throw HttpError(503, "[server] expected a server that goes on, got one that stops");
  if (!model_ && at.handler != &Service::metrics_text)
    throw HttpError(503, "[server] expected a model, got one that is still loading", "loading");
}

std::shared_ptr<Exchange> Service::handle(const HttpRequest& r,
                                          const std::shared_ptr<Client>& client) {
  check_head(r);
  try {
    return (this->*route(r).handler)(r, client);
  } catch (const Error& e) {
    throw HttpError(e.usage() ? 400 : 500, e.what());
  } catch (const nlohmann::json::exception& e) {
    throw HttpError(400, fmt::format("[body] {}", e.what()));
  }
}

Service::Answer Service::health(const HttpRequest&, const std::shared_ptr<Client>& client) {
  if (const std::string failure = model_->engine().failure(); !failure.empty())
    throw HttpError(503,
                    "[engine] expected its last step to go well, got " +
                        (config_.api_key.empty() ? failure : std::string("what stderr says")),
                    "engine_failed");
  respond_json(client, {{"status", "ok"}, {"model", name_}});
  return {};
}

Service::Answer Service::metrics_text(const HttpRequest&, const std::shared_ptr<Client>& client) {
  client->respond({.body = metrics.text(model_ ? model_->engine().stats() : EngineStats(), name_),
                   .type = "text/plain; version=0.0.4; charset=utf-8"});
  return {};
}

ordered_json Service::model_json() const {
  return {{"id", name_},
          {"object", "model"},
          {"created", created_},
          {"owned_by", "hearth"},
          {"max_model_len", model_->context()}};
}

Service::Answer Service::models(const HttpRequest& r, const std::shared_ptr<Client>& client) {
  if (r.path.starts_with(model_prefix)) {
    check_model(r.path.substr(model_prefix.size()));
    respond_json(client, model_json());
  } else {
    respond_json(client, {{"object", "list"}, {"data", ordered_json::array({model_json()})}});
  }
  return {};
}

Service::Answer Service::tokenizer_info(const HttpRequest&, const std::shared_ptr<Client>& client) {
  respond_json(client, model_->tokenizer_info());
  return {};
}

Service::Answer Service::tokenize(const HttpRequest& r, const std::shared_ptr<Client>& client) {
  const TokenizeCall call = parse_tokenize_request(r.body, config_);
  check_model(call.model);
  const Tokenizer& t = model_->tokenizer();
  Tokens ids;
  if (!call.messages.empty())
    ids = model_->chat().encode(call.messages, {}, call.generation_prompt);
  else if (const auto special = t.special(call.prompt))
    ids = {*special};  // clients ask for the id of eos_token this way
  else
    ids = call.special ? t.encode_with_special(call.prompt) : t.encode(call.prompt);
  respond_json(client,
               {{"count", ids.size()}, {"max_model_len", model_->context()}, {"tokens", ids}});
  return {};
}

Service::Answer Service::detokenize(const HttpRequest& r, const std::shared_ptr<Client>& client) {
  const DetokenizeCall call = parse_detokenize_request(r.body, config_);
  check_model(call.model);
  respond_json(client, {{"prompt", tokens_text(call.tokens)}});
  return {};
}

Service::Answer Service::complete(const HttpRequest& r, const std::shared_ptr<Client>& client) {
  return begin(parse_completion_request(r.body, config_), client);
}

Service::Answer Service::chat(const HttpRequest& r, const std::shared_ptr<Client>& client) {
  return begin(parse_chat_request(r.body, config_), client);
}

// --- completions ---

Service::Answer Service::begin(CompletionCall call, const std::shared_ptr<Client>& client) {
  check_model(call.model);
  const int64_t wanted =
      int64_t(std::max<size_t>(call.prompts.size(), 1)) * int64_t(call.request.n);
  if (sequences_ + wanted > config_.batch + config_.queue)
    throw HttpError(429, fmt::format("[queue] expected at most {} sequences at once, got {} more",
                                     config_.batch + config_.queue, wanted));
  const ResponseHead head{
      .chat = call.chat,
      .id = fmt::format("{}-{:x}-{}", call.chat ? "chatcmpl" : "cmpl", created_, ++ids_),
      .model = name_,
      .created = std::time(nullptr)};
  const bool stream = call.stream;
  const auto exchange = std::make_shared<Exchange>(
      Exchange::Place{model_->engine(), model_->tokenizer(), metrics, post_,
                      [this](Exchange& e) {
                        sequences_ -= e.choices();
                        exchanges_.erase(e.shared_from_this());
                      }},
      head, prepare(std::move(call)), client);
  exchange->start();
  exchanges_.insert(exchange);
  sequences_ += exchange->choices();
  if (stream) client->begin_events();
  return exchange;
}

PreparedCall Service::prepare(CompletionCall call) const {
  PreparedCall p{.call = std::move(call)};
  SamplingSpec& s = p.call.request.sampling;
  s.seed = p.call.seed ? *p.call.seed : fresh_seed();
  if (p.call.chat) {
    model_->chat().add_stops(s);
    try {
      p.prompts.push_back(model_->chat().encode(p.call.messages, p.call.variables));
    } catch (const Error& e) {
      throw HttpError(400, e.what(), "invalid_value", "messages");  // the template refuses it
    }
    p.echoes.emplace_back();
  }
  for (const Prompt& prompt : p.call.prompts) {
    p.prompts.push_back(tokens_of(prompt));
    std::string echo;
    if (const auto* text = std::get_if<std::string>(&prompt); p.call.echo)
      echo = text ? *text : tokens_text(p.prompts.back());
    p.echoes.push_back(std::move(echo));
  }
  fit(p);
  return p;
}

Tokens Service::tokens_of(const Prompt& prompt) const {
  const Tokenizer& t = model_->tokenizer();
  const auto* text = std::get_if<std::string>(&prompt);
  // What cannot fit is not worth encoding.
  if (text && int64_t(text->size()) > most_prompt_tokens() * model_->longest_token())
    throw HttpError(400,
                    fmt::format("[prompt] expected at most {} tokens, got {} bytes of text",
                                most_prompt_tokens(), text->size()),
                    "context_length_exceeded", "prompt");
  Tokens ids = text ? t.encode(*text) : std::get<Tokens>(prompt);
  if (text && !ids.empty()) t.add_template(ids);  // Llama's bos
  if (!ids.empty()) return ids;
  // Nothing is the start of a text.
  const int32_t start = t.bos() >= 0 ? t.bos() : t.eos();
  if (start < 0) refuse("prompt", "expected at least one token, got none");
  return {start};
}

std::string Service::tokens_text(const Tokens& ids) const {
  try {
    return model_->tokenizer().decode(ids);
  } catch (const Error& e) { throw HttpError(400, e.what(), "invalid_value", "tokens"); }
}

int64_t Service::most_prompt_tokens() const {
  const int64_t context = model_->context(), limit = config_.max_prompt_tokens;
  return limit ? std::min(limit, context) : context;
}

// Each prompt and what it may become is within the context, all of them within the limits.
void Service::fit(PreparedCall& p) const {
  const int64_t context = model_->context(), most = most_prompt_tokens(), n = p.call.request.n;
  int64_t made = 0, echoed = 0;  // tokens of all choices
  for (const Tokens& prompt : p.prompts) {
    const int64_t size = int64_t(prompt.size());
    if (size > most)
      throw HttpError(400, fmt::format("[prompt] expected at most {} tokens, got {}", most, size),
                      "context_length_exceeded", p.call.chat ? "messages" : "prompt");
    const int64_t room = context - size;
    if (p.call.max_tokens.value_or(1) > room)
      throw HttpError(
          400,
          fmt::format("[max_tokens] expected prompt and completion within the context of {} "
                      "tokens, got {} and {}",
                      context, size, p.call.max_tokens.value_or(1)),
          "context_length_exceeded", "max_tokens");
    made += n * p.call.max_tokens.value_or(room);
    if (p.call.echo) echoed += n * size;
  }
  bound(p.call, made, echoed);
  p.call.request.sampling.max_tokens = p.call.max_tokens.value_or(-1);
}

// An answer is made whole before any of it goes out, and of a stream the engine keeps as much: what
// it lists, a token or an alternative to one, is bounded here.
void Service::bound(CompletionCall& call, int64_t made, int64_t echoed) const {
  const int64_t each = 1 + std::max<int64_t>(call.request.sampling.logprobs, 0);
  // New tokens there is room for.
  const int64_t listed = config_.max_answer_entries / each - echoed;
  const int64_t most = std::min(config_.max_new_tokens, listed), n = call.request.n;
  // Only a chat that did not say how many is cut; what was asked for is refused.
  if (!call.max_tokens && made > most) {
    call.max_tokens = std::max<int64_t>(1, most / n);
    made = n * *call.max_tokens;
  }
  if (made > config_.max_new_tokens)
    refuse("max_tokens", "expected prompts x n x max_tokens of at most {}, got {}",
           config_.max_new_tokens, made);
  if (made > listed)
    refuse(call.logprobs() ? "logprobs"
           : call.echo     ? "echo"
                           : "max_tokens",
           "expected (echoed + new tokens of all choices) x (logprobs + 1) of at most {}, got "
           "({} + {}) x {}",
           config_.max_answer_entries, echoed, made, each);
}

void Service::check_model(const std::string& asked) const {
  if (asked.empty() || asked == name_) return;
  throw HttpError(404, fmt::format("[model] expected {}, got {}", name_, in_quotes(asked)),
                  "model_not_found", "model");
}

}  // namespace hearth
