#include "serve/preparer.h"

#include <algorithm>

#include "formats/json.h"
#include "serve/render.h"
#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

HttpResponse json_response(const ordered_json& j) { return {.body = dump_json(j)}; }

std::string tokens_text(const ServedModel& model, const Tokens& ids) {
  try {
    return model.tokenizer().decode(ids);
  } catch (const Error& e) { throw HttpError(400, e.what(), "invalid_value", "tokens"); }
}

Tokens text_tokens(const Tokenizer& t, const std::string& text, const TextEncoding& how) {
  const bool special = how.special.value_or(false);
  Tokens ids = special ? t.encode_with_special(text) : t.encode(text);
  if (!how.around || ids.empty()) return ids;
  // A prompt that a client has rendered with a chat template has its bos.
  special ? t.complete_template(ids) : t.add_template(ids);
  return ids;
}

void check_stop(const std::stop_token& stop) {
  if (stop.stop_requested()) throw HttpError(499, "the client has disconnected");
}

}  // namespace

Preparer::Preparer(const ServeConfig& config, std::span<const NamedModel> models)
    : config_(config), models_(models) {}

size_t Preparer::find(const std::string& name) const {
  if (name.empty()) return 0;
  const auto at = std::ranges::find(models_, name, &NamedModel::name);
  if (at != models_.end()) return size_t(at - models_.begin());
  std::string known;
  for (const NamedModel& m : models_) known += (known.empty() ? "" : " or ") + m.name;
  throw HttpError(404, fmt::format("[model] expected {}, got {}", known, in_quotes(name)),
                  "model_not_found", "model");
}

Prepared Preparer::prepare(Route::Id route, const HttpRequest& r,
                           const std::stop_token& stop) const {
  try {
    return dispatch(route, r, stop);
  } catch (const Error& e) { throw http_error(e); } catch (const nlohmann::json::exception& e) {
    throw HttpError(400, fmt::format("[body] {}", e.what()));
  }
}

Prepared Preparer::dispatch(Route::Id route, const HttpRequest& r,
                            const std::stop_token& stop) const {
  check_stop(stop);
  if (route == Route::tokenize) return tokenize(r);
  if (route == Route::detokenize) return detokenize(r);
  const auto parse = route == Route::chat ? parse_chat_request : parse_completion_request;
  const auto defaults = [this](const std::string& name) {
    return models_[find(name)].model->defaults();
  };
  PreparedCall p = complete(parse(r.body, config_, defaults), stop);
  p.arrived = r.arrived;
  return p;
}

// --- tokens and text ---

HttpResponse Preparer::tokenize(const HttpRequest& r) const {
  TokenizeCall call = parse_tokenize_request(r.body, config_);
  const ServedModel& model = *models_[find(call.model)].model;
  const Tokenizer& t = model.tokenizer();
  Tokens ids;
  if (!call.messages.empty()) {
    give_tools(model, call);
    ids = chat_tokens(model, call, INT64_MAX);
  } else if (const auto id = t.special(call.prompt); id && !call.text.special) {
    ids = {*id};  // clients look up the id of eos_token this way
  } else {
    ids = text_tokens(t, call.prompt, call.text);
  }
  return json_response(
      {{"count", ids.size()}, {"max_model_len", model.context()}, {"tokens", ids}});
}

HttpResponse Preparer::detokenize(const HttpRequest& r) const {
  const DetokenizeCall call = parse_detokenize_request(r.body, config_);
  const ServedModel& model = *models_[find(call.model)].model;
  return json_response({{"prompt", tokens_text(model, call.tokens)}});
}

// --- completions ---

PreparedCall Preparer::complete(CompletionCall call, const std::stop_token& stop) const {
  check_stop(stop);
  PreparedCall p;
  p.model = find(call.model);
  const ServedModel& model = *models_[p.model].model;
  SamplingSpec& s = call.request.sampling;
  if (!call.chat && !s.ignore_eos)
    s.stop_ids.insert(s.stop_ids.end(), model.ends().begin(), model.ends().end());
  if (call.chat) {
    model.chat().add_stops(s);
    use_tools(model, call);
    p.prompts.push_back(chat_tokens(model, call, most_prompt_bytes(model)));
    p.echoes.emplace_back();
  }
  constrain(model, call);
  for (const Prompt& prompt : call.prompts) {
    check_stop(stop);
    p.prompts.push_back(tokens_of(model, prompt, call.text));
    std::string echo;
    if (const auto* text = std::get_if<std::string>(&prompt); call.echo)
      echo = text ? *text : tokens_text(model, p.prompts.back());
    p.echoes.push_back(std::move(echo));
  }
  // Keep only one copy of a long text.
  call.prompts = {}, call.messages = {}, call.variables = {}, call.constraint = {};
  call.tools.tools = {};
  p.call = std::move(call);
  fit(model, p);
  if (p.call.stream && p.call.echo) bound_echoes(p.call, p.echoes);
  return p;
}

// Gives the tools to the chat template. Returns how an answer writes calls of them; without tools,
// none.
ToolFormat Preparer::give_tools(const ServedModel& model, Conversation& c) const {
  const bool spoken = std::ranges::any_of(c.messages, [](const ordered_json& m) {
    return m.at("role") == "tool" || m.contains("tool_calls");
  });
  if (!c.tools && !spoken) return ToolFormat::none;
  const ToolFormat format = model.chat().tool_format();
  if (format == ToolFormat::none)
    refuse(c.tools ? "tools" : "messages",
           "this model has no chat template with tools, or one that writes calls in an unknown "
           "format");
  if (!c.tools) return ToolFormat::none;
  if (!c.variables.is_object()) c.variables = ordered_json::object();
  c.variables["tools"] = c.tools.tools;
  return format;
}

// An answer that must call a tool is constrained to a call; one that may call a strict tool, to the
// tools wherever it begins a call.
void Preparer::use_tools(const ServedModel& model, CompletionCall& call) const {
  call.tool_format = give_tools(model, call);
  const bool required = call.tools.choice == ToolUse::Choice::required;
  if (!required && !call.tools.strict()) return;
  const ToolForm form = tool_form(call.tool_format);
  ordered_json asked{{"key", form.key}, {"tools", call.tools.callable()}};
  call.constraint = {.kind = ConstraintSpec::Kind::tools, .where = "tools"};
  for (const std::string_view mark : {form.opening, form.closing})
    if (!mark.empty()) call.constraint.marks.emplace_back(mark);
  if (!required)
    asked["text"] = {
        {"opening", form.opening}, {"closing", form.closing}, {"parallel", call.tools.parallel}};
  else if (!form.closing.empty())
    call.constraint.before = fmt::format("{}{}", form.opening, form.space),
    call.constraint.after = fmt::format("{}{}", form.space, form.closing);
  call.constraint.text = asked.dump();
}

void Preparer::constrain(const ServedModel& model, CompletionCall& call) const {
  try {
    call.request.constraint = model.constraints().make(call.constraint);
  } catch (const Error& e) {
    throw HttpError(e.usage() ? 400 : 500, e.what(), "invalid_value", call.constraint.where);
  }
}

Tokens Preparer::chat_tokens(const ServedModel& model, const Conversation& c,
                             int64_t max_bytes) const {
  try {
    return model.chat().encode(c.messages, c.variables, c.end, max_bytes);
  } catch (const Error& e) {
    throw HttpError(400, e.what(), "invalid_value", "messages");  // the template rejects it
  }
}

Tokens Preparer::tokens_of(const ServedModel& model, const Prompt& prompt,
                           const TextEncoding& how) const {
  const Tokenizer& t = model.tokenizer();
  const auto* text = std::get_if<std::string>(&prompt);
  // Text that cannot fit is not encoded.
  if (text && int64_t(text->size()) > most_prompt_bytes(model))
    throw HttpError(400,
                    fmt::format("[prompt] expected at most {} tokens, got {} bytes of text",
                                most_prompt_tokens(model), text->size()),
                    "context_length_exceeded", "prompt");
  const Tokens ids = text ? text_tokens(t, *text, how) : std::get<Tokens>(prompt);
  if (!ids.empty()) return ids;
  // An empty prompt starts a new text.
  const int32_t start = t.bos() >= 0 ? t.bos() : t.eos();
  if (start < 0)
    refuse("prompt",
           "expected at least one token: this model has no bos or eos to start a text with");
  return {start};
}

int64_t Preparer::most_prompt_tokens(const ServedModel& model) const {
  const int64_t context = model.context(), limit = config_.max_prompt_tokens;
  return limit ? std::min(limit, context) : context;
}

int64_t Preparer::most_prompt_bytes(const ServedModel& model) const {
  return most_prompt_tokens(model) * model.longest_token();
}

// Checks that each prompt and its completion fit the context, and that all of them fit the limits.
void Preparer::fit(const ServedModel& model, PreparedCall& p) const {
  const int64_t context = model.context(), most = most_prompt_tokens(model);
  const int64_t n = p.call.request.n;
  // Without max_tokens: the model's default, at least min_tokens, or the rest of the context.
  SamplingSpec& s = p.call.request.sampling;
  const int64_t usual = s.max_tokens < 0 ? -1 : std::max(s.max_tokens, s.min_tokens);
  int64_t made = 0, echoed = 0;  // tokens over all choices
  for (const Tokens& prompt : p.prompts) {
    const int64_t size = int64_t(prompt.size());
    if (size > most)
      throw HttpError(400, fmt::format("[prompt] expected at most {} tokens, got {}", most, size),
                      "context_length_exceeded", p.call.chat ? "messages" : "prompt");
    const int64_t room = context - size;
    const char* field = p.call.max_tokens ? "max_tokens" : p.call.chat ? "messages" : "prompt";
    if (p.call.max_tokens.value_or(1) > room)
      throw HttpError(400,
                      fmt::format("[{}] expected prompt and completion within the context of {} "
                                  "tokens, got {} and {}",
                                  field, context, size, p.call.max_tokens.value_or(1)),
                      "context_length_exceeded", field);
    made += n * p.call.max_tokens.value_or(usual < 0 ? room : std::min(room, usual));
    if (p.call.echo) echoed += n * size;
  }
  bound(p.call, made, echoed);
  s.max_tokens = p.call.max_tokens.value_or(usual);
}

// An answer is rendered completely before it is sent, and for a stream the engine keeps as much. So
// the number of listed entries, tokens and alternatives, is limited here.
void Preparer::bound(CompletionCall& call, int64_t made, int64_t echoed) const {
  const int64_t each = 1 + std::max<int64_t>(call.request.sampling.logprobs, 0);
  // The number of new tokens that still fit.
  const int64_t listed = config_.max_answer_entries / each - echoed;
  const int64_t most = std::min(config_.max_new_tokens, listed), n = call.request.n;
  // Only a chat without max_tokens is shortened; an explicit request beyond the limit is rejected.
  if (call.chat && !call.max_tokens && made > most) {
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

// Every choice of a stream echoes its prompt at its first token, and a client that has not read the
// echoes yet is not slow.
void Preparer::bound_echoes(const CompletionCall& call, std::span<const std::string> echoes) const {
  int64_t bytes = 0;
  for (const std::string& echo : echoes)
    bytes += call.request.n * int64_t(dump_json(ordered_json(echo)).size());
  if (bytes > config_.http.echo_bytes())
    refuse("echo",
           "expected at most {} bytes of echoed prompts over all choices of a stream, got {}",
           config_.http.echo_bytes(), bytes);
}

}  // namespace hearth::inline serve
