#include "serve/chat_prompt.h"

#include "http/http.h"

namespace hearth::inline serve {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::string plain_conversation(const ordered_json& messages, bool generation_prompt) {
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
  return generation_prompt ? text + "Assistant:" : text;
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

ChatPrompt::ChatPrompt(const fs::path& folder, Tokenizer tokenizer)
    : tokenizer_(std::move(tokenizer)) {
  if (ChatTemplate::exists(folder)) template_ = ChatTemplate::load(folder);
  ends_ =
      template_ ? answer_ends(folder, *template_, tokenizer_) : generation_ends(folder, tokenizer_);
}

ChatPrompt::ChatPrompt(std::optional<ChatTemplate> chat, Tokenizer tokenizer,
                       std::vector<int32_t> ends)
    : template_(std::move(chat)), tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {}

std::vector<int32_t> ChatPrompt::encode(const ordered_json& messages, const ordered_json& variables,
                                        bool generation_prompt, int64_t max_bytes) const {
  if (!template_) {
    const std::string text = plain_conversation(messages, generation_prompt);
    check_size(text, max_bytes);
    std::vector<int32_t> ids = tokenizer_.encode(text);
    tokenizer_.add_template(ids);  // as a completion of this text would
    return ids;
  }
  const MarkedText text = template_->render(
      {.messages = messages, .add_generation_prompt = generation_prompt, .variables = variables});
  check_size(text.bytes, max_bytes);
  return encode_chat(tokenizer_, text).ids;
}

void ChatPrompt::add_stops(SamplingSpec& s) const {
  if (!s.ignore_eos) s.stop_ids.insert(s.stop_ids.end(), ends_.begin(), ends_.end());
  if (!template_) s.stop.push_back("\nUser:");
}

}  // namespace hearth::inline serve
