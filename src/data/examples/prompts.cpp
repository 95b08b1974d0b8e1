#include "data/examples/prompts.h"

#include <algorithm>

#include "data/documents.h"
#include "data/examples/messages.h"
#include "data/examples/templates.h"
#include "formats/json.h"
#include "sys/compression/byte_stream.h"
#include "sys/error.h"
#include "sys/hash/hash.h"

namespace hearth::inline data {
namespace {

using nlohmann::json;

const std::string& text_at(const json& row, const char* key, const std::string& where) {
  if (!row.at(key).is_string())
    fail(where, "expected a string in \"{}\", got {}", key, row.at(key).dump().substr(0, 40));
  return row.at(key).get_ref<const std::string&>();
}

// The key of a row's prompt: the first known one.
const char* prompt_key(const json& row, const std::string& where) {
  for (const char* key : {"prompt", "question", "original_text", "instruction"})
    if (row.contains(key)) return key;
  fail(where, "expected \"prompt\", \"question\", \"original_text\" or \"instruction\", got none");
}

nlohmann::ordered_json instruction_of(const json& row, const std::string& where) {
  const bool has_input = row.contains("input") && !row["input"].is_null();
  return instruction_message(text_at(row, "instruction", where),
                             has_input ? text_at(row, "input", where) : std::string());
}

MarkedText in_form(std::string_view form, const std::string& text) {
  const size_t hole = form.find("{}");
  MarkedText all(form.substr(0, hole));
  all.add(text, mark::content | mark::foreign);
  all.add(form.substr(hole + 2));
  return all;
}

PromptRow prompt_row(const nlohmann::ordered_json& given, const PromptSpec& spec,
                     std::string where) {
  json row(given);
  if (!row.is_object())
    fail(where, "expected an object, got {}", in_quotes(row.dump().substr(0, 40)));
  nlohmann::ordered_json messages;
  MarkedText text;
  if (row.contains("prompt") && row["prompt"].is_array()) {
    if (!spec.chat || spec.form != "{}")
      fail(where, "expected a text for --prompt-form, got a list of messages");
    messages = as_messages(given["prompt"], "prompt", where);
    expect_messages(messages, "prompt", where);
    take_unlearned(messages);
  } else {
    const std::string_view key = prompt_key(row, where);
    const bool instruction = key == "instruction";
    nlohmann::ordered_json message = instruction
                                         ? instruction_of(row, where)
                                         : instruction_message(text_at(row, key.data(), where), "");
    if (instruction && spec.form == "{}") {
      // As in SFT of the same row.
      if (!spec.chat) fail(where, "an instruction needs a chat template");
      messages = nlohmann::ordered_json::array({message});
    } else {
      text = in_form(spec.form, message["content"].get<std::string>());
      if (spec.message && spec.chat) messages = {{{"role", "user"}, {"content", text.bytes}}};
    }
  }
  const bool rendered = !messages.is_null();
  if (rendered) {
    const ChatTemplate& chat = spec.chat();
    const ChatRequest request{.messages = messages,
                              .add_generation_prompt = true,
                              .variables = tool_variables(given, where),
                              .now = spec.now};
    expect_read(chat, request, where);
    text = in_row(where, [&] { return chat.render(request); });
  }
  if (text.empty()) fail(where, "expected a prompt with text, got an empty one");
  return {std::move(row), std::move(text.bytes), std::move(where), std::move(text.marks), rendered};
}

}  // namespace

MarkedText PromptRow::marked() const {
  MarkedText text(prompt, mark::content | mark::foreign);
  if (!marks.empty()) text.marks = marks;
  return text;
}

std::optional<std::string> PromptRow::answer() const {
  for (const char* key : {"answer", "ans", "completion", "output"}) {
    if (!row.contains(key)) continue;
    const json& a = row.at(key);
    if (a.is_string()) return a.get<std::string>();
    if (a.is_number()) return a.dump();
  }
  return std::nullopt;
}

std::vector<PromptRow> read_prompts(const std::filesystem::path& path, const PromptSpec& spec) {
  if (spec.form.find("{}") == spec.form.npos)
    fail_usage("prompt_form", "expected a {{}} where the prompt goes, got {}",
               in_quotes(spec.form));
  refuse_table(path, "a \"prompt\" and what the reward asks for, such as an \"answer\"");
  const std::string all = read_unpacked(path, rows_file_limit);
  const std::string name = path.string();
  std::vector<PromptRow> rows;
  if (const size_t first = all.find_first_not_of(" \t\r\n");
      first != all.npos && all[first] == '[') {
    for (const auto& row : parse_ordered_json(all, name))
      rows.push_back(prompt_row(row, spec, fmt::format("{}:{}", name, rows.size() + 1)));
  } else {
    int64_t line = 0;
    for (size_t begin = 0; begin < all.size();) {
      const size_t end = std::min(all.find('\n', begin), all.size());
      const std::string_view text = std::string_view(all).substr(begin, end - begin);
      const std::string where = fmt::format("{}:{}", name, ++line);
      if (text.find_first_not_of(" \t\r") != text.npos)
        rows.push_back(prompt_row(parse_ordered_json_line(text, where), spec, where));
      begin = end + 1;
    }
  }
  if (rows.empty()) fail(name, "the file contains no prompts");
  return rows;
}

std::vector<int32_t> prompt_tokens(const PromptRow& row, const Tokenizer& tokenizer) {
  if (row.rendered) return encode_chat(tokenizer, row.marked()).ids;
  const bool plain = row.marks.find('\0') == std::string::npos;  // only text of the row
  std::vector<int32_t> ids =
      plain ? tokenizer.encode(row.prompt) : encode_chat(tokenizer, row.marked()).ids;
  // A form may already start with the tokens that the tokenizer adds.
  plain ? tokenizer.add_template(ids) : tokenizer.complete_template(ids);
  return ids;
}

std::string digest_of(std::span<const PromptRow> rows) {
  Sha256 hash;
  for (const PromptRow& r : rows)
    for (const std::string& text :
         {r.prompt, r.row.dump(-1, ' ', false, json::error_handler_t::replace)}) {
      const uint64_t size = text.size();  // makes the hash of a list of texts unambiguous
      hash.update(std::as_bytes(std::span(&size, 1)));
      hash.update(to_bytes(text));
    }
  return hash.hex();
}

}  // namespace hearth::inline data
