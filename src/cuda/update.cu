// The update: the decision to clip or skip, and AdamW as PyTorch computes it. Memory bound: AdamW
// moves 28 bytes per fp32 parameter, 30 per bf16 or f16 one with its master. State in the host's
// memory streams through the card, bound by the bus.
#include "cuda/device.cuh"
#include "cuda/far.h"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

__global__ void gate(UpdateState* state, const float* squares, const float* loss,
                     const Scalars* scalars) {
  UpdateState& st = *state;
  const Scalars& sc = *scalars;
  const float norm = sqrtf(*squares) / sc.loss_scale;
  st.grad_norm = norm;
  st.loss = *loss;
  if (!isfinite(norm) || !isfinite(st.loss)) {
    st.skip = 1;
    st.streak += 1;
    st.skipped += 1;
    st.grad_scale = 0;
    return;
  }
  st.skip = 0;
  st.streak = 0;
  st.good_steps += 1;
  const float clipped = sc.clip > 0 && norm > sc.clip ? sc.clip / (norm + 1e-6f) : 1.0f;
  st.grad_scale = clipped / sc.loss_scale;
}

struct Adam {
  float grad_scale, beta1, beta2, eps, keep, step, root;  // root: 1 / sqrt(1 - beta2^t)
};

__device__ double power(double x, int64_t n) {
  double r = 1;
  for (; n > 0; n /= 2, x *= x)
    if (n % 2) r *= x;
  return r;
}

__device__ Adam adam_of(const UpdateState& st, const Scalars& sc, const AdamSpec& spec) {
  const auto t = int64_t(st.good_steps);
  const double first = 1 - power(double(spec.beta1), t), second = 1 - power(double(spec.beta2), t);
  return {.grad_scale = st.grad_scale,
          .beta1 = spec.beta1,
          .beta2 = spec.beta2,
          .eps = spec.eps,
          .keep = float(1 - double(sc.lr) * double(spec.decay)),
          .step = float(double(sc.lr) / first),
          .root = float(1 / sqrt(second))};
}

template <class T>
struct Args {
  T* w;
  float *master, *m, *v;  // master may be null: w is its own
  const float* g;
};

template <int N, class T>
struct Params {
  Pack<float, N> g, m, v, master;
  Pack<T, N> w;
};

template <int N, class T>
__device__ __forceinline__ Params<N, T> read(const Args<T>& a, int64_t i) {
  Params<N, T> p;
  p.g = load<N>(a.g + i);
  p.m = load<N>(a.m + i);
  p.v = load<N>(a.v + i);
  if (a.master)
    p.master = load<N>(a.master + i);
  else
    p.w = load<N>(a.w + i);
  return p;
}

template <int N, class T>
__device__ __forceinline__ void update(const Args<T>& a, int64_t i, const Params<N, T>& p,
                                       const Adam& adam) {
  float m[N], v[N], w[N];
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const float grad = get(p.g, k) * adam.grad_scale;
    m[k] = get(p.m, k) + (grad - get(p.m, k)) * (1 - adam.beta1);
    v[k] = get(p.v, k) * adam.beta2 + grad * grad * (1 - adam.beta2);
    const float old = a.master ? get(p.master, k) : get(p.w, k);
    w[k] = old * adam.keep - adam.step * m[k] / (sqrtf(v[k]) * adam.root + adam.eps);
  }
  store_rounded(a.m + i, m);
  store_rounded(a.v + i, v);
  if (a.master) store_rounded(a.master + i, w);
  store_rounded(a.w + i, w);
}

template <class T, int N>
__global__ void __launch_bounds__(256)
    adamw_range(Args<T> a, const UpdateState* state, const Scalars* scalars, AdamSpec spec,
                int64_t n) {
  __shared__ Adam shared;
  if (state->skip != 0) return;
  if (threadIdx.x == 0) shared = adam_of(*state, *scalars, spec);
  __syncthreads();
  const Adam adam = shared;
  const int64_t step = int64_t(gridDim.x) * blockDim.x * N;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + N <= n; i += step) update(a, i, read<N>(a, i), adam);
  for (; i < n; ++i) update(a, i, read<1>(a, i), adam);  // of one thread, fewer than N
}

}  // namespace

void gate_update(Stream& stream, Tensor state, Tensor squares, Tensor loss, Tensor scalars) {
  expect_dtypes("gate_update", DType::f32, squares, loss);
  gate<<<1, 1, 0, on(stream).handle>>>(as<UpdateState>(state), as<float>(squares), as<float>(loss),
                                       as<Scalars>(scalars));
  check_launch("gate_update");
}

void adamw(Stream& stream, Tensor w, Tensor master, Tensor m, Tensor v, Tensor g, Tensor state,
           Tensor scalars, const AdamSpec& spec) {
  expect_dtypes("adamw", DType::f32, master, m, v, g);
  CudaStream& s = on(stream);
  const int64_t n = w.numel();
  if (n == 0) return;
  const bool packs = packs_fit(8, w, master, m, v, g);
  by_dtype("adamw", w, [&]<class T>(T*) {
    const auto launch = [&]<int N>(Number<N>, const Args<T>& a, int64_t count) {
      const int64_t blocks = std::min(ceil_div(count, 256 * N), int64_t(s.card.processors) * 8);
      adamw_range<T, N><<<unsigned(blocks), 256, 0, s.handle>>>(a, as<UpdateState>(state),
                                                                as<Scalars>(scalars), spec, count);
    };
    const auto update = [&](const Args<T>& a, int64_t count) {
      packs ? launch(Number<4>{}, a, count) : launch(Number<1>{}, a, count);
    };
    const Args<T> all{as<T>(w), as<float>(master), as<float>(m), as<float>(v), as<float>(g)};
    if (!is_far(all.m)) return update(all, n);
    float* const far[] = {all.m, all.v, all.master};
    s.far_lanes().stream(
        s, std::span(far, all.master ? 3 : 2), n,
        [&](int64_t begin, int64_t count, std::span<float* const> near) {
          update({all.w + begin, all.master ? near[2] : nullptr, near[0], near[1], all.g + begin},
                 count);
        });
  });
  check_launch("adamw");
}

}  // namespace hearth::cuda
