// Draws the next token of each row of logits on the card: blocks that read a stretch of a row each
// find its likeliest, then a block a row draws. Weights are whole numbers
// (shares of 2^40), so their sums are exact in any order and a draw depends on its row alone.
#include "cuda/device.cuh"
#include "cuda/early.cuh"
#include "cuda/kernels.h"
#include "cuda/row_sum.cuh"

namespace hearth::cuda {
namespace {

constexpr int threads = row_threads, warps = threads / 32;
constexpr int digit = 4, bins = 1 << digit;
using Mass = unsigned long long;

// Ascending as the number is.
__device__ uint32_t key_of(float x) {
  const uint32_t b = __float_as_uint(x);
  return b & 0x80000000u ? ~b : b | 0x80000000u;
}

__device__ float number_of(uint32_t key) {
  return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

// Which tokens are left: those above `key`, and the first `ties` (by id) of those equal to it.
struct Kept {
  uint32_t key = 0;
  Mass ties = ~Mass(0);
};

struct SampleShared {
  Mass parts[warps][bins], histogram[bins];
  Mass sums[warps];
  float floats[32];
  uint32_t key;
  Mass before;  // what lies above the bin chosen
};

struct Row {
  const float* x;
  int V;
  float top, scale;  // weight of x: 2^40 exp((x - top) * scale)

  __device__ Mass weight(float v) const { return Mass(exp2f((v - top) * scale) * 0x1p40f); }
};

// Calls f(id, logit) for this thread's share of a row, read four at a time and sixteen ahead.
template <class F>
__device__ __forceinline__ void each_logit(const float* x, int V, F&& f) {
  constexpr int under_way = 4;
  const int packs = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0 ? V / 4 : 0;
  for (int i = int(threadIdx.x); i < packs; i += under_way * threads) {
    float4 v[under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u)
      if (i + u * threads < packs) v[u] = reinterpret_cast<const float4*>(x)[i + u * threads];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      const int id = 4 * (i + u * threads);
      if (id < 4 * packs) f(id, v[u].x), f(id + 1, v[u].y), f(id + 2, v[u].z), f(id + 3, v[u].w);
    }
  }
  for (int i = 4 * packs + int(threadIdx.x); i < V; i += threads) f(i, x[i]);
}

// What a thread has seen of a row: the likeliest as (key, ~id), and the sum of exp(x - top).
struct Seen {
  Mass best = 0;
  float top = -INFINITY, sum = 0;

  template <int n, class Id>
  __device__ __forceinline__ void add(const float (&v)[n], const Id& id) {
    float now = top;
#pragma unroll
    for (int i = 0; i < n; ++i) {
      const Mass k = Mass(key_of(v[i])) << 32 | uint32_t(~id(i));
      best = k > best ? k : best;
      now = fmaxf(now, v[i]);
    }
    if (now == -INFINITY) return;
    sum *= expf(top - now), top = now;
#pragma unroll
    for (int i = 0; i < n; ++i) sum += expf(v[i] - top);
  }
};

// What there is to say of a stretch of a row: the likeliest of it, and the sum of exp(x - that).
struct Stretch {
  Mass best;
  float top, sum;
};
constexpr int stretches = 16;  // of a row, however many rows there are
constexpr int scan_threads = 128, scan_warps = scan_threads / 32;

// Reads every stretch of every row once, by a block each.
__global__ void __launch_bounds__(scan_threads)
    scan_rows(Stretch* parts, const float* logits, int V, int64_t stride) {
  constexpr int under_way = 4;
  __shared__ Mass bests[scan_warps];
  __shared__ float sums[scan_warps];
  let_next_start();
  wait_for_previous();
  const float* x = logits + blockIdx.y * stride;
  const int length = (V + 4 * stretches - 1) / (4 * stretches) * 4;
  const int begin = int(blockIdx.x) * length, end = min(V, begin + length);
  Seen mine;
  const bool whole = reinterpret_cast<uintptr_t>(x) % sizeof(float4) == 0;
  const int packed = whole ? max(begin, begin + (end - begin) / 4 * 4) : begin;
  for (int i = begin + 4 * int(threadIdx.x); i < packed; i += 4 * under_way * scan_threads) {
    float v[4 * under_way];
#pragma unroll
    for (int u = 0; u < under_way; ++u) {
      float4 p = make_float4(-INFINITY, -INFINITY, -INFINITY, -INFINITY);
      const int at = i + 4 * u * scan_threads;
      if (at < packed) p = *reinterpret_cast<const float4*>(x + at);
      v[4 * u] = p.x, v[4 * u + 1] = p.y, v[4 * u + 2] = p.z, v[4 * u + 3] = p.w;
    }
    mine.add(v, [&](int k) { return i + 4 * (k / 4) * scan_threads + k % 4; });
  }
  for (int i = packed + int(threadIdx.x); i < end; i += scan_threads) {
    const float v[1] = {x[i]};
    mine.add(v, [&](int) { return i; });
  }
  const int warp = int(threadIdx.x) / 32;
  Mass best = mine.best;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const Mass other = __shfl_xor_sync(~0u, best, offset);
    best = other > best ? other : best;
  }
  if (threadIdx.x % 32 == 0) bests[warp] = best;
  __syncthreads();
#pragma unroll
  for (int w = 0; w < scan_warps; ++w) best = bests[w] > best ? bests[w] : best;
  const float top = best ? number_of(uint32_t(best >> 32)) : -INFINITY;
  const float share = mine.sum > 0 ? mine.sum * expf(mine.top - top) : mine.sum;
  const float warp_share = warp_sum(share);
  if (threadIdx.x % 32 == 0) sums[warp] = warp_share;
  __syncthreads();
  if (threadIdx.x > 0) return;
  float sum = 0;
#pragma unroll
  for (int w = 0; w < scan_warps; ++w) sum += sums[w];
  parts[blockIdx.y * stretches + blockIdx.x] = {best, top, sum};
}

// The id of the largest logit (the lowest of equals), and the sum of exp(x - it).
__device__ int likeliest(const Stretch* parts, float* sum) {
  const int lane = int(threadIdx.x) % stretches;
  const Stretch mine = parts[lane];
  Mass best = mine.best;
#pragma unroll
  for (int offset = stretches / 2; offset > 0; offset /= 2) {
    const Mass other = __shfl_xor_sync(~0u, best, offset);
    best = other > best ? other : best;
  }
  const float top = number_of(uint32_t(best >> 32));
  float part = mine.sum > 0 ? mine.sum * expf(mine.top - top) : mine.sum;
#pragma unroll
  for (int offset = stretches / 2; offset > 0; offset /= 2)
    part += __shfl_xor_sync(~0u, part, offset);
  *sum = part;
  return int(~uint32_t(best));
}

// Fills s.histogram: what keys that begin with `prefix` have of each next digit.
template <class Amount>
__device__ void count_digits(const Row& r, uint32_t prefix, int shift, SampleShared& s,
                             const Amount& amount) {
  const uint32_t mask = shift + digit == 32 ? 0 : ~0u << (shift + digit);
  Mass mine[bins] = {};
  each_logit(r.x, r.V, [&](int, float v) {
    const uint32_t k = key_of(v);
    if ((k & mask) != prefix) return;
    const Mass a = amount(k, v);
#pragma unroll
    for (int b = 0; b < bins; ++b) mine[b] += int(k >> shift & (bins - 1)) == b ? a : 0;
  });
#pragma unroll
  for (int b = 0; b < bins; ++b) {
    mine[b] = warp_sum(mine[b]);
    if (threadIdx.x % 32 == 0) s.parts[threadIdx.x / 32][b] = mine[b];
  }
  __syncthreads();
  if (threadIdx.x < bins) {
    Mass sum = 0;
    for (int w = 0; w < warps; ++w) sum += s.parts[w][threadIdx.x];
    s.histogram[threadIdx.x] = sum;
  }
  __syncthreads();
}

// The key at which what lies at or above it, counted by `amount`, reaches `target`, and how many of
// those equal to it that takes.
template <class Amount>
__device__ Kept select(const Row& r, Mass target, SampleShared& s, const Amount& amount) {
  uint32_t prefix = 0;
  Mass above = 0;
  for (int shift = 32 - digit; shift >= 0; shift -= digit) {
    count_digits(r, prefix, shift, s, amount);
    if (threadIdx.x == 0) {
      int b = bins - 1;
      while (b > 0 && above + s.histogram[b] < target) above += s.histogram[b--];
      s.before = above, s.key = prefix | uint32_t(b) << shift;
    }
    __syncthreads();
    prefix = s.key, above = s.before;
  }
  const Mass each = amount(prefix, number_of(prefix));
  return {prefix, each ? (target - above + each - 1) / each : 0};
}

// Of two rules the stricter one.
__device__ Kept both(const Kept& a, const Kept& b) {
  if (a.key != b.key) return a.key > b.key ? a : b;
  return {a.key, a.ties < b.ties ? a.ties : b.ties};
}

__device__ Mass block_total(Mass x, SampleShared& s) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < warps; ++w) x += s.sums[w];
  __syncthreads();
  return x;
}

// The likeliest of what is kept that together have the share p of it.
__device__ Kept nucleus(const Row& r, const Kept& kept, float p, SampleShared& s) {
  const auto mass = [&](uint32_t k, float v) { return k >= kept.key ? r.weight(v) : Mass(0); };
  Mass all = 0, equal = 0;
  each_logit(r.x, r.V, [&](int, float v) {
    const uint32_t k = key_of(v);
    all += mass(k, v), equal += k == kept.key;
  });
  all = block_total(all, s), equal = block_total(equal, s);
  if (equal > kept.ties) all -= (equal - kept.ties) * r.weight(number_of(kept.key));
  const Mass target = Mass(double(all) * double(p));
  return select(r, target > 0 ? target : 1, s, mass);
}

// Adds x over the lanes before this one and this one.
__device__ Mass scanned(Mass x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass other = __shfl_up_sync(~0u, x, offset);
    if (int(threadIdx.x) % 32 >= offset) x += other;
  }
  return x;
}

// Walks ids [begin, end) by a warp: calls each(id, weight or 0) for 32 at a time. `ties` equal ones
// lie before begin.
template <class Each>
__device__ void walk(const Row& r, const Kept& kept, int begin, int end, Mass ties, Each&& each) {
  const int lane = int(threadIdx.x) % 32;
  for (int i = begin; i < end; i += 32) {
    const int id = i + lane;
    const float v = id < end ? r.x[id] : 0;
    const uint32_t k = id < end ? key_of(v) : 0;
    const bool tie = id < end && k == kept.key;
    const Mass number = ties + scanned(tie);
    const bool in = id < end && (k > kept.key || (tie && number <= kept.ties));
    ties = __shfl_sync(~0u, number, 31);
    if (each(id, in ? r.weight(v) : 0)) return;
  }
}

// Each warp has a stretch of ids; the draw falls into one of them.
__device__ void draw(const Row& r, const Kept& kept, Mass u, SampleShared& s, int fallback,
                     int32_t* token) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int length = (r.V + warps * 32 - 1) / (warps * 32) * 32;
  const int begin = min(r.V, warp * length), end = min(r.V, begin + length);
  Mass ties = 0;
  for (int i = begin + lane; i < end; i += 32) ties += key_of(r.x[i]) == kept.key;
  ties = warp_sum(ties);
  if (lane == 0) s.sums[warp] = ties;
  __syncthreads();
  Mass before = 0;
  for (int w = 0; w < warp; ++w) before += s.sums[w];
  __syncthreads();
  Mass sum = 0;
  walk(r, kept, begin, end, before, [&](int, Mass w) {
    sum += w;
    return false;
  });
  sum = warp_sum(sum);
  if (lane == 0) s.sums[warp] = sum;
  if (threadIdx.x == 0) *token = fallback;
  __syncthreads();
  Mass total = 0, ahead = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) ahead = total;
    total += s.sums[w];
  }
  const Mass target = __umul64hi(total, u);
  if (target < ahead || target >= ahead + sum) return;
  walk(r, kept, begin, end, before, [&](int id, Mass w) {
    const Mass through = ahead + scanned(w);
    if (w && target < through && target >= through - w) *token = id;
    ahead = __shfl_sync(~0u, through, 31);
    return ahead > target;
  });
}

__global__ void __launch_bounds__(threads)
    sample_rows(Drawn* drawn, int32_t* tokens, const Stretch* parts, const float* logits,
                const SampleControls* controls, int V, int64_t stride) {
  __shared__ SampleShared s;
  const SampleControls c = controls[blockIdx.x];  // the host's
  wait_for_previous();
  const float* x = logits + blockIdx.x * stride;
  float z = 0;
  const int best = likeliest(parts + blockIdx.x * stretches, &z);
  const float top = x[best];
  Drawn& out = drawn[blockIdx.x];
  if (c.temperature > 0) {
    const Row r{x, V, top, 1.4426950408889634f / c.temperature};
    Kept kept;
    // Weights fall with logits: a floor of min_p is a floor of the logit.
    if (c.min_p > 0) kept = {key_of(top + logf(c.min_p) * c.temperature), ~Mass(0)};
    if (c.top_k > 0 && c.top_k < V)
      kept = both(kept, select(r, Mass(c.top_k), s, [](uint32_t, float) { return Mass(1); }));
    if (c.top_p < 1) kept = both(kept, nucleus(r, kept, c.top_p, s));
    draw(r, kept, Mass(c.uniform_high) << 32 | c.uniform_low, s, best, &out.token);
  } else if (threadIdx.x == 0) {
    out.token = best;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    const float log_z = logf(z);
    out.logprob = x[out.token] - top - log_z;
    out.likeliest = best, out.likeliest_logprob = -log_z;
    if (tokens) tokens[blockIdx.x] = out.token;
  }
}

}  // namespace

void sample(Stream& stream, Tensor drawn, Tensor tokens, Tensor logits, Tensor controls,
            int64_t vocab) {
  expect_dtypes("sample", DType::f32, logits);
  CudaStream& s = on(stream);
  const int64_t rows = logits.rows();
  auto* parts = static_cast<Stretch*>(s.scratch(rows * stretches * int64_t(sizeof(Stretch))));
  launch_early(s, scan_rows, dim3(stretches, unsigned(rows)), scan_threads, parts,
               as<float>(logits), int(vocab), logits.cols());
  launch_early(s, sample_rows, unsigned(rows), threads, as<Drawn>(drawn), as<int32_t>(tokens),
               parts, as<float>(logits), as<SampleControls>(controls), int(vocab), logits.cols());
  check_launch("sample");
}

}  // namespace hearth::cuda
