#include "serve/render.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <optional>

#include "sys/error.h"
#include "sys/utf8.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

std::optional<std::string> token_bytes(const Tokenizer& tokenizer, int32_t token) {
  try {
    return std::string(tokenizer.bytes_of(token));
  } catch (const Error&) { return {}; }  // the model may have more ids than the tokenizer
}

ordered_json null_or(float logprob) {
  return std::isnan(logprob) ? ordered_json() : ordered_json(logprob);
}

// {tokens, token_logprobs, top_logprobs, text_offset}, lists of equal length.
ordered_json completion_logprobs(const Tokenizer& tokenizer, const ChoicePart& part) {
  ordered_json texts = ordered_json::array(), own = texts, top = texts, offsets = texts;
  int64_t offset = part.offset;
  for (const TokenLogprob& p : *part.logprobs) {
    texts.push_back(token_text(tokenizer, p.token));
    own.push_back(null_or(p.logprob));
    offsets.push_back(offset);
    offset += characters_of(tokenizer, p.token);
    ordered_json likeliest;
    if (!std::isnan(p.logprob)) {
      likeliest = ordered_json::object();
      // For equal texts the most likely token is kept; the token itself is always listed.
      for (const auto& [token, logprob] : p.top)
        likeliest.emplace(token_text(tokenizer, token), logprob);
      likeliest.emplace(token_text(tokenizer, p.token), p.logprob);
    }
    top.push_back(std::move(likeliest));
  }
  return {{"tokens", std::move(texts)},
          {"token_logprobs", std::move(own)},
          {"top_logprobs", std::move(top)},
          {"text_offset", std::move(offsets)}};
}

ordered_json chat_logprob(const Tokenizer& tokenizer, int32_t token, float logprob) {
  ordered_json j{{"token", token_text(tokenizer, token)}, {"logprob", null_or(logprob)}};
  j["bytes"] = nullptr;
  if (const auto bytes = token_bytes(tokenizer, token)) {
    j["bytes"] = ordered_json::array();
    for (const char c : *bytes) j["bytes"].push_back(int(static_cast<unsigned char>(c)));
  }
  return j;
}

ordered_json chat_logprobs(const Tokenizer& tokenizer, const std::vector<TokenLogprob>& all) {
  ordered_json content = ordered_json::array();
  for (const TokenLogprob& p : all) {
    content.push_back(chat_logprob(tokenizer, p.token, p.logprob));
    ordered_json top = ordered_json::array();
    for (const auto& [token, logprob] : p.top)
      top.push_back(chat_logprob(tokenizer, token, logprob));
    content.back()["top_logprobs"] = std::move(top);
  }
  return {{"content", std::move(content)}, {"refusal", nullptr}};
}

// The members of a choice after its text.
ordered_json& finish_choice(ordered_json& choice, const Tokenizer& tokenizer,
                            const ResponseHead& head, const ChoicePart& part) {
  choice["logprobs"] = nullptr;
  if (part.logprobs)
    choice["logprobs"] =
        head.chat ? chat_logprobs(tokenizer, *part.logprobs) : completion_logprobs(tokenizer, part);
  choice["finish_reason"] = nullptr;
  if (!part.finish_reason.empty()) choice["finish_reason"] = part.finish_reason;
  return choice;
}

ordered_json call_json(const RenderedCall& c) {
  return {{"id", c.id},
          {"type", "function"},
          {"function", {{"name", c.call.name}, {"arguments", c.call.arguments}}}};
}

// A call in a stream: first its name, then its arguments.
ordered_json call_chunk(const RenderedCall& c, bool opened) {
  if (opened) return {{"index", c.index}, {"function", {{"arguments", c.call.arguments}}}};
  return {{"index", c.index},
          {"id", c.id},
          {"type", "function"},
          {"function", {{"name", c.call.name}, {"arguments", ""}}}};
}

ordered_json new_response(const ResponseHead& head, const char* chat_object) {
  return {{"id", head.id},
          {"object", head.chat ? chat_object : "text_completion"},
          {"created", head.created},
          {"model", head.model},
          {"choices", ordered_json::array()}};
}

ordered_json usage_json(const Usage& u) {
  return {{"prompt_tokens", u.prompt},
          {"completion_tokens", u.completion},
          {"total_tokens", u.prompt + u.completion}};
}

}  // namespace

TokenLogprob unpredicted(int32_t token) {
  return {token, std::numeric_limits<float>::quiet_NaN(), {}};
}

std::string token_text(const Tokenizer& tokenizer, int32_t token) {
  const auto bytes = token_bytes(tokenizer, token);
  if (!bytes) return fmt::format("token_id:{}", token);
  if (is_utf8(*bytes)) return *bytes;
  std::string text = "bytes:";
  for (const char c : *bytes) text += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return text;
}

int64_t characters_of(const Tokenizer& tokenizer, int32_t token) {
  return characters(token_bytes(tokenizer, token).value_or(""));
}

int64_t characters(std::string_view utf8) {
  return std::ranges::count_if(utf8, [](char c) { return (c & 0xc0) != 0x80; });
}

ordered_json render_response(const Tokenizer& tokenizer, const ResponseHead& head,
                             std::span<const ChoicePart> parts, const Usage& usage) {
  ordered_json j = new_response(head, "chat.completion");
  for (const ChoicePart& part : parts) {
    ordered_json choice{{"index", part.index}};
    if (head.chat)
      choice["message"] = {{"role", "assistant"}, {"content", part.text}, {"refusal", nullptr}};
    else
      choice["text"] = part.text;
    if (!part.calls.empty()) {
      if (part.text.empty()) choice["message"]["content"] = nullptr;
      ordered_json& calls = choice["message"]["tool_calls"] = ordered_json::array();
      for (const RenderedCall& c : part.calls) calls.push_back(call_json(c));
    }
    j["choices"].push_back(std::move(finish_choice(choice, tokenizer, head, part)));
  }
  j["usage"] = usage_json(usage);
  return j;
}

ordered_json render_chunk(const Tokenizer& tokenizer, const ResponseHead& head,
                          const ChoicePart& part, bool announces_usage) {
  ordered_json j = new_response(head, "chat.completion.chunk");
  ordered_json choice{{"index", part.index}};
  if (head.chat) {
    choice["delta"] = ordered_json::object();
    if (part.opens) choice["delta"]["role"] = "assistant";
    if (part.opens || !part.text.empty()) choice["delta"]["content"] = part.text;
    for (const RenderedCall& c : part.calls)
      choice["delta"]["tool_calls"].push_back(call_chunk(c, part.opened));
  } else {
    choice["text"] = part.text;
  }
  j["choices"].push_back(std::move(finish_choice(choice, tokenizer, head, part)));
  if (announces_usage) j["usage"] = nullptr;
  return j;
}

ordered_json render_usage_chunk(const ResponseHead& head, const Usage& usage) {
  ordered_json j = new_response(head, "chat.completion.chunk");
  j["usage"] = usage_json(usage);
  return j;
}

std::string dump_json(const ordered_json& j) {
  return j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace hearth::inline serve
