// Charts: round ticks, lines within the picture, labels that stay text, and curves of characters.
#include "board/plot.h"

#include <gtest/gtest.h>

#include <cmath>

namespace hearth {
namespace {

TEST(Plot, TicksAreRoundAndWithinTheRange) {
  using Ticks = std::vector<double>;
  EXPECT_EQ(round_ticks(0, 10, 5), (Ticks{0, 2, 4, 6, 8, 10}));
  EXPECT_EQ(round_ticks(-1, 1, 4), (Ticks{-1, -0.5, 0, 0.5, 1}));
  EXPECT_EQ(round_ticks(2.31, 2.34, 3), (Ticks{2.31, 2.32, 2.33, 2.34}));
  for (const auto& [low, high] : {std::pair{0.0, 1e6}, {1e-9, 3e-9}, {-7.0, 1234.5}}) {
    const Ticks t = round_ticks(low, high, 6);
    EXPECT_GE(t.size(), 3u);
    EXPECT_LE(t.size(), 12u);
    EXPECT_GE(t.front(), low);
    EXPECT_LE(t.back(), high);
  }
  EXPECT_TRUE(round_ticks(1, 1, 5).empty());
  EXPECT_TRUE(round_ticks(0, INFINITY, 5).empty());
  EXPECT_EQ(log_ticks(1, 1000), (Ticks{1, 10, 100, 1000}));
  EXPECT_EQ(log_ticks(1, 10), (Ticks{1, 2, 5, 10}));
  EXPECT_TRUE(log_ticks(0, 10).empty());
}

size_t count_of(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = text.find(part); at != text.npos; at = text.find(part, at + 1)) ++n;
  return n;
}

TEST(Plot, DrawsEveryLineAndBreaksItAtGaps) {
  const Series whole{.x = {1, 2, 3, 4}, .mean = {4, 3, 2, 1}};
  const Series gap{.x = {1, 2, 3, 4}, .mean = {1, 2, NAN, 4}};
  const std::string svg = svg_chart({{"a", whole}, {"b", gap}}, {});
  EXPECT_TRUE(svg.starts_with("<svg xmlns"));
  EXPECT_TRUE(svg.ends_with("</svg>\n"));
  EXPECT_EQ(count_of(svg, "stroke-width=\"1.5\""), 2u);
  EXPECT_EQ(svg.find("nan"), svg.npos);
  EXPECT_EQ(svg.find("inf"), svg.npos);
  EXPECT_NE(svg.find("M72.0 "), svg.npos) << "the first point is at the left edge";
  EXPECT_NE(svg.find("L944.0 "), svg.npos) << "the last one at the right edge";
  // Nothing to draw is still a picture.
  EXPECT_NE(svg_chart({{"none", {}}}, {}).find("</svg>"), std::string::npos);
  const Series negative{.x = {0, 1, 10}, .mean = {-1, 0, 5}};
  EXPECT_EQ(svg_chart({{"log", negative}}, {.log_x = true, .log_y = true}).find("nan"),
            std::string::npos);
}

TEST(Plot, DecimatedSeriesShowTheirExtremes) {
  const Series s{.x = {1, 2}, .mean = {4, 5}, .min = {0, 1}, .max = {9, 8}, .decimated = true};
  EXPECT_NE(svg_chart({{"a", s}}, {}).find("stroke-opacity"), std::string::npos);
}

TEST(Plot, LabelsStayText) {
  const std::string svg = svg_chart({{"<script>\"&\n\x1b[31m\xff", {.x = {1, 2}, .mean = {1, 2}}}},
                                    {.x_label = "<b>", .y_label = "</svg>"});
  EXPECT_EQ(svg.find("<script"), svg.npos);
  EXPECT_EQ(svg.find("<b>"), svg.npos);
  EXPECT_EQ(count_of(svg, "</svg>"), 1u);
  EXPECT_EQ(svg.find('\x1b'), svg.npos);
}

TEST(Plot, CurvesFitTheTerminal) {
  Series s;
  for (int i = 0; i <= 1000; ++i) s.x.push_back(i), s.mean.push_back(10 * std::exp(-i / 200.0));
  for (const int width : {10, 40, 80, 5000}) {
    const std::string text = terminal_curve(s, "loss", width, 6);
    size_t rows = 0;
    for (size_t at = 0; at < text.size(); ++rows) {
      const size_t end = text.find('\n', at);
      int64_t columns = 0;
      for (size_t i = at; i < end; ++i) columns += (uint8_t(text[i]) & 0xC0) != 0x80;
      EXPECT_LE(columns, std::clamp(width, 24, 220)) << text;
      at = end + 1;
    }
    EXPECT_EQ(rows, 8u) << "the label, six rows, the range of steps";
    EXPECT_NE(text.find("10"), text.npos);
    EXPECT_NE(text.find("1000"), text.npos);
  }
  // The curve falls: dots in the first row at the left, in the last one at the right.
  const std::string text = terminal_curve({.x = {0, 1}, .mean = {1, 0}}, "", 30, 2);
  const std::string blank = "\xe2\xa0\x80";
  const size_t first = text.find('|') + 1, second = text.find('|', first) + 1;
  EXPECT_NE(text.substr(first, 3), blank);
  EXPECT_EQ(text.substr(second, 3), blank);
  EXPECT_EQ(terminal_curve({.x = {1}, .mean = {1}}, "", 80, 6), "");
  EXPECT_EQ(terminal_curve({}, "", 80, 6), "");
  EXPECT_EQ(terminal_curve({.x = {1, 2}, .mean = {NAN, NAN}}, "", 80, 6), "");
  EXPECT_NE(terminal_curve({.x = {1, 2, 3}, .mean = {2, 2, 2}}, "", 80, 6), "");
}

}  // namespace
}  // namespace hearth
