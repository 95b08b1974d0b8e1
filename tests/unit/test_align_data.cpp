// Alignment data: rows to masked tokens, and rows that are refused.
#include <gtest/gtest.h>

#include "data/examples/batches.h"
#include "data/examples/prompts.h"
#include "data/examples/templates.h"
#include "served_folder.h"
#include "sys/error.h"
#include "unit/example_text.h"
#include "unit/packed_bytes.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using nlohmann::ordered_json;

ExampleEncoder encoder(int64_t max_length = 200) {
  return {served_tokenizer(), ChatTemplate(served_template(), "test"), max_length};
}

Example example(const char* row, int64_t max_length = 200) {
  return encoder(max_length).example(ordered_json::parse(row), "row");
}

TEST(AlignData, CompletionIsLearnedAndEndsInEos) {
  const Example e = example(R"({"prompt": "2+2=", "completion": "4"})");
  EXPECT_EQ(text_where(e, false), "2+2=");
  EXPECT_EQ(text_where(e, true), "4<|end|>");
  EXPECT_EQ(e.tokens.back(), served_eos);
  EXPECT_EQ(learned_tokens(e), 2);
}

// As a chat will ask the model for the same thing.
TEST(AlignData, InstructionsGoThroughTheChatTemplate) {
  const Example e = example(R"({"instruction": "Add.", "input": "1 1", "output": "2<|end|>"})");
  EXPECT_EQ(text_where(e, false), "<|user|>Add.\n1 1<|end|><|assistant|>");
  EXPECT_EQ(text_where(e, true), "2<|end|>");
  EXPECT_TRUE(e.rendered);
  const Example bare = example(R"({"instruction": "Add.", "output": "2"})");
  EXPECT_EQ(text_where(bare, false), "<|user|>Add.<|end|><|assistant|>");
  EXPECT_FALSE(example(R"({"prompt": "a", "completion": "b"})").rendered);
  EXPECT_FALSE(example(R"({"text": "a"})").rendered);
  EXPECT_TRUE(example(R"({"prompt": [{"role": "user", "content": "a"}],
    "completion": [{"role": "assistant", "content": "b"}]})")
                  .rendered);
}

// The template is Alpaca's prompt to the byte, with an input and without.
TEST(AlignData, AlpacasTemplateIsItsPrompt) {
  const Tokenizer t = served_tokenizer();
  const ChatTemplate chat(alpaca_template(t), "alpaca", ordered_json{{"eos_token", "<|end|>"}});
  const ExampleEncoder encoder(t, chat, 800);
  const auto learned = [&](const char* row) {
    const Example e = encoder.example(ordered_json::parse(row), "row");
    EXPECT_EQ(text_where(e, true), "2<|end|>");
    return text_where(e, false);
  };
  const std::string with =
      "Below is an instruction that describes a task, paired with an input that provides further "
      "context. Write a response that appropriately completes the request.\n\n### "
      "Instruction:\nAdd.\n\n### Input:\n1 1\n\n### Response:\n";
  const std::string without =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n";
  EXPECT_EQ(learned(R"({"instruction": "Add.", "input": "1 1", "output": "2"})"), with);
  EXPECT_EQ(learned(R"({"instruction": "Add.", "input": "", "output": "2"})"), without);
  // What a chat asks, and what a second turn follows.
  const ordered_json asked = {{{"role", "user"}, {"content", "Add."}}};
  EXPECT_EQ(chat.render({.messages = asked, .add_generation_prompt = true}).bytes, without);
  const Example talk = encoder.example(ordered_json::parse(R"({"messages": [
    {"role": "system", "content": "Be brief."}, {"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}]})"),
                                       "row");
  EXPECT_EQ(text_where(talk, true), "b<|end|>d<|end|>");
  EXPECT_EQ(text_where(talk, false),
            "Be brief.\n\n### Instruction:\na\n\n### Response:\n\n\n### Instruction:\nc\n\n### "
            "Response:\n");
}

TEST(AlignData, EveryAssistantTurnIsLearned) {
  const Example e = example(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"},
    {"role": "assistant", "content": "d"}]})");
  EXPECT_EQ(text_where(e, true), "b<|end|>d<|end|>");
  EXPECT_EQ(text_where(e, false), "<|user|>a<|end|><|assistant|><|user|>c<|end|><|assistant|>");
}

TEST(AlignData, NothingIsLearnedAfterWhatTheUserSaysLast) {
  // A template that closes turns by another token than eos.
  const ExampleEncoder e(served_tokenizer(),
                         ChatTemplate("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}\n"
                                      "{% endfor %}{% if add_generation_prompt %}<|assistant|>"
                                      "{% endif %}",
                                      "test"),
                         200);
  const Example open =
      e.example(ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}, {"role": "user", "content": "c"}]})"),
                "row");
  EXPECT_EQ(std::ranges::count(open.tokens, served_eos), 0);
  EXPECT_EQ(text_where(open, true), "b");
  const Example alone =
      e.example(ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"}]})"), "row");
  EXPECT_EQ(learned_tokens(alone), 0);
}

// A template that prints the date gives a run the same examples on every day it goes on.
TEST(AlignData, TheDateOfATemplateIsTheRunsOwn) {
  const ChatTemplate dated(
      "{{ strftime_now('%d.%m.%Y') }}{% for m in messages %}<|{{ m.role }}|>"
      "{{ m.content }}{% endfor %}",
      "test");
  const ordered_json row = ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}]})");
  const ExampleEncoder e(served_tokenizer(), dated, 200, std::time_t(86400 * 365 + 43200));
  EXPECT_TRUE(text_where(e.example(row, "row"), false).starts_with("01.01.1971"));
}

TEST(AlignData, TextIsLearnedWhole) {
  const Example e = example(R"({"text": "abc"})");
  EXPECT_EQ(text_where(e, true), "abc<|end|>");
  EXPECT_EQ(learned_tokens(e), 3);  // nothing predicts the first
}

TEST(AlignData, ContentNeverBecomesASpecialToken) {
  const Example e = example(R"({"prompt": "<|end|>", "completion": "<|user|>"})");
  EXPECT_EQ(std::ranges::count(e.tokens, served_eos), 1);  // the one at the end
  EXPECT_EQ(std::ranges::count(e.tokens, 257), 0);
}

// Not eos, so nothing may follow it: the model is asked to stop there.
TEST(AlignData, ATurnThatATemplateClosesIsTheEnd) {
  const ChatTemplate chat(
      "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|system|>\n{% endfor %}"
      "{% if add_generation_prompt %}<|assistant|>{% endif %}",
      "test");
  const int32_t closes = *served_tokenizer().special("<|system|>");
  EXPECT_EQ(turn_end(chat, served_tokenizer()), closes);
  const ExampleEncoder e(served_tokenizer(), chat, 200);
  const Example talk =
      e.example(ordered_json::parse(R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}]})"),
                "row");
  EXPECT_EQ(text_where(talk, true), "b<|system|>");
  EXPECT_EQ(std::ranges::count(talk.tokens, served_eos), 0);
  const Example parted =
      e.example(ordered_json::parse(R"({"prompt": [{"role": "user", "content": "a"}],
    "completion": [{"role": "assistant", "content": "b"}]})"),
                "row");
  EXPECT_EQ(text_where(parted, true), "b<|system|>\n");
  EXPECT_EQ(turn_end(ChatTemplate("{{ messages[0].content }}", "test"), served_tokenizer()), -1);
  const ChatTemplate tagged(
      "{% for m in messages %}{% if m.role == 'assistant' %}<|assistant|>{% generation %}"
      "{{ m.content }}<|system|>\n{% endgeneration %}{% else %}<|user|>{{ m.content }}{% endif %}"
      "{% endfor %}{% if add_generation_prompt %}<|assistant|>{% endif %}",
      "test");
  EXPECT_EQ(turn_end(tagged, served_tokenizer()), closes);
}

TEST(AlignData, AnEndThatIsWrittenIsTheEnd) {
  const Example bare = example(R"({"prompt": "p", "completion": "4"})");
  const Example written = example(R"({"prompt": "p", "completion": "4<|end|>"})");
  EXPECT_EQ(written.tokens, bare.tokens);
  EXPECT_FALSE(written.spelled);
  EXPECT_EQ(example(R"({"text": "4<|end|>"})").tokens, example(R"({"text": "4"})").tokens);
}

TEST(AlignData, SpelledTokensAreSaidAndMayBeMeant) {
  const ordered_json row = {{"text", "<|user|>a<|assistant|>b<|end|>"}};
  const Example spelled = encoder().example(row, "row");
  EXPECT_TRUE(spelled.spelled);
  EXPECT_EQ(std::ranges::count(spelled.tokens, 257), 0);
  const ExampleEncoder meant(served_tokenizer(), ChatTemplate(served_template(), "test"), 200, {},
                             TextTokens::special);
  const Example e = meant.example(row, "row");
  EXPECT_FALSE(e.spelled);
  EXPECT_EQ(e.tokens, (std::vector<int32_t>{257, 'a', 258, 'b', served_eos}));
  const test::TempDir dir;
  write_file_atomic(dir.path() / "a.jsonl", "{\"text\": \"a\"}\n" + row.dump() + "\n");
  const Examples<Example> all = read_examples({(dir.path() / "a.jsonl").string()}, encoder());
  EXPECT_EQ(all.spelled, 1);
  EXPECT_TRUE(all.spelled_in.ends_with("a.jsonl:2")) << all.spelled_in;
}

TEST(AlignData, PairsThatAreTheSameTeachNothing) {
  const test::TempDir dir;
  write_file_atomic(dir.path() / "p.jsonl", R"({"prompt": "p", "chosen": "a", "rejected": "a"}
{"chosen": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}], "rejected": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}]}
{"prompt": "p", "chosen": "a", "rejected": "b"}
)");
  const auto all = read_preferences({(dir.path() / "p.jsonl").string()}, encoder());
  EXPECT_EQ(all.read, 3);
  EXPECT_EQ(all.equal, 2);
  EXPECT_EQ(all.unanswered + all.cut_off, 0);
  EXPECT_EQ(all.kept.size(), 1u);
}

TEST(AlignData, LongExamplesAreCutAndSaid) {
  const Example e = example(R"({"prompt": "abcd", "completion": "efgh"})", 6);
  EXPECT_TRUE(e.cut);
  EXPECT_EQ(text_where(e, true), "ef");
  const Example none = example(R"({"prompt": "abcdef", "completion": "gh"})", 6);
  EXPECT_EQ(learned_tokens(none), 0);
}

// Every token but the first of the text is predicted once, whatever the maximum.
TEST(AlignData, LongTextsAreSplitAndLearnedWhole) {
  const ordered_json row{{"text", "abcdefghij"}};
  const Example whole = encoder().example(row, "row");
  ASSERT_EQ(encoder(int64_t(whole.tokens.size())).examples(row, "row").size(), 1u);
  for (size_t most = 2; most < whole.tokens.size(); ++most) {
    SCOPED_TRACE(most);
    std::vector<int32_t> learned{whole.tokens[0]};
    for (const Example& e : encoder(int64_t(most)).examples(row, "row")) {
      ASSERT_GE(e.tokens.size(), 2u);
      EXPECT_LE(e.tokens.size(), most);
      EXPECT_FALSE(e.cut);
      EXPECT_EQ(e.tokens.size(), e.learned.size());
      EXPECT_EQ(e.tokens[0], learned.back());  // the context of the first prediction
      learned.insert(learned.end(), e.tokens.begin() + 1, e.tokens.end());
    }
    EXPECT_EQ(learned, whole.tokens);
  }
  const ordered_json asked{{"prompt", "abcd"}, {"completion", "efgh"}, {"text", "abcdefgh"}};
  EXPECT_EQ(encoder(6).examples(asked, "row").size(), 1u);  // an answer is cut
}

TEST(AlignData, ChatmlClosesTurnsByWhatTheTokenizerKnows) {
  const Tokenizer t = served_tokenizer();
  EXPECT_NE(chatml(t).find("eos_token"), std::string::npos);
  const ChatTemplate chat(chatml(t), "test", ordered_json{{"eos_token", "<|end|>"}});
  const ExampleEncoder e(t, chat, 200);
  const Example got = e.example(
      ordered_json::parse(
          R"({"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]})"),
      "row");
  EXPECT_EQ(text_where(got, true), "b<|end|>");
  EXPECT_EQ(text_where(got, false), "<|im_start|>user\na<|end|>\n<|im_start|>assistant\n\n");
}

TEST(AlignData, PreferencesShareTheirPrompt) {
  const auto texts = [](const char* row) {
    const Preference p = encoder().preference(ordered_json::parse(row), "row");
    EXPECT_EQ(text_where(p.chosen, false), text_where(p.rejected, false));
    return text_where(p.chosen, false) + "#" + text_where(p.chosen, true) + "#" +
           text_where(p.rejected, true);
  };
  EXPECT_EQ(texts(R"({"prompt": "p", "chosen": "a", "rejected": "b"})"), "p#a<|end|>#b<|end|>");
  const std::string chat = "<|user|>p<|end|><|assistant|>#a<|end|>#b<|end|>";
  EXPECT_EQ(texts(R"({"prompt": [{"role": "user", "content": "p"}],
    "chosen": [{"role": "assistant", "content": "a"}],
    "rejected": [{"role": "assistant", "content": "b"}]})"),
            chat);
  EXPECT_EQ(
      texts(R"({"chosen": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "a"}],
    "rejected": [{"role": "user", "content": "p"}, {"role": "assistant", "content": "b"}]})"),
      chat);
  EXPECT_EQ(texts(R"({"instruction": "p", "chosen": "a", "rejected": "b"})"), chat);
}

TEST(AlignData, BadRowsAreErrorsThatNameThem) {
  for (const char* row :
       {"3", R"({"question": "?"})", R"({"messages": []})", R"({"messages": [{"role": "user"}]})",
        R"({"prompt": 1, "completion": "a"})", R"({"prompt": "a", "completion": []})",
        R"({"instruction": "a", "output": 2})", R"({"text": null})"}) {
    try {
      example(row);
      ADD_FAILURE() << row;
    } catch (const Error& e) {
      EXPECT_TRUE(std::string(e.what()).starts_with("[row] expected")) << e.what();
    }
  }
  EXPECT_THROW(
      encoder().preference(ordered_json::parse(R"({"chosen": "a", "rejected": "b"})"), "row"),
      Error);
}

TEST(AlignData, ARoleThatNoTemplateKnowsIsAnError) {
  const auto error = [](const std::string& role) -> std::string {
    const ordered_json messages = ordered_json::array(
        {{{"role", "user"}, {"content", "a"}}, {{"role", role}, {"content", "b"}}});
    try {
      encoder().example({{"messages", messages}}, "msg.jsonl:1");
      return "";
    } catch (const Error& e) { return e.what(); }
  };
  const std::string expected = "[msg.jsonl:1] expected a role system, user or assistant, got ";
  EXPECT_EQ(error("gpt"), expected + "\"gpt\"; did you mean assistant?");
  EXPECT_EQ(error("model"), expected + "\"model\"; did you mean assistant?");
  EXPECT_EQ(error("human"), expected + "\"human\"; did you mean user?");
  EXPECT_EQ(error("Assistant"), expected + "\"Assistant\"; did you mean assistant?");
  EXPECT_EQ(error("judge"), expected + "\"judge\"");
  for (const char* role : {"assistant", "tool", "developer"}) EXPECT_EQ(error(role), "") << role;
  const ordered_json asked = ordered_json::array({{{"role", "user"}, {"content", "p"}}}),
                     said = ordered_json::array({{{"role", "bot"}, {"content", "a"}}});
  EXPECT_THROW(
      encoder().preference({{"prompt", asked}, {"chosen", said}, {"rejected", said}}, "row"),
      Error);
}

TEST(AlignData, ReadsListsAndLines) {
  const test::TempDir dir;
  write_file_atomic(
      dir.path() / "a.json",
      R"([{"prompt": "p", "completion": "c"}, {"prompt": "pppppp", "completion": "c"}])");
  write_file_atomic(dir.path() / "b.jsonl", "{\"text\": \"abc\"}\n{\"text\": \"abcdefgh\"}\n");
  const Examples<Example> all = read_examples(
      {(dir.path() / "a.json").string(), (dir.path() / "b.jsonl").string()}, encoder(5));
  EXPECT_EQ(all.read, 4);
  EXPECT_EQ(all.cut, 0);      // none that is kept
  EXPECT_EQ(all.cut_off, 1);  // its prompt alone is too long
  EXPECT_EQ(all.unanswered, 0);
  EXPECT_EQ(all.split, 1);
  EXPECT_EQ(all.pieces, 2);
  EXPECT_EQ(all.kept.size(), 4u);
  write_file_atomic(dir.path() / "bad.jsonl", "{\"text\": \"abc\"}\n{\"text\": \n");
  try {
    read_examples({(dir.path() / "bad.jsonl").string()}, encoder());
    ADD_FAILURE();
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("bad.jsonl:2"), std::string::npos) << e.what();
  }
}

TEST(AlignData, ReadsCompressedRows) {
  if (!can_unpack(Packing::gzip)) return;
  const test::TempDir dir;
  const std::string row = R"({"prompt": "p", "completion": "c"})";
  for (const auto& [file, text] :
       {std::pair{"a.jsonl.gz", row + "\n"}, {"b.json.gz", "[" + row + "]"}}) {
    write_file_atomic(dir / file, gzip_of(text));
    const std::string path = dir / file;
    EXPECT_EQ(read_examples({path}, encoder()).kept.size(), 1u) << file;
    EXPECT_EQ(read_prompts(path)[0].prompt, "p") << file;
  }
}

TEST(AlignData, ATableIsRefusedWithTheKeysItsRowsNeed) {
  const test::TempDir dir;
  const std::string csv = (dir / "a.csv").string(), tsv = (dir / "a.tsv.gz").string();
  write_file_atomic(csv, "prompt,completion\na,b\n");
  write_file_atomic(tsv, "prompt\tchosen\na\tb\n");
  test::expect_error(test::error_of([&] { read_examples({csv}, encoder()); }),
                     "prompt + completion");
  test::expect_error(test::error_of([&] { read_preferences({tsv}, encoder()); }), "rejected");
  test::expect_error(test::error_of([&] { read_prompts(csv); }), "\"prompt\"");
}

}  // namespace
}  // namespace hearth
