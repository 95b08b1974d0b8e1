// Writing and reading tokenizer files, and what a wrong file says.
#include <functional>
#include <nlohmann/json.hpp>

#include "rewards/regex.h"
#include "text/tokenizer/train.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;

Tokenizer small_tokenizer() {
  Threads threads(1);
  BpeTrainSpec spec{.vocab = 280, .special = {"<|endoftext|>", "<|user|>"}};
  int left = 1;
  return train_bpe(
      spec,
      [&](std::string& text) {
        text = "the cat and the dog and the bird sat on the mat, and then they went there";
        return left-- > 0;
      },
      threads);
}

// The small tokenizer's file with a change made to it, read back.
std::string error_after(const std::function<void(json&)>& change) {
  const ScratchDir dir;
  small_tokenizer().save(dir.path());
  json file = json::parse(slurp(dir / "tokenizer.json"));
  change(file);
  spill(dir / "tokenizer.json", file.dump());
  return error_of([&] { Tokenizer::load(dir.path()); });
}

TEST(tokenizer_files, saved_and_loaded_again) {
  const Tokenizer a = small_tokenizer();
  const ScratchDir dir;
  a.save(dir / "deep/er");
  const Tokenizer b = Tokenizer::load(dir / "deep/er");
  EXPECT_EQ(b.vocab_size(), 280);
  EXPECT_EQ(b.eos(), a.eos());
  EXPECT_EQ(b.special("<|user|>"), 279);
  std::mt19937 rng(5);
  for (int i = 0; i < 300; ++i) {
    const std::string text = random_bytes(rng, 80) + " the then <|user|> and";
    ASSERT_EQ(a.encode(text), b.encode(text));
    ASSERT_EQ(a.encode_with_special(text), b.encode_with_special(text));
  }
  b.save(dir / "again");
  EXPECT_EQ(slurp(dir / "again/tokenizer.json"), slurp(dir / "deep/er/tokenizer.json"));
  EXPECT_FALSE(std::filesystem::exists(dir / "again/tokenizer.json.tmp"));
}

TEST(tokenizer_files, tiktoken_saved_as_json) {
  const auto ranks = test_data("tokenizers/gpt2/r50k_base.tiktoken");
  const Tokenizer a = Tokenizer::load(ranks);
  const ScratchDir dir;
  a.save(dir.path());
  const Tokenizer b = Tokenizer::load(dir.path());
  EXPECT_EQ(b.vocab_size(), 50257);
  EXPECT_EQ(b.eos(), 50256);
  std::mt19937 rng(6);
  for (int i = 0; i < 1000; ++i) {
    const std::string text = random_bytes(rng, 200);
    ASSERT_EQ(a.encode(text), b.encode(text));
  }
}

// As in cl100k_base and o200k_base.
TEST(tokenizer_files, unused_ids_between_others) {
  const ScratchDir dir, again;
  small_tokenizer().save(dir.path());
  json file = json::parse(slurp(dir / "tokenizer.json"));
  file["added_tokens"][1]["id"] = 285;
  spill(dir / "tokenizer.json", file.dump());
  Tokenizer::load(dir.path()).save(again.path());
  for (const Tokenizer& t : {Tokenizer::load(dir.path()), Tokenizer::load(again.path())}) {
    EXPECT_EQ(t.vocab_size(), 286);
    EXPECT_EQ(t.special("<|user|>"), 285);
    EXPECT_FALSE(t.has(280));
    EXPECT_ERROR(t.bytes_of(280), "got 280");
    // A model has rows for these ids and may draw one.
    StreamDecoder stream(t);
    EXPECT_EQ(stream.push(280), "");
    EXPECT_EQ(stream.push(285), "<|user|>");
    EXPECT_ERROR(stream.push(286), "got 286");
  }
}

TEST(tokenizer_files, vocab_json_and_merges_txt) {
  const Tokenizer a = small_tokenizer();
  const ScratchDir dir;
  a.save(dir.path());
  const json file = json::parse(slurp(dir / "tokenizer.json"));
  json vocab = file["model"]["vocab"];
  vocab["<|endoftext|>"] = a.eos();
  std::string merges = "#version: 0.2\n";
  for (const json& m : file["model"]["merges"]) merges += m.get<std::string>() + "\n";
  const ScratchDir pair;
  spill(pair / "vocab.json", vocab.dump());
  spill(pair / "merges.txt", merges);
  const Tokenizer b = Tokenizer::load(pair.path());
  EXPECT_EQ(b.eos(), a.eos());
  EXPECT_EQ(b.encode("and then the bird"), a.encode("and then the bird"));
  spill(pair / "merges.txt", merges + "t zzz\n");
  EXPECT_ERROR(Tokenizer::load(pair.path()),
               "expected merges of known tokens, got \"zzz\" on line 24");
  spill(pair / "merges.txt", merges + "three of them\n");
  EXPECT_ERROR(Tokenizer::load(pair.path()), "expected two tokens separated by a space on line");
  spill(pair / "vocab.bpe", merges + "t zzz\n");
  EXPECT_ERROR(Tokenizer::load(pair / "vocab.bpe"), "expected merges of known tokens, got \"zzz\"");
}

TEST(tokenizer_files, merges_as_pairs) {
  const ScratchDir dir;
  const Tokenizer a = small_tokenizer();
  a.save(dir.path());
  json file = json::parse(slurp(dir / "tokenizer.json"));
  for (json& m : file["model"]["merges"]) {
    const std::string s = m;
    m = json::array({s.substr(0, s.find(' ')), s.substr(s.find(' ') + 1)});
  }
  spill(dir / "tokenizer.json", file.dump());
  EXPECT_EQ(Tokenizer::load(dir.path()).encode("then they went"), a.encode("then they went"));
}

TEST(tokenizer_files, truncated_json) {
  const ScratchDir dir;
  small_tokenizer().save(dir.path());
  const std::string text = slurp(dir / "tokenizer.json");
  spill(dir / "tokenizer.json", text.substr(0, text.size() / 2));
  EXPECT_ERROR(Tokenizer::load(dir.path()), "expected valid JSON");
  EXPECT_ERROR(Tokenizer::load(dir.path()), "tokenizer.json");
}

TEST(tokenizer_files, nested_beyond_reason) {
  const ScratchDir dir;
  const std::string deep = std::string(300000, '[') + std::string(300000, ']');
  spill(dir / "tokenizer.json", R"({"normalizer":{"type":"NFC","x":)" + deep + "}}");
  EXPECT_ERROR(Tokenizer::load(dir.path()), "tokenizer.json");
}

TEST(tokenizer_files, wrong_contents) {
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["vocab"]["a"] = 65; }), "id 65 for both");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["vocab"].erase("!"); }),
                   "got none for byte 0x21");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["merges"].push_back("t zzz"); }),
                   "got \"zzz\" on merge");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["merges"].push_back(3); }),
                   "to be two tokens, got 3");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["vocab"]["a"] = -5; }), "got -5");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["vocab"]["a"] = "x"; }), "got string");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["vocab"]["\u4e2d"] = 400; }),
                   "expected tokens in byte-level encoding");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"].erase("vocab"); }), "\"vocab\"");
  EXPECT_THAT_TEXT(error_after([](json& f) { f = 3; }), "\"model\"");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["added_tokens"][0].erase("id"); }), "\"id\"");
  EXPECT_EQ(error_after([](json&) {}), "no error");
}

TEST(tokenizer_files, unsupported_parts_by_name) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["type"] = "Unigram"; }), "got Unigram");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["dropout"] = 0.1; }), "dropout");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["pre_tokenizer"]["type"] = "Whitespace"; }),
                   "got Whitespace");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["decoder"]["type"] = "Metaspace"; }),
                   "got Metaspace");
  const json byte_level = {
      {"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}};
  const auto split = [&](const std::string& regex) {
    return [&, regex](json& f) {
      f["pre_tokenizer"] = {{"type", "Sequence"},
                            {"pretokenizers",
                             {{{"type", "Split"},
                               {"pattern", {{"Regex", regex}}},
                               {"behavior", "Isolated"},
                               {"invert", false}},
                              byte_level}}};
    };
  };
  EXPECT_THAT_TEXT(error_after(split("\\p{N}{1,3}+")), "\\\\p{N}{1,3}+");
  EXPECT_EQ(error_after(split("\\p{N}{1,3}")), "no error");
  EXPECT_EQ(error_after(split(
                R"('s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+)")),
            "no error");
}

TEST(tokenizer_files, wrong_tiktoken) {
  const auto ranks = test_data("tokenizers/gpt2/r50k_base.tiktoken");
  const std::string good = slurp(ranks);
  const ScratchDir dir;
  const auto error_with = [&](const std::string& text, const std::string& name) {
    spill(dir / name, text);
    return error_of([&] { Tokenizer::load(dir / name); });
  };
  const std::string second = good.substr(good.find('\n') + 1);
  EXPECT_THAT_TEXT(error_with("I*== 0\n" + second, "gpt2.tiktoken"),
                   "base64 on line 1, got \"I*==\"");
  EXPECT_THAT_TEXT(error_with("IQ 0\n" + second, "gpt2.tiktoken"), "base64 on line 1");
  EXPECT_THAT_TEXT(error_with("IQ== x\n" + second, "gpt2.tiktoken"), "a rank on line 1, got \"x\"");
  EXPECT_THAT_TEXT(error_with("IQ== 1\n" + second, "gpt2.tiktoken"), "got id 1 for both");
  EXPECT_THAT_TEXT(error_with(second, "gpt2.tiktoken"), "got none for byte 0x21");
  EXPECT_THAT_TEXT(error_with(good + "IQ== 60000\n", "gpt2.tiktoken"),
                   "\"!\" as id 0 and id 60000");
  EXPECT_EQ(error_with(good, "mine.tiktoken"), "no error") << "known by its number of tokens";
  const std::string more = good + "/////////w== 60000\n";
  EXPECT_THAT_TEXT(error_with(more, "mine.tiktoken"), "got mine with 50257 tokens: pass --pattern");
  EXPECT_EQ(Tokenizer::load(dir / "mine.tiktoken", "qwen2").encode("12").size(), 2u);
  EXPECT_EQ(Tokenizer::load(dir / "mine.tiktoken", "gpt2").encode("12").size(), 1u);
  EXPECT_ERROR(Tokenizer::load(dir / "mine.tiktoken", "gpt5"), "got gpt5");
  EXPECT_ERROR(Tokenizer::load(test_data("tokenizers/gpt2/vocab.bpe"), "gpt2"),
               "--pattern gpt2 applies only to .tiktoken files");
}

// As SentencePiece writes it: pieces with a text, a score and, if it is not normal, a kind.
TEST(tokenizer_files, sentencepiece_model) {
  const ScratchDir dir;
  std::string model;
  for (const std::string piece : {"<unk>", "<s>", "</s>", "\u2581a"})
    model += std::string{'\n', char(piece.size() + 9), '\n', char(piece.size())} + piece +
             std::string{'\x15', 0, 0, 0, 0, '\x18', '\x02'};
  spill(dir / "tokenizer.model", model);
  for (const std::filesystem::path& path : {dir.path(), dir / "tokenizer.model"})
    EXPECT_ERROR(
        Tokenizer::load(path),
        "this is a SentencePiece model, which hearth does not read: put the tokenizer.json");
}

TEST(tokenizer_files, wrong_llama2c) {
  const auto file = test_data("models/story/tok512.bin");
  const std::string good = slurp(file);
  const ScratchDir dir;
  const auto error_with = [&](const std::string& bytes) {
    spill(dir / "tok.bin", bytes);
    return error_of([&] { Tokenizer::load(dir.path()); });
  };
  EXPECT_THAT_TEXT(error_with(good.substr(0, good.size() - 1)), "expected a piece of 1 to 8 bytes");
  EXPECT_THAT_TEXT(error_with(good.substr(0, 40)), "expected a");
  EXPECT_THAT_TEXT(error_with("ab"), "got 2 bytes");
  EXPECT_ERROR(Tokenizer::load(file).save(dir / "x"), "a llama2.c vocabulary cannot be saved");
}

TEST(tokenizer_files, wrong_paths) {
  const ScratchDir dir;
  EXPECT_ERROR(Tokenizer::load(dir / "none"), "no such tokenizer file or folder");
  EXPECT_ERROR(Tokenizer::load(dir.path()), "this folder has no tokenizer");
  spill(dir / "words.txt", "x");
  EXPECT_ERROR(Tokenizer::load(dir / "words.txt"), "expected a tokenizer file");
}

}  // namespace
}  // namespace hearth
