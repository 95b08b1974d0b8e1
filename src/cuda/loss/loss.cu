// Cross-entropy over rows of logits, with the gradient written over them, and the mean loss. Memory
// bound: a block keeps its row in shared memory, so that logits are read once and written once (a
// row that does not fit is read again, mostly from L2). Which thread adds which elements depends
// only on the width, so a row has the same bits in any batch.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int32_t masked = -100;
constexpr float log2_e = 1.44269504f;

template <class T>
struct Args {
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

// 2^x by the hardware, relative error 2^-22; results below 2^-126 are 0.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

// A logit as a multiple of `cap`: x itself, or tanh(x / cap) with an absolute error of 1e-7, which
// is below the precision of the exponent.
template <bool capped, class T>
__device__ __forceinline__ float level(const Args<T>& a, float x) {
  return capped ? 1.0f - __fdividef(2.0f, 1.0f + quick_exp2(x * a.squeeze)) : x;
}

// The logits from i on, -inf past the vocabulary, so that their exponentials and gradients are 0.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_logits(const Args<T>& a, const T* row, int i) {
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
struct Sums {
  float base = -1e5f, sum = 0;
};

template <bool capped, int M, class T>
__device__ __forceinline__ void fold(const Args<T>& a, Sums& s, float (&x)[M]) {
#pragma unroll
  for (int i = 0; i < M; ++i)
    if (!capped || x[i] > -INFINITY) x[i] = level<capped>(a, x[i]);
  float top = x[0], total = 0;
#pragma unroll
  for (int i = 1; i < M; ++i) top = fmaxf(top, x[i]);
  const float base = fmaxf(s.base, rintf(top * a.unit));
#pragma unroll
  for (int i = 0; i < M; ++i) total += quick_exp2(fmaf(x[i], a.unit, -base));
  s.sum = fmaf(s.sum, quick_exp2(s.base - base), total);
  s.base = base;
}

// The combined sums of all threads of a block. `shared` holds 64 floats.
__device__ __forceinline__ Sums joined(const Sums& s, float* shared) {
  const float base = block_max(s.base, shared);
  return {base, block_sum(s.sum * quick_exp2(s.base - base), shared + 32)};
}

// log(sum * 2^base) - z, with ln 2 split in two parts; the product of base and the first is exact.
template <bool capped, class T>
__device__ __forceinline__ float nll_of(const Args<T>& a, const Sums& s, float logit) {
  const float z = level<capped>(a, logit) * a.cap;
  return fmaf(s.base, 0x1.62e4p-1f, -z) + fmaf(s.base, 1.42860677e-6f, logf(s.sum));
}

// log(sum * 2^base), with the same split.
__device__ __forceinline__ float lse_of(const Sums& s) {
  return fmaf(s.base, 0x1.62e4p-1f, fmaf(s.base, 1.42860677e-6f, logf(s.sum)));
}

// Factors of a row's gradient: of the exponentials, and of the target's one-hot.
struct Factors {
  float exponentials, onehot;
};

template <class T>
__device__ __forceinline__ Factors factors_of(const Args<T>& a, const Sums& row) {
  const float share = scaled_gradient(*a.scalars, a.scalars->inv_targets);
  const float scale = share * a.weight;
  float softmax = scale;
  if (a.z_loss > 0) softmax = fmaf(share * a.z_loss * 2, lse_of(row), scale);
  return {__fdividef(softmax, row.sum), scale};
}

// Gradients of the logits i .. i + N - 1.
template <bool capped, int N, class T>
__device__ __forceinline__ void grads_of(float (&out)[N], const Args<T>& a, const Pack<T, N>& in,
                                         int i, const Sums& row, Factors factors, int target) {
  float slope[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float v = level<capped>(a, get(in, k));
    out[k] = quick_exp2(fmaf(v, a.unit, -row.base)) * factors.exponentials;
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

// One block per row; rows begin at multiples of N elements. `keep`: the row fits in shared memory.
template <class T, int N, bool capped, bool grad, bool keep>
__global__ void __launch_bounds__(512, 2) cross_entropy_rows(Args<T> a) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[64];
  T* row = a.logits + blockIdx.x * int64_t(a.width);
  T* kept = keep ? reinterpret_cast<T*>(memory) : row;
  const int first = int(threadIdx.x) * N, step = int(blockDim.x) * N;
  const int target = a.targets[blockIdx.x];
  if (target == masked) {
    if (threadIdx.x == 0) a.nll[blockIdx.x] = 0;
    if (threadIdx.x == 0 && a.z) a.z[blockIdx.x] = 0;
    const float zeros[N] = {};
    if constexpr (grad)
      for (int i = first; i < a.width; i += step) store_rounded(row + i, zeros);
    return;
  }
  const float hit = get(load<1>(row + target), 0);
  constexpr int deep = N == 1 ? 16 : 4;
  Sums sums;
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
  sums = joined(sums, shared);
  if (threadIdx.x == 0) a.nll[blockIdx.x] = nll_of<capped>(a, sums, hit);
  if (threadIdx.x == 0 && a.z) a.z[blockIdx.x] = lse_of(sums) * lse_of(sums);
  if constexpr (grad) {
    const Factors factors = factors_of(a, sums);
#pragma unroll 4
    for (i = first; i < a.width; i += step) {
      float out[N];
      grads_of<capped>(out, a, load_logits<N>(a, kept, i), i, sums, factors, target);
      store_rounded(row + i, out);
    }
  }
}

int threads_for(int64_t packs) { return packs >= 2048 ? 512 : packs >= 256 ? 128 : 32; }

template <class T>
void launch_kernel(CudaStream& s, void (*kernel)(Args<T>), const Args<T>& a, int64_t rows,
                   int64_t packs, int64_t shared) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
        "asking for shared memory");
  kernel<<<unsigned(rows), threads_for(packs), size_t(shared), s.handle>>>(a);
  check_launch("cross_entropy");
}

template <class T, bool capped>
void launch(CudaStream& s, const Args<T>& a, int64_t rows, bool packed, bool grad) {
  constexpr int N = wide<T>;
  const int64_t packs = a.width / N;
  const int64_t bytes = round_up(a.width * int64_t(sizeof(T)), 16);
  const bool fits = bytes + 1024 <= s.card.shared_bytes;  // 1024: the block's static shared memory
  if (packed && !grad)
    launch_kernel(s, cross_entropy_rows<T, N, capped, false, false>, a, rows, packs, 0);
  else if (packed && fits)
    launch_kernel(s, cross_entropy_rows<T, N, capped, true, true>, a, rows, packs, bytes);
  else if (packed)
    launch_kernel(s, cross_entropy_rows<T, N, capped, true, false>, a, rows, packs, 0);
  else if (grad)
    launch_kernel(s, cross_entropy_rows<T, 1, capped, true, false>, a, rows, packs, 0);
  else
    launch_kernel(s, cross_entropy_rows<T, 1, capped, false, false>, a, rows, packs, 0);
}

__global__ void __launch_bounds__(1024)
    mean_of(float* loss, const float* nll, const Scalars* scalars, int64_t n, bool add) {
  __shared__ double shared[32];
  double total = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += 1024) total += double(nll[i]);
  total = block_sum(total, shared);
  if (threadIdx.x) return;
  const float mean = float(total * double(scalars->inv_targets));
  *loss = add ? *loss + mean : mean;
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  const LossSpec& spec = args.spec;
  expect_dtypes("cross_entropy", DType::f32, args.nll, args.z);
  if (args.logits.numel() == 0) return;
  CudaStream& s = on(stream);
  const float cap = spec.softcap > 0 ? spec.softcap : 1;
  by_dtype("cross_entropy", args.logits, [&]<class T>(T*) {
    const Args<T> a{.nll = as<float>(args.nll),
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
    const bool packed = packs_fit(a.width, args.logits);
    if (spec.softcap > 0)
      launch<T, true>(s, a, args.logits.rows(), packed, spec.grad);
    else
      launch<T, false>(s, a, args.logits.rows(), packed, spec.grad);
  });
}

void mean_loss(Stream& stream, const MeanLossArgs& args) {
  expect_dtypes("mean_loss", DType::f32, args.loss, args.nll);
  mean_of<<<1, 1024, 0, on(stream).handle>>>(as<float>(args.loss), as<float>(args.nll),
                                             as<Scalars>(args.scalars), args.nll.numel(), args.add);
  check_launch("mean_loss");
}

}  // namespace hearth::cuda
