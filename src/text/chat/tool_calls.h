// Tool calls in the text of an answer: how a model's chat template lets it write them, and a parser
// that finds them while the text arrives.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline text {

enum class ToolFormat : uint8_t {
  none,    // the template does not know tools
  hermes,  // <tool_call>{"name": .., "arguments": {..}}</tool_call>, as Hermes and Qwen write it
  llama,   // the whole answer is {"name": .., "parameters": {..}}, as Llama 3 writes it
};

// The format that a template with this source teaches.
ToolFormat tool_format_of(std::string_view chat_template);

// How one call is written around its arguments.
struct ToolForm {
  std::string_view before, key, after;  // text before the object, the key of arguments, text after
};
ToolForm tool_form(ToolFormat);

struct ToolCall {
  std::string name;
  std::string arguments;  // JSON
};

// Separates calls from the rest of the text. Text that may belong to a call is held back; text that
// turns out not to be a call is content.
class ToolParser {
 public:
  explicit ToolParser(ToolFormat format) : format_(format) {}

  struct Found {
    std::string content = {};
    std::vector<ToolCall> calls = {};
  };
  Found push(std::string_view text);
  Found finish();  // what is still held back

 private:
  Found take_hermes(bool last);
  Found take_llama(bool last);
  void say(Found&, std::string_view text);

  const ToolFormat format_;
  std::string held_;
  std::string space_;     // white space that is content only if more content follows
  bool in_call_ = false;  // hermes: after <tool_call>
  bool is_text_ = false;  // llama: the answer is not a call
};

}  // namespace hearth::inline text
