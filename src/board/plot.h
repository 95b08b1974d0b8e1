// Charts of series: as SVG, and as a small curve of characters for a terminal.
#pragma once

#include <string>
#include <vector>

#include "board/columns.h"

namespace hearth::inline board {

struct PlotLine {
  std::string label;
  Series series;
};

struct PlotSpec {
  std::string x_label = "step", y_label = {};
  bool log_x = false, log_y = false;  // values of 0 or less are left out on a log axis
  int64_t width = 960, height = 540;  // of the picture, in pixels
};

// Round values between `low` and `high`, about `count` of them, and powers of ten on a log axis.
std::vector<double> round_ticks(double low, double high, int count);
std::vector<double> log_ticks(double low, double high);

std::string svg_chart(const std::vector<PlotLine>&, const PlotSpec&);

// A curve of braille characters with its largest and smallest value at the left and the range of x
// below, at most `width` columns and `height` rows of dots / 4. Empty without two finite values.
std::string terminal_curve(const Series&, const std::string& label, int64_t width, int64_t height);

}  // namespace hearth::inline board
