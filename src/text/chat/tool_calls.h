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

// How one call is written.
struct ToolForm {
  std::string_view opening, closing;  // around it; an opening without a closing may be left out
  std::string_view space;             // between them and the object
  std::string_view key;               // of the arguments
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
  // `required`: the text is exactly one call, as far as it goes. Without `parallel`, calls after
  // the first are dropped.
  explicit ToolParser(ToolFormat format, bool required = false, bool parallel = true)
      : format_(format), required_(required), parallel_(parallel) {}

  struct Found {
    std::string content = {};
    std::vector<ToolCall> calls = {};
    bool partial = false;  // the last call has only the beginning of its arguments
  };
  Found push(std::string_view text);
  // What is still held back. `cut`: the text ended before the model did, so that the beginning of a
  // call is a partial call, not content.
  Found finish(bool cut = false);

 private:
  Found take_hermes(bool last);
  Found take_llama(bool last);
  void say(Found&, std::string_view text);
  Found counted(Found);
  bool end_call(Found&);  // false: what is held is neither a call nor the beginning of one

  const ToolFormat format_;
  const bool required_, parallel_;
  bool called_ = false;
  bool cut_ = false;
  std::string held_;
  std::string space_;     // white space that is content only if more content follows
  bool in_call_ = false;  // hermes: after <tool_call>
  bool is_text_ = false;  // llama: the answer is not a call
};

}  // namespace hearth::inline text
