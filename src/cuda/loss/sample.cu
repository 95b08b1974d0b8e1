// Samples the next token of each row of logits on the GPU. First, blocks that each read a stretch
// of a row find its likeliest token; then one block per row draws. Rows under a constraint lose the
// logits of other tokens in between, and are scanned again. If there are many rows, a pass in
// between weighs the tokens and adds up the exponentials of log-probabilities, with fewer registers
// and so more loads under way than the block that draws.
// Weights are integers of at most 2^40, so their sums are exact in any order and a draw
// depends only on its row.
#include "cuda/device/quick_math.cuh"
#include "cuda/kernels.h"
#include "cuda/loss/row_sum.cuh"
#include "cuda/loss/sample_scan.cuh"

namespace hearth::cuda {
namespace {

constexpr int most_threads = row_threads, most_warps = most_threads / 32;
constexpr int few_threads = 256;  // of a block that draws, where rows are weighed before
constexpr int digit = 4, bins = 1 << digit;
constexpr int slabs = 8;                     // parts of a row that are weighed one by one
constexpr int64_t most_rows_unweighed = 64;  // with more rows, weigh_rows runs first

// Which tokens remain: those above `key`, and the first `ties` (by id) of those equal to it.
struct Kept {
  uint32_t key = 0;
  Mass ties = ~Mass(0);
};

struct SampleShared {
  Mass parts[most_warps][bins], histogram[bins];
  Mass sums[most_warps];
  float floats[32], sums_of_exp[32];
  uint32_t key;
  Mass before;  // amount above the chosen bin
};

struct Row {
  const float* x;
  int V;
  float top, scale;  // weight of x: 2^40 * 2^((x - top) * scale)

  // Exponentials too small for the hardware's fast one are below 2^-40, and so have no weight.
  __device__ Mass weight(float v) const { return Mass(exp2_fast((v - top) * scale) * 0x1p40f); }
};

// Calls f(id, logit) for this thread's part of a row, with four loads of four logits in flight.
template <class F>
__device__ __forceinline__ void each_logit(const float* x, int V, F&& f) {
  constexpr int under_way = 4;
  const int threads = int(blockDim.x);
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

// Fills s.histogram: the amount of keys beginning with `prefix`, by their next digit.
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
    for (int w = 0; w < int(blockDim.x) / 32; ++w) sum += s.parts[w][threadIdx.x];
    s.histogram[threadIdx.x] = sum;
  }
  __syncthreads();
}

// The key at which the total amount at or above it reaches `target`, and how many of those equal to
// it that takes.
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

// The stricter of two rules.
__device__ Kept both(const Kept& a, const Kept& b) {
  if (a.key != b.key) return a.key > b.key ? a : b;
  return {a.key, a.ties < b.ties ? a.ties : b.ties};
}

__device__ Mass block_total(Mass x, SampleShared& s) {
  x = warp_sum(x);
  if (threadIdx.x % 32 == 0) s.sums[threadIdx.x / 32] = x;
  __syncthreads();
  x = 0;
  for (int w = 0; w < int(blockDim.x) / 32; ++w) x += s.sums[w];
  __syncthreads();
  return x;
}

// Top-p: the likeliest tokens that together have the fraction p of what is kept.
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

// Inclusive prefix sum over the lanes of a warp.
__device__ Mass scanned(Mass x) {
#pragma unroll
  for (int offset = 1; offset < 32; offset *= 2) {
    const Mass other = __shfl_up_sync(~0u, x, offset);
    if (int(threadIdx.x) % 32 >= offset) x += other;
  }
  return x;
}

// A warp iterates over ids [begin, end), 32 at a time, and calls each(id, weight or 0) until it
// returns true. `ties` tokens equal to the key come before begin.
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

// A draw among `ids`, divided equally between the warps: u selects a point in `total`, of which
// `ahead` lies before these ids. If total is 0, it is the sum over these ids.
struct Lot {
  Ids ids;
  Mass u, ahead, total;
};
__device__ void draw(const Row& r, const Kept& kept, Lot lot, SampleShared& s, int fallback,
                     int32_t* token) {
  const int warp = int(threadIdx.x) / 32, lane = int(threadIdx.x) % 32;
  const int warps = int(blockDim.x) / 32;
  const int length = (lot.ids.end - lot.ids.begin + warps * 32 - 1) / (warps * 32) * 32;
  const int begin = min(lot.ids.end, lot.ids.begin + warp * length);
  const int end = min(lot.ids.end, begin + length);
  Mass ties = 0, before = 0, sum = 0;
  if (kept.key) {
    for (int i = begin + lane; i < end; i += 32) ties += key_of(r.x[i]) == kept.key;
    ties = warp_sum(ties);
    if (lane == 0) s.sums[warp] = ties;
    __syncthreads();
    for (int w = 0; w < warp; ++w) before += s.sums[w];
    __syncthreads();
    walk(r, kept, begin, end, before, [&](int, Mass w) {
      sum += w;
      return false;
    });
  } else {
#pragma unroll 8
    for (int i = begin + lane; i < end; i += 32) sum += r.weight(r.x[i]);
  }
  sum = warp_sum(sum);
  if (lane == 0) s.sums[warp] = sum;
  if (threadIdx.x == 0) *token = fallback;
  __syncthreads();
  Mass all = 0, ahead = 0;
  for (int w = 0; w < warps; ++w) {
    if (w == warp) ahead = lot.ahead + all;
    all += s.sums[w];
  }
  const Mass target = __umul64hi(lot.total ? lot.total : all, lot.u);
  if (target < ahead || target >= ahead + sum) return;
  walk(r, kept, begin, end, before, [&](int id, Mass w) {
    const Mass through = ahead + scanned(w);
    if (w && target < through && target >= through - w) *token = id;
    ahead = __shfl_sync(~0u, through, 31);
    return ahead > target;
  });
}

constexpr float log2_e = 1.4426950408889634f;

// Whether every token of a row can be drawn.
__device__ bool draws_from_all(const SampleControls& c, int V) {
  return c.temperature > 0 && !(c.min_p > 0) && !(c.top_k > 0 && c.top_k < V) && !(c.top_p < 1);
}

// Consecutive ids: whole rounds of the threads of weigh_rows.
__device__ Ids slab_of(int n, int vocab) {
  constexpr int threads = row_threads;
  const int length = ((vocab + threads - 1) / threads + slabs - 1) / slabs * threads;
  return {min(vocab, n * length), min(vocab, (n + 1) * length)};
}

// What weigh_rows finds out about a row.
struct RowWeight {
  Mass masses[slabs];  // if every token can be drawn
  float z;             // of log-probabilities as in training
};

// The logit from which log-probabilities as in training are measured: the largest of all tokens,
// drawable or not. `shared` holds 32 floats.
__device__ float highest_logit(const float* x, float foremost, int V, int vocab, float* shared) {
  if (vocab <= V) return foremost;
  for (int i = V + int(threadIdx.x); i < vocab; i += int(blockDim.x))
    foremost = fmaxf(foremost, x[i]);
  return block_max(foremost, shared);
}

// One block per row, with the additions of exp_sum().
__global__ void __launch_bounds__(row_threads, 2)
    weigh_rows(RowWeight* weights, const Stretch* parts, const float* logits,
               const SampleControls* controls, int V, int64_t stride, int vocab) {
  constexpr int warps = row_threads / 32;
  __shared__ Mass masses[warps][slabs];
  __shared__ float floats[32], sums_of_exp[32];
  const bool from_all = draws_from_all(controls[blockIdx.x], V);  // written by the host
  const bool as_trained = controls[blockIdx.x].as_trained;
  const float temperature = controls[blockIdx.x].temperature;
  let_next_start();
  wait_for_previous();
  if (!from_all && !as_trained) return;
  const float* x = logits + blockIdx.x * stride;
  const Row r{x, V, likeliest_logit(parts + blockIdx.x * stretches), log2_e / temperature};
  const LogitLevel level{1 / temperature, 0};
  const float top = level(as_trained ? highest_logit(x, r.top, V, vocab, floats) : r.top);
  float z = 0;
  for (int n = 0; n < slabs; ++n) {
    const Ids ids = slab_of(n, vocab);
    Mass mass = 0;
    const bool some_cannot = ids.end > V;
    each_of_row(x, ids.begin, ids.end, [&](int i, float v) {
      if (as_trained) z += expf(level(v) - top);
      if (!some_cannot || i < V) mass += r.weight(v);
    });
    mass = warp_sum(mass);
    if (threadIdx.x % 32 == 0) masses[threadIdx.x / 32][n] = mass;
  }
  z = block_sum(z, sums_of_exp);
  RowWeight& out = weights[blockIdx.x];
  if (threadIdx.x == 0) out.z = z;
  if (threadIdx.x >= slabs) return;
  Mass sum = 0;
  for (int w = 0; w < warps; ++w) sum += masses[w][threadIdx.x];
  out.masses[threadIdx.x] = sum;
}

// The slab that a draw of u falls into.
__device__ Lot weighed_lot(const Mass* masses, Mass u, int V, int vocab) {
  Mass total = 0, ahead = 0;
  for (int n = 0; n < slabs; ++n) total += masses[n];
  const Mass target = __umul64hi(total, u);
  int n = 0;
  while (n + 1 < slabs && ahead + masses[n] <= target) ahead += masses[n++];
  const Ids ids = slab_of(n, vocab);
  return {{min(ids.begin, V), min(ids.end, V)}, u, ahead, total};
}

// Overwrites the logits that a constraint excludes, one block per stretch of a row.
__global__ void __launch_bounds__(scan_threads)
    mask_rows(float* logits, const uint32_t* allowed, const SampleControls* controls, int V,
              int64_t stride, int words) {
  const bool constrained = controls[blockIdx.y].constrained;  // written by the host
  let_next_start();
  wait_for_previous();
  if (!constrained) return;
  float* x = logits + blockIdx.y * stride;
  const uint32_t* bits = allowed + int64_t(blockIdx.y) * words;
  const auto [begin, end] = ids_of(int(blockIdx.x), V);
  for (int i = begin + int(threadIdx.x); i < end; i += scan_threads)
    if (!(bits[i / 32] >> (i % 32) & 1)) x[i] = -INFINITY;
}

// One block per row: of row_threads without weights, since exp_sum() needs as many, else fewer, so
// that more rows run at once. `whole`: the parts of the logits before a constraint, for
// log-probabilities.
__global__ void __launch_bounds__(most_threads)
    sample_rows(Drawn* drawn, int32_t* tokens, const Stretch* parts, const Stretch* whole,
                const RowWeight* weights, const float* logits, const SampleControls* controls,
                int V, int64_t stride, int vocab) {
  __shared__ SampleShared s;
  const SampleControls c = controls[blockIdx.x];  // written by the host
  wait_for_previous();
  const float* x = logits + blockIdx.x * stride;
  float z = 0;
  const int best = likeliest(parts + blockIdx.x * stretches, &z);
  const float top = x[best];
  Drawn& out = drawn[blockIdx.x];
  if (c.temperature > 0) {
    const Row r{x, V, top, log2_e / c.temperature};
    const Mass u = Mass(c.uniform_high) << 32 | c.uniform_low;
    Kept kept;
    // Weights grow with logits, so min_p is a lower bound on the logit.
    if (c.min_p > 0) kept = {key_of(top + logf(c.min_p) * c.temperature), ~Mass(0)};
    if (c.top_k > 0 && c.top_k < V)
      kept = both(kept, select(r, Mass(c.top_k), s, [](uint32_t, float) { return Mass(1); }));
    if (c.top_p < 1) kept = both(kept, nucleus(r, kept, c.top_p, s));
    const bool weighed = weights && draws_from_all(c, V);
    draw(r, kept,
         weighed ? weighed_lot(weights[blockIdx.x].masses, u, V, vocab) : Lot{{0, V}, u, 0, 0}, s,
         best, &out.token);
  } else if (threadIdx.x == 0) {
    out.token = best;
  }
  __syncthreads();
  const SampleControls& again = controls[blockIdx.x];  // read again, to save registers
  const bool as_trained = again.as_trained;
  const LogitLevel level{as_trained ? 1 / again.temperature : 1, 0};
  int first = best;
  float foremost = top;
  if (whole != parts) {  // the likeliest token may be excluded: its logit is in the parts only
    first = likeliest(whole + blockIdx.x * stretches, &z);
    foremost = likeliest_logit(whole + blockIdx.x * stretches);
  }
  float highest = foremost;
  if (as_trained) {
    highest = highest_logit(x, foremost, V, vocab, s.floats);
    z = weights ? weights[blockIdx.x].z : exp_sum(x, vocab, level(highest), level, s.sums_of_exp);
  }
  if (threadIdx.x == 0) {
    const float log_z = logf(z);
    out.logprob = level(x[out.token]) - level(highest) - log_z;
    out.likeliest = first, out.likeliest_logprob = level(foremost) - level(highest) - log_z;
    if (tokens) tokens[blockIdx.x] = out.token;
  }
}

}  // namespace

void sample(Stream& stream, const SampleArgs& args) {
  expect_dtypes("sample", DType::f32, args.logits);
  CudaStream& s = on(stream);
  const int64_t rows = args.logits.rows();
  const bool weighs = rows > most_rows_unweighed, masks = bool(args.allowed);
  const int64_t scans = rows * stretches * (masks ? 2 : 1);
  auto* whole = static_cast<Stretch*>(s.scratch(scans * int64_t(sizeof(Stretch)) +
                                                (weighs ? rows * int64_t(sizeof(RowWeight)) : 0)));
  Stretch* parts = masks ? whole + rows * stretches : whole;
  auto* weights = weighs ? reinterpret_cast<RowWeight*>(whole + scans) : nullptr;
  const dim3 blocks(stretches, unsigned(rows));
  launch_dependent(s, scan_rows, blocks, scan_threads, whole, as<float>(args.logits),
                   as<SampleControls>(args.controls), int(args.drawable), args.logits.cols());
  if (masks) {
    expect_dtypes("sample", DType::i32, args.allowed);
    launch_dependent(s, mask_rows, blocks, scan_threads, as<float>(args.logits),
                     as<uint32_t>(args.allowed), as<SampleControls>(args.controls),
                     int(args.drawable), args.logits.cols(), int(args.allowed.cols()));
    launch_dependent(s, scan_rows, blocks, scan_threads, parts, as<float>(args.logits),
                     as<SampleControls>(args.controls), int(args.drawable), args.logits.cols());
  }
  if (weighs)
    launch_dependent(s, weigh_rows, unsigned(rows), row_threads, weights, parts,
                     as<float>(args.logits), as<SampleControls>(args.controls), int(args.drawable),
                     args.logits.cols(), int(args.vocab));
  launch_dependent(s, sample_rows, unsigned(rows), weighs ? few_threads : row_threads,
                   as<Drawn>(args.drawn), as<int32_t>(args.tokens), parts, whole, weights,
                   as<float>(args.logits), as<SampleControls>(args.controls), int(args.drawable),
                   args.logits.cols(), int(args.vocab));
  check_launch("sample");
}

}  // namespace hearth::cuda
