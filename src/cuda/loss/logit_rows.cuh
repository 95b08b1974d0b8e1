// The arithmetic of cross-entropy over rows of logits, shared by the kernels that write the
// gradient over the logits and in fp8. Which thread adds which elements depends only on the width
// and the block, so a row has the same bits in any batch.
#pragma once

#include "cuda/device/device.cuh"
#include "cuda/device/quick_math.cuh"

namespace hearth::cuda {

constexpr int32_t masked = -100;
constexpr float log2_e = 1.44269504f;

// The arguments of a cross-entropy.
template <class T>
struct LogitRows {
  float* nll;
  float* z;  // may be null
  T* logits;
  const int32_t* targets;
  const Scalars* scalars;  // only read for gradients
  int width, vocab;        // elements per row, and how many of them are used
  float cap;               // the softcap, or 1
  float squeeze;           // 2 log2(e) / cap
  float unit;              // cap * log2(e)
  float weight, z_loss;    // of the two loss terms, in the gradient
};

// A logit as a multiple of `cap`: x itself, or tanh(x / cap) with an absolute error of 1e-7, which
// is below the precision of the exponent.
template <bool capped, class T>
__device__ __forceinline__ float level(const LogitRows<T>& a, float x) {
  return capped ? 1.0f - __fdividef(2.0f, 1.0f + exp2_fast(x * a.squeeze)) : x;
}

// The logits from i on, -inf past the vocabulary, so that their exponentials and gradients are 0.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_logits(const LogitRows<T>& a, const T* row, int i) {
  Pack<T, N> p = load<N>(row + i);
  if (i + N > a.vocab) {
    float x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = i + k < a.vocab ? get(p, k) : -INFINITY;
    round_to(p, x);
  }
  return p;
}

// The running sum of exp(z) over capped logits z, as sum * 2^base. base is an integer near the
// largest exponent so far, so that subtracting it loses no precision.
struct ExpSums {
  float base = -1e5f, sum = 0;
};

template <bool capped, int M, class T>
__device__ __forceinline__ void fold(const LogitRows<T>& a, ExpSums& s, float (&x)[M]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
    if (!capped || x[i] > -INFINITY) x[i] = level<capped>(a, x[i]);
  float top = x[0], total = 0;
#pragma unroll
  for (int i = 1; i < M; ++i) top = fmaxf(top, x[i]);
  const float base = fmaxf(s.base, rintf(top * a.unit));
#pragma unroll
  for (int i = 0; i < M; ++i) total += exp2_fast(fmaf(x[i], a.unit, -base));
  s.sum = fmaf(s.sum, exp2_fast(s.base - base), total);
  s.base = base;
}

// The combined sums of all threads of a block. `shared` holds 64 floats.
__device__ __forceinline__ ExpSums joined(const ExpSums& s, float* shared) {
  const float base = block_max(s.base, shared);
  return {base, block_sum(s.sum * exp2_fast(s.base - base), shared + 32)};
}

// log(sum * 2^base) - z, with ln 2 split in two parts; the product of base and the first is exact.
template <bool capped, class T>
__device__ __forceinline__ float nll_of(const LogitRows<T>& a, const ExpSums& s, float logit) {
  const float z = level<capped>(a, logit) * a.cap;
  return fmaf(s.base, 0x1.62e4p-1f, -z) + fmaf(s.base, 1.42860677e-6f, logf(s.sum));
}

// log(sum * 2^base), with the same split.
__device__ __forceinline__ float lse_of(const ExpSums& s) {
  return fmaf(s.base, 0x1.62e4p-1f, fmaf(s.base, 1.42860677e-6f, logf(s.sum)));
}

// Factors of a row's gradient: of the exponentials, and of the target's one-hot.
struct GradFactors {
  float exponentials, onehot;
};

// `share`: the factor of all gradients.
template <class T>
__device__ __forceinline__ GradFactors factors_of(const LogitRows<T>& a, const ExpSums& row,
                                                  float share) {
  const float scale = share * a.weight;
  float softmax = scale;
  if (a.z_loss > 0) softmax = fmaf(share * a.z_loss * 2, lse_of(row), scale);
  return {__fdividef(softmax, row.sum), scale};
}

// Gradients of the logits i .. i + N - 1.
template <bool capped, int N, class T>
__device__ __forceinline__ void grads_of(float (&out)[N], const LogitRows<T>& a,
                                         const Pack<T, N>& in, int i, const ExpSums& row,
                                         GradFactors factors, int target) {
  float slope[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float v = level<capped>(a, get(in, k));
    out[k] = exp2_fast(fmaf(v, a.unit, -row.base)) * factors.exponentials;
    slope[k] = 1.0f - v * v;
  }
  if (unsigned(target - i) < unsigned(N)) {
#pragma unroll
    for (int k = 0; k < N; ++k)
      if (i + k == target) out[k] -= factors.onehot;
  }
  if constexpr (capped)
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] *= slope[k];
}

// The sums of the elements of a row that belong to this thread, which are copied to `kept` if that
// is shared memory.
template <int N, bool capped, bool keep, class T>
__device__ __forceinline__ ExpSums thread_sums(const LogitRows<T>& a, const T* row, T* kept) {
  const int first = int(threadIdx.x) * N, step = int(blockDim.x) * N;
  constexpr int deep = N == 1 ? 16 : 4;
  ExpSums sums;
  int i = first;
  for (; i + (deep - 1) * step < a.width; i += deep * step) {
    Pack<T, N> in[deep];
    float x[deep * N];
#pragma unroll
    for (int d = 0; d < deep; ++d) in[d] = load_logits<N>(a, row, i + d * step);
#pragma unroll
    for (int d = 0; d < deep; ++d) {
      if constexpr (keep) store(kept + i + d * step, in[d]);
#pragma unroll
      for (int k = 0; k < N; ++k) x[d * N + k] = get(in[d], k);
    }
    fold<capped>(a, sums, x);
  }
  for (; i < a.width; i += step) {
    const Pack<T, N> in = load_logits<N>(a, row, i);
    float x[N];
    if constexpr (keep) store(kept + i, in);
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = get(in, k);
    fold<capped>(a, sums, x);
  }
  return sums;
}

// The arguments for logits (N, V), with the spec's weight and z-loss.
template <class T>
LogitRows<T> logit_rows(const CrossEntropyArgs& args) {
  const LossSpec& spec = args.spec;
  const float cap = spec.softcap > 0 ? spec.softcap : 1;
  return {.nll = as<float>(args.nll),
          .z = as<float>(args.z),
          .logits = as<T>(args.logits),
          .targets = as<int32_t>(args.targets),
          .scalars = as<Scalars>(args.scalars),
          .width = int(args.logits.cols()),
          .vocab = int(spec.vocab ? spec.vocab : args.logits.cols()),
          .cap = cap,
          .squeeze = 2 * log2_e / cap,
          .unit = cap * log2_e,
          .weight = spec.weight,
          .z_loss = spec.z_loss};
}

// loss_fp8.cu: for calls with an Fp8Output; does not write the gradient over the logits.
void cross_entropy_fp8(CudaStream&, const CrossEntropyArgs&);

}  // namespace hearth::cuda
