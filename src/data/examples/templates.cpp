#include "data/examples/templates.h"

#include <fmt/format.h>

#include "formats/gguf/gguf.h"
#include "formats/json.h"
#include "sys/files/files.h"

namespace hearth::inline data {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// A built-in template with the special tokens it may refer to.
RunTemplate built_in(const std::string& source, const char* name, const Tokenizer& t) {
  ordered_json tokens = ordered_json::object();
  if (t.eos() >= 0) tokens["eos_token"] = std::string(t.bytes_of(t.eos()));
  if (t.bos() >= 0) tokens["bos_token"] = std::string(t.bytes_of(t.bos()));
  return {source, ChatTemplate(source, name, tokens)};
}

}  // namespace

RunTemplate run_template(ChatForm form, const fs::path& dir, const Tokenizer& t) {
  if (form == ChatForm::alpaca) return built_in(alpaca_template(t), "alpaca", t);
  if (form == ChatForm::own && ChatTemplate::exists(dir))
    return {written_chat_template(dir), ChatTemplate::load(dir)};
  return built_in(chatml(t), "chatml", t);
}

std::string chatml(const Tokenizer& t) {
  const bool closes = t.special("<|im_end|>").has_value() || t.eos() < 0;
  return fmt::format(
      "{{% for message in messages %}}{{{{ '<|im_start|>' + message['role'] + '\\n' + "
      "message['content'] + {} + '\\n' }}}}{{% endfor %}}{{% if add_generation_prompt %}}{{{{ "
      "'<|im_start|>assistant\\n' }}}}{{% endif %}}",
      closes ? "'<|im_end|>'" : "eos_token");
}

std::string alpaca_template(const Tokenizer& t) {
  const std::string bos = puts_bos_first(t) ? "{{ bos_token }}" : "";
  const std::string closed = t.eos() >= 0 ? "m['content'] + eos_token" : "m['content']";
  return bos +
         "{% for m in messages %}{% if m['role'] == 'system' %}{{ m['content'] + '\\n\\n' }}"
         "{% elif m['role'] == 'assistant' %}{{ '### Response:\\n' + " +
         closed +
         " }}{% if not loop.last %}{{ '\\n\\n' }}{% endif %}"
         "{% else %}{% if loop.first %}{{ 'Below is an instruction that describes a task' }}"
         "{{ ', paired with an input that provides further context.' if m['input'] else '.' }}"
         "{{ ' Write a response that appropriately completes the request.\\n\\n' }}{% endif %}"
         "{{ '### Instruction:\\n' }}{% if m['input'] %}"
         "{{ m['instruction'] + '\\n\\n### Input:\\n' + m['input'] }}"
         "{% else %}{{ m['content'] }}{% endif %}{{ '\\n\\n' }}{% endif %}{% endfor %}"
         "{% if add_generation_prompt %}{{ '### Response:\\n' }}{% endif %}";
}

bool puts_bos_first(const Tokenizer& t) {
  std::vector<int32_t> ids;
  t.encode_to("a", ids);
  t.add_template(ids);
  return t.bos() >= 0 && !ids.empty() && ids[0] == t.bos();
}

ordered_json instruction_message(const std::string& instruction, const std::string& input) {
  ordered_json m{{"role", "user"},
                 {"content", input.empty() ? instruction : instruction + "\n" + input}};
  if (!input.empty()) m["instruction"] = instruction, m["input"] = input;
  return m;
}

}  // namespace hearth::inline data
