#include "serve/chat_prompt.h"

#include "formats/json.h"
#include "http/http.h"
#include "model/files/answer_ends.h"
#include "text/chat/roles.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;

std::string plain_conversation(const ordered_json& messages, ChatEnd end) {
  std::string text;
  for (const ordered_json& m : messages) {
    const std::string role = m.at("role"), content = m.at("content");
    if (role == "assistant")
      text += "Assistant: " + content + "\n";
    else if (role == "user")
      text += "User: " + content + "\n";
    else
      text += content + "\n\n";
  }
  return end == ChatEnd::closed ? text : text + "Assistant:";
}

void check_size(const std::string& text, int64_t max_bytes) {
  if (int64_t(text.size()) > max_bytes)
    throw HttpError(400,
                    fmt::format("[messages] expected at most {} bytes of text, the most that can "
                                "fit the context, got {}",
                                max_bytes, text.size()),
                    "context_length_exceeded", "messages");
}

}  // namespace

ChatPrompt::ChatPrompt(const ModelSource& source, Tokenizer tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  if (ChatTemplate::exists(source.tokenizer())) template_ = ChatTemplate::load(source.tokenizer());
  ends_ = answer_ends_of(source, template_ ? &*template_ : nullptr, tokenizer_);
}

ChatPrompt::ChatPrompt(std::optional<ChatTemplate> chat, Tokenizer tokenizer,
                       std::vector<int32_t> ends)
    : template_(std::move(chat)), tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {}

ordered_json ChatPrompt::with_known_roles(ordered_json messages) const {
  for (size_t i = 0; i < messages.size(); ++i) {
    const std::string role = messages[i].at("role");
    const bool known = is_message_role(role);
    if ((known && role != "developer") || (template_ && template_->names(role))) continue;
    if (!known)
      refuse(fmt::format("messages[{}].role", i), "expected one of {}, got {}{}",
             fmt::join(message_roles, ", "), in_quotes(role), suggested_role(role));
    messages[i]["role"] = "system";
  }
  return messages;
}

std::vector<int32_t> ChatPrompt::encode(const ordered_json& conversation,
                                        const ordered_json& variables, ChatEnd end,
                                        int64_t max_bytes) const {
  ordered_json messages = with_known_roles(conversation);
  std::string begun;  // the answer to be continued
  if (end == ChatEnd::unfinished) {
    begun = messages.back().at("content").get<std::string>();
    messages.erase(messages.size() - 1);
  }
  if (!template_) {
    std::string text = plain_conversation(messages, end);
    if (!begun.empty()) text += (begun[0] == ' ' ? "" : " ") + begun;
    check_size(text, max_bytes);
    std::vector<int32_t> ids = tokenizer_.encode(text);
    tokenizer_.add_template(ids);  // as a completion of this text would
    return ids;
  }
  MarkedText text = template_->render({.messages = messages,
                                       .add_generation_prompt = end != ChatEnd::closed,
                                       .variables = variables});
  text.add(begun, mark::content);
  check_size(text.bytes, max_bytes);
  return encode_chat(tokenizer_, text).ids;
}

void ChatPrompt::add_stops(SamplingSpec& s) const {
  if (!s.ignore_eos) s.stop_ids.insert(s.stop_ids.end(), ends_.begin(), ends_.end());
  if (!template_) s.stop.push_back("\nUser:");
}

}  // namespace hearth::inline serve
