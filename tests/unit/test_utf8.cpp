// Well-formed UTF-8, and words that begin at the end of a text.
#include <gtest/gtest.h>

#include <array>

#include "sys/utf8.h"
#include "text/overlap.h"
#include "text/tokenizer/unicode.h"

namespace hearth {
namespace {

// The bytes at which the rules of the first or second byte change.
constexpr std::array<unsigned char, 24> edges = {0x00, 0x41, 0x7f, 0x80, 0x8f, 0x90, 0x9f, 0xa0,
                                                 0xbf, 0xc0, 0xc1, 0xc2, 0xdf, 0xe0, 0xe1, 0xec,
                                                 0xed, 0xee, 0xef, 0xf0, 0xf1, 0xf4, 0xf5, 0xff};

TEST(Utf8, SizesAgreeWithTheDecoderOfTokenizers) {
  for (int first = 0; first < 256; ++first)
    for (const unsigned char second : edges)
      for (const unsigned char third : edges)
        for (const unsigned char fourth : {0x7f, 0x80, 0xbf, 0xc0})
          for (size_t n = 1; n <= 4; ++n) {
            const char bytes[] = {char(first), char(second), char(third), char(fourth)};
            const Utf8Char c = read_utf8(bytes, bytes + n);
            const bool formed = c.length > 1 || first < 0x80;
            ASSERT_EQ(utf8_size({bytes, n}), formed ? size_t(c.length) : 0)
                << first << " " << int(second) << " " << int(third) << " of " << n;
          }
}

TEST(Utf8, KnowsAWholeText) {
  EXPECT_TRUE(is_utf8(""));
  EXPECT_TRUE(is_utf8("a\xc3\xa9\xe6\xbc\xa2\xf0\x9f\xa6\x99"));
  EXPECT_TRUE(is_utf8("\xef\xbf\xbd")) << "a replacement character that is in the text";
  EXPECT_FALSE(is_utf8("a\xff"));
  EXPECT_FALSE(is_utf8("\xf0\x9f\xa6")) << "cut short";
  EXPECT_FALSE(is_utf8("\xed\xa0\x80")) << "a surrogate";
}

TEST(Overlap, IsTheLongestBeginningOfTheWordAtTheEnd) {
  EXPECT_EQ(overlap("a <tool", "<tool_call>"), 5u);
  EXPECT_EQ(overlap("<tool_call>", "<tool_call>"), 0u) << "the whole word is found, not begun";
  EXPECT_EQ(overlap("aabaa", "aabaab"), 5u);
  EXPECT_EQ(overlap("xaa", "aab"), 2u);
  EXPECT_EQ(overlap("", "ab"), 0u);
  EXPECT_EQ(overlap("ab", "a"), 0u);
  EXPECT_EQ(overlap("ab", ""), 0u);
}

}  // namespace
}  // namespace hearth
