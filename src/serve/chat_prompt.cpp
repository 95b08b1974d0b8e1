#include "serve/chat_prompt.h"

namespace hearth {
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
                                        bool generation_prompt) const {
  if (!template_) return tokenizer_.encode(plain_conversation(messages, generation_prompt));
  const MarkedText text = template_->render(
      {.messages = messages, .add_generation_prompt = generation_prompt, .variables = variables});
  return encode_chat(tokenizer_, text).ids;
}

void ChatPrompt::add_stops(SamplingSpec& s) const {
  if (!s.ignore_eos) s.stop_ids.insert(s.stop_ids.end(), ends_.begin(), ends_.end());
  if (!template_) s.stop.push_back("\nUser:");
}

}  // namespace hearth
