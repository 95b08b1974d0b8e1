#include "grammar/code_set.h"

#include <algorithm>
#include <array>
#include <utility>

namespace hearth::inline grammar {
namespace {

constexpr CodeRange surrogates{0xd800, 0xdfff};

int encode(uint32_t code, std::array<uint8_t, 4>& out) {
  const int n = code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
  for (int i = n - 1; i > 0; --i, code >>= 6) out[size_t(i)] = uint8_t(0x80 | (code & 0x3f));
  out[0] = uint8_t(n == 1 ? code : (0xf00u >> n & 0xffu) | code);
  return n;
}

// Divides a range so that each part has forms of one length whose byte ranges are independent.
void split(std::vector<ByteRanges>& out, uint32_t low, uint32_t high) {
  for (const uint32_t limit : {0x7fu, 0x7ffu, 0xffffu})
    if (low <= limit && high > limit) {
      split(out, low, limit);
      return split(out, limit + 1, high);
    }
  if (low >= 0x80)
    for (const uint32_t mask : {0x3fu, 0xfffu, 0x3ffffu}) {
      if ((low & ~mask) == (high & ~mask)) continue;
      if (low & mask) {
        split(out, low, low | mask);
        return split(out, (low | mask) + 1, high);
      }
      if ((high & mask) != mask) {
        split(out, low, (high & ~mask) - 1);
        return split(out, high & ~mask, high);
      }
    }
  std::array<uint8_t, 4> first{}, last{};
  const int n = encode(low, first);
  encode(high, last);
  ByteRanges bytes;
  for (size_t i = 0; i < size_t(n); ++i) bytes.emplace_back(first[i], last[i]);
  out.push_back(std::move(bytes));
}

}  // namespace

CodeSet::CodeSet(std::vector<CodeRange> ranges) {
  std::vector<CodeRange> whole;
  for (const CodeRange& r : ranges) {  // cuts surrogates out
    if (r.first < surrogates.first)
      whole.push_back({r.first, std::min(r.last, surrogates.first - 1)});
    if (r.last > surrogates.last) whole.push_back({std::max(r.first, surrogates.last + 1), r.last});
  }
  std::erase_if(whole, [](const CodeRange& r) { return r.first > r.last; });
  std::ranges::sort(whole, {}, &CodeRange::first);
  for (const CodeRange& r : whole) {
    if (!ranges_.empty() && r.first <= ranges_.back().last + 1)
      ranges_.back().last = std::max(ranges_.back().last, r.last);
    else
      ranges_.push_back(r);
  }
}

CodeSet CodeSet::complement() const {
  std::vector<CodeRange> rest;
  uint32_t next = 0;
  for (const CodeRange& r : ranges_) {
    if (r.first > next) rest.push_back({next, r.first - 1});
    next = r.last + 1;
  }
  if (next <= last_code) rest.push_back({next, last_code});
  return CodeSet(std::move(rest));
}

CodeSet CodeSet::without(const CodeSet& other) const {
  CodeSet outside = complement();
  outside.add(other);
  return outside.complement();
}

void CodeSet::add(const CodeSet& other) {
  std::vector<CodeRange> all = ranges_;
  all.insert(all.end(), other.ranges_.begin(), other.ranges_.end());
  *this = CodeSet(std::move(all));
}

bool CodeSet::operator<(const CodeSet& other) const {
  return std::ranges::lexicographical_compare(
      ranges_, other.ranges_, [](const CodeRange& a, const CodeRange& b) {
        return std::pair(a.first, a.last) < std::pair(b.first, b.last);
      });
}

std::vector<ByteRanges> utf8_ranges(const CodeSet& set) {
  std::vector<ByteRanges> out;
  for (const CodeRange& r : set.ranges()) split(out, r.first, r.last);
  return out;
}

}  // namespace hearth::inline grammar
