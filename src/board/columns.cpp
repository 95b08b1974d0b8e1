#include "board/columns.h"

#include <algorithm>
#include <cmath>
#include <numeric>

namespace hearth::inline board {
namespace {

constexpr size_t max_columns = 512;    // of a file
constexpr int64_t check_every = 4096;  // lines between checks of the memory
constexpr double max_place = 1e18;     // of a step on an axis
constexpr double max_step_value = 1e15;

Cell cell_of(double step, double x) {
  if (!std::isfinite(x)) return {.step = step};
  return {.step = step, .min = x, .max = x, .sum = x, .count = 1};
}

void absorb(Cell& into, const Cell& c) {
  into.step = c.step;
  if (c.count == 0) return;
  into.min = into.count ? std::min(into.min, c.min) : c.min;
  into.max = into.count ? std::max(into.max, c.max) : c.max;
  into.sum += c.sum;
  into.count += c.count;
}

double mean_of(const Cell& c) { return c.count ? c.sum / double(c.count) : NAN; }

}  // namespace

Cell Column::operator[](size_t i) const {
  return width_ > 0 ? merged_[i] : cell_of(exact_[i].step, exact_[i].value);
}

void Column::append(const Cell& c) {
  if (!merged_.empty()) {
    Cell& last = merged_.back();
    if (last.step <= c.step && std::floor(last.step / width_) == std::floor(c.step / width_))
      return absorb(last, c);
  }
  merged_.push_back(c);
}

void Column::add(double step, double value) {
  sorted_ = sorted_ && (size() == 0 || last_ <= step);
  last_ = step;
  if (width_ > 0)
    append(cell_of(step, value));
  else
    exact_.push_back({step, value});
}

void Column::merge(double width) {
  std::deque<Cell> before;
  before.swap(merged_);
  width_ = width;
  for (const Cell& c : before) append(c);
  for (const Logged& l : exact_) append(cell_of(l.step, l.value));
  exact_ = {};
}

namespace {

// The indices of the cells by ascending step; empty if they are in order already.
std::vector<uint32_t> order_of(const Column& c) {
  std::vector<uint32_t> order;
  if (c.sorted()) return order;
  order.resize(c.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, {}, [&](uint32_t i) { return c[i].step; });
  return order;
}

}  // namespace

// --- axes and series ---

StepAxis axis_of(const Column& c) {
  const std::vector<uint32_t> order = order_of(c);
  StepAxis axis;
  for (size_t i = 0; i < c.size(); ++i) {
    const Cell cell = c[order.empty() ? i : order[i]];
    if (cell.count == 0 || cell.min < 0 || cell.max > max_place) continue;
    // Merged cells grow along the axis, so their last place is the largest. Time goes on where a
    // run repeats steps, so a step may have several places: the last one counts.
    double at = cell.max;
    if (!axis.at.empty()) at = std::max(at, axis.at.back());
    if (!axis.steps.empty() && axis.steps.back() == cell.step)
      axis.at.back() = at;
    else
      axis.steps.push_back(cell.step), axis.at.push_back(at);
  }
  return axis;
}

double StepAxis::place(double step, size_t& hint) const {
  if (steps.empty()) return step;
  if (step < steps.front()) return 0;
  if (hint >= steps.size() || steps[hint] > step) hint = 0;
  if (hint + 64 < steps.size() && steps[hint + 64] < step)
    hint = size_t(std::upper_bound(steps.begin(), steps.end(), step) - steps.begin()) - 1;
  while (hint + 1 < steps.size() && steps[hint + 1] <= step) ++hint;
  return at[hint];
}

Series series_of(const Column& column, const StepAxis& axis, const SeriesSpec& spec) {
  const std::vector<uint32_t> order = order_of(column);
  const auto cell = [&](size_t i) { return column[order.empty() ? i : order[i]]; };
  // Places ascend with the steps, so the cells between `from` and `to` are neighbours.
  size_t first = 0, end = 0, hint = 0;
  double low = 0, high = 0;
  for (size_t i = 0; i < column.size(); ++i) {
    const double x = axis.place(cell(i).step, hint);
    if (x < spec.from || x > spec.to) continue;
    if (end == 0) first = i, low = x;
    end = i + 1, high = x;
  }
  Series s;
  if (end == 0) return s;
  const size_t points = std::max<size_t>(1, spec.points);
  s.decimated = end - first > points;
  const double scale = high > low ? double(points) / (high - low) : 0;
  Cell part;
  double part_x = 0;
  size_t part_index = 0;
  bool open = false;
  const auto flush = [&] {
    s.x.push_back(part_x);
    s.mean.push_back(mean_of(part));
    if (!s.decimated) return;
    s.min.push_back(part.count ? part.min : NAN);
    s.max.push_back(part.count ? part.max : NAN);
  };
  hint = 0;
  for (size_t i = first; i < end; ++i) {
    const double x = axis.place(cell(i).step, hint);
    const size_t index = s.decimated ? std::min(points - 1, size_t((x - low) * scale)) : i;
    if (open && index != part_index) flush(), part = {};
    absorb(part, cell(i));
    part_x = x, part_index = index, open = true;
  }
  flush();
  return s;
}

// --- the columns of a file ---

Column& ColumnStore::column(std::string_view key) {
  if (guess_ < columns_.size() && columns_[guess_].key == key) return columns_[guess_++].column;
  const auto at = index_.find(key);
  size_t i = at == index_.end() ? columns_.size() : at->second;
  if (at == index_.end()) {
    index_.emplace(std::string(key), i);
    columns_.push_back({std::string(key), {}});
  }
  guess_ = i + 1;
  return columns_[i].column;
}

void ColumnStore::add_line(std::string_view line) {
  const auto is_step = [](const LineNumbers::Item& i) { return i.key == "step"; };
  if (!numbers_.read(line)) {
    ++bad_lines_;
    return;
  }
  const auto& items = numbers_.items();
  const auto step = std::ranges::find_if(items, is_step);
  if (step == items.end() || !(std::abs(step->value) <= max_step_value)) {
    ++bad_lines_;
    return;
  }
  last_step_ = step->value;
  guess_ = 0;
  for (const LineNumbers::Item& i : items)
    if (!is_step(i) && (columns_.size() < max_columns || index_.contains(i.key)))
      column(i.key).add(last_step_, i.value);
  add_time(items);
  if (++lines_ % check_every == 0) bound();
}

// Training, evaluations and checkpoints follow each other, so their times add up.
void ColumnStore::add_time(const std::vector<LineNumbers::Item>& items) {
  double ms = 0;
  for (const LineNumbers::Item& i : items)
    if ((i.key == "ms" || i.key == "eval_ms" || i.key == "checkpoint_ms") && i.value > 0)
      ms += i.value;
  if (ms == 0) return;
  seconds_ += ms / 1e3;
  elapsed_.add(last_step_, seconds_);
}

// Halves the resolution until the columns fit in the memory they may take.
void ColumnStore::bound() {
  const auto total = [&] {
    size_t sum = elapsed_.bytes();
    for (const Named& n : columns_) sum += n.column.bytes();
    return sum;
  };
  bytes_ = total();
  while (bytes_ > most_bytes_ && width_ < 1e15) {
    width_ = std::max(2.0, 2 * width_);
    for (Named& n : columns_) n.column.merge(width_);
    elapsed_.merge(width_);
    bytes_ = total();
  }
}

const Column* ColumnStore::find(const std::string& key) const {
  const auto at = index_.find(key);
  return at == index_.end() ? nullptr : &columns_[at->second].column;
}

std::vector<std::string> ColumnStore::keys() const {
  std::vector<std::string> all;
  for (const Named& n : columns_) all.push_back(n.key);
  return all;
}

}  // namespace hearth::inline board
