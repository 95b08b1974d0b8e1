#include "serve/chat_prompt.h"

#include "io/json.h"

namespace hearth {
namespace {

using nlohmann::ordered_json;
namespace fs = std::filesystem;

std::vector<int32_t> generation_ends(const fs::path& folder) {
  const fs::path file = folder / "generation_config.json";
  if (!fs::exists(file)) return {};
  const nlohmann::json ends = read_json(file).value("eos_token_id", nlohmann::json());
  std::vector<int32_t> ids;
  for (const nlohmann::json& id : ends.is_array() ? ends : nlohmann::json::array({ends}))
    if (id.is_number_integer() && id >= 0 && id <= INT32_MAX) ids.push_back(id.get<int32_t>());
  return ids;
}

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
    : ChatPrompt(
          ChatTemplate::exists(folder) ? std::optional(ChatTemplate::load(folder)) : std::nullopt,
          std::move(tokenizer), generation_ends(folder)) {}

ChatPrompt::ChatPrompt(std::optional<ChatTemplate> chat, Tokenizer tokenizer,
                       std::vector<int32_t> ends)
    : template_(std::move(chat)), tokenizer_(std::move(tokenizer)), ends_(std::move(ends)) {
  std::erase_if(ends_, [&](int32_t id) { return id >= tokenizer_.vocab_size(); });
}

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
