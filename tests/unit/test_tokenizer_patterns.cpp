// The words that each pattern cuts, on the cases where the patterns differ or where a regular
// expression gives back what it took; and the normal form C.
#include "text/tokenizer/nfc.h"
#include "text/tokenizer/scanner.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;
using Words = std::vector<std::string>;

Words words_of(Pattern pattern, std::string_view text) {
  Words words;
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const char* q = scanner_of(pattern)(p, end);
    words.emplace_back(p, q);
    p = q;
  }
  return words;
}

constexpr Pattern all_patterns[] = {Pattern::gpt2, Pattern::cl100k, Pattern::llama3, Pattern::o200k,
                                    Pattern::qwen2};
constexpr Pattern cl100k_kin[] = {Pattern::cl100k, Pattern::llama3, Pattern::qwen2};

TEST(tokenizer_patterns, contractions_in_any_case) {
  for (const Pattern p : cl100k_kin) {
    EXPECT_EQ(words_of(p, "it's I'LL we'Re'dog"),
              (Words{"it", "'s", " I", "'LL", " we", "'Re", "'d", "og"}));
    EXPECT_EQ(words_of(p, "x'\u017fy 'k"), (Words{"x", "'\u017f", "y", " '", "k"}));
    EXPECT_EQ(words_of(p, "'l'"), (Words{"'l", "'"}));
  }
  EXPECT_EQ(words_of(Pattern::o200k, "it's I'LL we'Re'dog"),
            (Words{"it's", " I'LL", " we'Re", "'dog"}));
  EXPECT_EQ(words_of(Pattern::o200k, "x'\u017fy 's 1's"),
            (Words{"x'\u017f", "y", " '", "s", " ", "1", "'s"}));
}

TEST(tokenizer_patterns, numbers) {
  const std::string text = "12345 67\u0663\u00bd8";
  EXPECT_EQ(words_of(Pattern::gpt2, text), (Words{"12345", " 67\u0663\u00bd8"}));
  for (const Pattern p : {Pattern::cl100k, Pattern::llama3, Pattern::o200k})
    EXPECT_EQ(words_of(p, text), (Words{"123", "45", " ", "67\u0663", "\u00bd8"}));
  EXPECT_EQ(words_of(Pattern::qwen2, text),
            (Words{"1", "2", "3", "4", "5", " ", "6", "7", "\u0663", "\u00bd", "8"}));
}

TEST(tokenizer_patterns, a_character_leads_a_word) {
  for (const Pattern p : cl100k_kin) {
    EXPECT_EQ(words_of(p, "(a)b\tc\u00a0d\ne"), (Words{"(a", ")b", "\tc", "\u00a0d", "\n", "e"}));
    EXPECT_EQ(words_of(p, "e\u0301a \u0301"), (Words{"e", "\u0301a", " \u0301"}));
    EXPECT_EQ(words_of(p, "!!a ..b"), (Words{"!!", "a", " ..", "b"}));
  }
}

TEST(tokenizer_patterns, line_breaks) {
  for (const Pattern p : {Pattern::llama3, Pattern::o200k, Pattern::qwen2}) {
    EXPECT_EQ(words_of(p, "a \n\n  b"), (Words{"a", " \n\n", " ", " b"}));
    EXPECT_EQ(words_of(p, "a!\r\n\nb \n "), (Words{"a", "!\r\n\n", "b", " \n", " "}));
    EXPECT_EQ(words_of(p, "a   "), (Words{"a", "   "}));
  }
  EXPECT_EQ(words_of(Pattern::cl100k, "b \n "), (Words{"b", " \n "}));
  EXPECT_EQ(words_of(Pattern::cl100k, "b \n c"), (Words{"b", " \n", " c"}));
  EXPECT_EQ(words_of(Pattern::o200k, "a/b//\n/\n c/"), (Words{"a", "/b", "//\n/\n", " c", "/"}));
  EXPECT_EQ(words_of(Pattern::llama3, "//\n/"), (Words{"//\n", "/"}));
}

TEST(tokenizer_patterns, o200k_case) {
  EXPECT_EQ(words_of(Pattern::o200k, "helloWorld HTMLParser ABC aBC"),
            (Words{"hello", "World", " HTMLParser", " ABC", " a", "BC"}));
  EXPECT_EQ(words_of(Pattern::o200k, "internationalIsation"), (Words{"international", "Isation"}));
  // Lm and Lo belong to both cases: capitals are given back up to the last of them.
  EXPECT_EQ(words_of(Pattern::o200k, "A\u02b0BC"), (Words{"A\u02b0", "BC"}));
  EXPECT_EQ(words_of(Pattern::o200k, "A\u02b0BCd"), (Words{"A\u02b0BCd"}));
  EXPECT_EQ(words_of(Pattern::o200k, "\u01c5a\u01c5"), (Words{"\u01c5a", "\u01c5"}));
  // A mark is a letter here, and may lead a word too.
  EXPECT_EQ(words_of(Pattern::o200k, "e\u0301a"), (Words{"e\u0301a"}));
  EXPECT_EQ(words_of(Pattern::o200k, "\u0301ABC"), (Words{"\u0301", "ABC"}));
  EXPECT_EQ(words_of(Pattern::o200k, "\u0301ABc"), (Words{"\u0301ABc"}));
  EXPECT_EQ(words_of(Pattern::o200k, "\u0301!"), (Words{"\u0301", "!"}));
  EXPECT_EQ(words_of(Pattern::o200k, "!\u0301 !!\u0301a"), (Words{"!\u0301", " !!\u0301", "a"}));
  EXPECT_EQ(words_of(Pattern::o200k, "!ABC's"), (Words{"!ABC's"}));
}

TEST(tokenizer_patterns, spaces_of_pieces) {
  const std::string text = " a  b c ";
  EXPECT_EQ(words_of(Pattern::whole, text), Words{text});
  EXPECT_EQ(words_of(Pattern::runs, text), (Words{" a", "  b", " c", " "}));
  EXPECT_EQ(words_of(Pattern::spaces, text), (Words{" a", " ", " b", " c", " "}));
}

// Words follow each other without gaps over any bytes.
TEST(tokenizer_patterns, any_bytes) {
  std::mt19937 rng(8);
  for (int i = 0; i < 2000; ++i) {
    const std::string text = random_bytes(rng, 200);
    for (const Pattern p : all_patterns) {
      std::string all;
      for (const std::string& w : words_of(p, text)) {
        ASSERT_FALSE(w.empty());
        all += w;
      }
      ASSERT_EQ(all, text);
    }
  }
}

TEST(tokenizer_patterns, names_and_expressions) {
  for (const Pattern p : all_patterns) {
    EXPECT_EQ(pattern_named(pattern_name(p)), p);
    EXPECT_EQ(pattern_of_regex(pattern_regex(p)), p);
  }
  EXPECT_EQ(pattern_names(), "gpt2, cl100k, llama3, o200k, qwen2");
  EXPECT_EQ(pattern_named(""), std::nullopt);
  EXPECT_EQ(pattern_of_regex(""), std::nullopt);
  EXPECT_EQ(pattern_of_regex(R"('(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}+|\p{N}{1,3})"
                             R"(| ?[^\s\p{L}\p{N}]++[\r\n]*|\s*[\r\n]|\s+(?!\S)|\s+)"),
            Pattern::llama3);
}

std::string normal(std::string_view text) {
  std::string storage;
  return std::string(nfc(text, storage));
}

TEST(tokenizer_patterns, normal_form) {
  EXPECT_EQ(normal("cafe\u0301 is cafe\u0301"), "caf\u00e9 is caf\u00e9");
  EXPECT_EQ(normal("a\u0301\u0323"), "\u1ea1\u0301");  // marks are sorted
  EXPECT_EQ(normal("a\u0334\u0301"), "\u00e1\u0334");  // one of a lower class stands aside
  EXPECT_EQ(normal("a\u0308\u0301"), "\u00e4\u0301");  // one of the same class does not
  EXPECT_EQ(normal("\u1100\u1161\u11a8\u11a8"), "\uac01\u11a8");
  EXPECT_EQ(normal("\uac00\u11a7"), "\uac00\u11a7");
  EXPECT_EQ(normal("\u0958\u212b\u2126\uf900"), "\u0915\u093c\u00c5\u03a9\u8c48");
  EXPECT_EQ(normal("\U0001d15e"), "\U0001d157\U0001d165");
  EXPECT_EQ(normal("\u0301a"), "\u0301a");
  EXPECT_EQ(normal("e\xff\u0301"
                   "e\u0301"),
            "e\xff\u0301\u00e9");  // a byte that is none separates
  EXPECT_EQ(normal("e\xcc"), "e\xcc");
  const std::string settled = "plain, \u00e9 and \u6f22";
  std::string storage;
  EXPECT_EQ(nfc(settled, storage).data(), settled.data()) << "copied for nothing";
}

}  // namespace
}  // namespace hearth
