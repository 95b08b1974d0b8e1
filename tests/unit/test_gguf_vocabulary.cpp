// Tokenizers inside GGUF files: they give the ids that llama.cpp gives, and come back from the
// folders they are saved to.
#include "rewards/regex.h"
#include "text/tokenizer/gguf_vocabulary.h"

#include <nlohmann/json.hpp>
#include <optional>

#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/vocabulary.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;
using test::TempDir;
using Ids = std::vector<int32_t>;

std::filesystem::path written(const TempDir& dir, const GgufKeys& keys) {
  write_gguf(dir / "v.gguf", keys,
             {{"b", GgmlType::f32, {1}, [] { return std::vector<float>{1}; }}});
  return dir / "v.gguf";
}

// Bytes as single tokens, one more of the kind given, and it as bos; a merge, and a token that no
// merge gives.
std::filesystem::path bpe_file(const TempDir& dir, int32_t kind, std::optional<bool> add_bos,
                               const char* pre = "gpt-2") {
  std::vector<std::string> tokens(byte_letters().begin(), byte_letters().end());
  std::vector<int32_t> kinds(tokens.size(), 1);
  tokens.push_back("<s>"), kinds.push_back(kind);
  tokens.push_back("12"), kinds.push_back(1);
  tokens.push_back("abc"), kinds.push_back(1);
  tokens.push_back("a" + byte_letters()[0xe6]), kinds.push_back(1);
  GgufKeys keys;
  keys.set("general.architecture", "llama");
  keys.set("tokenizer.ggml.model", "gpt2");
  keys.set("tokenizer.ggml.pre", pre);
  keys.set("tokenizer.ggml.tokens", tokens);
  keys.set("tokenizer.ggml.token_type", kinds);
  keys.set("tokenizer.ggml.merges", std::vector<std::string>{"1 2", "a " + byte_letters()[0xe6]});
  keys.set("tokenizer.ggml.bos_token_id", uint32_t(256));
  if (add_bos) keys.set("tokenizer.ggml.add_bos_token", *add_bos);
  return written(dir, keys);
}

TEST(GgufVocabulary, KeepsTheBosThatIsAdded) {
  const TempDir dir;
  for (const bool adds : {true, false}) {
    std::vector<int32_t> ids{5};
    Tokenizer::load(bpe_file(dir, 3, adds)).add_template(ids);
    EXPECT_EQ(ids.size(), adds ? 2u : 1u);
  }
}

// SmolLM's pre-tokenizer, which has a name in llama.cpp, comes from a file and goes into one.
TEST(GgufVocabulary, KeepsDigitsApartWhereItsNameSaysSo) {
  const TempDir dir;
  const auto count = [](const Tokenizer& t) { return t.encode("a 12").size(); };
  EXPECT_EQ(count(Tokenizer::load(bpe_file(dir, 3, false))), 3u);
  const Tokenizer smollm = Tokenizer::load(bpe_file(dir, 3, false, "smollm"));
  EXPECT_EQ(count(smollm), 4u);
  smollm.save(dir / "saved");
  EXPECT_EQ(count(Tokenizer::load(dir / "saved")), 4u);
  GgufKeys keys;
  put_vocabulary(keys, dir / "saved", 260);
  EXPECT_NE(keys.bytes().find("smollm"), std::string::npos);
  expect_error(error_of([&] { Tokenizer::load(bpe_file(dir, 3, false, "viking")); }),
               "expected tokenizer.ggml.pre to be one of gpt-2, phi-2, olmo, mpt, llama-bpe, ");
}

TEST(GgufVocabulary, RefusesABosThatStandsForNothing) {
  const TempDir dir;
  const std::filesystem::path file = bpe_file(dir, 5, true);
  EXPECT_NE(error_of([&] { Tokenizer::load(file).save(dir / "out"); }).find("got id 256"),
            std::string::npos);
}

// As llama.cpp decides both: by the name, unless the file says whether a bos is added.
TEST(GgufVocabulary, TakesBosAndWholeWordsFromTheName) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  struct Row {
    const char* pre;
    bool add_bos, ignore_merges;
  };
  const TempDir dir;
  for (const Row& row : {Row{"gpt-2", false, false},
                         Row{"phi-2", false, false},
                         Row{"olmo", false, false},
                         Row{"mpt", false, false},
                         Row{"llama-bpe", true, true},
                         Row{"llama3", true, true},
                         Row{"llama-v3", true, true},
                         Row{"smaug-bpe", false, false},
                         Row{"dbrx", false, false},
                         Row{"deepseek-v3", false, false},
                         Row{"deepseek-r1-qwen", false, false},
                         Row{"qwen2", false, false},
                         Row{"gpt-4o", false, false},
                         Row{"smollm", false, false},
                         Row{"starcoder", false, false},
                         Row{"refact", false, false},
                         Row{"command-r", false, false},
                         Row{"pixtral", true, true},
                         Row{"tekken", true, true},
                         Row{"falcon", false, false},
                         Row{"falcon3", true, true},
                         Row{"deepseek-llm", false, false},
                         Row{"deepseek-coder", false, false}}) {
    const Tokenizer t = Tokenizer::load(bpe_file(dir, 3, {}, row.pre));
    Ids ids{5};
    t.add_template(ids);
    EXPECT_EQ(ids, row.add_bos ? (Ids{256, 5}) : Ids{5}) << row.pre;
    EXPECT_EQ(t.encode("abc").size(), row.ignore_merges ? 1u : 3u) << row.pre;
    ids = {5};
    Tokenizer::load(bpe_file(dir, 3, false, row.pre)).add_template(ids);
    EXPECT_EQ(ids, Ids{5}) << row.pre;
  }
}

// The name that is written keeps both the pattern and whether words are merged.
TEST(GgufVocabulary, WritesTheNameThatMergesAlike) {
  const TempDir dir;
  for (const char* pre : {"llama-bpe", "dbrx", "qwen2"}) {
    Tokenizer::load(bpe_file(dir, 3, false, pre)).save(dir / pre);
    GgufKeys keys;
    put_vocabulary(keys, dir / pre, 260);
    EXPECT_EQ(GgufFile(written(dir, keys)).text("tokenizer.ggml.pre"), pre);
  }
  std::string json = read_file(dir / "qwen2/tokenizer.json");
  const std::string off = "\"ignore_merges\": false";
  json.replace(json.find(off), off.size(), "\"ignore_merges\": true");
  write_file_atomic(dir / "qwen2/tokenizer.json", json);
  GgufKeys keys;
  expect_error(error_of([&] { put_vocabulary(keys, dir / "qwen2", 260); }),
               "the pattern of qwen2, which does not give token 258");
}

// A tokenizer that comes without a template of its own is saved with one for what it adds.
TEST(GgufVocabulary, SavesTheBosThatIsAdded) {
  const TempDir dir;
  for (const bool adds : {true, false}) {
    const Tokenizer read = Tokenizer::load(bpe_file(dir, 3, adds, "llama-bpe"));
    read.save(dir / "saved");
    const Tokenizer saved = Tokenizer::load(dir / "saved");
    for (const Tokenizer& t : {read, saved}) {
      Ids ids = t.encode_with_special("12abc<s>");
      t.add_template(ids);
      EXPECT_EQ(ids, adds ? (Ids{256, 257, 258, 256}) : (Ids{257, 258, 256}));
    }
  }
}

// Pieces by id: <unk> <s> </s>, 256 bytes, then pieces with falling scores.
struct Pieces {
  std::vector<std::string> tokens{"<unk>", "<s>", "</s>"};
  std::vector<int32_t> kinds{2, 3, 3};
  std::vector<float> scores{0, 0, 0};
  int32_t bos = 1, eos = 2;
  std::optional<bool> add_bos = {}, add_space_prefix = {};
  std::string name = "m";

  Pieces() {
    for (int b = 0; b < 256; ++b) add(fmt::format("<0x{:02X}>", b), 6);
    for (const char* t : {"\u2581a", "ab", "\u2581ab", "\u2581", "a", "b", "c"}) add(t, 1);
  }
  void add(const std::string& text, int32_t kind) {
    tokens.push_back(text), kinds.push_back(kind), scores.push_back(-float(tokens.size()));
  }
  std::filesystem::path write(const TempDir& dir) const {
    GgufKeys keys;
    keys.set("general.architecture", "llama");
    keys.set("general.name", name);
    keys.set("tokenizer.ggml.model", "llama");
    keys.set("tokenizer.ggml.tokens", tokens);
    keys.set("tokenizer.ggml.token_type", kinds);
    keys.set("tokenizer.ggml.scores", scores);
    keys.set("tokenizer.ggml.bos_token_id", uint32_t(bos));
    keys.set("tokenizer.ggml.eos_token_id", uint32_t(eos));
    if (add_bos) keys.set("tokenizer.ggml.add_bos_token", *add_bos);
    if (add_space_prefix) keys.set("tokenizer.ggml.add_space_prefix", *add_space_prefix);
    return written(dir, keys);
  }
};
constexpr int32_t space_a = 259, ab = 260, space_ab = 261, space = 262, b = 264, c = 265;

Ids with_template(const Tokenizer& t, std::string_view text) {
  Ids ids = t.encode_with_special(text);
  t.add_template(ids);
  return ids;
}

// A file as it is read, after it was saved as a folder, and after that was written as GGUF again.
std::vector<Tokenizer> all_ways(const TempDir& dir, const Pieces& pieces) {
  const Tokenizer read = Tokenizer::load(pieces.write(dir));
  save_gguf_vocabulary(GgufFile(dir / "v.gguf"), dir / "saved");
  GgufKeys keys;
  put_vocabulary(keys, dir / "saved", int64_t(pieces.tokens.size()) + 3);
  return {read, Tokenizer::load(dir / "saved"), Tokenizer::load(written(dir, keys))};
}

TEST(GgufVocabulary, ReadsSentencePiece) {
  const TempDir dir;
  for (const Tokenizer& t : all_ways(dir, Pieces())) {
    EXPECT_EQ(with_template(t, "ab"), (Ids{1, space_ab}));
    EXPECT_EQ(with_template(t, "ac"), (Ids{1, space_a, c}));
    EXPECT_EQ(with_template(t, "cab"), (Ids{1, space, c, ab}));
    EXPECT_EQ(with_template(t, "c</s>b\n"), (Ids{1, space, c, 2, space, b, 13}));
    EXPECT_EQ(t.encode("</s>").size(), 5u) << "its text is no special token";
    EXPECT_EQ(t.decode(t.encode("ab c\u00e9")), "ab c\u00e9");
    EXPECT_EQ(t.bos(), 1);
    EXPECT_EQ(t.eos(), 2);
  }
}

TEST(GgufVocabulary, HonoursTheFlagsAndKindsOfSentencePiece) {
  const TempDir dir;
  Pieces pieces;
  pieces.add_bos = false, pieces.add_space_prefix = false;
  pieces.add("<|im_end|>", 3), pieces.add("  ", 4), pieces.add("ca", 5);
  for (const Tokenizer& t : all_ways(dir, pieces)) {
    EXPECT_EQ(with_template(t, "ab"), (Ids{ab}));
    EXPECT_EQ(with_template(t, "c<|im_end|>  b"), (Ids{c, 266, 267, b}));
    EXPECT_EQ(t.encode("c  b"), (Ids{c, 267, b}));
    EXPECT_EQ(t.encode("cab"), (Ids{c, ab})) << "an unused piece";
    EXPECT_EQ(t.special_ids(), (Ids{0, 1, 2, 266, 1, 2, 0}));
    EXPECT_EQ(t.decode(Ids{space_ab, space_ab}), " ab ab");
  }
  pieces.kinds[266] = 7;
  expect_error(error_of([&] { Tokenizer::load(pieces.write(dir)); }),
               "expected token types 1 to 6, got 7 for id 266");
}

// Mistral's since v0.3. llama.cpp puts a space before every text; a key of ours keeps the rule.
TEST(GgufVocabulary, KeepsWhereMetaspacePutsASpace) {
  const TempDir dir;
  using nlohmann::json;
  const Pieces pieces;
  const auto vocab = int64_t(pieces.tokens.size());
  Tokenizer::load(pieces.write(dir)).save(dir / "saved");
  GgufKeys own;
  EXPECT_FALSE(put_vocabulary(own, dir / "saved", vocab));
  json file = json::parse(read_file(dir / "saved/tokenizer.json"));
  file["normalizer"] = nullptr;
  for (const bool first : {true, false}) {
    file["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", "\u2581"},
                             {"prepend_scheme", first ? "first" : "always"},
                             {"split", false}};
    write_file_atomic(dir / "saved/tokenizer.json", file.dump());
    GgufKeys keys;
    EXPECT_TRUE(put_vocabulary(keys, dir / "saved", vocab));
    const std::filesystem::path gguf = written(dir, keys);
    EXPECT_TRUE(GgufFile(gguf).flag("tokenizer.ggml.add_space_prefix"));
    save_gguf_vocabulary(GgufFile(gguf), dir / "back");
    for (const std::filesystem::path& from : {dir / "saved", gguf, dir / "back"}) {
      const Tokenizer t = Tokenizer::load(from);
      EXPECT_EQ(t.encode("ab"), Ids{space_ab}) << from;
      EXPECT_EQ(t.encode(" ab"), Ids{space_ab}) << from;
      EXPECT_EQ(t.encode_with_special("ab</s>ab"), (Ids{space_ab, 2, first ? ab : space_ab}));
      EXPECT_EQ(t.decode(Ids{space_ab, space_ab}), "ab ab");
    }
  }
  file["pre_tokenizer"]["split"] = true;
  write_file_atomic(dir / "saved/tokenizer.json", file.dump());
  GgufKeys keys;
  expect_error(error_of([&] { put_vocabulary(keys, dir / "saved", vocab); }),
               "no pre_tokenizer or Metaspace without split");
}

// Gemma has bos 2 and eos 1; Phi-3 ends with token 32000 and strips the text after its tokens.
TEST(GgufVocabulary, ReadsOtherEndsOfSentencePiece) {
  const TempDir dir;
  Pieces gemma;
  std::swap(gemma.tokens[1], gemma.tokens[2]);
  gemma.bos = 2, gemma.eos = 1, gemma.add_space_prefix = false;
  for (const Tokenizer& t : all_ways(dir, gemma)) {
    EXPECT_EQ(with_template(t, "ab<s></s>"), (Ids{2, ab, 2, 1}));
    EXPECT_EQ(t.eos(), 1);
    EXPECT_EQ(t.bos(), 2);
  }
  Pieces phi;
  phi.add("<|endoftext|>", 3), phi.add("<|end|>", 4);
  phi.eos = 266, phi.name = "Phi-3 mini";
  const Tokenizer t = Tokenizer::load(phi.write(dir));
  EXPECT_EQ(with_template(t, "<|end|>\n c<|endoftext|> c"),
            (Ids{1, 267, space, c, 266, space, space, c}));
  EXPECT_EQ(t.eos(), 266);
}

TEST(GgufVocabulary, RefusesPiecesWithoutScoresOrBytes) {
  const TempDir dir;
  Pieces pieces;
  pieces.scores.pop_back();
  expect_error(error_of([&] { Tokenizer::load(pieces.write(dir)); }),
               "expected a score for each of 266 tokens, got 265");
  Pieces gap;
  gap.kinds[3] = 5, gap.kinds[0] = 1;
  expect_error(error_of([&] { Tokenizer::load(gap.write(dir)); }), "got none for byte 0x00");
}

// OLMo 2, DeepSeek and its distillations, Mistral's models with Tekken, Falcon.
TEST(GgufVocabulary, ReadsTheNamesOfOtherFamilies) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  struct Row {
    const char *pre, *back;
    size_t digits, letters;  // tokens of "12" and of a letter before an ideograph
  };
  const TempDir dir;
  for (const Row& row : {Row{"dbrx", "dbrx", 1, 3}, Row{"deepseek-v3", "deepseek-v3", 1, 4},
                         Row{"deepseek-r1-qwen", "qwen2", 2, 3}, Row{"tekken", "tekken", 2, 3},
                         Row{"pixtral", "llama-bpe", 1, 3}, Row{"falcon", "falcon", 1, 3},
                         Row{"falcon3", "falcon3", 2, 3}, Row{"deepseek-llm", "deepseek-llm", 2, 4},
                         Row{"deepseek-coder", "deepseek-coder", 2, 4}}) {
    const Tokenizer read = Tokenizer::load(bpe_file(dir, 3, {}, row.pre));
    read.save(dir / row.pre);
    for (const Tokenizer& t : {read, Tokenizer::load(dir / row.pre)}) {
      EXPECT_EQ(t.encode("12").size(), row.digits) << row.pre;
      EXPECT_EQ(t.encode("a\u6f22").size(), row.letters) << row.pre;
    }
    GgufKeys keys;
    put_vocabulary(keys, dir / row.pre, 260);
    EXPECT_EQ(GgufFile(written(dir, keys)).text("tokenizer.ggml.pre"), row.back);
  }
}

}  // namespace
}  // namespace hearth
