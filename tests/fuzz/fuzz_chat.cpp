// Chat templates: a template over a fixed conversation, and a template with its request (a zero
// byte between).
#include "formats/json.h"
#include "fuzz.h"
#include "text/chat/chat_template.h"

namespace {

using nlohmann::ordered_json;

// Marks and bytes stay together. The request's byte \x01, which a template without it and without
// escapes cannot write itself, stays marked wherever it goes.
void check(const hearth::MarkedText& t, std::string_view source) {
  hearth::fuzz::require(t.bytes.size() == t.marks.size());
  if (source.find_first_of("\x01\\") != std::string_view::npos) return;
  for (size_t i = 0; i < t.size(); ++i)
    hearth::fuzz::require(t.bytes[i] != '\x01' || t.marks[i] & hearth::mark::content);
}

}  // namespace

int fuzz_chat_template(const uint8_t* data, size_t size) {
  static const hearth::ChatRequest request{
      .messages = {{{"role", "system"}, {"content", "s"}},
                   {{"role", "user"}, {"content", "a \x01user b"}},
                   {{"role", "assistant"},
                    {"content", "<think>x</think>y"},
                    {"tool_calls", ordered_json::array()}}},
      .add_generation_prompt = true,
      .variables = {{"tools", {{{"name", "f"}, {"n", 1.5}, {"on", true}}}}, {"xs", {3, 1, 2}}},
      .now = 1700000000};
  const std::string_view source = hearth::fuzz::text_of(data, size);
  return hearth::fuzz::taken([&] {
    const hearth::ChatTemplate chat(source, "fuzz", {{"bos_token", "<s>"}});
    check(chat.render(request), source);
  });
}

hearth::fuzz::Seeds seeds_chat_template() {
  return {
      "{% for m in messages %}{{ '<|' + m.role + '|>' }}\n{{ m['content'] | trim }}{{ eos_token "
      "}}{% endfor %}",
      "{%- if messages[0].role == 'system' -%}{%- set sys = messages[0].content %}{%- else %}x{%- "
      "endif %}\n"
      "{# note #}{{ bos_token ~ sys }}{% for m in messages[1:] if m.content is string %}{{ "
      "loop.index0 }}"
      "{% if not loop.last %}, {% endif %}{% else %}none{% endfor %}",
      "{% macro f(a, b='x', c=none) %}{{ a }}{{ b|upper }}{{ caller() if caller }}{% endmacro %}"
      "{% call f(1, c=2) %}body{% endcall %}{% set ns = namespace(n=0, found=false) %}"
      "{% for x in xs|sort(reverse=true) %}{% set ns.n = ns.n + x * 2 ** 2 // 3 %}{% if x is odd %}"
      "{% continue %}{% endif %}{% break %}{% endfor %}{{ ns.n }}",
      "{{ tools|tojson(indent=2) }}{{ tools|map(attribute='name')|join(', ') }}{{ xs|select('gt', "
      "1)|list }}"
      "{{ (tools|selectattr('on', 'equalto', true)|first).name }}{{ {'a': [1, 2.5, none], 'b': "
      "{}}|dictsort }}",
      "{{ messages[-1].content.split('</think>')[-1].lstrip('\\n').replace('y', 'z')[::-1] }}{{ "
      "'a' if 1 < 2 <= 3 and "
      "not xs is mapping else 'b' }}{{ 'x'.format(1) }}{{ '{}'.format(2) }}{{ xs.append(4) }}{{ "
      "range(1, 9, 3)|list }}",
      "{% set t | trim %} block {% endset %}{% with a = 1 %}{{ a }}{% endwith %}{% filter "
      "indent(2) %}p\nq{% endfilter %}"
      "{% raw %}{{ raw }}{% endraw %}{% generation %}g{% endgeneration %}{{ strftime_now('%Y') "
      "}}{{ dict(a=1).items() }}",
  };
}

int fuzz_chat(const uint8_t* data, size_t size) {
  const std::string_view input = hearth::fuzz::text_of(data, size);
  const size_t cut = std::min(input.find('\0'), size);
  return hearth::fuzz::taken([&] {
    hearth::ChatRequest request{.messages = ordered_json::array(), .now = 1700000000};
    ordered_json given = hearth::parse_ordered_json(input.substr(std::min(cut + 1, size)), "fuzz");
    if (given.is_object()) {
      if (given.contains("messages")) request.messages = given["messages"];
      request.variables = std::move(given);
    } else {
      request.messages = std::move(given);
    }
    const std::string_view source = input.substr(0, cut);
    check(hearth::ChatTemplate(source, "fuzz").render_answers(request), source);
  });
}

hearth::fuzz::Seeds seeds_chat() {
  const std::string separator(1, '\0');
  const std::string chatml =
      "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}";
  return {
      chatml + separator +
          R"([{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])",
      "{{ tools|tojson }}{% for m in messages %}{% generation %}{{ m.content[0].text }}{% "
      "endgeneration %}{% endfor %}" +
          separator +
          R"({"messages": [{"role": "assistant", "content": [{"type": "text", "text": "\u00e9"}]}],
                  "tools": [{"type": "function", "function": {"name": "f", "parameters": {}}}], "n": -1.5e3})"};
}
