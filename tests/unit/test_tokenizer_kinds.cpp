// Tokenizers of other kinds than GPT-2's: Qwen's file, pieces as Llama-2 has them, and each option
// of tokenizer.json that changes ids.
#include <algorithm>
#include <functional>
#include <nlohmann/json.hpp>
#include <random>

#include "text/tokenizer/train.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;
using Ids = std::vector<int32_t>;

Tokenizer tokenizer_of(const json& file) {
  const ScratchDir dir;
  spill(dir / "tokenizer.json", file.dump());
  return Tokenizer::load(dir.path());
}

// What a file means, and what it means after it was read and saved.
std::vector<Tokenizer> read_and_saved(const json& file) {
  const Tokenizer first = tokenizer_of(file);
  const ScratchDir dir;
  first.save(dir.path());
  return {first, Tokenizer::load(dir.path())};
}

json added(int id, const std::string& text, bool special = true) {
  return {{"id", id},        {"content", text},      {"special", special}, {"lstrip", false},
          {"rstrip", false}, {"single_word", false}, {"normalized", false}};
}

const json space_by_mark = {
    {"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}};

// <unk> <s> </s>, 256 bytes, then pieces: ids from 259 on as listed.
json pieces_file() {
  json vocab = {{"<unk>", 0}, {"<s>", 1}, {"</s>", 2}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 3;
  int next = 259;
  for (const char* t :
       {"\u2581", "a", "b", "c", "\u2581a", "ab", "\u2581ab", "\u2581\u2581", "\u00e9"})
    vocab[t] = next++;
  const json merges = {"\u2581 a", "a b", "\u2581 ab", "\u2581 \u2581"};
  const json bos = {{"SpecialToken", {{"id", "<s>"}, {"type_id", 0}}}};
  return {{"added_tokens", {added(0, "<unk>"), added(1, "<s>"), added(2, "</s>")}},
          {"normalizer",
           {{"type", "Sequence"},
            {"normalizers", {{{"type", "Prepend"}, {"prepend", "\u2581"}}, space_by_mark}}}},
          {"pre_tokenizer", nullptr},
          {"post_processor",
           {{"type", "TemplateProcessing"},
            {"single", {bos, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
            {"pair", json::array()},
            {"special_tokens",
             {{"<s>", {{"id", "<s>"}, {"ids", json::array({1})}, {"tokens", {"<s>"}}}}}}}},
          {"decoder", piece_decoder(true)},
          {"model", piece_model(vocab, merges)}};
}

constexpr int space = 259, a = 260, b = 261, space_a = 263, ab = 264, two_spaces = 266;

json byte_level(bool prefix, bool regex) {
  return {{"type", "ByteLevel"}, {"add_prefix_space", prefix}, {"use_regex", regex}};
}

// 256 bytes in GPT-2's order, merges of "th", "the", " the".
json bytes_file() {
  Threads threads(1);
  int left = 1;
  const ScratchDir dir;
  train_bpe(
      {.vocab = 262, .special = {"<|end|>"}},
      [&](std::string& text) {
        text = "the the the then the the there the";
        return left-- > 0;
      },
      threads)
      .save(dir.path());
  return json::parse(slurp(dir / "tokenizer.json"));
}

TEST(tokenizer_kinds, qwen) {
  const ScratchDir dir;
  for (const std::string name : {"tokenizer.json", "tokenizer_config.json"})
    std::filesystem::copy_file(test_data("tokenizers/qwen2.5/" + name), dir / name);
  const Tokenizer read = Tokenizer::load(dir.path());
  read.save(dir / "saved");
  EXPECT_EQ(slurp(dir / "saved/tokenizer_config.json"), slurp(dir / "tokenizer_config.json"));
  for (const Tokenizer& t : {read, Tokenizer::load(dir / "saved")}) {
    EXPECT_EQ(t.encode("Hello world"), (Ids{9707, 1879}));
    EXPECT_EQ(t.encode("DON'T 12345"), (Ids{84641, 17323, 220, 16, 17, 18, 19, 20}));
    EXPECT_EQ(t.encode("e\u0301te\u0301 cafe\u0301"), (Ids{38783, 51950}));
    EXPECT_EQ(t.encode("a  b\n\n  c \n "), (Ids{64, 220, 293, 271, 220, 272, 715, 220}));
    EXPECT_EQ(t.encode("it'\u017f 'RE"), (Ids{275, 6, 144815, 364, 787}));
    EXPECT_EQ(t.encode("\u1100\u1161\u11a8 \u0958"), (Ids{126317, 47809, 5502, 120}));
    EXPECT_EQ(t.encode("x\u3000\u00a0y\t\tz!?\n\n"),
              (Ids{87, 22441, 4102, 88, 197, 20832, 0, 1939}));
    EXPECT_EQ(t.encode("\U0001f999\u200d\U0001f32b\ufe0f"), (Ids{149955, 378, 235, 149921, 30543}));
    EXPECT_EQ(t.eos(), 151645);
    EXPECT_EQ(t.bos(), -1);
    EXPECT_EQ(t.special("<tool_call>"), 151657);
    EXPECT_EQ(t.encode_with_special("<|im_start|>user"), (Ids{151644, 872}));
    EXPECT_GT(t.encode("<|im_start|>").size(), 1u);
    const std::string llamas(1 << 20, '\n');
    EXPECT_EQ(t.decode(t.encode(llamas)), llamas);
  }
}

Ids encode_at(const Tokenizer& t, std::string_view text, TextStart start) {
  Ids ids;
  t.encode_to(text, ids, start);
  return ids;
}

TEST(tokenizer_kinds, pieces) {
  for (const Tokenizer& t : read_and_saved(pieces_file())) {
    EXPECT_EQ(t.encode(""), Ids{});
    EXPECT_EQ(t.encode("ab"), (Ids{space_a, b}));  // the earlier merge goes first
    EXPECT_EQ(t.encode(" ab"), (Ids{space, space_a, b}));
    EXPECT_EQ(t.encode("bab"), (Ids{space, b, ab}));
    EXPECT_EQ(t.encode("b ab\u2581"
                       "a"),
              (Ids{space, b, space_a, b, space_a}));
    EXPECT_EQ(t.encode("\n\u6f22\xff"),
              (Ids{space, 0x0a + 3, 0xe6 + 3, 0xbc + 3, 0xa2 + 3, 0xff + 3}));
    EXPECT_EQ(t.encode("<s>").size(), 4u);
    // Each stretch between special tokens gets its space.
    EXPECT_EQ(t.encode_with_special("a<s>a</s>"), (Ids{space_a, 1, space_a, 2}));
    EXPECT_EQ(encode_at(t, "a", TextStart::after_token), Ids{space_a});
    EXPECT_EQ(encode_at(t, "a a", TextStart::inside), (Ids{a, space_a}));
    Ids ids = t.encode("a");
    t.add_template(ids);
    EXPECT_EQ(ids, (Ids{1, space_a}));
    for (const std::string text : {"ab a", " ab", "\u6f22\n", "  ",
                                   "b\xff"
                                   "a"}) {
      const Ids all = t.encode(text);
      EXPECT_EQ(t.decode(all), text);
      StreamDecoder stream(t);
      std::string streamed;
      for (const int32_t id : all) streamed += stream.push(id);
      EXPECT_EQ(streamed + stream.finish(), text);
    }
    EXPECT_EQ(t.bytes_of(space_a), " a");
    EXPECT_EQ(StreamDecoder(t, b).push(space_a), " a") << "in the middle of a text";
    EXPECT_EQ(StreamDecoder(t, t.bos()).push(space_a), "a");
    EXPECT_EQ(t.bos(), 1);
    EXPECT_EQ(t.eos(), 2);
  }
}

TEST(tokenizer_kinds, template_around_ids_that_begin_with_it) {
  json file = pieces_file();
  const json token = {{"SpecialToken", {{"id", "</s>"}, {"type_id", 0}}}};
  json& processor = file["post_processor"];
  processor["special_tokens"]["</s>"] = {
      {"id", "</s>"}, {"ids", json::array({2})}, {"tokens", {"</s>"}}};
  processor["single"].push_back(token);
  const auto completed = [&](Ids ids) {
    tokenizer_of(file).complete_template(ids);
    return ids;
  };
  EXPECT_EQ(completed({a}), (Ids{1, a, 2}));
  EXPECT_EQ(completed({1, a}), (Ids{1, a, 2}));
  EXPECT_EQ(completed({1, 2}), (Ids{1, 2, 2}));
  EXPECT_EQ(completed({}), (Ids{1, 2}));
  processor["single"].insert(processor["single"].begin(), token);
  EXPECT_EQ(completed({2, 1, a}), (Ids{2, 1, a, 2}));
  EXPECT_EQ(completed({2, a}), (Ids{2, 1, 2, a, 2})) << "only a part of it";
  processor["single"].erase(0), processor["single"].erase(0);
  EXPECT_EQ(completed({2, a}), (Ids{2, a, 2}));
  processor["single"].erase(1);
  EXPECT_EQ(completed({2, a}), (Ids{2, a}));
}

TEST(tokenizer_kinds, metaspace) {
  json file = pieces_file();
  file["normalizer"] = nullptr;
  const auto with = [&](const json& metaspace) {
    file["pre_tokenizer"] = {{"type", "Metaspace"}, {"replacement", "\u2581"}};
    file["pre_tokenizer"].update(metaspace);
    return read_and_saved(file);
  };
  for (const Tokenizer& t : with({{"prepend_scheme", "first"}, {"split", false}})) {
    EXPECT_EQ(t.encode("a a"), (Ids{space_a, space_a}));
    EXPECT_EQ(t.encode(" a"), Ids{space_a});
    EXPECT_EQ(t.encode("  a"), (Ids{space, space_a}));  // " a" merges before "  "
    EXPECT_EQ(t.encode_with_special("a<s>a<s> a"), (Ids{space_a, 1, a, 1, space_a}));
    EXPECT_EQ(t.encode_with_special("<s>a"), (Ids{1, a}));
    EXPECT_EQ(encode_at(t, "a", TextStart::after_token), Ids{a});
    EXPECT_EQ(encode_at(t, "a", TextStart::inside), Ids{a});
  }
  for (const Tokenizer& t : with({{"prepend_scheme", "always"}})) {  // split is the default
    EXPECT_EQ(t.encode("b   b"), (Ids{space, b, space, space, space, b}));
    EXPECT_EQ(t.encode_with_special("a<s>a"), (Ids{space_a, 1, space_a}));
    EXPECT_EQ(encode_at(t, "a", TextStart::after_token), Ids{space_a});
    EXPECT_EQ(encode_at(t, "a", TextStart::inside), Ids{a});
  }
  for (const Tokenizer& t : with({{"add_prefix_space", true}, {"split", false}}))
    EXPECT_EQ(t.encode("b   b"), (Ids{space, b, two_spaces, space, b}));
  for (const Tokenizer& t : with({{"prepend_scheme", "never"}}))
    EXPECT_EQ(t.encode("a a"), (Ids{a, space_a}));
}

TEST(tokenizer_kinds, unknown_characters) {
  json file = pieces_file();
  file["model"]["byte_fallback"] = false;
  for (const Tokenizer& t : read_and_saved(file))
    EXPECT_EQ(t.encode("a\u6f22\u6f22\n"
                       "a \u6f22"),
              (Ids{space_a, 0, a, space, 0}));
  file["model"]["fuse_unk"] = false;
  for (const Tokenizer& t : read_and_saved(file))
    EXPECT_EQ(t.encode("a\u6f22\u6f22"), (Ids{space_a, 0, 0}));
  file["model"]["unk_token"] = nullptr;
  EXPECT_ERROR(tokenizer_of(file), "expected unk_token or byte_fallback at model, got neither");
  file["model"]["unk_token"] = "<none>";
  EXPECT_ERROR(tokenizer_of(file), "model.unk_token to be a token of the vocabulary");
}

// A merge over the beginning of a run of spaces: then the whole text is one word.
TEST(tokenizer_kinds, pieces_that_join_over_spaces) {
  json file = pieces_file();
  file["model"]["vocab"]["b\u2581"] = 268;
  file["model"]["merges"].insert(file["model"]["merges"].begin(), "b \u2581");
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_EQ(t.encode("b a"), (Ids{space, 268, a}));
}

TEST(tokenizer_kinds, ignore_merges) {
  json file = bytes_file();
  const Ids merged = tokenizer_of(file).encode("the");
  EXPECT_EQ(merged.size(), 1u);
  file["model"]["merges"].erase(1);  // "the" cannot be made any more
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_GT(t.encode("the").size(), 1u);
  file["model"]["ignore_merges"] = true;
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_EQ(t.encode("the"), merged);
}

TEST(tokenizer_kinds, byte_level_options) {
  json file = bytes_file();
  const Tokenizer plain = tokenizer_of(file);
  const Ids the = plain.encode(" the");
  ASSERT_EQ(the.size(), 1u);
  file["pre_tokenizer"] = byte_level(true, true);
  for (const Tokenizer& t : read_and_saved(file)) {
    EXPECT_EQ(t.encode("the"), the);
    EXPECT_EQ(t.encode(" the"), the);
    EXPECT_EQ(t.encode_with_special("the<|end|>the"), (Ids{the[0], 261, the[0]}));
    EXPECT_EQ(t.encode(""), Ids{});
  }
  file["pre_tokenizer"] = byte_level(false, false);
  file["model"]["vocab"]["e\u0120"] = 262;
  file["model"]["merges"] = json::array({"e \u0120"});
  for (const Tokenizer& t : read_and_saved(file))
    EXPECT_EQ(t.encode("e e").size(), 2u) << "not cut at the space";
}

TEST(tokenizer_kinds, normalizer_nfc) {
  json file = bytes_file();
  file["normalizer"] = {{"type", "NFC"}};
  file["added_tokens"].push_back(added(262, "caf\u0065\u0301", false));
  for (const Tokenizer& t : read_and_saved(file)) {
    EXPECT_EQ(t.decode(t.encode("e\u0301")), "\u00e9");
    // Looked for before the text is normalised.
    EXPECT_EQ(t.encode_with_special("caf\u0065\u0301"), Ids{262});
    EXPECT_GT(t.encode_with_special("caf\u00e9").size(), 1u);
  }
  file["added_tokens"].back()["normalized"] = true;
  for (const Tokenizer& t : read_and_saved(file)) {
    EXPECT_EQ(t.encode_with_special("caf\u0065\u0301"), Ids{262});
    EXPECT_EQ(t.encode_with_special("caf\u00e9"), Ids{262});
  }
}

// It would match everywhere and nowhere.
TEST(tokenizer_kinds, added_token_that_normalises_to_nothing) {
  json file = bytes_file();
  file["normalizer"] = {{"type", "Strip"}, {"strip_left", true}, {"strip_right", true}};
  file["added_tokens"].push_back(added(262, "  ", false));
  EXPECT_EQ(tokenizer_of(file).encode_with_special(std::string("a\0b", 3)).size(), 3u);
  file["added_tokens"].back()["normalized"] = true;
  try {
    tokenizer_of(file);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find("got id 262, of which the normalizer leaves nothing"),
              std::string::npos)
        << e.what();
  }
}

TEST(tokenizer_kinds, added_token_options) {
  json file = bytes_file();
  file["added_tokens"] = json::array({added(261, "<|end|>")});
  json& token = file["added_tokens"][0];
  const auto text = [](const Tokenizer& t, const std::string& s) {
    std::string parts;
    for (const int32_t id : t.encode_with_special(s)) parts += id == 261 ? "#" : t.bytes_of(id);
    return parts;
  };
  const std::string sample = "a \u3000<|end|>\n b<|end|>c";
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_EQ(text(t, sample), "a \u3000#\n b#c");
  token["lstrip"] = true;
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_EQ(text(t, sample), "a#\n b#c");
  token["rstrip"] = true;
  for (const Tokenizer& t : read_and_saved(file)) EXPECT_EQ(text(t, sample), "a#b#c");
  token["single_word"] = true;
  for (const Tokenizer& t : read_and_saved(file)) {
    EXPECT_EQ(text(t, sample), "a#b<|end|>c");
    EXPECT_EQ(text(t, "_<|end|>\u0301<|end|>!<|end|>"), "_<|end|>\u0301<|end|>!#");
  }
}

// Many added tokens that start alike, against a search that tries all of them at every place.
TEST(tokenizer_kinds, longest_of_many_added_tokens) {
  json file = bytes_file();
  std::mt19937 random{7};
  std::vector<std::string> texts;
  for (int i = 0; i < 300; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 6; text.size() < n;) text += "<>n"[random() % 3];
    if (std::ranges::count(texts, text) == 0) texts.push_back(text);
  }
  file["added_tokens"] = json::array();
  for (size_t i = 0; i < texts.size(); ++i)
    file["added_tokens"].push_back(added(int(300 + i), texts[i], i % 2 == 0));
  const Tokenizer t = tokenizer_of(file);
  for (int round = 0; round < 200; ++round) {
    std::string sample, want, got;
    for (size_t n = random() % 40; sample.size() < n;) sample += "<>n.a"[random() % 5];
    for (size_t i = 0; i < sample.size();) {
      size_t best = texts.size();
      for (size_t k = 0; k < texts.size(); ++k)
        if (sample.compare(i, texts[k].size(), texts[k]) == 0 &&
            (best == texts.size() || texts[k].size() > texts[best].size()))
          best = k;
      want += best == texts.size() ? sample.substr(i, 1) : fmt::format("[{}]", 300 + best);
      i += best == texts.size() ? 1 : texts[best].size();
    }
    for (const int32_t id : t.encode_with_special(sample))
      got += id >= 300 ? fmt::format("[{}]", id) : t.bytes_of(id);
    EXPECT_EQ(got, want) << sample;
  }
}

// Ids with gaps, as cl100k has them: Hugging Face would number the added tokens anew.
TEST(tokenizer_kinds, added_tokens_with_gaps) {
  json file = bytes_file();
  file["added_tokens"] = {added(270, "<|end|>"), added(280, "<|more|>")};
  const ScratchDir dir;
  tokenizer_of(file).save(dir.path());
  const json saved = json::parse(slurp(dir / "tokenizer.json"));
  EXPECT_EQ(saved["model"]["vocab"]["<|end|>"], 270);
  EXPECT_EQ(saved["model"]["vocab"]["<|more|>"], 280);
  EXPECT_EQ(Tokenizer::load(dir.path()).encode_with_special("<|more|>"), Ids{280});
}

TEST(tokenizer_kinds, unsupported_parts_by_path) {
  const auto error_after = [](json file, const std::function<void(json&)>& change) {
    change(file);
    return error_of([&] { tokenizer_of(file); });
  };
  const json bytes = bytes_file(), pieces = pieces_file();
  EXPECT_THAT_TEXT(
      error_after(pieces, [](json& f) { f["normalizer"]["normalizers"][1]["content"] = "_"; }),
      "a normalizer that replaces a space by \u2581 at pre_tokenizer, got null");
  EXPECT_THAT_TEXT(error_after(bytes,
                               [](json& f) {
                                 f["normalizer"] = {{"type", "Precompiled"}};
                               }),
                   "at normalizer, got Precompiled");
  EXPECT_THAT_TEXT(error_after(bytes, [](json& f) { f["pre_tokenizer"] = nullptr; }),
                   "at pre_tokenizer, got null");
  EXPECT_THAT_TEXT(error_after(bytes,
                               [](json& f) {
                                 f["pre_tokenizer"] = {
                                     {"type", "Sequence"},
                                     {"pretokenizers",
                                      {{{"type", "BertPreTokenizer"}}, byte_level(false, true)}}};
                               }),
                   "at pre_tokenizer.pretokenizers[0], got BertPreTokenizer");
  EXPECT_THAT_TEXT(
      error_after(pieces, [](json& f) { f["decoder"]["decoders"][1]["type"] = "CTC"; }),
      "at decoder.decoders[1], got CTC");
  EXPECT_THAT_TEXT(
      error_after(pieces, [](json& f) { f["post_processor"]["type"] = "BertProcessing"; }),
      "at post_processor, got BertProcessing");
  EXPECT_THAT_TEXT(error_after(pieces,
                               [](json& f) {
                                 f["post_processor"]["special_tokens"]["<s>"]["ids"] =
                                     json::array({9999});
                               }),
                   "a token added by the template to be a token of the vocabulary, got id 9999");
  EXPECT_THAT_TEXT(error_after(pieces, [](json& f) { f["model"]["vocab"]["a b"] = 300; }),
                   "got \"a b\" (id 300)");
  EXPECT_THAT_TEXT(error_after(pieces, [](json& f) { f["added_tokens"] = 3; }), "got");
  EXPECT_THAT_TEXT(error_after(bytes, [](json& f) { f["model"]["vocab"]["a"] = 4294967296; }),
                   "got 4294967296");
  EXPECT_THAT_TEXT(
      error_after(
          bytes,
          [](json& f) {
            f["post_processor"] = {{"type", "TemplateProcessing"}, {"single", json::array({3})}};
          }),
      "this is not a valid tokenizer.json");
  EXPECT_EQ(error_after(pieces, [](json&) {}), "no error");
}

TEST(tokenizer_kinds, trained_with_each_pattern) {
  Threads threads(1);
  for (const std::string pattern : {"gpt2", "cl100k", "llama3", "o200k", "qwen2"}) {
    int left = 1;
    const Tokenizer t = train_bpe(
        {.vocab = 300, .pattern = pattern},
        [&](std::string& text) {
          text = "it's 12345 12345\n\n\n\nDON'T don't helloWorld  \n";
          return left-- > 0;
        },
        threads);
    const ScratchDir dir;
    t.save(dir.path());
    const Tokenizer again = Tokenizer::load(dir.path());
    std::mt19937 rng(9);
    for (int i = 0; i < 300; ++i) {
      const std::string text = random_bytes(rng, 80) + "it's 12345\n\n \n helloWorld DON'T";
      ASSERT_EQ(t.encode(text), again.encode(text)) << pattern;
      ASSERT_EQ(t.decode(t.encode(text)), text);
    }
  }
  EXPECT_ERROR(train_bpe(
                   {.pattern = "gpt5"}, [](std::string&) { return false; }, threads),
               "expected pattern gpt2, cl100k, llama3, o200k, qwen2, got gpt5");
}

// From the first byte that is not UTF-8 on there are no words: merges go over what would be their
// ends, from the last word before it, or from the blanks that it begins with.
TEST(tokenizer_kinds, bytes_as_tiktoken) {
  json file = bytes_file();
  file["model"]["vocab"]["e\u0120"] = 262;  // "e " never comes out of words
  file["model"]["merges"].insert(file["model"]["merges"].begin(), "e \u0120");
  file["added_tokens"][0]["id"] = 263;
  const Tokenizer t = tokenizer_of(file);
  const auto last = [&](const std::string& s) { return t.bytes_of(t.encode(s).back()); };
  EXPECT_EQ(t.encode("e e ").size(), 4u);
  EXPECT_EQ(t.encode("\xff"
                     "e e ")
                .size(),
            3u);
  EXPECT_EQ(last("\xff"
                 "e e "),
            "e ");
  EXPECT_EQ(t.encode("e e \xff").size(), 5u) << "the first two words stay";
  EXPECT_EQ(t.encode("e e\xff"
                     "e ")
                .size(),
            5u);
  EXPECT_EQ(t.decode(t.encode("e  \n \t \xff\xfe e ")), "e  \n \t \xff\xfe e ");
}

}  // namespace
}  // namespace hearth
