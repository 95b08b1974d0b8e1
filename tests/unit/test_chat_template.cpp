// The template language: what it renders, what it refuses, and where each byte is said to come
// from.
#include <gtest/gtest.h>

#include "formats/json.h"
#include "test_io_support.h"
#include "text/chat/chat_template.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::ordered_json;

std::string rendered(std::string_view source, const char* variables = "{}") {
  ChatRequest request{.messages = ordered_json::array()};
  request.variables = parse_ordered_json(variables, "test");
  request.now = 1700000000;  // 2023-11-14
  return ChatTemplate(source, "t").render(request).bytes;
}

std::string refusal(const std::string& source, const char* variables = "{}") {
  return error_of([&] { rendered(source, variables); });
}

struct Rendering {
  const char *source, *text;
  const char* variables = "{}";
};

void expect_all(std::initializer_list<Rendering> cases) {
  for (const Rendering& c : cases) EXPECT_EQ(rendered(c.source, c.variables), c.text) << c.source;
}

TEST(ChatTemplate, TextAndWhitespace) {
  expect_all({
      {"", ""},
      {"a\n", "a"},
      {"a\n\n", "a\n"},
      {"a\r\nb\rc", "a\nb\nc"},
      {"a {# no #} b", "a  b"},
      {"a\n  {# line #}\nb", "a\nb"},
      {"a {#- no -#} b", "ab"},
      {"{% if true %}\n  x\n{% endif %}\ny", "  x\ny"},
      {"  {% if true %}  x  {%- endif -%}  y", "  xy"},
      {"  {%+ if true %}x{% endif +%}\ny", "  x\ny"},
      {"a  {{- 1 -}}  b", "a1b"},
      {"  {{ 1 }}\n  {{ 2 }}\n", "  1\n  2"},
      {"{% raw %}{{ x }}{% y %}{% endraw %}!", "{{ x }}{% y %}!"},
      {"{ % } # {", "{ % } # {"},
      {"{{ {'a': {'b': 1}}.a.b }}", "1"},
      {"a\u00a0\u3000{%- set x = 1 %}b", "ab"},
  });
}

TEST(ChatTemplate, Literals) {
  expect_all({
      {R"({{ 'a\n\t\\\'"' }})", "a\n\t\\'\""},
      {R"({{ "\x41\u00e9\U0001F600\101\q" }})", "Aé😀A\\q"},
      {"{{ 'one' 'two' }}", "onetwo"},
      {"{{ 1_000 }} {{ 1.50 }} {{ 1e3 }} {{ 2.5e-7 }} {{ 1e16 }}", "1000 1.5 1000.0 2.5e-07 1e+16"},
      {"{{ true }} {{ False }} {{ none }} {{ None }}", "True False None None"},
      {"{{ [1, 'a', none, 2.0] }}", "[1, 'a', None, 2.0]"},
      {"{{ (1,) }} {{ () }} {{ (1, 2) }}", "(1,) () (1, 2)"},
      {"{{ {'a': 1, 'b': ['x']} }}", "{'a': 1, 'b': ['x']}"},
      {R"({{ ["it's", 'say "x"', "a\nb"] }})", R"(["it's", 'say "x"', 'a\nb'])"},
      {"{{ missing }}|{{ missing.x if missing is defined }}|", "||"},
  });
}

TEST(ChatTemplate, Operators) {
  expect_all({
      {"{{ 1 + 2 * 3 }} {{ (1 + 2) * 3 }} {{ 7 // 2 }} {{ -7 // 2 }} {{ -7 % 3 }}", "7 9 3 -4 2"},
      {"{{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ 7.5 // 2 }}", "3.5 1024 0.5 3.0"},
      {"{{ 'a' ~ 1 ~ none }} {{ 'ab' * 2 }} {{ [1] + [2] }} {{ 2 * [0] }}",
       "a1None abab [1, 2] [0, 0]"},
      {"{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ 'a' != 'b' }}", "True False True True"},
      {"{{ 'b' in 'abc' }} {{ 2 not in [1] }} {{ 'k' in {'k': 0} }} {{ 1 in missing }}",
       "True True True False"},
      {"{{ not 1 == 2 and true }} {{ 0 or 'x' }} {{ '' and 1 }}|", "True x |"},
      {"{{ 'y' if 1 else 'n' }} {{ 'y' if 0 else 'n' }} {{ 'y' if 0 }}|", "y n |"},
      {"{{ -x|abs }} {{ 1 + '2'|int }} {{ [3, 1] == [3, 1] }} {{ {'a': 1} == {'a': 1} }}",
       "3 3 True True", R"({"x": 3})"},
      {"{{ [1, 2] < [1, 3] }} {{ 'a' < 'b' }} {{ 2 >= 2 }} {{ True == 1 }}", "True True True True"},
  });
}

TEST(ChatTemplate, ItemsAndSlices) {
  const char* x = R"({"x": [1, 2, 3, 4], "s": "héllo", "m": {"a": {"b": 5}, "items": 7}})";
  expect_all({
      {"{{ x[0] }}{{ x[-1] }}{{ x[9] }}{{ x.0 }}", "141", x},
      {"{{ x[1:] }}{{ x[:-1] }}{{ x[::2] }}{{ x[::-1] }}{{ x[-2:9] }}",
       "[2, 3, 4][1, 2, 3][1, 3][4, 3, 2, 1][3, 4]", x},
      {"{{ s[1] }}{{ s[:2] }}{{ s[-2:] }}{{ s[::-1] }}{{ s|length }}", "éhéloolléh5", x},
      {"{{ m.a.b }}{{ m['a']['b'] }}{{ m['items'] }}{{ m.none_such }}", "557", x},
  });
}

TEST(ChatTemplate, Statements) {
  const char* v = R"({"xs": ["a", "b", "c"], "m": {"k": 1, "l": 2}})";
  expect_all({
      {"{% for x in xs %}{{ loop.index }}{{ loop.index0 }}{{ x }}{{ ',' if not loop.last }}{% "
       "endfor %}",
       "10a,21b,32c", v},
      {"{% for x in xs %}{{ loop.previtem }}<{{ x }}>{{ loop.nextitem }}{{ loop.length }}"
       "{{ loop.first }}{{ loop.revindex }} {% endfor %}",
       "<a>b3True3 a<b>c3False2 b<c>3False1 ", v},
      {"{% for k, v in m.items() %}{{ k }}={{ v }};{% endfor %}", "k=1;l=2;", v},
      {"{% for k in m %}{{ k }}{% endfor %}{% for c in 'né' %}{{ c }}.{% endfor %}", "kln.é.", v},
      {"{% for x in [] %}x{% else %}none{% endfor %}", "none"},
      {"{% for x in xs if x != 'b' %}{{ loop.index }}{{ x }}{% endfor %}", "1a2c", v},
      {"{% for x in xs %}{% if x == 'b' %}{% continue %}{% endif %}{{ x }}{% endfor %}", "ac", v},
      {"{% for x in xs %}{% if x == 'b' %}{% break %}{% endif %}{{ x }}{% endfor %}", "a", v},
      {"{% set y = 1 %}{% for x in xs %}{% set y = 2 %}{% endfor %}{{ y }}", "1", v},
      {"{% set ns = namespace(n=0) %}{% for x in xs %}{% set ns.n = ns.n + 1 %}{% endfor %}{{ ns.n "
       "}}",
       "3", v},
      {"{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}x{{ a }}{% endset %}{{ t }}", "12x1"},
      {"{% set t | upper | trim %} ab {% endset %}[{{ t }}]", "[AB]"},
      {"{% if 0 %}a{% elif missing %}b{% elif 1 %}c{% else %}d{% endif %}", "c"},
      {"{% with a = 1, b = 2 %}{{ a + b }}{% endwith %}{{ a }}", "3"},
      {"{% filter upper %}a{{ 'b' }}{% endfilter %}", "AB"},
      {"{% macro m(a, b='x', c=none) %}{{ a }}{{ b }}{{ c }};{% endmacro %}{{ m(1) }}{{ m(1, c=3) "
       "}}"
       "{{ m() }}",
       "1xNone;1x3;xNone;"},
      {"{% macro f(n) %}{{ n }}{% if n %}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(3) }}",
       "3210"},
      {"{% macro box() %}[{{ caller('x') }}]{% endmacro %}{% call(y) box() %}{{ y }}!{% endcall %}",
       "[x!]"},
      {"{% generation %}a{% endgeneration %}b", "ab"},
  });
}

TEST(ChatTemplate, Filters) {
  const char* v =
      R"({"u": [{"n": "b", "k": 2}, {"n": "A", "k": 1}, {"n": "c"}], "m": {"b": 1, "A": 2}})";
  expect_all({
      {"{{ '  x '|trim }}|{{ 'xxaxx'|trim('x') }}", "x|a"},
      {"{{ 'éa'|upper }} {{ 'ÉA'|lower }} {{ 'hELLO wORLD'|capitalize }} {{ \"it is\"|title }}",
       "ÉA éa Hello world It Is"},
      {"{{ [1, 2]|join(', ') }} {{ u|join('-', attribute='n') }}", "1, 2 b-A-c", v},
      {"{{ u|map(attribute='n')|list }} {{ ['a']|map('upper')|first }}", "['b', 'A', 'c'] A", v},
      {"{{ u|selectattr('k', 'defined')|map(attribute='k')|list }}", "[2, 1]", v},
      {"{{ u|rejectattr('n', 'equalto', 'b')|length }} {{ u|selectattr('k')|list|length }}", "2 2",
       v},
      {"{{ none|selectattr('x')|list }} {{ none|map(attribute='x')|list }}", "[] []"},
      {"{{ [0, 1, 2]|select|list }} {{ [1, 2, 3]|reject('odd')|list }}", "[1, 2] [2]"},
      {"{{ missing|default('d') }} {{ ''|default('d') }}|{{ ''|default('d', true) }} {{ x|d(1) }}",
       "d |d 1"},
      {"{{ [3, 1, 2]|sort }} {{ ['b', 'A']|sort(reverse=true) }} {{ u|sort(attribute='n')|map("
       "attribute='n')|join }}",
       "[1, 2, 3] ['b', 'A'] Abc", v},
      {"{{ m|dictsort }} {{ m|items|list }} {{ m|length }}",
       "[('A', 2), ('b', 1)] [('b', 1), ('A', 2)] 2", v},
      {"{{ [1, 1, 2]|unique|list }} {{ 'abc'|reverse }} {{ [1, 2]|last }} {{ [2, 1]|min }}{{ [2, "
       "3]|max }}",
       "[1, 2] cba 2 13"},
      {"{{ '3.7'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '2'|float }} {{ 2.5|round }} {{ "
       "2.345|round(2) }}",
       "3 0 5 2.0 2.0 2.35"},
      {"{{ '1e999'|float }} {{ '-1e999'|float }} {{ '1e-999'|float }} {{ ' 12 '|int }}",
       "inf -inf 0.0 12"},
      {"{{ '9223372036854775807'|int }} {{ '1e999'|int(7) }} {{ [[1]]|map("
       "attribute='99999999999999999999', default=8)|first }}",
       "9223372036854775807 7 8"},
      {"{{ [1, 2]|sum }} {{ -2|abs }} {{ 3|string + 'x' }} {{ 'a'|safe }}", "3 2 3x a"},
      {"{{ 'a\nb\n\nc'|indent(2) }}|{{ 'a\nb'|indent(1, first=true) }}", "a\n  b\n\n  c| a\n b"},
      {"{{ 'aXbX'|replace('X', 'y') }} {{ 'aaa'|replace('a', 'b', 2) }} {{ 'ab'|replace('', '-') "
       "}}",
       "ayby bba -a-b-"},
  });
}

TEST(ChatTemplate, Json) {
  const char* v = R"({"x": {"b": [1, 2.5, true, null], "a": "é\"\n\u0001<&>", "e": [], "o": {}}})";
  expect_all({
      {"{{ x|tojson }}", R"({"b": [1, 2.5, true, null], "a": "é\"\n\u0001<&>", "e": [], "o": {}})",
       v},
      {"{{ x|tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}",
       R"({"a":"\u00e9\"\n\u0001<&>","b":[1,2.5,true,null],"e":[],"o":{}})", v},
      {"{{ {'a': [1, {'b': 2}], 'c': []}|tojson(indent=2) }}",
       "{\n  \"a\": [\n    1,\n    {\n      \"b\": 2\n    }\n  ],\n  \"c\": []\n}"},
      {"{{ '😀'|tojson(ensure_ascii=true) }}", R"("\ud83d\ude00")"},
      {"{{ 1e20|tojson }} {{ 1.0|tojson }}", "1e+20 1.0"},
  });
}

TEST(ChatTemplate, Tests) {
  expect_all({
      {"{{ x is defined }}{{ x is not defined }}{{ x is undefined }}", "FalseTrueTrue"},
      {"{{ none is none }}{{ 'a' is string }}{{ {} is mapping }}{{ [] is iterable }}{{ 'a' is "
       "sequence }}",
       "TrueTrueTrueTrueTrue"},
      {"{{ 1 is number }}{{ true is boolean }}{{ 1 is integer }}{{ 1.5 is float }}{{ true is true "
       "}}"
       "{{ 1 is true }}",
       "TrueTrueTrueTrueTrueFalse"},
      {"{{ 3 is odd }}{{ 3 is even }}{{ 9 is divisibleby 3 }}{{ 1 is in [1] }}{{ 2 is eq 2 }}",
       "TrueFalseTrueTrueTrue"},
      {"{{ 3 is gt(2) and 2 is not lt 1 }}{{ 'A' is upper }}{{ namespace is callable }}",
       "TrueTrueTrue"},
  });
}

TEST(ChatTemplate, Methods) {
  const char* v = R"({"m": {"a": 1, "b": 2}})";
  expect_all({
      {"{{ ' x '.strip() }}|{{ ' x '.lstrip() }}|{{ ' x '.rstrip() }}|{{ 'xyx'.strip('x') }}",
       "x|x | x|y"},
      {"{{ 'a,b,c'.split(',') }}{{ 'a,b,c'.split(',', 1) }}{{ 'a,b,c'.rsplit(',', 1) }}{{ ' a  b "
       "'.split() }}",
       "['a', 'b', 'c']['a', 'b,c']['a,b', 'c']['a', 'b']"},
      {"{{ 'a</think>b'.split('</think>')[-1] }}{{ 'abc'.startswith('ab') }}{{ "
       "'abc'.endswith(('x', 'c')) }}",
       "bTrueTrue"},
      {"{{ 'ab'.upper() }}{{ 'AB'.lower() }}{{ 'ab cd'.title() }}{{ 'aXa'.replace('a', 'b', 1) }}",
       "ABabAb CdbXa"},
      {"{{ '-'.join(['a', 'b']) }}{{ 'abcb'.find('b') }}{{ 'abcb'.rfind('b') }}{{ 'aa'.count('a') "
       "}}",
       "a-b132"},
      {"{{ 'prefix-x'.removeprefix('prefix-') }}{{ '12'.isdigit() }}{{ 'a\nb'.splitlines() }}",
       "xTrue['a', 'b']"},
      {"{{ 'a{}b{1}{{}}{x}{}'.format(1, 2, x='y') }}", "a1b2{}y2"},
      {"{{ m.get('a') }}{{ m.get('z') }}{{ m.get('z', 5) }}{{ m.keys()|list }}{{ m.values()|list "
       "}}",
       "1None5['a', 'b'][1, 2]", v},
      {"{% set l = [1] %}{% set _ = l.append(2) %}{{ l }}", "[1, 2]"},
      {"{{ range(3)|list }}{{ range(1, 6, 2)|list }}{{ range(3, 0, -1)|list }}",
       "[0, 1, 2][1, 3, 5][3, 2, 1]"},
      {"{{ dict(a=1)['a'] }}{{ namespace(x=2).x }}", "12"},
      {"{{ strftime_now('%Y-%m') }}", "2023-11"},
  });
}

TEST(ChatTemplate, RefusesWithOneLine) {
  expect_error(refusal("x\n{{ raise_exception('roles must\nalternate') }}"),
               "[t:2] the chat template rejects the messages: roles must alternate");
  expect_error(refusal("{{ '99999999999999999999'|int }}"), "expected a number within 64 bits");
  expect_error(refusal("{{ '-9223372036854775809'|int }}"), "expected a number within 64 bits");
  expect_error(refusal("{{ '1e300'|int }}"), "expected a number within 64 bits");
  expect_error(refusal("{% if %}"), "[t:1] expected an expression, got %}");
  expect_error(refusal("a\n{% for x in y %}"),
               "expected {% endfor %}, got the end of the template");
  expect_error(refusal("{{ 'abc }}"), "expected the end of the string opened here");
  expect_error(refusal("{{ 1"), "expected }} to close the tag opened here");
  expect_error(refusal("{# x"), "expected #}");
  expect_error(refusal("{% raw %}x"), "{% endraw %}");
  expect_error(refusal("{% include 'x' %}"), "expected a known statement, got \"include\"");
  expect_error(refusal("{% break %}"), "break inside a loop");
  expect_error(refusal("{% endif %}"), "got \"endif\"");
  expect_error(refusal("{{ x ? }}"), "expected an expression, got \"?\"");
  expect_error(refusal("{{ 1|nope }}"), "expected a known filter, got \"nope\"");
  expect_error(refusal("{{ 1 is nope }}"), "expected a known test, got \"nope\"");
  expect_error(refusal("{{ 'a'.nope() }}"), "expected a known method of text, got \"nope\"");
  expect_error(refusal("{{ '{'.format(1) }}"), "matching braces");
  expect_error(refusal("{{ '{:>4}'.format(1) }}"),
               "format field without options that has a value, got \":>4\"");
  expect_error(refusal("{{ a.b.c }}"), "a is undefined");
  expect_error(refusal("{{ a['b'] }}"), "a is undefined");
  expect_error(refusal("{{ 'a' + x }}"), "x is undefined");
  expect_error(refusal("{{ nope() }}"), "got nope, which is undefined");
  expect_error(refusal("{{ 'a' + 1 }}"), "+ cannot be applied to text and an integer");
  expect_error(refusal("{{ 1 // 0 }}"), "divisor other than 0");
  expect_error(refusal("{{ 9223372036854775807 + 1 }}"), "the result of + exceeds 64 bits");
  expect_error(refusal("{{ 99999999999999999999 }}"), "a 64-bit integer");
  expect_error(refusal("{{ 10 ** 100 }}"), "the result of ** exceeds 64 bits");
  expect_error(refusal("{{ '\\ud800' }}"), "a code point");
  expect_error(refusal("{% set a.b = 1 %}"), "expected a to be a namespace");
  expect_error(refusal("{% set a, b = [1] %}"), "expected 2 values to unpack, got 1");
  expect_error(refusal("{% macro m(a) %}{% endmacro %}{{ m(1, 2) }}"),
               "at most 1 arguments for m, got 2");
  expect_error(refusal("{% macro m(a) %}{% endmacro %}{{ m(b=2) }}"), "parameter of m, got \"b\"");
  expect_error(refusal("{{ namespace()|tojson }}"), "that JSON can represent");
  expect_error(refusal("{{ x|tojson }}"), "got an undefined value");
}

TEST(ChatTemplate, CapsAreErrors) {
  expect_error(refusal(std::string((1 << 20) + 1, 'x')), "template of at most 1048576 bytes");
  expect_error(refusal("{% for i in range(1000000000) %}{% endfor %}"), "at most 500000 steps");
  expect_error(
      refusal("{% for i in range(9999) %}{% for j in range(9999) %}{% endfor %}{% endfor %}"),
      "steps");
  expect_error(refusal("{{ 'x' * 999999999999 }}"), "steps");
  expect_error(refusal("{% set x = 'ab' * 1000000 %}{% for i in range(20) %}{{ x }}{% endfor %}"),
               "at most 8388608 bytes of output");
  expect_error(refusal("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}"), "nesting of at most");
  expect_error(refusal("{{ " + std::string(500, '(') + "1" + std::string(500, ')') + " }}"),
               "nesting");
  expect_error(refusal("{{ 1" + std::string(100000, '+') + "1 }}"), "nesting");
  std::string sum = "{{ 1";
  for (int i = 0; i < 5000; ++i) sum += "+1";
  expect_error(refusal(sum + " }}"), "an expression of at most 150 levels");
  std::string deep;
  for (int i = 0; i < 500; ++i) deep += "{% if 1 %}";
  expect_error(refusal(deep), "nesting");
  // What holds itself is no trouble to free, and printing it ends.
  expect_error(refusal("{% set l = [] %}{% set _ = l.append(l) %}{{ l }}"), "nesting");
  EXPECT_EQ(rendered("{% set n = namespace() %}{% set n.n = n %}{{ n.n.n == n }}"), "True");
}

// The bytes with a bit, others as dots.
std::string marked(const MarkedText& t, char bit) {
  std::string out;
  for (size_t i = 0; i < t.size(); ++i) out += t.marks[i] & bit ? t.bytes[i] : '.';
  return out;
}

std::string foreign(std::string_view source, const char* content) {
  ChatRequest request{.messages = {{{"role", "user"}, {"content", content}}}};
  return marked(ChatTemplate(source, "t").render(request), mark::foreign);
}

TEST(ChatTemplate, MarksFollowTheBytes) {
  const std::pair<const char*, const char*> cases[] = {
      {"<{{ messages[0].content }}>", ".a b c."},
      {"{{ '<' + messages[0].content + '>' }}", ".a b c."},
      {"{{ messages[0].content ~ 1 }}", "a b c."},
      {"{{ '  ' ~ messages[0].content|trim }}", "..a b c"},
      {"{{ messages[0].content|upper }}", "A B C"},
      {"{{ messages[0].content.split(' ')|join('--') }}", "a..b..c"},
      {"{{ messages[0].content.replace('b', '<b>') }}", "a ... c"},
      {"{{ messages[0].content[2:] + '!' }}", "b c."},
      {"{{ messages[0].content[::-1] ~ 'x' }}", "c b a."},
      {"{{ messages[0].content|list|join }}", "a b c"},
      {"{{ {'k': messages[0].content}|tojson }}", ".......a b c.."},
      {"{{ [messages[0].content] }}", "..a b c.."},
      {"{{ messages[0]|tojson }}", "..role............content....a b c.."},
      {"{{ messages[0].content|indent(1, true) }}", ".a b c"},
      {"{% set x %}<{{ messages[0].content }}>{% endset %}{{ x }}", ".a b c."},
      {"{% macro m(x) %}<{{ x }}>{% endmacro %}{{ m(messages[0].content) }}", ".a b c."},
      {"{{ messages[0].role }}", "...."},
      {"{{ messages[0].content|length }}", "."},
  };
  for (const auto& [source, marks] : cases) EXPECT_EQ(foreign(source, "a b c"), marks) << source;
}

TEST(ChatTemplate, RolesAndAssistantsAreMarkedByTrust) {
  ChatRequest request{.messages = {{{"role", "assistant"}, {"content", "a"}},
                                   {{"role", "evil"}, {"content", "b"}}}};
  request.variables = {{"name", "v"}};
  const MarkedText t =
      ChatTemplate("{% for m in messages %}{{ m.role }}:{{ m.content }};{% endfor %}{{ name }}",
                   "t")
          .render(request);
  EXPECT_EQ(t.bytes, "assistant:a;evil:b;v");
  EXPECT_EQ(marked(t, mark::content), "..........a.evil.b.v");
  EXPECT_EQ(marked(t, mark::foreign), "............evil.b.v");
}

TEST(ChatTemplate, BadRequests) {
  const ChatTemplate t("x", "t");
  expect_error(error_of([&] { t.render({.messages = "hi"}); }),
               "[messages] expected a list, got string");
  expect_error(error_of([&] {
                 t.render({.messages = {{{"content", "x"}}}});
               }),
               "expected message 0 to be an object with a role, got one without");
  expect_error(error_of([&] { t.render({.messages = {"x"}}); }), "got string");
}

}  // namespace
}  // namespace hearth
