// Shared by the tests of paged attention: a model's heads, the rows of a step, and the program that
// runs attention_cached over them.
#pragma once

#include "cuda_case.h"
#include "model/config.h"

namespace hearth::cases {

struct PagedCase {
  const char* name;
  int64_t H = 4, G = 4, D = 64;
  int64_t window = 0;
  float softcap = 0;
  bool alibi = false;
  bool relative = false;
  int64_t v_width = 0;  // width of a v head; 0: D

  int64_t V() const { return v_width ? v_width : D; }
  QkvLayout layout() const { return packed_qkv(H, G, D, V()); }
};

// Rows of sequences with their positions; a negative position is padding.
struct PagedRows {
  std::vector<int32_t> positions, sequences;
  void add(int32_t sequence, int32_t first, int count) {
    for (int32_t i = 0; i < count; ++i) {
      positions.push_back(first < 0 ? -1 : first + i);
      sequences.push_back(sequence);
    }
  }
  int64_t size() const { return int64_t(positions.size()); }
  bool apart() const {
    for (size_t n = 0; n < sequences.size(); ++n)
      if (sequences[n] != int32_t(n)) return false;
    return true;
  }
};

// What a case adds to its scores. The bias is drawn by hand: large enough to matter, and different
// from one distance to the next.
inline Masks masks_of(Tape& t, const PagedCase& c) {
  constexpr int64_t distances = 41;
  Masks m;
  if (c.alibi) m.slopes = t.constant("slopes", {c.H}, alibi_slopes(c.H));
  std::vector<float> bias;
  for (int64_t i = 0; c.relative && i < c.H * distances; ++i)
    bias.push_back(float(i * 37 % 64) / 32 - 1);  // exact in every dtype
  if (c.relative) m.bias = t.constant("bias", {c.H, distances}, bias);
  return m;
}

// The inputs are "paged.qkv", .positions, .sequences and .tables (sequences, width), the result is
// "paged.y"; the state "cache" has the given shape and dtype.
inline Tape paged_tape(DType dtype, const PagedCase& c, const PagedRows& rows, Shape cache_shape,
                       DType cache_dtype, int64_t sequences, int64_t width) {
  const int64_t N = rows.size();
  Tape t(dtype, "paged");
  const Var qkv = t.input("qkv", {1, N, c.layout().q.token}, dtype);
  const Var cache = t.state("cache", cache_shape, cache_dtype);
  const Paged paged{t.input("positions", {1, N}, DType::i32),
                    t.input("sequences", {1, N}, DType::i32),
                    t.input("tables", {sequences, width}, DType::i32)};
  const Var y = attention_cached(t, cache, packed(qkv, c.layout()), paged, masks_of(t, c),
                                 {.window = c.window,
                                  .scale = float(1 / std::sqrt(double(c.D))),
                                  .softcap = c.softcap,
                                  .apart = rows.apart()});
  const Var out = t.result("y", t.shape(y), dtype);
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out o) { f(s, {.y = o[0], .x = in[0]}); }),
         {y}, {out});
  return t;
}

}  // namespace hearth::cases
