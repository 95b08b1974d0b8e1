#include "serve/parse.h"

#include <charconv>
#include <limits>

#include "serve/parse_output.h"
#include "serve/request_fields.h"
#include "sys/error.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

constexpr int64_t most_ids = std::numeric_limits<int32_t>::max();
constexpr int64_t usual_completion = 16;  // tokens, as in OpenAI's API
constexpr int64_t most_biases = 1 << 18;  // of all choices, because each prompt copies them

ordered_json parse_body(std::string_view body, const ServeConfig& limits) {
  try {
    return parse_ordered_json(body, "body",
                              {.max_bytes = size_t(limits.http.max_body_bytes),
                               .max_depth = size_t(limits.max_json_depth)});
  } catch (const Error& e) { throw HttpError(400, e.what(), "invalid_json", "body"); }
}

// --- prompts ---

Tokens parse_ids(const ordered_json& list, const std::string& where) {
  Tokens ids;
  ids.reserve(list.size());
  for (const ordered_json& id : list)
    ids.push_back(int32_t(Fields::whole_number(id, where, 0, most_ids)));
  return ids;
}

std::vector<Prompt> parse_prompts(const ordered_json* j, const ServeConfig& limits) {
  if (!j) return {Prompt(std::string())};  // empty: starts a new text
  if (j->is_string()) return {Prompt(j->get<std::string>())};
  if (!j->is_array() || j->empty())
    refuse("prompt", "expected text, token ids or a list of either, got {}",
           j->is_array() ? "an empty list" : j->type_name());
  if (j->front().is_number()) return {Prompt(parse_ids(*j, "prompt"))};
  if (int64_t(j->size()) > limits.max_choices)
    refuse("prompt", "expected at most {} prompts, got {}", limits.max_choices, j->size());
  std::vector<Prompt> prompts;
  for (const ordered_json& p : *j) {
    if (p.is_string() != j->front().is_string() || !(p.is_string() || p.is_array()))
      refuse("prompt", "expected all texts or all lists of token ids, got {}", p.type_name());
    if (p.is_string())
      prompts.emplace_back(p.get<std::string>());
    else
      prompts.emplace_back(parse_ids(p, "prompt"));
  }
  return prompts;
}

// --- sampling ---

std::vector<std::string> parse_stop(const ordered_json* j, const ServeConfig& limits) {
  if (!j) return {};
  const ordered_json list = j->is_array() ? *j : ordered_json::array({*j});
  if (int64_t(list.size()) > limits.max_stop_strings)
    refuse("stop", "expected at most {} strings, got {}", limits.max_stop_strings, list.size());
  std::vector<std::string> stop;
  for (const ordered_json& s : list) {
    if (!s.is_string()) refuse("stop", "expected strings, got {}", s.type_name());
    const auto& text = s.get_ref<const std::string&>();
    if (text.empty() || int64_t(text.size()) > limits.max_stop_bytes)
      refuse("stop", "expected strings of 1 to {} bytes, got {}", limits.max_stop_bytes,
             text.size());
    stop.push_back(text);
  }
  return stop;
}

std::map<int32_t, float> parse_logit_bias(const ordered_json* j) {
  std::map<int32_t, float> bias;
  if (!j) return bias;
  if (!j->is_object()) refuse("logit_bias", "expected an object, got {}", j->type_name());
  for (const auto& [key, value] : j->items()) {
    int32_t id = -1;
    const char* end = key.data() + key.size();
    const auto read = std::from_chars(key.data(), end, id);
    if (read.ec != std::errc() || read.ptr != end || id < 0)
      refuse("logit_bias", "expected token ids as keys, got {}", in_quotes(key));
    if (!bias.emplace(id, float(Fields::real_number(value, "logit_bias", -100, 100))).second)
      refuse("logit_bias", "expected each id once, got {} twice", id);
  }
  return bias;
}

SamplingSpec parse_sampling(Fields& f, const ServeConfig& limits, const SamplingSpec& defaults) {
  SamplingSpec s = defaults;
  s.temperature = float(f.number("temperature", s.temperature, 0, 2));
  s.top_p = float(f.number("top_p", s.top_p, 0, 1));
  s.min_p = float(f.number("min_p", s.min_p, 0, 1));
  s.top_k = f.integer("top_k", s.top_k, -1, most_ids);
  if (s.top_k < 0) s.top_k = 0;  // other servers use -1 for all
  s.presence_penalty = float(f.number("presence_penalty", 0, -2, 2));
  s.frequency_penalty = float(f.number("frequency_penalty", 0, -2, 2));
  s.repetition_penalty = float(f.number("repetition_penalty", s.repetition_penalty, 0.01, 100));
  s.logit_bias = parse_logit_bias(f.find("logit_bias"));
  s.stop = parse_stop(f.find("stop"), limits);
  s.min_tokens = f.integer("min_tokens", 0, 0, limits.max_new_tokens);
  s.ignore_eos = f.boolean("ignore_eos", false);
  if (const ordered_json* ids = f.find("stop_token_ids")) {
    if (!ids->is_array()) refuse("stop_token_ids", "expected a list, got {}", ids->type_name());
    if (ids->size() > 1024)
      refuse("stop_token_ids", "expected at most 1024 ids, got {}", ids->size());
    s.stop_ids = parse_ids(*ids, "stop_token_ids");
  }
  return s;
}

void parse_stream(CompletionCall& call, Fields& f) {
  call.stream = f.boolean("stream", false);
  const ordered_json* options = f.find("stream_options");
  if (!options) return;
  if (!call.stream) refuse("stream_options", "stream_options needs stream to be true");
  Fields o(*options, "stream_options");
  call.include_usage = o.boolean("include_usage", false);
  o.ignore({"include_obfuscation"});
  o.refuse_others();
}

// The fields that both kinds of completion share.
void parse_shared(CompletionCall& call, Fields& f, const ServeConfig& limits,
                  const DefaultsOf& defaults) {
  call.model = f.string("model");
  call.request.sampling =
      parse_sampling(f, limits, defaults ? defaults(call.model) : SamplingSpec());
  call.request.n = int(f.integer("n", 1, 1, limits.max_choices));
  if (const ordered_json* seed = f.find("seed"))
    call.seed = uint64_t(Fields::whole_number(*seed, "seed", INT64_MIN, INT64_MAX));
  if (call.seed == uint64_t(-1)) call.seed.reset();  // other servers use -1 for none
  parse_stream(call, f);
  call.constraint = parse_constraint(f);
  f.ignore({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"});
}

void check_totals(const CompletionCall& call, size_t prompts, const ServeConfig& limits) {
  const int64_t choices = int64_t(prompts) * call.request.n;
  const int64_t most = std::min(limits.max_choices, limits.batch + limits.queue);
  if (choices > most) refuse("n", "expected prompts x n of at most {}, got {}", most, choices);
  if (choices * int64_t(call.request.sampling.logit_bias.size()) > most_biases)
    refuse("logit_bias", "expected prompts x n x biased tokens of at most {}, got {} x {}",
           most_biases, choices, call.request.sampling.logit_bias.size());
  if (call.max_tokens && *call.max_tokens > limits.max_new_tokens / choices)
    refuse("max_tokens", "expected prompts x n x max_tokens of at most {}, got {} x {}",
           limits.max_new_tokens, choices, *call.max_tokens);
  if (call.max_tokens && call.request.sampling.min_tokens > *call.max_tokens)
    refuse("min_tokens", "expected at most max_tokens, got {}", call.request.sampling.min_tokens);
}

// Rejects unsupported fields that would change the answer. An empty text, list or object asks for
// nothing.
void refuse_unsupported(Fields& f, std::initializer_list<const char*> names) {
  for (const char* name : names) {
    const ordered_json* j = f.find(name);
    if (!j || (j->is_string() ? j->get_ref<const std::string&>().empty() : j->empty())) continue;
    refuse(name, "this server does not support {}", name);
  }
}

// --- messages ---

std::string content_text(const ordered_json& content, const std::string& where) {
  if (content.is_string()) return content.get<std::string>();
  if (!content.is_array())
    refuse(where, "expected text or a list of text parts, got {}", content.type_name());
  std::string text;
  for (const ordered_json& part : content) {
    Fields p(part, where);
    if (const std::string type = p.string("type"); type != "text")
      refuse(where, "expected parts of type text, got {}", in_quotes(type));
    text += p.string("text");
  }
  return text;
}

ordered_json parse_messages(const ordered_json* j, const ServeConfig& limits) {
  if (!j || !j->is_array() || j->empty())
    refuse("messages", "expected a list of at least one message, got {}",
           !j              ? "none"
           : j->is_array() ? "an empty one"
                           : j->type_name());
  if (int64_t(j->size()) > limits.max_messages)
    refuse("messages", "expected at most {} messages, got {}", limits.max_messages, j->size());
  ordered_json messages = ordered_json::array();
  for (const ordered_json& m : *j) {
    const std::string where = fmt::format("messages[{}]", messages.size());
    Fields f(m, where);
    const std::string role = f.string("role");
    if (role.empty() || role.size() > 64)
      refuse(where + ".role", "expected a role of 1 to 64 bytes");
    refuse_unsupported(f, {"function_call", "audio"});
    const ordered_json *content = f.find("content"), *calls = f.find("tool_calls");
    if (calls && calls->empty()) calls = nullptr;
    if (calls && role != "assistant")
      refuse(where + ".tool_calls", "expected them in messages of the assistant only");
    if (!content && !calls) refuse(where + ".content", "expected text, got none");
    messages.push_back(
        {{"role", role}, {"content", content ? content_text(*content, where + ".content") : ""}});
    if (calls) messages.back()["tool_calls"] = parse_tool_calls(*calls, where + ".tool_calls");
    for (const char* key : {"name", "tool_call_id"})
      if (const std::string text = f.string(key); !text.empty()) messages.back()[key] = text;
    f.ignore({"refusal", "annotations"});
    f.refuse_others();
  }
  return messages;
}

// How the rendered conversation ends: two fields, as in vLLM and Hugging Face's templates.
ChatEnd parse_chat_end(Fields& f, const ordered_json& messages) {
  const bool unfinished = f.boolean("continue_final_message", false);
  const bool opening = f.boolean("add_generation_prompt", !unfinished);
  if (!unfinished) return opening ? ChatEnd::opening : ChatEnd::closed;
  if (opening)
    refuse("continue_final_message", "expected add_generation_prompt to be false or absent");
  const ordered_json& last = messages.back();
  if (last.at("role") != "assistant" || last.contains("tool_calls"))
    refuse("continue_final_message", "expected the last message to be an answer of the assistant");
  return ChatEnd::unfinished;
}

ordered_json parse_variables(Fields& f) {
  const ordered_json* v = f.find("chat_template_kwargs");
  if (v && !v->is_object())
    refuse("chat_template_kwargs", "expected an object, got {}", v->type_name());
  return v ? *v : ordered_json();
}

// The fields of vLLM's and llama.cpp's servers for a prompt of text.
TextEncoding parse_encoding(Fields& f) {
  TextEncoding how{.around = f.boolean("add_special_tokens", true)};
  if (f.find("parse_special")) how.special = f.boolean("parse_special", false);
  return how;
}

void parse_chat_logprobs(CompletionCall& call, Fields& f, const ServeConfig& limits) {
  const bool wanted = f.boolean("logprobs", false);
  const int64_t top = f.integer("top_logprobs", 0, 0, limits.max_logprobs);
  if (top > 0 && !wanted) refuse("top_logprobs", "top_logprobs needs logprobs to be true");
  if (wanted) call.request.sampling.logprobs = top;
}

}  // namespace

CompletionCall parse_completion_request(std::string_view body, const ServeConfig& limits,
                                        const DefaultsOf& defaults) {
  const ordered_json j = parse_body(body, limits);
  Fields f(j);
  CompletionCall call;
  parse_shared(call, f, limits, defaults);
  if (j.contains("messages"))
    refuse("messages", "messages belong to /v1/chat/completions; this route takes prompt");
  call.prompts = parse_prompts(f.find("prompt"), limits);
  call.text = parse_encoding(f);
  const bool own_length = f.find("max_tokens");
  call.max_tokens = f.integer("max_tokens", usual_completion, 0, limits.max_new_tokens);
  call.echo = f.boolean("echo", false);
  call.request.sampling.logprobs = f.integer("logprobs", -1, 0, limits.max_logprobs);
  call.request.prompt_logprobs = call.echo && call.logprobs();
  if (call.stream && call.request.prompt_logprobs)
    refuse("stream", "streaming cannot be combined with echo and logprobs");
  if (f.integer("best_of", call.request.n, 1, limits.max_choices) != call.request.n)
    refuse("best_of", "expected the value of n, {}: this server does not rank completions",
           call.request.n);
  refuse_unsupported(f, {"suffix"});
  f.refuse_others();
  if (!own_length) {  // unlike a length that the client names, the default ends with the context
    call.max_tokens.reset();
    call.request.sampling.max_tokens = usual_completion;
  }
  check_totals(call, call.prompts.size(), limits);
  return call;
}

CompletionCall parse_chat_request(std::string_view body, const ServeConfig& limits,
                                  const DefaultsOf& defaults) {
  const ordered_json j = parse_body(body, limits);
  Fields f(j);
  CompletionCall call;
  call.chat = true;
  parse_shared(call, f, limits, defaults);
  if (j.contains("prompt"))
    refuse("prompt", "prompt belongs to /v1/completions; this route takes messages");
  call.messages = parse_messages(f.find("messages"), limits);
  call.end = parse_chat_end(f, call.messages);
  for (const char* name : {"max_tokens", "max_completion_tokens"})
    if (f.find(name)) call.max_tokens = f.integer(name, 0, 1, limits.max_new_tokens);
  parse_chat_logprobs(call, f, limits);
  call.tools = parse_tools(f);
  if (call.tools && call.constraint.kind != ConstraintSpec::Kind::none)
    refuse("tools", "tools cannot be combined with {} unless tool_choice is none",
           call.constraint.where);
  refuse_unsupported(f, {"functions", "audio", "prediction", "web_search_options",
                         "reasoning_effort", "verbosity"});
  if (const ordered_json* v = f.find("modalities"); v && *v != ordered_json::array({"text"}))
    refuse("modalities", "expected [\"text\"], got {}", in_quotes(v->dump()));
  call.variables = parse_variables(f);
  f.ignore({"function_call"});
  f.refuse_others();
  check_totals(call, 1, limits);
  return call;
}

namespace {

// Bytes of all texts and names in a value.
int64_t text_bytes(const ordered_json& j) {
  if (j.is_string()) return int64_t(j.get_ref<const std::string&>().size());
  int64_t bytes = 0;
  if (j.is_structured())
    for (const auto& [key, value] : j.items())
      bytes += (j.is_object() ? int64_t(key.size()) : 0) + text_bytes(value);
  return bytes;
}

}  // namespace

TokenizeCall parse_tokenize_request(std::string_view body, const ServeConfig& limits) {
  const ordered_json j = parse_body(body, limits);
  Fields f(j);
  TokenizeCall call;
  call.model = f.string("model");
  const ordered_json* messages = f.find("messages");
  if (messages) call.messages = parse_messages(messages, limits);
  const ordered_json* prompt = f.find("prompt");
  if (bool(prompt) == bool(messages))
    refuse("prompt", "expected either a prompt or messages, got {}", prompt ? "both" : "neither");
  call.prompt = f.string("prompt");
  call.text = parse_encoding(f);
  if (messages) {
    call.end = parse_chat_end(f, call.messages);
    call.tools = parse_tools(f);
    call.variables = parse_variables(f);
  }
  int64_t bytes =
      int64_t(call.prompt.size()) + text_bytes(call.tools.tools) + text_bytes(call.variables);
  for (const ordered_json& m : call.messages)
    for (const auto& [key, value] : m.items())
      if (key != "role") bytes += text_bytes(value);
  if (bytes > limits.max_tokenize_bytes)
    refuse(prompt ? "prompt" : "messages", "expected at most {} bytes of text, got {}",
           limits.max_tokenize_bytes, bytes);
  f.ignore({"add_generation_prompt", "continue_final_message"});  // a prompt has no messages
  f.refuse_others();
  return call;
}

DetokenizeCall parse_detokenize_request(std::string_view body, const ServeConfig& limits) {
  const ordered_json j = parse_body(body, limits);
  Fields f(j);
  DetokenizeCall call;
  call.model = f.string("model");
  const ordered_json* tokens = f.find("tokens");
  if (!tokens || !tokens->is_array())
    refuse("tokens", "expected a list of token ids, got {}", tokens ? tokens->type_name() : "none");
  if (int64_t(tokens->size()) > limits.max_detokenize_ids)
    refuse("tokens", "expected at most {} ids, got {}", limits.max_detokenize_ids, tokens->size());
  call.tokens = parse_ids(*tokens, "tokens");
  f.refuse_others();
  return call;
}

}  // namespace hearth::inline serve
