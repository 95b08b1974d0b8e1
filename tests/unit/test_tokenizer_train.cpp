// Learning BPE: against a plain trainer, at several thread counts, from files.
#include <algorithm>
#include <array>
#include <map>

#include "text/tokenizer/scanner.h"
#include "text/tokenizer/train.h"
#include "text/tokenizer/vocabulary.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;

// Sentences of made-up words, some far more frequent than others.
std::vector<std::string> made_up_text(uint32_t seed, int documents) {
  std::mt19937 rng(seed);
  std::vector<std::string> words, text;
  for (int i = 0; i < 300; ++i) {
    std::string w;
    for (size_t k = 1 + rng() % 4; k > 0; --k)
      w += std::array{"ba", "na", "ti", "ti", "o", "\u00e9l", "st", "aaa"}[rng() % 8];
    words.push_back(w);
  }
  for (int d = 0; d < documents; ++d) {
    std::string s;
    for (int i = 0; i < 200; ++i) {
      s += words[rng() % (1 + rng() % words.size())];
      s += std::array{" ", " ", " ", ", ", "\n", " 12 "}[rng() % 6];
    }
    text.push_back(s);
  }
  return text;
}

TextSource source_of(const std::vector<std::string>& text) {
  return [&text, i = size_t(0)](std::string& out) mutable {
    if (i == text.size()) return false;
    out = text[i++];
    return true;
  };
}

std::string saved(const Tokenizer& t) {
  const ScratchDir dir;
  t.save(dir.path());
  return slurp(dir / "tokenizer.json");
}

// All pairs counted anew for each merge.
std::vector<std::string> plain_training(const std::vector<std::string>& text, size_t merges) {
  std::map<std::string, int64_t> counts;
  for (const std::string& t : text)
    for (const char *p = t.data(), *end = p + t.size(), *q; p < end; p = q) {
      q = scanner_of(Pattern::gpt2)(p, end);
      ++counts[std::string(p, q)];
    }
  std::vector<std::string> tokens;
  std::map<std::string, int> ids;
  const auto add = [&](const std::string& s) {
    if (ids.emplace(s, int(tokens.size())).second) tokens.push_back(s);
    return ids[s];
  };
  for (const uint8_t b : byte_order()) add(std::string(1, char(b)));
  std::vector<std::pair<std::vector<int>, int64_t>> words;
  for (const auto& [w, n] : counts) {
    words.push_back({{}, n});
    for (const char c : w) words.back().first.push_back(ids[std::string(1, c)]);
  }
  while (tokens.size() < 256 + merges) {
    std::map<std::pair<int, int>, int64_t> pairs;
    for (const auto& [w, n] : words)
      for (size_t i = 0; i + 1 < w.size(); ++i) pairs[{w[i], w[i + 1]}] += n;
    if (pairs.empty()) break;
    const auto best = std::ranges::max_element(pairs, {}, [](const auto& p) { return p.second; });
    const auto [left, right] = best->first;  // the first of the largest: lowest ids
    const int made = add(tokens[size_t(left)] + tokens[size_t(right)]);
    for (auto& [w, n] : words)
      for (size_t i = 0; i + 1 < w.size(); ++i)
        if (w[i] == left && w[i + 1] == right) {
          w[i] = made;
          w.erase(w.begin() + long(i) + 1);
        }
  }
  return tokens;
}

TEST(tokenizer_train, agrees_with_a_plain_trainer) {
  for (const uint32_t seed : {1u, 2u}) {
    const std::vector<std::string> text = made_up_text(seed, 10);
    Threads threads(2);
    const Tokenizer t = train_bpe({.vocab = 501}, source_of(text), threads);
    const std::vector<std::string> expected = plain_training(text, 244);
    ASSERT_EQ(t.vocab_size(), 501);
    ASSERT_EQ(expected.size(), 500u);
    for (size_t id = 0; id < expected.size(); ++id)
      EXPECT_EQ(t.bytes_of(int32_t(id)), expected[id]);
    EXPECT_EQ(t.special("<|endoftext|>"), 500);
  }
}

TEST(tokenizer_train, same_at_any_thread_count) {
  const std::vector<std::string> text = made_up_text(3, 60);
  std::vector<std::string> files;
  for (const int n : {1, 2, 3}) {
    Threads threads(n);
    files.push_back(saved(train_bpe({.vocab = 700}, source_of(text), threads)));
  }
  EXPECT_EQ(files[0], files[1]);
  EXPECT_EQ(files[0], files[2]);
}

TEST(tokenizer_train, ends_where_the_text_has_no_pair_left) {
  Threads threads(1);
  const std::vector<std::string> text = {"abab abab", ""};
  const Tokenizer t = train_bpe({.vocab = 1000}, source_of(text), threads);
  EXPECT_EQ(t.encode("abab abab").size(), 2u);
  EXPECT_EQ(t.vocab_size(), 256 + 3 + 1);  // ab, abab, " abab"
  EXPECT_EQ(t.eos(), 259);
  const Tokenizer bytes = train_bpe({.vocab = 257}, source_of({}), threads);
  EXPECT_EQ(bytes.decode(bytes.encode("any \xff text")), "any \xff text");
}

TEST(tokenizer_train, special_tokens_follow_the_learned_ones) {
  const std::vector<std::string> text = made_up_text(4, 5);
  Threads threads(1);
  const ScratchDir dir;
  const Tokenizer t = train_bpe(
      {.vocab = 300, .special = {"<|endoftext|>", "<|im_start|>", "[INST]", "\u00e9\u00e9!"}},
      source_of(text), threads);
  t.save(dir.path());
  for (const Tokenizer& each : {t, Tokenizer::load(dir.path())}) {
    EXPECT_EQ(each.vocab_size(), 300);
    EXPECT_EQ(each.eos(), 296);
    const std::string whole = "<|im_start|>[INST]\u00e9\u00e9!<|endoftext|>";
    const std::vector<int32_t> ids = {297, 298, 299, 296};
    EXPECT_EQ(each.encode_with_special(whole), ids);
    EXPECT_EQ(each.decode(ids), whole);
    EXPECT_LT(std::ranges::max(each.encode(whole)), 296) << "as plain text";
    EXPECT_EQ(each.special_ids().size(), 6u) << "four, and bos and eos again";
  }
  const auto file = nlohmann::json::parse(slurp(dir / "tokenizer.json"));
  ASSERT_EQ(file["added_tokens"].size(), 4u);
  EXPECT_EQ(file["added_tokens"][2]["content"], "[INST]");
  EXPECT_EQ(file["added_tokens"][2]["special"], true);
}

TEST(tokenizer_train, special_tokens_that_are_refused) {
  Threads threads(1);
  const std::vector<std::string> text = {"abab abab"};
  const auto error = [&](const std::string& special) {
    return error_of([&] {
      train_bpe({.vocab = 1000, .special = {"<|endoftext|>", special}}, source_of(text), threads);
    });
  };
  EXPECT_EQ(error("<|user|>"), "no error");
  EXPECT_THAT_TEXT(error(""), "[--special] expected the text of a token, got an empty one");
  EXPECT_THAT_TEXT(error("<|endoftext|>"), "got \"<|endoftext|>\" twice");
  EXPECT_THAT_TEXT(error("\xff"), "expected UTF-8");
  EXPECT_THAT_TEXT(error("a"), "\"a\" is already in the vocabulary, as id 64");
  EXPECT_THAT_TEXT(error("abab"), "\"abab\" is already in the vocabulary, as id 257");
  EXPECT_THAT_TEXT(error(" abab"), "as id 258");
  EXPECT_THAT_TEXT(error("\u0120abab"), "as id 258") << "as tokenizer.json spells it";
  EXPECT_EQ(error("ababab"), "no error");
  EXPECT_ERROR(
      train_bpe({.vocab = 257, .special = {"<|endoftext|>", "<|user|>"}}, source_of(text), threads),
      "expected a vocabulary of 258 (256 bytes and 2 special tokens)");
}

TEST(tokenizer_train, wrong_sizes_and_patterns) {
  Threads threads(1);
  EXPECT_ERROR(train_bpe({.vocab = 256}, source_of({}), threads), "expected a vocabulary of 257");
  EXPECT_ERROR(train_bpe({.vocab = -1}, source_of({}), threads), "got -1");
  EXPECT_ERROR(train_bpe({.pattern = "o300k"}, source_of({}), threads), "got o300k");
}

TEST(tokenizer_train, files_of_text_and_json_lines) {
  const ScratchDir dir;
  spill(dir / "a.txt", "first one\n<|endoftext|>\nsecond\none\n<|endoftext|>\n");
  spill(dir / "b.jsonl",
        "{\"text\": \"first one\\n\"}\n\n{\"text\":\"second\\none\\n\", \"n\": 1}");
  Threads threads(1);
  const std::vector<std::string> text = {"first one\n", "second\none\n"};
  const std::vector<std::filesystem::path> a = {dir / "a.txt"}, b = {dir / "b.jsonl"};
  const std::string expected = saved(train_bpe({.vocab = 280}, source_of(text), threads));
  EXPECT_EQ(saved(train_bpe({.vocab = 280}, a, threads)), expected);
  EXPECT_EQ(saved(train_bpe({.vocab = 280}, b, threads)), expected);
  spill(dir / "c.jsonl", "{\"text\": \"fine\"}\n{\"txt\": 1}\n");
  const std::vector<std::filesystem::path> c = {dir / "c.jsonl"}, none = {dir / "none.txt"};
  EXPECT_ERROR(train_bpe({.vocab = 280}, c, threads), "with \"text\" on line 2");
  EXPECT_ERROR(train_bpe({.vocab = 280}, none, threads), "none.txt");
}

}  // namespace
}  // namespace hearth
