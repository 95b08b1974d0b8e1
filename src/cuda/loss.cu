// Cross entropy over rows of logits, with the gradient written over them, and the mean loss. Memory
// bound: a block keeps its row in shared memory, so that logits are read once and written once (a
// row that does not fit is read again, mostly from the second-level cache).
#include "cuda/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int32_t masked = -100;
constexpr float log2_e = 1.44269504f;

template <class T>
struct Args {
  float* nll;
  T* logits;
  const int32_t* targets;
  const Scalars* scalars;  // read with `grad` only
  int64_t width, vocab;    // of a row, and what of it counts
  float cap, inverse_cap;
};

// 2^x by the hardware, within 2^-22 of itself; below 2^-126 it is 0.
__device__ __forceinline__ float quick_exp2(float x) {
  float y;
  asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
  return y;
}

__device__ __forceinline__ float exp_of(float x) { return quick_exp2(x * log2_e); }

// tanh(x) by the exponential, or near 0, where that cancels, by its series.
__device__ __forceinline__ float quick_tanh(float x) {
  const float a = fabsf(x), e = exp_of(-2 * a), xx = x * x;
  const float far = __fdividef(1.0f - e, 1.0f + e);
  float near = fmaf(xx, 62.0f / 2835, -17.0f / 315);
  near = fmaf(xx, near, 2.0f / 15);
  near = fmaf(xx, near, -1.0f / 3);
  near = a * fmaf(xx, near, 1.0f);
  return copysignf(a < 0.25f ? near : far, x);
}

// A logit after the softcap; what does not count is -inf and stays so.
template <bool capped, class T>
__device__ __forceinline__ float capped_logit(const Args<T>& a, float x) {
  return capped && x > -1e38f ? a.cap * quick_tanh(x * a.inverse_cap) : x;
}

// The logits from i on, -inf past the vocabulary: their exponentials and gradients are 0.
template <int N, class T>
__device__ __forceinline__ Pack<T, N> load_logits(const Args<T>& a, const T* row, int64_t i) {
  Pack<T, N> p = load<N>(row + i);
  if (i + N > a.vocab) {
    float x[N];
#pragma unroll
    for (int k = 0; k < N; ++k) x[k] = i + k < a.vocab ? get(p, k) : -INFINITY;
    round_to(p, x);
  }
  return p;
}

// The largest capped logit a thread has seen, and its sum of exp(z - top).
struct Sums {
  float top = -1e30f, sum = 0;
};

// Takes in the first `left` packs.
template <bool capped, int N, int deep, class T>
__device__ __forceinline__ void fold(const Args<T>& a, Sums& s, const Pack<T, N> (&in)[deep],
                                     int64_t left) {
  float z[deep * N], top = s.top;
#pragma unroll
  for (int i = 0; i < deep * N; ++i) {
    z[i] = capped_logit<capped>(a, get(in[i / N], i % N));
    if (i / N < left) top = fmaxf(top, z[i]);
  }
  float sum = 0;
#pragma unroll
  for (int i = 0; i < deep * N; ++i)
    if (i / N < left) sum += exp_of(z[i] - top);
  s.sum = fmaf(s.sum, exp_of(s.top - top), sum);
  s.top = top;
}

template <bool capped, int N, class T>
__device__ __forceinline__ void put_grad(const Args<T>& a, T* to, const Pack<T, N>& in, int64_t i,
                                         const Sums& row, float scale, int64_t target) {
  const float share = __fdividef(scale, row.sum);
  float out[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    if constexpr (capped) {
      const float t = quick_tanh(get(in, k) * a.inverse_cap);
      float p = exp_of(t * a.cap - row.top) * share;
      if (i + k == target) p -= scale;
      out[k] = p * (1.0f - t * t);
    } else {
      out[k] = exp_of(get(in, k) - row.top) * share;
      if (i + k == target) out[k] -= scale;
    }
  }
  store_rounded(to, out);
}

// A block a row. `keep`: the row fits into shared memory.
template <class T, int N, bool capped, bool grad, bool keep>
__global__ void __launch_bounds__(512, 2) cross_entropy_rows(Args<T> a) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[64];
  T* row = a.logits + blockIdx.x * a.width;
  T* kept = keep ? reinterpret_cast<T*>(memory) : row;
  const int64_t first = int64_t(threadIdx.x) * N, step = int64_t(blockDim.x) * N;
  const int64_t target = a.targets[blockIdx.x];
  if (target == masked) {
    if (threadIdx.x == 0) a.nll[blockIdx.x] = 0;
    const float zeros[N] = {};
    if constexpr (grad)
      for (int64_t i = first; i < a.width; i += step) store_rounded(row + i, zeros);
    return;
  }
  const float hit = capped_logit<capped>(a, get(load<1>(row + target), 0));

  constexpr int deep = N == 1 ? 16 : 4;
  Sums sums;
  for (int64_t i = first; i < a.width; i += deep * step) {
    Pack<T, N> in[deep] = {};
    const int64_t left = (a.width - i + step - 1) / step;
#pragma unroll
    for (int d = 0; d < deep; ++d)
      if (d < left) in[d] = load_logits<N>(a, row, i + d * step);
    if constexpr (grad && keep)
#pragma unroll
      for (int d = 0; d < deep; ++d)
        if (d < left) store(kept + i + d * step, in[d]);
    fold<capped>(a, sums, in, left);
  }
  const float top = block_max(sums.top, shared);
  sums = {top, block_sum(sums.sum * exp_of(sums.top - top), shared + 32)};
  if (threadIdx.x == 0) a.nll[blockIdx.x] = logf(sums.sum) + (sums.top - hit);

  if constexpr (grad) {
    const float scale = a.scalars->inv_targets * a.scalars->loss_scale;
#pragma unroll 4
    for (int64_t i = first; i < a.width; i += step)
      put_grad<capped>(a, row + i, load_logits<N>(a, kept, i), i, sums, scale, target);
  }
}

// By width alone, as a row must have the same bits in any batch.
int threads_for(int64_t packs) { return packs >= 2048 ? 512 : packs >= 256 ? 128 : 32; }

template <class T, int N, bool capped, bool grad, bool keep>
void launch(CudaStream& s, const Args<T>& a, int64_t rows) {
  auto* kernel = cross_entropy_rows<T, N, capped, grad, keep>;
  const size_t shared = keep ? size_t(round_up(a.width * int64_t(sizeof(T)), 16)) : 0;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
        "asking for shared memory");
  kernel<<<unsigned(rows), threads_for(a.width / N), shared, s.handle>>>(a);
  check_launch("cross_entropy");
}

template <class T, int N, bool capped>
void launch(CudaStream& s, const Args<T>& a, int64_t rows, bool grad) {
  constexpr int64_t reserved = 1024;  // what a block uses besides the row
  if (!grad)
    launch<T, N, capped, false, false>(s, a, rows);
  else if (a.width * int64_t(sizeof(T)) + reserved <= s.card.shared_bytes)
    launch<T, N, capped, true, true>(s, a, rows);
  else
    launch<T, N, capped, true, false>(s, a, rows);
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

void cross_entropy(Stream& stream, Tensor nll, Tensor logits, Tensor targets, Tensor scalars,
                   const LossSpec& spec) {
  expect_dtypes("cross_entropy", DType::f32, nll);
  if (logits.numel() == 0) return;
  CudaStream& s = on(stream);
  by_dtype("cross_entropy", logits, [&]<class T>(T*) {
    const Args<T> a{.nll = as<float>(nll),
                    .logits = as<T>(logits),
                    .targets = as<int32_t>(targets),
                    .scalars = as<Scalars>(scalars),
                    .width = logits.cols(),
                    .vocab = spec.vocab ? spec.vocab : logits.cols(),
                    .cap = spec.softcap,
                    .inverse_cap = spec.softcap > 0 ? 1 / spec.softcap : 0};
    by_width<T>(packs_fit(a.width, logits), [&]<int N>(Number<N>) {
      if (spec.softcap > 0)
        launch<T, N, true>(s, a, logits.rows(), spec.grad);
      else
        launch<T, N, false>(s, a, logits.rows(), spec.grad);
    });
  });
}

void mean_loss(Stream& stream, Tensor loss, Tensor nll, Tensor scalars, bool add) {
  expect_dtypes("mean_loss", DType::f32, loss, nll);
  mean_of<<<1, 1024, 0, on(stream).handle>>>(as<float>(loss), as<float>(nll), as<Scalars>(scalars),
                                             nll.numel(), add);
  check_launch("mean_loss");
}

}  // namespace hearth::cuda
