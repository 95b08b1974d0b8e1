// Tokenizers whose normaliser or pre-tokeniser is a list of steps: each step by the examples of
// Hugging Face's documentation, general expressions against the scanners of known ones, Unigram
// against all ways to cut a word, and whole files.
#include <functional>
#include <nlohmann/json.hpp>

#include "rewards/regex.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/text_steps.h"
#include "text/tokenizer/train.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;
using Ids = std::vector<int32_t>;
using Words = std::vector<std::string>;
using enum SplitBehaviour;

Words words_by(const std::vector<SplitStep>& steps, std::string_view text,
               TextStart start = TextStart::whole) {
  std::deque<std::string> made;
  Words words;
  for (const std::string_view w : split_by(steps, text, start, made)) words.emplace_back(w);
  return words;
}

SplitStep by_regex(const std::string& pattern, SplitBehaviour behaviour, bool invert = false) {
  return {.kind = SplitKind::regex,
          .behaviour = behaviour,
          .invert = invert,
          .regex = std::make_shared<const SplitRegex>(pattern, "test")};
}

// --- steps ---

TEST(tokenizer_steps, behaviours) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const std::string text = "the-final--countdown";
  const std::pair<SplitBehaviour, Words> expected[] = {
      {removed, {"the", "final", "countdown"}},
      {isolated, {"the", "-", "final", "-", "-", "countdown"}},
      {with_previous, {"the-", "final-", "-", "countdown"}},
      {with_next, {"the", "-final", "-", "-countdown"}},
      {contiguous, {"the", "-", "final", "--", "countdown"}}};
  for (const auto& [behaviour, words] : expected) {
    EXPECT_EQ(words_by({{.kind = SplitKind::text, .behaviour = behaviour, .text = "-"}}, text),
              words);
    EXPECT_EQ(words_by({by_regex("-", behaviour)}, text), words);
  }
  EXPECT_EQ(words_by({by_regex("[a-z]+", removed, true)}, text),
            (Words{"the", "final", "countdown"}));
  EXPECT_EQ(words_by({by_regex("[a-z]+", removed)}, text), (Words{"-", "--"}));
  EXPECT_EQ(words_by({by_regex("-", with_previous)}, "-a"), (Words{"-", "a"}));
  EXPECT_EQ(words_by({by_regex("-", with_next)}, "a-"), (Words{"a", "-"}));
}

TEST(tokenizer_steps, characters) {
  const SplitStep each{.kind = SplitKind::digits};
  const SplitStep runs{.kind = SplitKind::digits, .behaviour = contiguous};
  EXPECT_EQ(words_by({each}, "Call 911!"), (Words{"Call ", "9", "1", "1", "!"}));
  EXPECT_EQ(words_by({runs}, "Call 911!"), (Words{"Call ", "911", "!"}));
  EXPECT_EQ(words_by({each}, "\u0663\u00bd\u2167x"), (Words{"\u0663", "\u00bd", "\u2167", "x"}));
  const SplitStep marks{.kind = SplitKind::punctuation};
  EXPECT_EQ(words_by({marks}, "Hello?!"), (Words{"Hello", "?", "!"}));
  EXPECT_EQ(words_by({{.kind = SplitKind::punctuation, .behaviour = contiguous}}, "a$+\u3002b_"),
            (Words{"a", "$+\u3002", "b", "_"}));
  EXPECT_EQ(words_by({marks}, "1\u20ac\u00d72"), (Words{"1\u20ac\u00d72"}));  // symbols, not marks
  EXPECT_EQ(words_by({{.kind = SplitKind::words, .behaviour = removed, .invert = true}},
                     " Hello there!?\u3000\u00e9_1 \n"),
            (Words{"Hello", "there", "!?", "\u00e9_1"}));
  EXPECT_EQ(words_by({{.kind = SplitKind::spaces, .behaviour = removed}}, " a!\u00a0b\n\nc "),
            (Words{"a!", "b", "c"}));
}

// After ByteLevel the steps see the letters of bytes: the superscript two of Latin-1 is a digit,
// wherever its byte comes from.
TEST(tokenizer_steps, letters_of_bytes) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const std::vector<SplitStep> falcon = {{.kind = SplitKind::punctuation, .behaviour = contiguous},
                                         {.kind = SplitKind::scanner, .pattern = Pattern::gpt2},
                                         {.kind = SplitKind::letters},
                                         {.kind = SplitKind::digits, .behaviour = contiguous},
                                         by_regex("[0-9][0-9][0-9]", isolated)};
  EXPECT_EQ(words_by(falcon, "it's 12345, ok!!"),
            (Words{"it", "'", "s", " ", "123", "45", ",", " ok", "!!"}));
  EXPECT_EQ(words_by(falcon, "a\u00b21"), (Words{"a", "\xc2", "\xb2\x31"}));
}

TEST(tokenizer_steps, metaspace_after_words) {
  const SplitStep spaces{.kind = SplitKind::spaces, .behaviour = removed};
  SplitStep meta{.kind = SplitKind::metaspace, .behaviour = with_next, .always = true};
  EXPECT_EQ(words_by({spaces, meta}, " a  b\u2581c"), (Words{" a", " b", " c"}));
  EXPECT_EQ(words_by({spaces, meta}, "a b", TextStart::after_token), (Words{" a", " b"}));
  EXPECT_EQ(words_by({spaces, meta}, "a b", TextStart::inside), (Words{"a", " b"}));
  meta.always = false, meta.first = true;
  EXPECT_EQ(words_by({spaces, meta}, "a b"), (Words{" a", "b"}));
  EXPECT_EQ(words_by({spaces, meta}, " a b"), (Words{"a", "b"}));
  EXPECT_EQ(words_by({spaces, meta}, "a b", TextStart::after_token), (Words{"a", "b"}));
  EXPECT_EQ(words_by({spaces, meta}, "a b", TextStart::inside), (Words{"a", "b"}));
}

// --- expressions ---

// A known pattern as an expression cuts the words that its scanner cuts.
TEST(tokenizer_steps, expressions_as_scanners) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  std::mt19937 random(3);
  const std::string parts[] = {"a",  "B",      "\u00e9", "\u01c5", "\u02b0",     "\u6f22",
                               "1",  "\u0663", " ",      "  ",     "\n",         "\r\n",
                               "\t", "\u00a0", "\u3000", "'s",     "'L",         "'\u017f",
                               "!",  "?/",     "\u0301", "_",      "\U0001f999", "'re"};
  for (const Pattern p :
       {Pattern::gpt2, Pattern::cl100k, Pattern::llama3, Pattern::o200k, Pattern::qwen2}) {
    const std::vector<SplitStep> regex = {by_regex(std::string(pattern_regex(p)), isolated)};
    const std::vector<SplitStep> scanner = {{.kind = SplitKind::scanner, .pattern = p}};
    for (int i = 0; i < 3000; ++i) {
      std::string text;
      for (size_t n = 1 + random() % 14; n > 0; --n) text += parts[random() % std::size(parts)];
      ASSERT_EQ(words_by(regex, text), words_by(scanner, text)) << pattern_name(p) << ": " << text;
    }
  }
}

TEST(tokenizer_steps, expressions_of_families) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  // DeepSeek-V3.
  const std::vector<SplitStep> deepseek = {
      by_regex(R"(\p{N}{1,3})", isolated),
      by_regex("[\u4e00-\u9fa5\u3040-\u309f\u30a0-\u30ff]+", isolated),
      by_regex(
          R"([!"#$%&'()*+,\-./:;<=>?@\[\\\]^_`{|}~][A-Za-z]+|[^\r\n\p{L}\p{P}\p{S}]?[\p{L}\p{M}]+)"
          R"(| ?[\p{P}\p{S}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+)",
          isolated)};
  EXPECT_EQ(words_by(deepseek, "it's 12345 \u6f22\u5b57ab, \n x"),
            (Words{"it", "'s", " ", "123", "45", " ", "\u6f22\u5b57", "ab", ",", " \n", " x"}));
  // $ is the end of every line, as in Oniguruma.
  EXPECT_EQ(words_by({by_regex(R"(\s+$)", isolated)}, "a  \nb "), (Words{"a", "  ", "\nb", " "}));
  EXPECT_EQ(words_by({by_regex("x*", isolated)}, "axxb"), (Words{"a", "xx", "b"}));
  EXPECT_EQ(words_by({by_regex(R"(\w+)", isolated)}, "e\u0301 \u00bd\u203f"),
            (Words{"e\u0301", " \u00bd", "\u203f"}));
  EXPECT_EQ(words_by({by_regex(R"([\s,]+)", removed)}, "a,\u180e b\u2003c"),
            (Words{"a", "\u180e", "b", "c"}));
}

TEST(tokenizer_steps, refuses_expressions_that_would_differ) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const auto error = [](const std::string& pattern) {
    return error_of([&] { SplitRegex(pattern, "t.json, pre_tokenizer"); });
  };
  for (const auto& [pattern, part] : {std::pair{R"(\p{N}{1,3}+)", "without }+"},
                                      {R"(a{2}?)", "without }?"},
                                      {R"(\h)", "without \\h"},
                                      {R"([a-z&&[^b]])", "without && in a set"},
                                      {R"([a[b]])", "without a set within a set"},
                                      {R"([^\S\n])", "without \\S in a set"},
                                      {R"((?m:a.b))", "without the options \"m\""},
                                      {R"([a)", "without a set that does not end"},
                                      {R"(a\)", "without a backslash at its end"},
                                      {R"(\bword)", "without \\b"},
                                      {R"([[:alpha:]])", "without named sets"}}) {
    EXPECT_THAT_TEXT(error(pattern), part);
    EXPECT_THAT_TEXT(error(pattern), "t.json, pre_tokenizer");
  }
  EXPECT_THAT_TEXT(error("(a"), "missing closing parenthesis");
}

TEST(tokenizer_steps, ends_a_search_that_takes_too_long) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const std::string text = std::string(4000, 'a') + "b";
  EXPECT_THAT_TEXT(
      error_of([&] { words_by({by_regex("(a|aa)+(a|aa)+(a|aa)+[cd]", isolated)}, text); }),
      "takes too long for a text of 4001 bytes");
}

// --- normal forms ---

TEST(tokenizer_steps, normal_forms) {
  const std::string dotted = "\u1e9b\u0323";  // of Unicode's annex 15
  EXPECT_EQ(normal_form(dotted, NormalForm::c), "\u1e9b\u0323");
  EXPECT_EQ(normal_form(dotted, NormalForm::d), "\u017f\u0323\u0307");
  EXPECT_EQ(normal_form(dotted, NormalForm::kc), "\u1e69");
  EXPECT_EQ(normal_form(dotted, NormalForm::kd), "s\u0323\u0307");
  EXPECT_EQ(normal_form("\ufb01\u2460\uff76\uff9e\u212b", NormalForm::kc), "fi1\u30ac\u00c5");
  EXPECT_EQ(normal_form("\u00bd\u3300", NormalForm::kc), "1\u20442\u30a2\u30d1\u30fc\u30c8");
  EXPECT_EQ(normal_form("\uac01", NormalForm::kd), "\u1100\u1161\u11a8");
  EXPECT_EQ(normal_form("\ufdfa", NormalForm::kd).size(), 33u);
  EXPECT_EQ(normal_form("e\xff"
                        "e\u0301",
                        NormalForm::kc),
            "e\xff\u00e9");
  EXPECT_EQ(normal_form("\U0001d538\U0001d55a", NormalForm::kc), "Ai");
  std::mt19937 random(5);
  for (int i = 0; i < 2000; ++i) {
    std::string storage;
    const std::string text = random_bytes(random, 60);
    ASSERT_EQ(normal_form(text, NormalForm::c), nfc(text, storage));
  }
}

TEST(tokenizer_steps, normalisers) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const NormalStep quotes{.kind = NormalKind::replace, .from = "``", .to = "\""};
  const NormalStep runs{.kind = NormalKind::replace,
                        .regex = std::make_shared<const SplitRegex>(" {2,}", "test"),
                        .to = "_"};
  const NormalStep strip{.kind = NormalKind::strip, .left = true, .right = true};
  const NormalStep mark{.kind = NormalKind::prepend, .to = ">"};
  EXPECT_EQ(normalised_by({quotes, runs, strip, mark}, " ``a   b c\u3000"), ">\"a_b c");
  EXPECT_EQ(normalised_by({mark}, ""), "");
  EXPECT_EQ(normalised_by({strip, mark}, " \n"), "");
  EXPECT_EQ(normalised_by({runs}, "a  \xff  "), "a_\xff  ");
}

// --- Unigram ---

// The best cut of a text into pieces, by trying all.
double best_score(const std::map<std::string, double>& pieces, const std::string& text,
                  double unknown) {
  if (text.empty()) return 0;
  double best = -1e9;
  bool single = false;
  for (size_t n = 1; n <= text.size(); ++n)
    if (const auto it = pieces.find(text.substr(0, n)); it != pieces.end()) {
      single = single || n == 1;
      best = std::max(best, it->second + best_score(pieces, text.substr(n), unknown));
    }
  if (!single) best = std::max(best, unknown + best_score(pieces, text.substr(1), unknown));
  return best;
}

TEST(tokenizer_steps, unigram_takes_the_best_cut) {
  const std::map<std::string, double> pieces = {{"a", -3},      {"b", -3.5},   {"ab", -4.25},
                                                {"ba", -5},     {"aba", -6.5}, {"bb", -8},
                                                {"abab", -7.75}};
  std::vector<double> scores;
  for (const auto& [text, score] : pieces) scores.push_back(score);
  scores.push_back(0);
  Unigram model(scores, int32_t(pieces.size()));
  int32_t id = 0;
  for (const auto& [text, score] : pieces) model.add(text, id++);
  std::mt19937 random(11);
  for (int i = 0; i < 500; ++i) {
    std::string text;
    for (size_t n = 1 + random() % 9; n > 0; --n) text += "aabbx"[random() % 5];
    double score = 0;
    size_t begin = 0;
    bool unknown = false;
    for (const Unigram::Part& p : model.parts(text)) {
      const std::string piece = text.substr(begin, p.end - begin);
      if (p.id == int32_t(pieces.size())) {
        EXPECT_EQ(piece, std::string(piece.size(), 'x'));
        EXPECT_FALSE(unknown) << "neighbours are one part";
        score += double(piece.size()) * -18;
      } else {
        score += pieces.at(piece);
      }
      unknown = p.id == int32_t(pieces.size());
      begin = p.end;
    }
    EXPECT_EQ(begin, text.size());
    EXPECT_NEAR(score, best_score(pieces, text, -18), 1e-9) << text;
  }
}

// --- files ---

Tokenizer tokenizer_of(const json& file) {
  const ScratchDir dir;
  spill(dir / "tokenizer.json", file.dump());
  return Tokenizer::load(dir.path());
}

std::vector<Tokenizer> read_and_saved(const json& file) {
  const Tokenizer first = tokenizer_of(file);
  const ScratchDir dir;
  first.save(dir.path());
  return {first, Tokenizer::load(dir.path())};
}

// 256 bytes in GPT-2's order and some merges.
json bytes_file() {
  Threads threads(1);
  int left = 1;
  const ScratchDir dir;
  train_bpe(
      {.vocab = 270, .special = {"<|end|>"}},
      [&](std::string& text) {
        text = "12 12 12 12 the the the the then 123 123 a1 a1 a1";
        return left-- > 0;
      },
      threads)
      .save(dir.path());
  return json::parse(slurp(dir / "tokenizer.json"));
}

json sequence(const json& list) { return {{"type", "Sequence"}, {"pretokenizers", list}}; }
const json plain_bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};

TEST(tokenizer_steps, smollm) {
  json file = bytes_file();
  EXPECT_LT(tokenizer_of(file).encode("12 12").size(), 4u);
  file["pre_tokenizer"] =
      sequence({{{"type", "Digits"}, {"individual_digits", true}}, plain_bytes});
  for (const Tokenizer& t : read_and_saved(file)) {
    Words words;
    for (const int32_t id : t.encode("the then 123a1\xff 12")) words.emplace_back(t.bytes_of(id));
    EXPECT_EQ(words[0], "the");
    EXPECT_EQ(words[1], " then");
    // Digits stand alone; what is not UTF-8 ends the cutting.
    EXPECT_EQ(Words(words.begin() + 2, words.begin() + 8), (Words{" ", "1", "2", "3", "a", "1"}));
    EXPECT_EQ(t.decode(t.encode("x 12\n345\xff 6")), "x 12\n345\xff 6");
    EXPECT_EQ(t.encode_with_special("1<|end|>2").size(), 3u);
  }
}

TEST(tokenizer_steps, unknown_parts_by_path) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  const auto error_after = [](const std::function<void(json&)>& change) {
    json file = bytes_file();
    change(file);
    return error_of([&] { tokenizer_of(file); });
  };
  EXPECT_THAT_TEXT(error_after([](json& f) {
                     f["pre_tokenizer"] = sequence({{{"type", "UnicodeScripts"}}, plain_bytes});
                   }),
                   "at pre_tokenizer.pretokenizers[0], got UnicodeScripts");
  EXPECT_THAT_TEXT(
      error_after([](json& f) {
        f["pre_tokenizer"] = sequence(
            {{{"type", "Split"}, {"pattern", {{"Regex", "\\h"}}}, {"behavior", "Isolated"}},
             plain_bytes});
      }),
      "pre_tokenizer.pretokenizers[0]] expected a regular expression without \\h");
  EXPECT_THAT_TEXT(
      error_after([](json& f) {
        f["pre_tokenizer"] =
            sequence({{{"type", "Split"}, {"pattern", {{"String", "x"}}}, {"behavior", "Dropped"}},
                      plain_bytes});
      }),
      "at pre_tokenizer.pretokenizers[0].behavior, got \"Dropped\"");
  EXPECT_THAT_TEXT(error_after([](json& f) {
                     f["normalizer"] = {{"type", "Sequence"},
                                        {"normalizers", {{{"type", "NFC"}}, {{"type", "Nmt"}}}}};
                   }),
                   "at normalizer.normalizers[1], got Nmt");
  EXPECT_THAT_TEXT(error_after([](json& f) { f["model"]["type"] = "WordPiece"; }),
                   "expected BPE or Unigram at model, got WordPiece");
  EXPECT_THAT_TEXT(error_after([](json& f) {
                     f["pre_tokenizer"] = sequence({plain_bytes, plain_bytes});
                   }),
                   "expected one ByteLevel at pre_tokenizer.pretokenizers[1]");
}

// Gemma: spaces become marks, and the Split at spaces finds none.
json gemma_file() {
  json vocab = {{"<unk>", 0}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 1;
  int next = 257;
  for (const char* t : {"\u2581", "a", "b", "ab", "\u2581a", "\u2581\u2581", "fi"})
    vocab[t] = next++;
  return {
      {"added_tokens", json::array()},
      {"normalizer", {{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", "\u2581"}}},
      {"pre_tokenizer",
       {{"type", "Split"},
        {"pattern", {{"String", " "}}},
        {"behavior", "MergedWithPrevious"},
        {"invert", false}}},
      {"post_processor", nullptr},
      {"decoder", piece_decoder(false)},
      {"model", piece_model(vocab, {"a b", "\u2581 a", "\u2581 \u2581"})}};
}

TEST(tokenizer_steps, gemma) {
  for (const Tokenizer& t : read_and_saved(gemma_file())) {
    EXPECT_EQ(t.encode("ab a  b"), (Ids{260, 261, 262, 259}));
    EXPECT_EQ(t.decode(t.encode(" ab \u6f22")), " ab \u6f22");
    EXPECT_EQ(t.encode("a\u2581a"), (Ids{258, 261}));
  }
  json file = gemma_file();  // with another normaliser before it
  file["normalizer"] = {{"type", "Sequence"},
                        {"normalizers", {{{"type", "NFKC"}}, file["normalizer"]}}};
  file["model"]["vocab"]["f"] = 264, file["model"]["vocab"]["i"] = 265;
  file["model"]["merges"].push_back("f i");
  for (const Tokenizer& t : read_and_saved(file))
    EXPECT_EQ(t.encode("\u00a0\ufb01 \uff41b"), (Ids{257, 263, 257, 260}));
}

TEST(tokenizer_steps, unigram_files) {
  json vocab = json::array({json::array({"<unk>", 0.0}), json::array({"\u2581", -2.0})});
  for (const auto& [piece, score] :
       {std::pair{"\u2581a", -2.5}, {"a", -3.0}, {"b", -3.5}, {"ab", -4.0}, {"\u2581ab", -5.5}})
    vocab.push_back(json::array({piece, score}));
  json file = gemma_file();
  file["added_tokens"] = json::array({{{"id", 0}, {"content", "<unk>"}, {"special", true}}});
  file["normalizer"] = nullptr;
  file["pre_tokenizer"] =
      sequence({{{"type", "WhitespaceSplit"}},
                {{"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}}});
  file["decoder"] = {
      {"type", "Metaspace"}, {"replacement", "\u2581"}, {"prepend_scheme", "always"}};
  file["model"] = {{"type", "Unigram"}, {"unk_id", 0}, {"vocab", vocab}};
  for (const Tokenizer& t : read_and_saved(file)) {
    EXPECT_EQ(t.encode("ab  a b"), (Ids{6, 2, 1, 4}));  // -5.5 over -2.0 - 4.0 and -2.5 - 3.5
    EXPECT_EQ(t.encode("a\u6f22\u5b57"
                       "ab"),
              (Ids{2, 0, 5}));
    EXPECT_EQ(t.decode(t.encode("ab a")), "ab a");
    EXPECT_EQ(t.encode("<unk>").size(), 2u);
  }
  file["model"]["unk_id"] = nullptr;
  EXPECT_ERROR(tokenizer_of(file), "expected unk_id or byte_fallback at model, got neither");
  file["model"]["unk_id"] = 99;
  EXPECT_ERROR(tokenizer_of(file), "expected model.unk_id below 7, got 99");
  file["model"]["unk_id"] = 0;
  file["model"]["vocab"][3] = "a";
  EXPECT_ERROR(tokenizer_of(file), "at model.vocab[3]");
}

}  // namespace
}  // namespace hearth
