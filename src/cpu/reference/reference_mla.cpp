// Reference kernels of latent attention.
#include <algorithm>
#include <cmath>

#include "cpu/reference/reference_kernels.h"

namespace hearth::reference {

void rope_heads(Stream&, const RopeHeadsArgs& args) {
  const RopeHeadsSpec& s = args.spec;
  Doubles x = load(args.x);
  const Doubles rope = load(args.rope);
  const auto at = load_ints(args.positions);
  const double sign = s.reverse ? -1 : 1;
  for (int64_t i = 0; i < args.x.numel() / s.width; ++i)
    for (int64_t p = 0; p < s.rotary / 2; ++p) {
      const int64_t row = std::max<int64_t>(0, at[i / s.heads]);
      const double c = rope[row * s.rotary + 2 * p], sine = sign * rope[row * s.rotary + 2 * p + 1];
      const int64_t head = i * s.width + s.first;
      double& a = x[head + (s.interleaved ? 2 * p : p)];
      double& b = x[head + (s.interleaved ? 2 * p + 1 : p + s.rotary / 2)];
      const double u = a;
      a = u * c - b * sine;
      b = b * c + u * sine;
    }
  store(args.y, x);
}

void pack_latent(Stream&, const PackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  const Doubles q = load(args.q), kv = load(args.kv), rope = load(args.k_rope);
  Doubles y(size_t(args.y.numel()));
  for (int64_t n = 0; n < args.y.numel() / s.packed(); ++n)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t k = n * s.packed() + s.q_size() + h * s.qk();
      const int64_t v = n * s.packed() + 2 * s.q_size() + h * s.v;
      const int64_t from = n * s.kv_size() + h * (s.nope + s.v);
      for (int64_t i = 0; i < s.qk(); ++i) {
        y[n * s.packed() + h * s.qk() + i] = q[n * s.q_size() + h * s.qk() + i];
        y[k + i] = i < s.nope ? kv[from + i] : rope[n * s.rope + i - s.nope];
      }
      for (int64_t i = 0; i < s.v; ++i) y[v + i] = kv[from + s.nope + i];
    }
  store(args.y, y);
}

void unpack_latent(Stream&, const UnpackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  const Doubles dy = load(args.dy);
  const int64_t tokens = args.dy.numel() / s.packed();
  Doubles dq(size_t(tokens * s.q_size())), dkv(size_t(tokens * s.kv_size()));
  Doubles rope(size_t(tokens * s.rope));
  for (int64_t n = 0; n < tokens; ++n)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t k = n * s.packed() + s.q_size() + h * s.qk();
      const int64_t v = n * s.packed() + 2 * s.q_size() + h * s.v;
      const int64_t to = n * s.kv_size() + h * (s.nope + s.v);
      for (int64_t i = 0; i < s.qk(); ++i) {
        dq[n * s.q_size() + h * s.qk() + i] = dy[n * s.packed() + h * s.qk() + i];
        (i < s.nope ? dkv[to + i] : rope[n * s.rope + i - s.nope]) += dy[k + i];
      }
      for (int64_t i = 0; i < s.v; ++i) dkv[to + s.nope + i] = dy[v + i];
    }
  store(args.dq, dq);
  store(args.dkv, dkv);
  store(args.dk_rope, rope);
}

namespace {

// A token's row in a paged cache of latents.
Tensor latent_row(const Tensor& cache, int64_t block, int64_t at, int64_t width) {
  const int64_t first = (block * cache_block + at) * width;
  return {cache.data + first * size_of(cache.dtype), {1, width}, cache.dtype};
}

}  // namespace

void latent_cached(Stream&, const LatentCachedArgs& args) {
  const int64_t L = args.latent.cols(), R = args.k_rope.cols(), W = args.tables.cols();
  const auto at = load_ints(args.positions), of = load_ints(args.sequences),
             tables = load_ints(args.tables);
  const Doubles latent = load(args.latent), rope = load(args.k_rope);
  for (int64_t n = 0; n < int64_t(at.size()); ++n) {
    if (at[n] < 0) continue;
    Doubles row(&latent[n * L], &latent[n * L] + L);
    row.insert(row.end(), &rope[n * R], &rope[n * R] + R);
    const int64_t block = tables[of[n] * W + at[n] / cache_block];
    store(latent_row(args.cache, block, at[n] % cache_block, L + R), row);
  }
  if (!args.latents) return;
  Doubles latents = load(args.latents), ropes = load(args.rope_keys);
  for (int64_t i = 0; i < args.latents.rows(); ++i) {
    const int64_t s = i / (args.blocks * cache_block), p = i % (args.blocks * cache_block);
    const int64_t block = tables[s * W + p / cache_block];
    if (block < 0) continue;
    const Doubles row = load(latent_row(args.cache, block, p % cache_block, L + R));
    std::copy_n(row.begin(), L, &latents[i * L]);
    std::copy_n(row.begin() + L, R, &ropes[i * R]);
  }
  store(args.latents, latents);
  store(args.rope_keys, ropes);
}

void latent_panels(Stream&, const LatentPanelsArgs& args) {
  const LatentSpec& s = args.spec;
  const Doubles kv = load(args.kv), rope = load(args.rope_keys);
  Doubles panels(size_t(args.panels.numel()));
  const int64_t keys = s.heads * cache_block * s.qk(), block = keys + s.heads * cache_block * s.v;
  for (int64_t i = 0; i < args.panels.numel() / block * cache_block; ++i)
    for (int64_t h = 0; h < s.heads; ++h) {
      const int64_t from = i * s.kv_size() + h * (s.nope + s.v), to = i / cache_block * block;
      const int64_t k = to + (h * cache_block + i % cache_block) * s.qk();
      const int64_t v = to + keys + (h * cache_block + i % cache_block) * s.v;
      for (int64_t d = 0; d < s.qk(); ++d)
        panels[k + d] = d < s.nope ? kv[from + d] : rope[i * s.rope + d - s.nope];
      for (int64_t d = 0; d < s.v; ++d) panels[v + d] = kv[from + s.nope + d];
    }
  store(args.panels, panels);
}

// By its definition: keys and values of every cached token, then attention.
void attention_latent(Stream&, const AttentionLatentArgs& args) {
  const LatentSpec& s = args.spec;
  const int64_t L = args.w.cols(), W = args.tables.cols(), R = s.rope;
  const auto at = load_ints(args.positions), of = load_ints(args.sequences),
             tables = load_ints(args.tables);
  const Doubles q = load(args.q), w = load(args.w);
  Doubles y(size_t(args.y.numel()));
  for (int64_t n = 0; n < int64_t(at.size()); ++n)
    for (int64_t h = 0; h < s.heads && at[n] >= 0; ++h) {
      const int64_t first =
          args.attn.window ? std::max<int64_t>(0, at[n] - args.attn.window + 1) : 0;
      const double *query = &q[n * s.q_size() + h * s.qk()], *own = &w[h * (s.nope + s.v) * L];
      Doubles score, values;
      for (int64_t j = first; j <= at[n]; ++j) {
        const int64_t block = tables[of[n] * W + j / cache_block];
        const Doubles row = load(latent_row(args.cache, block, j % cache_block, L + R));
        double dot = 0;
        for (int64_t i = 0; i < s.nope + s.v; ++i) {
          double x = 0;
          for (int64_t l = 0; l < L; ++l) x += own[i * L + l] * row[l];
          if (i < s.nope)
            dot += query[i] * x;
          else
            values.push_back(x);
        }
        for (int64_t i = 0; i < R; ++i) dot += query[s.nope + i] * row[L + i];
        score.push_back(dot * args.attn.scale);
      }
      const double top = *std::ranges::max_element(score);
      double sum = 0;
      for (double& x : score) sum += x = std::exp(x - top);
      for (size_t j = 0; j < score.size(); ++j)
        for (int64_t i = 0; i < s.v; ++i)
          y[(n * s.heads + h) * s.v + i] += score[j] / sum * values[j * size_t(s.v) + size_t(i)];
    }
  store(args.y, y);
}

}  // namespace hearth::reference
