#include "board/plot.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "sys/terminal.h"
#include "sys/utf8.h"

namespace hearth::inline board {
namespace {

constexpr int64_t left_edge = 72, right_edge = 16, top_edge = 16, bottom_edge = 48;  // pixels
constexpr size_t max_label = 60;  // bytes of a label in the legend

// Distinct for people with any colour vision (Okabe and Ito).
constexpr const char* colours[] = {"#0072b2", "#d55e00", "#009e73", "#cc79a7",
                                   "#e69f00", "#56b4e9", "#000000", "#999999"};

std::string escaped_xml(const std::string& text) {
  std::string out;
  for (const char c : one_line(text, max_label)) {
    if (c == '<')
      out += "&lt;";
    else if (c == '>')
      out += "&gt;";
    else if (c == '&')
      out += "&amp;";
    else if (c == '"')
      out += "&quot;";
    else
      out += c;
  }
  return out;
}

std::string tick_text(double x) {
  if (x == 0) return "0";
  const double size = std::abs(x);
  if (size >= 1e4 || size < 1e-3) {
    for (const auto& [unit, name] : {std::pair{1e12, "T"}, {1e9, "G"}, {1e6, "M"}, {1e3, "k"}})
      if (size >= unit && size < 1e15) return fmt::format("{:.6g}{}", x / unit, name);
    return fmt::format("{:.4g}", x);
  }
  return fmt::format("{:.6g}", x);
}

// One axis: values to pixels.
struct Axis {
  double low = 0, high = 1;
  bool log = false;
  double from = 0, to = 1;  // pixels

  bool takes(double v) const { return std::isfinite(v) && (!log || v > 0); }
  double at(double v) const {
    const auto f = [&](double x) { return log ? std::log10(x) : x; };
    return from + (to - from) * (f(v) - f(low)) / (f(high) - f(low));
  }
  std::vector<double> ticks(int count) const {
    return log ? log_ticks(low, high) : round_ticks(low, high, count);
  }
};

struct Range {
  double low = INFINITY, high = -INFINITY;
  void add(const Axis& axis, double v) {
    if (!axis.takes(v)) return;
    low = std::min(low, v), high = std::max(high, v);
  }
};

// Leaves room around the values, and a range around a single one.
void set_range(Axis& axis, const Range& r, double margin) {
  if (r.low > r.high) {
    axis.low = axis.log ? 1 : 0, axis.high = axis.log ? 10 : 1;
    return;
  }
  if (axis.log) {
    axis.low = r.low / 1.1, axis.high = r.high * 1.1;
    return;
  }
  const double span =
      r.high > r.low ? (r.high - r.low) * margin : std::max(1e-9, std::abs(r.low) / 2);
  axis.low = r.low - span, axis.high = r.high + span;
}

class Chart {
 public:
  Chart(const std::vector<PlotLine>& lines, const PlotSpec& spec) : lines_(lines), spec_(spec) {
    x_ = {.log = spec.log_x, .from = double(left_edge), .to = double(spec.width - right_edge)};
    y_ = {.log = spec.log_y, .from = double(spec.height - bottom_edge), .to = double(top_edge)};
    Range x, y;
    for (const PlotLine& line : lines)
      for (size_t i = 0; i < line.series.x.size(); ++i) {
        const Series& s = line.series;
        if (!x_.takes(s.x[i])) continue;
        x.add(x_, s.x[i]);
        for (const auto* values : {&s.mean, &s.min, &s.max})
          if (i < values->size()) y.add(y_, (*values)[i]);
      }
    set_range(x_, x, 0);
    set_range(y_, y, 0.05);
  }

  std::string svg() {
    out_ = fmt::format(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{0}\" height=\"{1}\" viewBox=\"0 0 {0} "
        "{1}\" font-family=\"sans-serif\" font-size=\"12\" fill=\"#222\">\n"
        "<rect width=\"{0}\" height=\"{1}\" fill=\"#fff\"/>\n",
        spec_.width, spec_.height);
    draw_axes();
    for (size_t i = 0; i < lines_.size(); ++i) draw_line(lines_[i].series, colour(i));
    for (size_t i = 0; i < lines_.size(); ++i) draw_legend(i);
    return out_ + "</svg>\n";
  }

 private:
  static const char* colour(size_t i) { return colours[i % std::size(colours)]; }

  void draw_axes() {
    for (const double v : x_.ticks(8)) {
      out_ += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f}V{2:.1f}\" stroke=\"#ddd\"/><text x=\"{0:.1f}\" y=\"{3:.1f}\" "
          "text-anchor=\"middle\">{4}</text>\n",
          x_.at(v), y_.from, y_.to, y_.from + 18, tick_text(v));
    }
    for (const double v : y_.ticks(6)) {
      out_ += fmt::format(
          "<path d=\"M{0:.1f} {1:.1f}H{2:.1f}\" stroke=\"#ddd\"/><text x=\"{3:.1f}\" y=\"{4:.1f}\" "
          "text-anchor=\"end\">{5}</text>\n",
          x_.from, y_.at(v), x_.to, x_.from - 6, y_.at(v) + 4, tick_text(v));
    }
    out_ += fmt::format(
        "<rect x=\"{:.1f}\" y=\"{:.1f}\" width=\"{:.1f}\" height=\"{:.1f}\" fill=\"none\" "
        "stroke=\"#888\"/>\n",
        x_.from, y_.to, x_.to - x_.from, y_.from - y_.to);
    out_ += fmt::format("<text x=\"{:.1f}\" y=\"{}\" text-anchor=\"middle\">{}</text>\n",
                        (x_.from + x_.to) / 2, spec_.height - 10, escaped_xml(spec_.x_label));
    if (!spec_.y_label.empty())
      out_ += fmt::format(
          "<text transform=\"translate(16 {:.1f}) rotate(-90)\" text-anchor=\"middle\">{}</text>\n",
          (y_.from + y_.to) / 2, escaped_xml(spec_.y_label));
  }

  // Points that cannot be drawn interrupt the line.
  void draw_line(const Series& s, const char* stroke) {
    if (s.decimated) draw_band(s, stroke);
    std::string path;
    bool pen = false;
    size_t drawn = 0;
    for (size_t i = 0; i < s.x.size(); ++i) {
      const bool good = x_.takes(s.x[i]) && y_.takes(s.mean[i]);
      if (good)
        path += fmt::format("{}{:.1f} {:.1f}", pen ? "L" : "M", x_.at(s.x[i]), y_.at(s.mean[i])),
            ++drawn;
      pen = good;
    }
    if (drawn == 0) return;
    out_ += fmt::format(
        "<path d=\"{}\" fill=\"none\" stroke=\"{}\" stroke-width=\"1.5\" stroke-linejoin=\"round\" "
        "stroke-linecap=\"round\"/>\n",
        path, stroke);
  }

  // The smallest and largest value of each part, as vertical strokes.
  void draw_band(const Series& s, const char* stroke) {
    std::string path;
    for (size_t i = 0; i < s.x.size(); ++i)
      if (x_.takes(s.x[i]) && y_.takes(s.min[i]) && y_.takes(s.max[i]))
        path +=
            fmt::format("M{:.1f} {:.1f}V{:.1f}", x_.at(s.x[i]), y_.at(s.min[i]), y_.at(s.max[i]));
    out_ += fmt::format("<path d=\"{}\" stroke=\"{}\" stroke-opacity=\"0.25\"/>\n", path, stroke);
  }

  void draw_legend(size_t i) {
    const double y = y_.to + 18 + 16 * double(i), x = x_.to - 10;
    out_ += fmt::format(
        "<text x=\"{0:.1f}\" y=\"{1:.1f}\" text-anchor=\"end\">{2}</text><path d=\"M{3:.1f} "
        "{4:.1f}h18\" stroke=\"{5}\" stroke-width=\"3\"/>\n",
        x - 24, y, escaped_xml(lines_[i].label), x - 18, y - 4, colour(i));
  }

  const std::vector<PlotLine>& lines_;
  const PlotSpec& spec_;
  Axis x_, y_;
  std::string out_;
};

}  // namespace

std::vector<double> round_ticks(double low, double high, int count) {
  std::vector<double> ticks;
  if (!(high > low) || count < 1 || !std::isfinite(high - low)) return ticks;
  const double raw = (high - low) / count, unit = std::pow(10, std::floor(std::log10(raw)));
  double step = 10 * unit;
  for (const double times : {5.0, 2.0, 1.0})
    if (times * unit >= raw) step = times * unit;
  // Whole multiples of the step, so that rounding errors do not add up.
  for (double i = std::ceil(low / step); i * step <= high && ticks.size() < 100; ++i)
    ticks.push_back(i == 0 ? 0 : i * step);
  return ticks;
}

std::vector<double> log_ticks(double low, double high) {
  std::vector<double> ticks;
  if (!(low > 0) || !(high > low) || !std::isfinite(high)) return ticks;
  const bool dense = std::log10(high / low) < 2;
  const int first = int(std::floor(std::log10(low))), last = int(std::ceil(std::log10(high)));
  const int stride = std::max(1, (last - first) / 10);
  for (int e = first; e <= last; e += stride)
    for (const double times : {1.0, 2.0, 5.0}) {
      const double v = times * std::pow(10, e);
      if ((times == 1 || dense) && v >= low && v <= high) ticks.push_back(v);
    }
  return ticks;
}

std::string svg_chart(const std::vector<PlotLine>& lines, const PlotSpec& spec) {
  return Chart(lines, spec).svg();
}

namespace {

// A grid of braille characters, each with two columns of four dots.
class Braille {
 public:
  Braille(int64_t columns, int64_t rows) : columns_(columns), dots_(size_t(columns * rows)) {}
  int64_t last_x() const { return 2 * columns_ - 1; }
  int64_t last_y() const { return 4 * int64_t(dots_.size()) / columns_ - 1; }

  // Joins a point to the one before, so that a curve of few points is still one line.
  void line_to(int64_t x, int64_t y) {
    if (!begun_) x_ = x, y_ = y;
    begun_ = true;
    const int64_t steps = std::max<int64_t>(1, std::max(x - x_, std::abs(y - y_)));
    for (int64_t i = 0; i <= steps; ++i) set(x_ + (x - x_) * i / steps, y_ + (y - y_) * i / steps);
    x_ = x, y_ = y;
  }
  std::string row(int64_t r) const {
    std::string text;
    for (int64_t c = 0; c < columns_; ++c)
      append_utf8(text, 0x2800u + dots_[size_t(r * columns_ + c)]);
    return text;
  }

 private:
  void set(int64_t x, int64_t y) {
    constexpr uint8_t bits[2][4] = {{0x01, 0x02, 0x04, 0x40}, {0x08, 0x10, 0x20, 0x80}};
    dots_[size_t(y / 4 * columns_ + x / 2)] |= bits[x % 2][y % 4];
  }

  int64_t columns_, x_ = 0, y_ = 0;
  bool begun_ = false;
  std::vector<uint8_t> dots_;
};

}  // namespace

std::string terminal_curve(const Series& s, const std::string& label, int64_t width,
                           int64_t height) {
  const Axis any;
  Range x, y;
  for (size_t i = 0; i < s.x.size(); ++i)
    if (std::isfinite(s.mean[i])) x.add(any, s.x[i]), y.add(any, s.mean[i]);
  if (!(x.high > x.low)) return "";
  constexpr int64_t numbers = 10;  // columns at the left
  const int64_t columns = std::clamp<int64_t>(width - numbers - 2, 8, 200);
  const int64_t rows = std::clamp<int64_t>(height, 2, 50);
  Braille grid(columns, rows);
  const auto place = [](double v, double from, double to, int64_t last) {
    const double share = (v / 2 - from / 2) / (to / 2 - from / 2);  // halves: no overflow
    return share >= 0 && share <= 1 ? int64_t(share * double(last) + 0.5) : last;
  };
  for (size_t i = 0; i < s.x.size(); ++i)
    if (std::isfinite(s.mean[i]))
      grid.line_to(place(s.x[i], x.low, x.high, grid.last_x()),
                   place(s.mean[i], y.high, y.low, grid.last_y()));
  std::string text = fmt::format("{:>{}}  {}\n", "", numbers, one_line(label, size_t(columns)));
  for (int64_t r = 0; r < rows; ++r) {
    const bool first = r == 0, last = r == rows - 1;
    text += fmt::format("{:>{}} |{}\n",
                        first || last ? fmt::format("{:.4g}", first ? y.high : y.low) : "", numbers,
                        grid.row(r));
  }
  const std::string low = tick_text(x.low), high = tick_text(x.high);
  return text + fmt::format("{:>{}}  {}{:>{}}\n", "", numbers, low, high,
                            std::max<int64_t>(1, columns - int64_t(low.size())));
}

}  // namespace hearth::inline board
