// The numbers of a log as columns: one per key, in memory and bounded. Series: a part of a column
// with at most so many points, each with the smallest, the largest and the mean value.
#pragma once

#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "board/line_numbers.h"

namespace hearth::inline board {

// One logged value, or the summary of several neighbours. Values that are not finite count as
// missing.
struct Cell {
  double step = 0;  // the last one
  double min = 0, max = 0, sum = 0;
  uint32_t count = 0;  // finite values
};

class Column {
 public:
  void add(double step, double value);
  // Merges the cells of every `width` steps from now on. Only grows.
  void merge(double width);
  size_t size() const { return width_ > 0 ? merged_.size() : exact_.size(); }
  Cell operator[](size_t i) const;
  bool sorted() const { return sorted_; }  // by step; not after a run went back to a checkpoint
  size_t bytes() const { return exact_.size() * sizeof(Logged) + merged_.size() * sizeof(Cell); }

 private:
  struct Logged {
    double step, value;
  };
  void append(const Cell&);

  std::deque<Logged> exact_;  // until the column is merged; a deque, because it grows for long
  std::deque<Cell> merged_;
  double width_ = 0, last_ = 0;
  bool sorted_ = true;
};

// The place of each step on another axis, such as tokens or time. Steps without a place get that of
// the last step before them.
struct StepAxis {
  std::vector<double> steps, at;  // ascending steps; empty: the axis is the step itself
  double place(double step, size_t& hint) const;
};
StepAxis axis_of(const Column&);

struct SeriesSpec {
  double from = -std::numeric_limits<double>::infinity();
  double to = std::numeric_limits<double>::infinity();
  size_t points = 2000;
};
struct Series {
  std::vector<double> x = {}, mean = {};   // NaN: no value was finite
  std::vector<double> min = {}, max = {};  // only if decimated
  bool decimated = false;
};
// The cells between `from` and `to` on the axis, in ascending order. If there are more than
// `points` of them, the range of x is divided into that many equal parts, and each part that has
// cells becomes one point, placed at its last cell.
Series series_of(const Column&, const StepAxis&, const SeriesSpec&);

// The columns of one file. Lines without a step are skipped.
class ColumnStore {
 public:
  explicit ColumnStore(size_t most_bytes = size_t(384) << 20) : most_bytes_(most_bytes) {}

  void add_line(std::string_view line);
  const Column* find(const std::string& key) const;
  // Seconds since the run began, from the durations in perf.jsonl.
  const Column& elapsed() const { return elapsed_; }
  std::vector<std::string> keys() const;  // in order of appearance, without "step"
  int64_t lines() const { return lines_; }
  int64_t bad_lines() const { return bad_lines_; }  // not JSON, or without a step
  double last_step() const { return last_step_; }
  size_t bytes() const { return bytes_; }
  double merged_steps() const { return width_; }  // per cell; 0: every value is kept

 private:
  Column& column(std::string_view key);
  void add_time(const std::vector<LineNumbers::Item>&);
  void bound();

  struct Named {
    std::string key;
    Column column;
  };
  const size_t most_bytes_;
  std::vector<Named> columns_;
  std::map<std::string, size_t, std::less<>> index_;
  size_t guess_ = 0;  // lines repeat their keys in the same order
  LineNumbers numbers_;
  int64_t lines_ = 0, bad_lines_ = 0;
  Column elapsed_;
  double last_step_ = 0, width_ = 0, seconds_ = 0;
  size_t bytes_ = 0;
};

}  // namespace hearth::inline board
