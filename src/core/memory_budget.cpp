#include "core/memory_budget.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace hearth::inline core {
namespace {

constexpr double gib = 1 << 30;

MemoryBudget share_of(const Backend& b, double share, int64_t held = 0) {
  return MemoryBudget(int64_t(share * double(b.free_bytes() + held)), b.has_host_offload());
}

}  // namespace

int64_t logits_chunk_bytes(const Backend& b) {
  return std::clamp(b.device_bytes() / 96, least_logits_chunk_bytes, int64_t(1) << 30);
}

int64_t kept_logits_bytes(const Backend& b) { return b.device_bytes() / 8; }

MemoryBudget MemoryBudget::for_run(const Backend& b, const ParamStore* held) {
  const bool made = held && held->made(Part::weight);
  return share_of(b, memory_share::run, made ? held->part_bytes(Part::weight) : 0);
}

MemoryBudget MemoryBudget::for_engine(const Backend& b) {
  return share_of(
      b, b.has_host_offload() ? memory_share::engine_on_gpu : memory_share::engine_on_host);
}

MemoryBudget MemoryBudget::for_rollouts(const Backend& b) {
  return share_of(b, memory_share::rollouts);
}

MemoryBudget MemoryBudget::for_kept_logits_arena(const Backend& b, int64_t held) {
  return share_of(b, memory_share::kept_logits_arena, held);
}

MemoryBudget MemoryBudget::for_snapshot(const Backend& host) {
  return share_of(host, memory_share::snapshot);
}

std::vector<int64_t> fair_shares(int64_t bytes, std::span<const int64_t> wanted) {
  std::vector<size_t> order(wanted.size());  // the most modest first
  std::iota(order.begin(), order.end(), size_t(0));
  std::ranges::stable_sort(order, {}, [&](size_t i) { return wanted[i]; });
  std::vector<int64_t> shares(wanted.size());
  int64_t left = std::max<int64_t>(bytes, 0), holders = int64_t(wanted.size());
  for (const size_t i : order) {
    shares[i] = std::min(wanted[i], left / holders--);
    left -= shares[i];
  }
  return shares;
}

void MemoryBudget::reserve(std::string part, int64_t bytes) {
  reserved_.push_back({std::move(part), bytes});
}

int64_t MemoryBudget::reserve_up_to(std::string part, int64_t wanted) {
  const int64_t bytes = std::min(wanted, std::max<int64_t>(left(), 0));
  reserve(std::move(part), bytes);
  return bytes;
}

int64_t MemoryBudget::left() const {
  int64_t left = bytes_;
  for (const Reservation& r : reserved_) left -= r.bytes;
  return left;
}

std::string MemoryBudget::describe() const {
  std::string s = fmt::format("{:.2f} GiB: ", double(bytes_) / gib);
  for (const Reservation& r : reserved_)
    s += fmt::format("{}{} {:.2f}", &r == reserved_.data() ? "" : " + ", r.part,
                     double(r.bytes) / gib);
  s += reserved_.empty() ? "nothing reserved" : " reserved";
  const int64_t rest = left();
  return s + (rest < 0 ? fmt::format(", {:.2f} too much", -double(rest) / gib)
                       : fmt::format(", {:.2f} left", double(rest) / gib));
}

// Goes up to the first divisor of at least twice the size until one does not fit, and then halves
// the gap.
int64_t largest_divisor(int64_t n, const std::function<bool(int64_t)>& fits) {
  std::vector<int64_t> sizes;
  for (int64_t size = 1; size <= n; ++size)
    if (n % size == 0) sizes.push_back(size);
  auto low = sizes.begin(), high = low;  // those before `low` fit; the one at `high` may not
  while (high != sizes.end() && fits(*high)) {
    low = high + 1;
    high = std::lower_bound(low, sizes.end(), 2 * *high);
  }
  while (low < high) {
    const auto middle = low + (high - low) / 2;
    fits(*middle) ? low = middle + 1 : high = middle;
  }
  return low == sizes.begin() ? 0 : *(low - 1);
}

}  // namespace hearth::inline core
