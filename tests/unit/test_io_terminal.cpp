// Text made fit for a terminal, and errors for one line.
#include <gtest/gtest.h>

#include "formats/json.h"
#include "sys/progress.h"
#include "sys/terminal.h"
#include "sys/utf8.h"

namespace hearth {
namespace {

TEST(Visible, ControlsAndBrokenBytes) {
  EXPECT_EQ(visible("a\tb\nc"), "a\tb\nc");
  EXPECT_EQ(visible("\x1b]0;title\x07"), "\\x1b]0;title\\x07");
  EXPECT_EQ(visible("\r\x7f"), "\\x0d\\x7f");
  EXPECT_EQ(visible(std::string_view("\0", 1)), "\\x00");
  EXPECT_EQ(visible("\xc2\x9b"
                    "31m"),
            "\\u009b31m");  // CSI in one character
  EXPECT_EQ(visible("\xc2\xa0\u00e9\u65e5\U0001f600"), "\xc2\xa0\u00e9\u65e5\U0001f600");
  EXPECT_EQ(visible("\x9b"), "\\x9b");
  EXPECT_EQ(visible("\xe6\x97"), "\\xe6\\x97");           // cut
  EXPECT_EQ(visible("\xc0\x9b"), "\\xc0\\x9b");           // overlong
  EXPECT_EQ(visible("\xed\xa0\x80"), "\\xed\\xa0\\x80");  // a surrogate
}

TEST(OneLine, LosesItsMiddleAndNoHalfCharacter) {
  EXPECT_EQ(one_line("a\nb\x1b"), "a b\\x1b");
  const std::string exact(500, 'x');
  EXPECT_EQ(one_line(exact), exact);
  for (size_t shift = 0; shift < 4; ++shift) {
    std::string text(shift, 'a');
    for (int i = 0; i < 400; ++i) text += "\u65e5";
    text += "end";
    const std::string line = one_line(text);
    EXPECT_LE(line.size(), 500u);
    EXPECT_GE(line.size(), 490u);
    EXPECT_EQ(visible(line), line);  // whole characters
    EXPECT_NE(line.find(" ... "), std::string::npos);
    EXPECT_TRUE(line.ends_with("end"));
  }
}

TEST(Near, OnlyWhatIs) {
  const std::vector<std::string> flags{"lr", "steps", "tokens-per-step", "temperature"};
  EXPECT_EQ(near("stesp", flags), "steps");
  EXPECT_EQ(near("lrr", flags), "lr");
  EXPECT_EQ(near("tokens-a-step", flags), "tokens-per-step");
  EXPECT_EQ(near("learning-rate", flags), "");
  EXPECT_EQ(near("frobnicate", flags), "");
  EXPECT_EQ(near("x", std::vector<std::string>{}), "");
}

TEST(Fitted, LeavesOutWhatWouldWrap) {
  EXPECT_EQ(fitted("step 1", 80), "step 1");
  EXPECT_EQ(fitted("step 1", 7), "step 1");
  EXPECT_EQ(fitted("step 12", 7), "step 1");
  EXPECT_EQ(fitted("ééé", 3), "éé");
}

}  // namespace
}  // namespace hearth
