#include "infer/prefill_budget.h"

#include <algorithm>
#include <bit>

namespace hearth::inline infer {
namespace {

constexpr int64_t least_rows = 16;        // of prompts per step, so that they always progress
constexpr int64_t most_growth = 4;        // beyond the largest size that was measured
constexpr double one_measurement = 0.25;  // its weight among all of a size
constexpr double outlier = 4;             // times the mean: what a measurement counts at most
constexpr double slack = 1.01;            // of the target
constexpr int64_t stale = 1000;           // steps
constexpr int64_t sure = 4;               // measurements of a size that is believed to be slow
constexpr int64_t unsure_stale = 16;      // steps, with fewer

}  // namespace

PrefillBudget::PrefillBudget(int64_t rows, double interval) : rows_(rows), interval_(interval) {}

size_t PrefillBudget::index_of(int64_t rows) const {
  return std::min(size_t(std::bit_width(uint64_t(std::max<int64_t>(rows, 1) - 1))), sizes - 1);
}

int64_t PrefillBudget::size(size_t i) const { return std::min(int64_t(1) << i, rows_); }

void PrefillBudget::note(int64_t rows, double seconds) {
  if (interval_ <= 0) return;
  ++noted_;
  Cost& cost = costs_[index_of(rows)];
  if (cost.seconds > 0)
    cost.seconds += one_measurement * (std::min(seconds, outlier * cost.seconds) - cost.seconds);
  else
    cost.seconds = seconds;
  cost.noted = noted_, ++cost.count;
  // A size that was too slow is not used, so only this lets it be tried again: soon if a few
  // measurements, of which something else may have disturbed one, are all that speaks against it.
  for (Cost& c : costs_)
    if (c.seconds > interval_ && noted_ - c.noted > (c.count < sure ? unsure_stale : stale)) c = {};
}

// What a step of this size takes: as measured; between two sizes that were measured, on the line
// through them; beyond them, on the line through the last two, or in proportion to the only one.
std::optional<double> PrefillBudget::expected(size_t i) const {
  const auto measured = [&](size_t k) { return costs_[k].seconds > 0; };
  if (measured(i)) return costs_[i].seconds;
  size_t below = i, above = i, before;
  while (below > 0 && !measured(--below)) {}
  while (above + 1 < sizes && !measured(++above)) {}
  if (!measured(below))
    return measured(above) ? std::optional(costs_[above].seconds) : std::nullopt;
  const auto slope = [&](size_t a, size_t b) {
    return (costs_[b].seconds - costs_[a].seconds) / double(size(b) - size(a));
  };
  const double last = costs_[below].seconds, share = last / double(size(below));
  double per_row = share;
  for (before = below; before > 0 && !measured(--before);) {}
  if (measured(above) && size(above) > size(below))
    per_row = std::max(slope(below, above), 0.0);
  else if (before < below && measured(before))
    per_row = std::clamp(slope(before, below), share / 8, share);
  return last + per_row * double(size(i) - size(below));
}

// What a step without prompts takes. If none was measured, larger ones tell: the line through the
// two smallest of them, or the share of the only one.
double PrefillBudget::alone(size_t i) const {
  size_t above = i;
  while (above + 1 < sizes && costs_[above].seconds == 0) ++above;
  const double next = costs_[above].seconds;
  if (above == i || next == 0) return expected(i).value_or(0);
  size_t beyond = above + 1;
  while (beyond + 1 < sizes && costs_[beyond].seconds == 0) ++beyond;
  const double share = next / double(size(above));
  double per_row = share;
  if (beyond < sizes && costs_[beyond].seconds > 0 && size(beyond) > size(above))
    per_row = std::clamp((costs_[beyond].seconds - next) / double(size(beyond) - size(above)), 0.0,
                         share);
  return next - per_row * double(size(above) - size(i));
}

int64_t PrefillBudget::prompt_rows(int64_t decoding) const {
  const int64_t all = rows_ - decoding;
  if (interval_ <= 0 || decoding == 0 || all <= least_rows) return all;
  // Where decoding alone takes longer than the target, prompts may double it.
  const double most = slack * std::max(interval_, 2 * alone(index_of(decoding)));
  int64_t known = least_rows;
  for (size_t i = 0; i < sizes; ++i)
    if (costs_[i].seconds > 0) known = std::max(known, size(i));
  size_t i = index_of(decoding + least_rows);
  for (; size(i) < rows_; ++i) {
    const std::optional<double> next = expected(i + 1);
    if (size(i + 1) > most_growth * known || next.value_or(0) > most) break;
  }
  return size(i) - decoding;
}

}  // namespace hearth::inline infer
