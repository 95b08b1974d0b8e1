// Files of prompts: the forms of a row, templates, special tokens, the digest.
#include <gtest/gtest.h>

#include <algorithm>
#include <set>

#include "data/examples/examples.h"
#include "reward_case.h"
#include "served_folder.h"
#include "sys/error.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

TEST(Prompts, RowsOfEveryKnownForm) {
  RewardFolder folder;
  const fs::path file = folder.path / "p.jsonl";
  std::ofstream(file) << "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n\n"
                         "{\"question\": \"q\", \"answer\": \"so\\n#### 3\"}\n"
                         "{\"original_text\": \"t\", \"ans\": 2.0}\n"
                         "{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"}\n";
  const std::vector<PromptRow> rows = read_prompts(file, {.form = "Q: {}\nA:"});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].prompt, "Q: 1+1=\nA:");
  EXPECT_EQ(rows[2].answer(), "2.0");
  EXPECT_EQ(rows[3].prompt, "Q: i\nx\nA:");
  EXPECT_EQ(rows[3].answer(), "o");
  EXPECT_TRUE(rows[1].where.ends_with("p.jsonl:3"));
  std::ofstream(file) << "[{\"instruction\": \"a\", \"input\": \"\", \"answer\": \"4\"}]";
  const ChatTemplate chat(served_template(), "test");
  const auto templated = [&]() -> const ChatTemplate& { return chat; };
  EXPECT_EQ(read_prompts(file, {.chat = templated})[0].prompt, "<|user|>a<|end|><|assistant|>");
  EXPECT_THROW(read_prompts(file), Error);  // as a list of messages is refused
  for (const char* bad : {"", "[]", "{\"prompt\": 3}\n", "{\"text\": \"x\"}\n", "3\n", "{"}) {
    std::ofstream(file) << bad;
    EXPECT_THROW(read_prompts(file), Error) << bad;
  }
  EXPECT_THROW(read_prompts(folder.path / "none"), Error);
}

TEST(Prompts, FormsAndTemplatesMayBeSpecialTokensAndRowsNever) {
  RewardFolder folder;
  const fs::path file = folder.path / "p.jsonl";
  const Tokenizer t = served_tokenizer();
  const ChatTemplate chat(served_template(), "test");
  const ExampleEncoder encoder(t, chat, 100);
  const auto tokens = [&](const PromptRow& r) { return prompt_tokens(r, t); };
  const auto templated = [&]() -> const ChatTemplate& { return chat; };
  std::ofstream(file) << R"({"prompt": "a<|end|>"})"
                      << "\n";
  EXPECT_EQ(tokens(read_prompts(file)[0]), t.encode("a<|end|>"));
  EXPECT_EQ(std::ranges::count(t.encode("a<|end|>"), served_eos), 0);
  const std::vector<int32_t> formed = tokens(read_prompts(file, {.form = "<|end|>{}"})[0]);
  EXPECT_EQ(formed.front(), served_eos);
  EXPECT_EQ(std::ranges::count(formed, served_eos), 1);
  // A user's message begins as SFT's conversations do.
  const PromptRow asked = read_prompts(file, {.chat = templated, .message = true})[0];
  const Example learned = encoder.example(
      {{"messages",
        {{{"role", "user"}, {"content", "a<|end|>"}}, {{"role", "assistant"}, {"content", "b"}}}}},
      "row");
  const std::vector<int32_t> begin = tokens(asked);
  ASSERT_LT(begin.size(), learned.tokens.size());
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), learned.tokens.begin()));
  EXPECT_TRUE(learned.learned[begin.size()] && !learned.learned[begin.size() - 1]);
  std::ofstream(file) << R"({"prompt": [{"role": "user", "content": "a<|end|>"}]})"
                      << "\n";
  EXPECT_EQ(tokens(read_prompts(file, {.chat = templated})[0]), begin);
  EXPECT_THROW(read_prompts(file), Error);
  EXPECT_THROW(read_prompts(file, {.form = "Q {}", .chat = templated}), Error);
}

// What the tokenizer puts around a text is added where a form does not begin with it.
TEST(Prompts, FormsAreCompletedByTheTokenizersTemplate) {
  RewardFolder folder;
  const fs::path file = folder.path / "p.jsonl";
  std::ofstream(file) << R"({"prompt": "a"})";
  const int32_t user = *served_tokenizer().special("<|user|>");
  const auto tokens = [&](const char* form, std::vector<int32_t> before) {
    VocabularyParts parts{.where = "test"};
    for (int32_t i = 0; i < 256; ++i) parts.tokens.push_back({std::string(1, char(i)), i});
    parts.added = {{"<|end|>", served_eos}, {"<|user|>", user}};
    parts.text.before = std::move(before), parts.text.after = {served_eos};
    return prompt_tokens(read_prompts(file, {.form = form})[0],
                         Tokenizer(make_vocabulary(std::move(parts))));
  };
  using Ids = std::vector<int32_t>;
  EXPECT_EQ(tokens("{}", {user}), (Ids{user, 'a', served_eos}));
  EXPECT_EQ(tokens("<|user|>{}", {user}), (Ids{user, 'a', served_eos}));
  EXPECT_EQ(tokens("<|end|>{}", {}), (Ids{served_eos, 'a', served_eos}));
}

TEST(Prompts, TheDigestKnowsTextsAnswersAndOrder) {
  const PromptRow a{{{"answer", 1}}, "p", "f:1"}, b{{{"answer", 2}}, "p", "f:1"};
  const PromptRow c{{{"answer", 1}}, "q", "f:1"}, moved{{{"answer", 1}}, "p", "g:7"};
  const auto digest = [](std::vector<PromptRow> rows) { return digest_of(rows); };
  EXPECT_EQ(digest({a}), digest({moved}));
  EXPECT_EQ(
      std::set({digest({a}), digest({b}), digest({c}), digest({a, c}), digest({c, a})}).size(), 5u);
}

}  // namespace
}  // namespace hearth
