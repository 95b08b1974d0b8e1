// Encoding and decoding with the GPT-2 and llama2.c vocabularies.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <sstream>

#include "sys/threads.h"
#include "text/tokenizer/bpe.h"
#include "text/tokenizer/scanner.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using Ids = std::vector<int32_t>;

std::filesystem::path gpt2_file(const std::string& name) {
  return test_data("tokenizers/gpt2/" + name);
}

std::vector<std::string> words_of(std::string_view text) {
  std::vector<std::string> words;
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const char* q = scanner_of(Pattern::gpt2)(p, end);
    words.emplace_back(p, q);
    p = q;
  }
  return words;
}

struct Case {
  std::string text;
  Ids ids;
};

std::vector<Case> gpt2_cases() {
  const std::string inputs = slurp(gpt2_file("cases.inp"));
  std::istringstream outputs(slurp(gpt2_file("cases.out")));
  const std::string separator = "\n__ggml_vocab_test__\n";
  std::vector<Case> cases;
  for (size_t at = 0; at < inputs.size();) {
    const size_t end = std::min(inputs.find(separator, at), inputs.size());
    Case c{inputs.substr(at, end - at), {}};
    std::string line;
    std::getline(outputs, line);
    std::istringstream ids(line);
    for (int32_t id; ids >> id;) c.ids.push_back(id);
    cases.push_back(std::move(c));
    at = end + separator.size();
  }
  return cases;
}

void expect_cases(const Tokenizer& tokenizer) {
  const std::vector<Case> cases = gpt2_cases();
  EXPECT_EQ(cases.size(), 46u);
  for (const Case& c : cases) {
    EXPECT_EQ(tokenizer.encode(c.text), c.ids) << '"' << c.text << '"';
    EXPECT_EQ(tokenizer.decode(c.ids), c.text);
  }
  EXPECT_EQ(tokenizer.vocab_size(), 50257);
  EXPECT_EQ(tokenizer.eos(), 50256);
  EXPECT_EQ(tokenizer.bos(), 50256);
}

TEST(tokenizer, gpt2_pattern) {
  using Words = std::vector<std::string>;
  EXPECT_EQ(words_of("Hello world"), (Words{"Hello", " world"}));
  EXPECT_EQ(words_of("it's I'LL we'll'd"),
            (Words{"it", "'s", " I", "'", "LL", " we", "'ll", "'d"}));
  EXPECT_EQ(words_of(" 's"), (Words{" '", "s"}));
  EXPECT_EQ(words_of("a  b   "), (Words{"a", " ", " b", "   "}));
  EXPECT_EQ(words_of("a\n\nb \n c"), (Words{"a", "\n", "\n", "b", " \n", " c"}));
  EXPECT_EQ(words_of("x12 3.5"), (Words{"x", "12", " 3", ".", "5"}));
  EXPECT_EQ(words_of("a\u00a0b\u3000"), (Words{"a", "\u00a0", "b", "\u3000"}));
  EXPECT_EQ(words_of("caf\u00e9s \u6f22\u5b57\u00bd"),
            (Words{"caf\u00e9s", " \u6f22\u5b57", "\u00bd"}));
  EXPECT_EQ(words_of("internationalisation \u0437\u0434\u0440\u0430"),
            (Words{"internationalisation", " \u0437\u0434\u0440\u0430"}));
  EXPECT_EQ(words_of("\U00020000\U0001fbf0"), (Words{"\U00020000", "\U0001fbf0"}));
}

TEST(tokenizer, gpt2_pattern_on_invalid_utf8) {
  using Words = std::vector<std::string>;
  // Each is neither letter, number nor space: stray, overlong, surrogate, too large, cut short.
  for (const std::string bad :
       {"\x80", "\xc0\xa0", "\xed\xa0\x80", "\xf5\x80\x80\x80", "\xe6\xbc"}) {
    EXPECT_EQ(words_of("a" + bad + "b"), (Words{"a", bad, "b"}));
    EXPECT_EQ(words_of("a " + bad + "!"), (Words{"a", " " + bad + "!"}));
    EXPECT_EQ(words_of("1" + bad), (Words{"1", bad}));
  }
}

TEST(tokenizer, gpt2_cases_from_tiktoken) {
  expect_cases(Tokenizer::load(gpt2_file("r50k_base.tiktoken")));
}

TEST(tokenizer, gpt2_cases_from_vocab_bpe) {
  expect_cases(Tokenizer::load(gpt2_file("vocab.bpe")));
}

TEST(tokenizer, gpt2_cases_from_tokenizer_json) {
  const ScratchDir dir;
  std::filesystem::copy_file(gpt2_file("tokenizer.json"), dir / "tokenizer.json");
  expect_cases(Tokenizer::load(dir.path()));
  std::filesystem::copy_file(gpt2_file("tokenizer_config.json"), dir / "tokenizer_config.json");
  expect_cases(Tokenizer::load(dir / "tokenizer.json"));
}

// openai-community/gpt2 has a tokenizer_config.json that names neither bos nor eos.
TEST(tokenizer, ends_that_the_config_does_not_name) {
  const ScratchDir dir;
  std::filesystem::copy_file(gpt2_file("tokenizer.json"), dir / "tokenizer.json");
  struct Row {
    const char* config;
    int32_t bos, eos;
  };
  constexpr int32_t end = 50256;
  for (const Row& row :
       {Row{R"({"model_max_length": 1024})", end, end},
        Row{R"({"bos_token": null, "tokenizer_class": "GPT2Tokenizer"})", -1, end},
        Row{R"({"eos_token": null})", end, -1},
        Row{R"({"eos_token": {"content": "<|endoftext|>"}})", end, end},
        Row{R"({"eos_token": "<|endoftext|>", "tokenizer_class": "Qwen2Tokenizer"})", -1, end},
        Row{R"({"tokenizer_class": "PreTrainedTokenizerFast"})", -1, -1}}) {
    spill(dir / "tokenizer_config.json", row.config);
    Tokenizer::load(dir.path()).save(dir / "saved");
    for (const std::filesystem::path& from : {dir.path(), dir / "saved"}) {
      const Tokenizer t = Tokenizer::load(from);
      EXPECT_EQ(t.bos(), row.bos) << row.config;
      EXPECT_EQ(t.eos(), row.eos) << row.config;
    }
  }
  spill(dir / "tokenizer_config.json", R"({"bos_token": "<s>"})");
  EXPECT_ERROR(Tokenizer::load(dir.path()), "expected bos_token to be an added token of");
}

TEST(tokenizer, any_bytes_come_back_and_formats_agree) {
  const Tokenizer a = Tokenizer::load(gpt2_file("r50k_base.tiktoken"));
  const Tokenizer b = Tokenizer::load(gpt2_file("vocab.bpe"));
  std::mt19937 rng(1);
  for (int i = 0; i < 3000; ++i) {
    const std::string text = random_bytes(rng, 300);
    const Ids ids = a.encode(text);
    ASSERT_EQ(a.decode(ids), text);
    ASSERT_EQ(b.encode(text), ids);
    ASSERT_EQ(a.encode(text), ids) << "from the cache";
  }
}

// The threads share one cache of words, which is small enough here for them to overwrite each
// other.
TEST(tokenizer, threads_share_a_tokenizer) {
  const Tokenizer shared = Tokenizer::load(gpt2_file("vocab.bpe"));
  std::mt19937 rng(7);
  std::vector<std::string> texts;
  std::vector<Ids> expected;
  for (int i = 0; i < 200; ++i) {
    texts.push_back(random_bytes(rng, 2000));
    expected.push_back(shared.encode(texts.back()));
  }
  std::atomic<int> wrong = 0;
  Threads threads(4);
  threads.run(1000, [&](int64_t i, int) {
    const Tokenizer mine = shared;
    const size_t k = size_t(i * 7) % texts.size();
    wrong += mine.encode(texts[k]) != expected[k];
  });
  EXPECT_EQ(wrong, 0);
}

TEST(tokenizer, encode_to_appends) {
  const Tokenizer t = Tokenizer::load(gpt2_file("vocab.bpe"));
  Ids ids = {7};
  t.encode_to("Hello world", ids);
  EXPECT_EQ(ids, (Ids{7, 15496, 995}));
  t.encode_to("", ids);
  EXPECT_EQ(ids.size(), 3u);
}

TEST(tokenizer, special_tokens_only_where_asked) {
  const Tokenizer t = Tokenizer::load(gpt2_file("vocab.bpe"));
  const std::string text = "a<|endoftext|><|endoftext|> b<|endof";
  const Ids plain = t.encode(text);
  EXPECT_EQ(std::ranges::count(plain, 50256), 0);
  EXPECT_EQ(t.decode(plain), text);
  const Ids with = t.encode_with_special(text);
  EXPECT_EQ(Ids(with.begin(), with.begin() + 4), (Ids{64, 50256, 50256, 275}));
  EXPECT_EQ(t.decode(with), text);
  EXPECT_EQ(t.special("<|endoftext|>"), 50256);
  EXPECT_EQ(t.special("<|im_start|>"), std::nullopt);
  EXPECT_EQ(t.bytes_of(995), " world");
}

TEST(tokenizer, decode_refuses_unknown_ids) {
  const Tokenizer t = Tokenizer::load(gpt2_file("vocab.bpe"));
  EXPECT_ERROR(t.decode(Ids{1, 50257}), "got 50257");
  EXPECT_ERROR(t.bytes_of(-1), "got -1");
}

// Lowest rank first, leftmost among equals, looked for anew each time.
Ids plain_merge(Ids ids, const PairTable& pairs) {
  for (;;) {
    PairTable::Entry best;
    size_t at = 0;
    for (size_t i = 0; i + 1 < ids.size(); ++i)
      if (const auto& e = pairs.find(ids[i], ids[i + 1]); e.rank < best.rank) best = e, at = i;
    if (best.rank == PairTable::never) return ids;
    ids[at] = best.id;
    ids.erase(ids.begin() + long(at) + 1);
  }
}

// Long words go through another loop than short ones. Ranks are drawn freely: a pair may come
// before the pairs that make its sides, and several may be equal.
TEST(tokenizer, merging_short_and_long_words) {
  std::mt19937 rng(4);
  for (int round = 0; round < 300; ++round) {
    PairTable pairs(40);
    int32_t next = 3;
    for (int i = 0; i < 40; ++i) {
      const auto left = int32_t(rng() % uint32_t(next)), right = int32_t(rng() % uint32_t(next));
      pairs.set({left, right, uint32_t(rng() % 30), next++});
    }
    Ids word(1 + rng() % 200);
    for (int32_t& id : word) id = int32_t(rng() % 3);
    const Ids expected = plain_merge(word, pairs);
    word.resize(merge_word(word, pairs));
    ASSERT_EQ(word, expected);
  }
}

TEST(tokenizer, a_megabyte_of_one_character) {
  const Tokenizer t = Tokenizer::load(gpt2_file("r50k_base.tiktoken"));
  const Ids a = t.encode(std::string(1 << 20, 'a'));
  EXPECT_EQ(a, Ids((1 << 20) / 4, 24794));
  const Ids spaces = t.encode(std::string(1 << 20, ' ') + "x");
  EXPECT_EQ(spaces.size(), 1u << 20);
  EXPECT_EQ(spaces.back(), 2124);
  std::string llamas;
  for (int i = 0; i < 1 << 18; ++i) llamas += "\U0001f999";
  EXPECT_EQ(t.decode(t.encode(llamas)), llamas);
}

TEST(tokenizer, stream_decoder_never_splits_a_character) {
  const Tokenizer t = Tokenizer::load(gpt2_file("vocab.bpe"));
  const std::string text = "caf\u00e9 \U0001f999\u6f22 \U0001f636\u200d\U0001f32b\ufe0f end\u00bd";
  StreamDecoder stream(t);
  std::string all;
  for (const int32_t id : t.encode(text)) {
    const std::string piece = stream.push(id);
    all += piece;
    if (!piece.empty()) {
      EXPECT_NE(uint8_t(piece[0]) & 0xc0, 0x80);
      EXPECT_EQ(text.substr(0, all.size()), all);
      EXPECT_TRUE(all.size() == text.size() || (uint8_t(text[all.size()]) & 0xc0) != 0x80);
    }
  }
  EXPECT_EQ(all, text);
  EXPECT_EQ(stream.finish(), "");
}

TEST(tokenizer, stream_decoder_gives_back_any_bytes) {
  const Tokenizer t = Tokenizer::load(gpt2_file("vocab.bpe"));
  std::mt19937 rng(2);
  for (int i = 0; i < 500; ++i) {
    const std::string text = random_bytes(rng, 100);
    StreamDecoder stream(t);
    std::string all;
    for (const char c : text) all += stream.push(t.encode(std::string(1, c))[0]);
    ASSERT_EQ(all + stream.finish(), text);
  }
  StreamDecoder stream(t);
  EXPECT_EQ(stream.push(t.encode("\xf0")[0]), "");
  EXPECT_EQ(stream.push(t.encode("\x9f")[0]), "");
  EXPECT_EQ(stream.push(t.encode("A")[0]),
            "\xf0\x9f"
            "A");
  EXPECT_EQ(stream.push(t.encode("\xe2")[0]), "");
  EXPECT_EQ(stream.finish(), "\xe2");
}

// llama2.c, plainly: the best pair of the whole text, again and again.
Ids plain_llama2c(const std::string& file, const std::string& text) {
  std::vector<std::string> pieces;
  std::vector<float> scores;
  for (size_t at = 4; at < file.size();) {
    float score;
    int32_t length;
    std::memcpy(&score, &file[at], 4);
    std::memcpy(&length, &file[at + 4], 4);
    pieces.push_back(file.substr(at + 8, size_t(length)));
    scores.push_back(score);
    at += 8 + size_t(length);
  }
  const auto find = [&](const std::string& s) {
    return int32_t(std::ranges::find(pieces, s) - pieces.begin());
  };
  Ids ids = {find(" ")};
  for (size_t i = 0, n; i < text.size(); i += n) {
    for (n = 1; n < 4 && i + n < text.size() && (text[i + n] & 0xc0) == 0x80;) ++n;
    const int32_t id = find(text.substr(i, n));
    if (size_t(id) < pieces.size())
      ids.push_back(id);
    else
      for (size_t k = 0; k < n; ++k) ids.push_back(uint8_t(text[i + k]) + 3);
  }
  for (;;) {
    float best = -1e10f;
    size_t at = ids.size();
    int32_t made = -1;
    for (size_t i = 0; i + 1 < ids.size(); ++i) {
      const int32_t id = find(pieces[size_t(ids[i])] + pieces[size_t(ids[i + 1])]);
      if (size_t(id) < pieces.size() && scores[size_t(id)] > best)
        best = scores[size_t(id)], at = i, made = id;
    }
    if (made < 0) break;
    ids[at] = made;
    ids.erase(ids.begin() + long(at) + 1);
  }
  ids.insert(ids.begin(), 1);
  return ids;
}

TEST(tokenizer, llama2c_vocabulary) {
  const auto file = test_data("models/story/tok512.bin");
  const Tokenizer t = Tokenizer::load(file);
  EXPECT_EQ(t.vocab_size(), 512);
  EXPECT_EQ(t.bos(), 1);
  EXPECT_EQ(t.eos(), 2);
  EXPECT_EQ(t.encode("Once upon a time"), (Ids{1, 334, 390, 432, 273, 261, 421, 283}));
  EXPECT_EQ(t.encode(""), Ids{1});
  EXPECT_EQ(t.special("<s>"), 1);
  const std::string bytes = slurp(file);
  std::mt19937 rng(3);
  for (int i = 0; i < 100; ++i) {
    const std::string text = random_bytes(rng, 120) + (i % 2 ? "the little girl <0x0A> was" : "");
    if (text.empty()) continue;
    const Ids ids = t.encode(text);
    ASSERT_EQ(ids, plain_llama2c(bytes, text));
    ASSERT_EQ(t.decode(ids), text);
    StreamDecoder stream(t);
    std::string all;
    for (const int32_t id : ids) all += stream.push(id);
    ASSERT_EQ(all + stream.finish(), text);
  }
}

}  // namespace
}  // namespace hearth
