// A keyed permutation of [0, n) without a table: a Feistel network over the next even power of two,
// iterated until the result is below n (at most four tries on average).
#pragma once

#include <bit>
#include <cstdint>

namespace hearth::inline data {

// The finaliser of splitmix64: a well-mixing bijection of 64-bit numbers.
constexpr uint64_t mix64(uint64_t x) {
  x += 0x9e3779b97f4a7c15u;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
  return x ^ (x >> 31);
}

class Permutation {
 public:
  Permutation(uint64_t n, uint64_t seed, uint64_t epoch)
      : n_(n), half_((std::bit_width(n > 1 ? n - 1 : 1) + 1) / 2) {
    for (int r = 0; r < rounds; ++r) keys_[r] = mix64(mix64(mix64(seed) ^ epoch) + uint64_t(r));
  }

  // Requires i < n.
  uint64_t operator()(uint64_t i) const {
    do i = encrypt(i);
    while (i >= n_);
    return i;
  }

 private:
  static constexpr int rounds = 6;

  uint64_t encrypt(uint64_t x) const {
    const uint64_t mask = (uint64_t(1) << half_) - 1;
    uint64_t left = x >> half_, right = x & mask;
    for (uint64_t key : keys_) {
      const uint64_t next = left ^ (mix64(right ^ key) & mask);
      left = right;
      right = next;
    }
    return left << half_ | right;
  }

  uint64_t n_;
  int half_;  // bits per half
  uint64_t keys_[rounds];
};

}  // namespace hearth::inline data
