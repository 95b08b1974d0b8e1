// Shared by the tests of attention over cached latents: a program that stores the latents of some
// rows and attends over the cache, in either form, with random numbers that are equal everywhere.
#pragma once

#include <cmath>

#include "op_cases.h"
#include "ops/mla.h"

namespace hearth::cases {

struct LatentCase {
  const char* name;
  int64_t H = 4, nope = 32, rope = 32, v = 64, L = 64;
  int64_t window = 0;

  LatentSpec spec() const { return {.heads = H, .nope = nope, .rope = rope, .v = v}; }
};

// Rows of a step: positions (negative: padding), and their sequences.
struct LatentRows {
  std::vector<int32_t> positions, sequences;
  int64_t size() const { return int64_t(positions.size()); }
};

// Sequences own `width` blocks each, in an order that is not that of the cache.
constexpr int64_t latent_sequences = 5, latent_width = 12;

inline std::vector<int32_t> latent_tables() {
  std::vector<int32_t> r;
  for (int32_t i = 0; i < latent_sequences * latent_width; ++i)
    r.push_back((i * 7) % int32_t(latent_sequences * latent_width));
  return r;
}

// One row of each sequence, some far from others, in any order; two rows of padding.
inline LatentRows latent_rows() { return {{700, 0, -1, 63, 255, 256, -1}, {3, 0, 0, 1, 4, 2, 0}}; }

inline Numbers latent_numbers(int64_t n, uint32_t seed, double half_width, DType rounded_to) {
  Numbers x(static_cast<size_t>(n));
  uint32_t state = seed * 2654435761u + 1;
  for (double& v : x) {
    state = state * 1664525u + 1013904223u;
    v = rounded((double(state >> 8) / 8388608.0 - 1) * half_width, rounded_to);
  }
  return x;
}

inline Tape latent_tape(DType dtype, const LatentCase& c, const LatentRows& rows, bool absorbed) {
  const int64_t N = rows.size(), blocks = latent_sequences * latent_width;
  Tape t(dtype, "latent");
  t.trains = false;
  const Var cache = t.state("cache", {blocks, cache_block * (c.L + c.rope)}, dtype);
  const Var q = t.input("q", {1, N, c.spec().q_size()}, dtype);
  const Var latent = t.input("latent", {1, N, c.L}, dtype);
  const Var k_rope = t.input("k_rope", {1, N, c.rope}, dtype);
  const Var w = t.input("w", {c.spec().kv_size(), c.L}, dtype);
  const Paged paged{t.input("positions", {1, N}, DType::i32),
                    t.input("sequences", {1, N}, DType::i32),
                    t.input("tables", {latent_sequences, latent_width}, DType::i32)};
  const AttnSpec attn{.window = c.window, .scale = float(1 / std::sqrt(double(c.spec().qk())))};
  Var y;
  if (absorbed) {
    latent_cached(t, cache, latent, k_rope, paged, 0, 0);
    y = attention_latent(t, cache, q, w, paged, c.spec(), attn);
  } else {
    const CachedLatents all =
        latent_cached(t, cache, latent, k_rope, paged, latent_sequences, latent_width);
    const Var qkv = pack_latent(t, q, linear(t, latent, w), k_rope, c.spec());
    y = attention_expanded(t, qkv, linear(t, all.latents, w), all, paged, c.spec(), attn);
  }
  const Var out = t.result("y", t.shape(y), dtype);
  t.push(kernel_op<&Kernels::copy>(
             "copy", [](auto* f, Stream& s, In in, Out o) { f(s, {.y = o[0], .x = in[0]}); }),
         {y}, {out});
  return t;
}

// The result "latent.y", or another state of the program.
inline Numbers run_latent(Backend& b, DType dtype, DType rounded_to, const LatentCase& c,
                          const LatentRows& rows, bool absorbed, const char* what = "latent.y",
                          int times = 1) {
  Memory memory(b, nullptr);
  Exec exec(latent_tape(dtype, c, rows, absorbed), memory);
  StateStore& state = memory.state;
  const auto put = [&](const char* name, uint32_t seed, double half_width) {
    const Tensor to = state.find(name);
    write(b, to, latent_numbers(to.numel(), seed, half_width, rounded_to));
  };
  put("latent.q", 1, 2), put("latent.latent", 2, 1), put("latent.k_rope", 3, 1), put("cache", 4, 1);
  put("latent.w", 5, 2 / std::sqrt(double(c.L)));
  state.write<int32_t>("latent.positions", rows.positions);
  state.write<int32_t>("latent.sequences", rows.sequences);
  state.write<int32_t>("latent.tables", latent_tables());
  for (int i = 0; i < times; ++i) exec.run();
  b.synchronize();
  return read(b, state.find(what));
}

}  // namespace hearth::cases
