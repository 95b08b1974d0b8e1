// Rows of fine-tuning data: ShareGPT's messages, what is said of a wrong row, and the counts that a
// run reports.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/examples/examples.h"
#include "data/examples/prompts.h"
#include "served_folder.h"
#include "unit/example_text.h"
#include "unit/message_of.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::ordered_json;
using namespace std::string_literals;

ExampleEncoder encoder(int64_t max_length = 200) {
  return {served_tokenizer(), ChatTemplate(served_template(), "test"), max_length};
}

Example example(const char* row) { return encoder().example(ordered_json::parse(row), "row"); }

std::string example_error(const char* row) {
  return message_of([&] { example(row); });
}

std::string preference_error(const char* row) {
  return message_of([&] { encoder().preference(ordered_json::parse(row), "row"); });
}

TEST(AlignRows, AWrongValueIsNamedWithItsType) {
  const std::string one = "[row] expected a string or a list of messages in ";
  EXPECT_EQ(example_error(R"({"prompt": "2+2", "completion": 4})"),
            one + "\"completion\", got number");
  EXPECT_EQ(example_error(R"({"prompt": null, "completion": "4"})"), one + "\"prompt\", got null");
  EXPECT_EQ(preference_error(R"({"prompt": "p", "chosen": {}, "rejected": "b"})"),
            one + "\"chosen\", got object");
  EXPECT_EQ(preference_error(R"({"prompt": "p", "chosen": "a", "rejected": true})"),
            one + "\"rejected\", got boolean");
  EXPECT_EQ(preference_error(R"({"chosen": [{"role": "user", "content": "p"}], "rejected": 3})"),
            one + "\"rejected\", got number");
  EXPECT_EQ(example_error(R"({"prompt": "p", "completion": [{"role": "user", "content": "a"}]})"),
            "[row] expected two strings or two lists of messages in \"prompt\" and \"completion\", "
            "got string and array");
  EXPECT_EQ(preference_error(R"({"prompt": [{"role": "user", "content": "p"}],
    "chosen": [{"role": "assistant"}], "rejected": [{"role": "assistant", "content": "b"}]})"),
            "[row] expected messages with a role and a content in \"chosen\"");
}

// A table with a column for every kind of row has null or an empty list in the others.
TEST(AlignRows, EmptyColumnsOfOtherKindsAreNone) {
  const auto tokens = [](const char* row) { return example(row).tokens; };
  EXPECT_EQ(tokens(R"({"prompt": "a", "completion": "b", "conversations": null})"),
            tokens(R"({"prompt": "a", "completion": "b"})"));
  EXPECT_EQ(tokens(R"({"text": "a", "messages": [], "conversations": null})"),
            tokens(R"({"text": "a"})"));
  EXPECT_EQ(tokens(R"({"text": null, "instruction": "a", "output": "b", "messages": null})"),
            tokens(R"({"instruction": "a", "output": "b"})"));
}

TEST(AlignRows, TheThreeFormsOfPreferencesAreNamed) {
  EXPECT_EQ(preference_error(R"({"prompt": "p", "completion": "c"})"),
            "[row] expected prompt + chosen + rejected, instruction + chosen + rejected, or chosen "
            "+ rejected as two conversations with the same beginning, got keys: \"prompt\", "
            "\"completion\"");
  EXPECT_EQ(preference_error(R"({"chosen": "a", "rejected": "b"})"),
            "[row] chosen and rejected need a prompt when they are not lists of messages");
  EXPECT_EQ(preference_error(R"({"chosen": [{"role": "assistant", "content": "a"}],
    "rejected": [{"role": "assistant", "content": "b"}]})"),
            "[row] chosen and rejected need a prompt, or the same messages at their beginning");
}

TEST(AlignRows, ShareGptsMessagesAreMessages) {
  const Example shared = example(R"({"conversations": [{"from": "system", "value": "s"},
    {"from": "human", "value": "a"}, {"from": "gpt", "value": "b"}], "text": "unused"})");
  const Example plain = example(R"({"messages": [{"role": "system", "content": "s"},
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(shared.tokens, plain.tokens);
  EXPECT_EQ(shared.learned, plain.learned);
  EXPECT_GT(learned_tokens(shared), 0);
  // The names of roles may be mixed, and the list may have either key.
  EXPECT_EQ(example(R"({"messages": [{"from": "system", "value": "s"},
    {"from": "user", "value": "a"}, {"from": "assistant", "value": "b"}]})")
                .tokens,
            plain.tokens);
  EXPECT_EQ(example(R"({"conversations": [{"role": "system", "content": "s"},
    {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})")
                .tokens,
            plain.tokens);
  EXPECT_EQ(example_error(R"({"conversations": [{"from": "observation", "value": "a"}]})"),
            "[row] expected a role system, user or assistant, got \"observation\"");
  EXPECT_EQ(example_error(R"({"conversations": [{"from": "human"}]})"),
            "[row] expected messages with a role and a content in \"conversations\"");
}

TEST(AlignRows, ShareGptsMessagesMayBeAnswersAndPrompts) {
  const auto preference = [](const char* row) {
    const Preference p = encoder().preference(ordered_json::parse(row), "row");
    return std::pair(p.chosen.tokens, p.rejected.tokens);
  };
  const auto plain = preference(R"({"prompt": [{"role": "user", "content": "p"}],
    "chosen": [{"role": "assistant", "content": "a"}],
    "rejected": [{"role": "assistant", "content": "b"}]})");
  EXPECT_EQ(preference(R"({"prompt": [{"from": "human", "value": "p"}],
    "chosen": [{"from": "gpt", "value": "a"}], "rejected": [{"from": "gpt", "value": "b"}]})"),
            plain);
  EXPECT_EQ(
      preference(R"({"chosen": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "a"}],
    "rejected": [{"from": "human", "value": "p"}, {"from": "gpt", "value": "b"}]})"),
      plain);
  const test::TempDir dir;
  write_file_atomic(dir / "p.jsonl", R"({"prompt": [{"from": "human", "value": "p"}]}
{"prompt": [{"role": "user", "content": "p"}]}
)");
  const ChatTemplate chat(served_template(), "test");
  const auto rows =
      read_prompts(dir / "p.jsonl", {.chat = [&]() -> const ChatTemplate& { return chat; }});
  ASSERT_EQ(rows.size(), 2u);
  EXPECT_EQ(rows[0].prompt, rows[1].prompt);
}

TEST(AlignRows, EmptyAnswersAreCounted) {
  EXPECT_TRUE(example(R"({"prompt": "p", "completion": ""})").empty);
  EXPECT_TRUE(example(R"({"prompt": "p", "completion": "<|end|>"})").empty);
  EXPECT_TRUE(example(R"({"instruction": "i", "output": ""})").empty);
  EXPECT_TRUE(example(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": ""}]})")
                  .empty);
  EXPECT_FALSE(example(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": ""}, {"role": "assistant", "content": "b"}]})")
                   .empty);
  EXPECT_FALSE(example(R"({"prompt": "p", "completion": "c"})").empty);
  EXPECT_FALSE(example(R"({"text": "a"})").empty);
  const test::TempDir dir;
  write_file_atomic(dir / "a.jsonl", R"({"prompt": "p", "completion": ""}
{"prompt": "p", "completion": "c"}
)");
  const auto all = read_examples({(dir / "a.jsonl").string()}, encoder());
  EXPECT_EQ(all.empty, 1);
  EXPECT_EQ(all.notes(200),
            std::vector<std::string>{
                "1 of 2 rows have an empty answer: they teach only the end of a text"});
  write_file_atomic(dir / "p.jsonl", R"({"prompt": "p", "chosen": "a", "rejected": ""}
)");
  EXPECT_EQ(read_preferences({(dir / "p.jsonl").string()}, encoder()).empty, 1);
}

// A template that shows tools and the calls of them.
ChatTemplate calling() {
  return ChatTemplate(
      "{% if tools %}<|system|>{{ tools|tojson }}<|end|>{% endif %}"
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}"
      "{% if m.tool_calls %}{% for c in m.tool_calls %}"
      "{{ c.function.name }}({{ c.function.arguments|tojson }}){% endfor %}{% endif %}"
      "<|end|>{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
      "calling");
}

Example called(const char* row) {
  return ExampleEncoder(served_tokenizer(), calling(), 200)
      .example(ordered_json::parse(row), "row");
}

TEST(AlignRows, CallsReachTheTemplateAsTheServerGivesThem) {
  const Example e = called(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": null, "tool_calls": [{"id": "1", "type": "function",
      "function": {"name": "f", "arguments": "{\"x\": 1}"}}]},
    {"role": "tool", "tool_call_id": "1", "content": "b"},
    {"role": "assistant", "content": "c", "tool_calls": null}]})");
  EXPECT_EQ(text_where(e, true), "f({\"x\": 1})<|end|>c<|end|>");
  EXPECT_EQ(text_where(e, false), "<|user|>a<|end|><|assistant|><|tool|>b<|end|><|assistant|>");
  EXPECT_FALSE(e.empty);
  // Arguments may be an object, and a call may lack its wrapper.
  const Example bare = called(R"({"prompt": [{"role": "user", "content": "a"}], "completion": [
    {"role": "assistant", "tool_calls": [{"name": "f", "arguments": {"x": 1}}]}]})");
  EXPECT_EQ(text_where(bare, true), "f({\"x\": 1})<|end|>");
  const auto refused = [](const std::string& call) {
    const std::string row =
        R"({"messages": [{"role": "assistant", "tool_calls": [)" + call + "]}]}";
    return message_of([&] { called(row.c_str()); });
  };
  EXPECT_EQ(refused(R"({"function": {"arguments": "{}"}})"),
            "[row] expected the name of a function in messages[0].tool_calls[0], got none");
  EXPECT_EQ(refused(R"({"function": {"name": "f", "arguments": 3}})"),
            "[row] expected arguments as an object or its JSON text in messages[0].tool_calls[0], "
            "got number");
  EXPECT_TRUE(refused(R"({"function": {"name": "f", "arguments": "{"}})")
                  .starts_with("[row] [messages[0].tool_calls[0].arguments"));
  EXPECT_EQ(example_error(R"({"messages": [{"role": "user", "content": "", "tool_calls": [{}]}]})"),
            "[row] expected tool_calls in messages of the assistant only, got them in messages[0] "
            "of role \"user\"");
  EXPECT_EQ(
      example_error(R"({"messages": [{"role": "assistant", "content": "a",
    "tool_calls": [{"function": {"name": "f"}}]}]})"),
      "[row] the chat template has no place for \"tool_calls\": use a model whose template has "
      "one, or remove them");
}

TEST(AlignRows, ToolsReachTheTemplate) {
  const std::string tools = R"("tools": [{"type": "function", "function": {"name": "f"}}], )",
                    shown = R"(<|system|>[{"type": "function", "function": {"name": "f"}}]<|end|>)",
                    turn = "<|user|>a<|end|><|assistant|>";
  const std::string asked = R"([{"role": "user", "content": "a"}])",
                    said = R"([{"role": "assistant", "content": "b"}])";
  for (const std::string& row :
       {R"("messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}])"s,
        "\"prompt\": " + asked + ", \"completion\": " + said,
        R"("instruction": "a", "output": "b")"s}) {
    const Example e = called(("{" + tools + row + "}").c_str());
    EXPECT_EQ(text_where(e, false), shown + turn) << row;
    EXPECT_EQ(text_where(e, true), "b<|end|>") << row;
    const std::string text = nlohmann::json(tools.substr(9, tools.size() - 11)).dump();
    EXPECT_EQ(text_where(called(("{\"tools\": " + text + ", " + row + "}").c_str()), false),
              shown + turn)
        << "as JSON text";
    for (const char* none : {"null", "[]", R"("")", R"("[]")"})
      EXPECT_EQ(text_where(called(("{\"tools\": "s + none + ", " + row + "}").c_str()), false),
                turn);
    EXPECT_EQ(example_error(("{" + tools + row + "}").c_str()),
              "[row] the chat template has no place for \"tools\": use a model whose template has "
              "one, or remove them");
  }
  EXPECT_EQ(example_error(R"({"tools": {}, "instruction": "a", "output": "b"})"),
            "[row] expected a list or its JSON text in \"tools\", got object");
  EXPECT_EQ(example_error(R"({"tools": "3", "instruction": "a", "output": "b"})"),
            "[row] expected a list or its JSON text in \"tools\", got number");
  EXPECT_TRUE(example_error(R"({"tools": "f", "instruction": "a", "output": "b"})")
                  .starts_with("[row] [tools"));
  EXPECT_EQ(example_error(R"({"tools": ["f"], "instruction": "a", "output": "b"})"),
            "[row] expected objects in \"tools\", got string");
  // Prompts are encoded as in SFT.
  const test::TempDir dir;
  write_file_atomic(dir / "p.jsonl", "{" + tools + "\"prompt\": " + asked + "}\n");
  const ChatTemplate chat = calling();
  const PromptSpec spec{.chat = [&]() -> const ChatTemplate& { return chat; }};
  EXPECT_EQ(read_prompts(dir / "p.jsonl", spec)[0].prompt, shown + turn);
}

TEST(AlignRows, AnswersWithWeightZeroAreNotLearned) {
  const auto weighted = [](const std::string& first, const std::string& second) {
    return R"({"messages": [{"role": "user", "content": "a"},
      {"role": "assistant", "content": "b")" +
           first + R"(}, {"role": "user", "content": "c"}, {"role": "assistant", "content": "d")" +
           second + "}]}";
  };
  const auto learned = [&](const std::string& first, const std::string& second) {
    return text_where(example(weighted(first, second).c_str()), true);
  };
  const std::string zero = ", \"weight\": 0", one = ", \"weight\": 1", null = ", \"weight\": null";
  EXPECT_EQ(learned("", ""), "b<|end|>d<|end|>");
  EXPECT_EQ(learned(one, null), "b<|end|>d<|end|>");
  EXPECT_EQ(learned(zero, one), "d<|end|>");
  EXPECT_EQ(learned("", zero), "b<|end|>");
  EXPECT_EQ(learned(zero, zero), "");
  EXPECT_EQ(example(weighted(zero, "").c_str()).tokens, example(weighted("", "").c_str()).tokens);
  for (const auto& [value, got] :
       {std::pair("0.5", "0.5"), {"2", "2"}, {"\"0\"", "\"0\""}, {"false", "boolean"}})
    EXPECT_EQ(example_error(weighted("", ", \"weight\": "s + value).c_str()),
              "[row] expected a weight of 0 or 1 in messages[3], got "s + got);
  EXPECT_EQ(text_where(example(R"({"conversations": [{"from": "human", "value": "a"},
    {"from": "gpt", "value": "b", "weight": 0}, {"from": "gpt", "value": "c"}]})"),
                       true),
            "c<|end|>");
  EXPECT_EQ(example_error(R"({"prompt": [{"role": "user", "content": "a"}],
    "completion": [{"role": "assistant", "content": "b", "weight": 0}]})"),
            "[row] a weight of 0 needs a row of \"messages\": of the answer in \"completion\" "
            "everything is learned");
  const test::TempDir dir;
  write_file_atomic(dir / "a.jsonl", R"({"messages": [{"role": "user", "content": "a"}, )"
                                     R"({"role": "assistant", "content": "b", "weight": 0}]})"
                                     "\n");
  EXPECT_EQ(
      read_examples({(dir / "a.jsonl").string()}, encoder()).left_out(200),
      std::vector<std::string>{"1 of 1 rows left out: no turn of the assistant to learn in them"});
}

// An eos that the template does not write would end an answer that is not learned.
TEST(AlignRows, AFinalAnswerWithWeightZeroGetsNoEnd) {
  const ChatTemplate lines(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}",
      "test");
  const Example e = ExampleEncoder(served_tokenizer(), lines, 200)
                        .example(ordered_json::parse(R"({"messages": [
    {"role": "assistant", "content": "a"}, {"role": "assistant", "content": "b", "weight": 0}]})"),
                                 "row");
  EXPECT_EQ(text_where(e, true), "a");
  EXPECT_EQ(std::ranges::count(e.tokens, served_eos), 0);
}

TEST(AlignRows, ContentsMayBeListsOfTextParts) {
  const Example plain = example(R"({"messages": [{"role": "user", "content": "ab"},
    {"role": "assistant", "content": "c"}]})");
  EXPECT_EQ(example(R"({"messages": [
    {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]},
    {"role": "assistant", "content": [{"type": "text", "text": "c"}]}]})")
                .tokens,
            plain.tokens);
  const auto error = [](const std::string& content) {
    const std::string row = R"({"messages": [{"role": "user", "content": )" + content + "}]}";
    return example_error(row.c_str());
  };
  EXPECT_EQ(error(R"([{"type": "image_url", "image_url": {"url": "u"}}])"),
            "[row] expected parts of type text in messages[0].content, got \"image_url\"");
  EXPECT_EQ(error(R"(["a"])"),
            "[row] expected parts of type text in messages[0].content, got none");
  EXPECT_EQ(error(R"([{"type": "text"}])"),
            "[row] expected a string as the text of each part in messages[0].content, got none");
  const std::string text =
      "[row] expected text or a list of text parts in messages[0].content, got ";
  EXPECT_EQ(error("null"), text + "null");
  EXPECT_EQ(error("3"), text + "number");
  const test::TempDir dir;
  write_file_atomic(dir / "p.jsonl", R"({"prompt": [{"role": "user", "content": "p"}]}
{"prompt": [{"role": "user", "content": [{"type": "text", "text": "p"}]}]}
)");
  const ChatTemplate chat(served_template(), "test");
  const auto rows =
      read_prompts(dir / "p.jsonl", {.chat = [&]() -> const ChatTemplate& { return chat; }});
  EXPECT_EQ(rows[0].prompt, rows[1].prompt);
}

TEST(AlignRows, AnErrorOfTheTemplateNamesTheRow) {
  const ChatTemplate chat(
      "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
      "{% endif %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}",
      "strict.jinja");
  const ExampleEncoder strict(served_tokenizer(), chat, 200);
  const test::TempDir dir;
  const std::string file = (dir / "t1.jsonl").string();
  const std::string refused =
      "[" + file + ":2] [strict.jinja:1] the chat template rejects the messages: no system";
  const std::string ruled = R"([{"role": "system", "content": "s"}])",
                    said = R"([{"role": "assistant", "content": "b"}])";
  for (const std::string& row : {"{\"messages\": " + ruled + "}",
                                 "{\"prompt\": " + ruled + ", \"completion\": " + said + "}"}) {
    write_file_atomic(file, "{\"prompt\": \"a\", \"completion\": \"b\"}\n" + row + "\n");
    EXPECT_EQ(message_of([&] { read_examples({file}, strict); }), refused);
  }
  const std::string first = R"({"prompt": "a", "chosen": "b", "rejected": "c"})";
  write_file_atomic(file, first + "\n{\"prompt\": " + ruled + ", \"chosen\": " + said +
                              ", \"rejected\": " + said + "}\n");
  EXPECT_EQ(message_of([&] { read_preferences({file}, strict); }), refused);
  EXPECT_EQ(message_of([&] {
              read_prompts(file, {.chat = [&]() -> const ChatTemplate& { return chat; }});
            }),
            refused);
}

// A row is left out or cut, not both.
TEST(AlignRows, CountsOfRowsDoNotOverlap) {
  const test::TempDir dir;
  write_file_atomic(dir / "a.jsonl", R"({"prompt": "abcdefgh", "completion": "c"}
{"prompt": "a", "completion": "bcdefgh"}
{"prompt": "a", "completion": "b"}
)");
  const auto all = read_examples({(dir / "a.jsonl").string()}, encoder(6));
  EXPECT_EQ(all.left_out(6),
            std::vector<std::string>{
                "1 of 3 rows left out: their prompts fill all 6 tokens of --max-length"});
  EXPECT_EQ(all.notes(6), std::vector<std::string>{"1 of 3 rows cut at 6 tokens"});
  EXPECT_EQ(all.kept.size(), 2u);
  write_file_atomic(dir / "p.jsonl", R"({"prompt": "abcdefgh", "chosen": "a", "rejected": "b"}
{"prompt": "a", "chosen": "bbbbbbbb", "rejected": "bbbbbbbbc"}
{"prompt": "a", "chosen": "bbbbbbbb", "rejected": "c"}
)");
  const auto pairs = read_preferences({(dir / "p.jsonl").string()}, encoder(6));
  EXPECT_EQ(pairs.cut_off, 1);
  EXPECT_EQ(pairs.equal, 1);
  EXPECT_EQ(pairs.cut, 1);
}

TEST(AlignRows, ErrorsNameTheFiles) {
  const test::TempDir dir;
  const std::string a = (dir / "a.txt").string(), b = (dir / "b.txt").string();
  write_file_atomic(a, ""), write_file_atomic(b, "");
  EXPECT_EQ(read_examples({a}, encoder()).files, a);
  EXPECT_EQ(read_examples({a, b}, encoder()).files, a + " and 1 more");
}

}  // namespace
}  // namespace hearth
