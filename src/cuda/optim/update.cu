// The weight update: the decision to clip or skip, then one pass of an optimizer's rule
// (core/update_rules.h). Memory bound: AdamW moves 28 bytes per fp32 parameter, and 30 per bf16 or
// f16 parameter with its master. State in host memory streams through the GPU, bound by the bus.
#include <array>
#include <utility>

#include "cuda/device/host_offload.h"
#include "cuda/kernels.h"
#include "cuda/optim/update.cuh"

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

template <class Rule, int N, class T, class... Slots>
__device__ __forceinline__ void update(const Weights<T>& a, int64_t i,
                                       const typename Rule::Factors& factors, Slots*... slots) {
  float grad[N], w[N], state[Rule::slots + 1][N];  // one to spare: none is no array
  load_floats(grad, a.grad + i);
  [[maybe_unused]] int slot = 0;
  (load_floats(state[slot++], slots + i), ...);
  if (a.master)
    load_floats(w, a.master + i);
  else
    load_floats(w, a.w + i);
#pragma unroll
  for (int k = 0; k < N; ++k) {
    float s[Rule::slots + 1];
#pragma unroll
    for (int j = 0; j < Rule::slots; ++j) s[j] = state[j][k];
    w[k] = Rule::template apply<FloatMath>(w[k], grad[k], s, factors);
#pragma unroll
    for (int j = 0; j < Rule::slots; ++j) state[j][k] = s[j];
  }
  slot = 0;
  (store_rounded(slots + i, state[slot++]), ...);
  if (a.master) store_rounded(a.master + i, w);
  store_rounded(a.w + i, w);
}

template <class Rule, int N, class T, class... Slots>
__global__ void __launch_bounds__(256)
    update_range(Weights<T> a, const UpdateState* gate, const Scalars* scalars, RuleSpec spec,
                 int64_t n, Slots*... slots) {
  __shared__ typename Rule::Factors shared;
  if (gate->skip != 0) return;
  if (threadIdx.x == 0) shared = Rule::factors(*gate, *scalars, spec);
  __syncthreads();
  const typename Rule::Factors factors = shared;
  const int64_t step = int64_t(gridDim.x) * blockDim.x * N;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + N <= n; i += step) update<Rule, N>(a, i, factors, slots...);
  for (; i < n; ++i) update<Rule, 1>(a, i, factors, slots...);  // the tail, by one thread
}

// Calls f(pointers to all slots), each slot with its own dtype; `left` slots are still to be added.
template <int left, class F, class... Slots>
void by_slots(const char* op, const UpdateArgs& a, const F& f, Slots*... known) {
  if constexpr (left == 0) {
    f(known...);
  } else {
    const Tensor& t = a.slots[sizeof...(known)];
    if (t.dtype == DType::bf16)
      by_slots<left - 1>(op, a, f, known..., as<__nv_bfloat16>(t));
    else
      expect_dtypes(op, DType::f32, t), by_slots<left - 1>(op, a, f, known..., as<float>(t));
  }
}

// Updates a range in device memory, or one whose state is in host memory.
template <class Rule, class T, class... Slots>
void update_all(CudaStream& s, const UpdateArgs& args, Slots*... slots) {
  const int64_t n = args.weight.numel();
  bool packs = packs_fit(8, args.weight, args.master, args.grad);
  for (const Tensor& t : args.slots) packs = packs && packs_fit(8, t);
  const auto launch = [&]<int N>(Number<N>, const Weights<T>& a, int64_t count, Slots*... at) {
    const int64_t blocks = std::min(ceil_div(count, 256 * N), int64_t(s.card.processors) * 8);
    update_range<Rule, N><<<unsigned(blocks), 256, 0, s.handle>>>(
        a, as<UpdateState>(args.gate), as<Scalars>(args.scalars), args.spec, count, at...);
  };
  const auto update = [&](const Weights<T>& a, int64_t count, Slots*... at) {
    packs ? launch(Number<4>{}, a, count, at...) : launch(Number<1>{}, a, count, at...);
  };
  const Weights<T> all{as<T>(args.weight), as<float>(args.master), as<float>(args.grad)};
  const Tensor& kept = Rule::slots ? args.slots[0] : args.master;  // in the host's memory, or not
  if (!is_offloaded(kept.data)) return update(all, n, slots...);
  std::array<OffloadLanes::Array, Rule::slots + 1> offloaded;
  for (int k = 0; k < Rule::slots; ++k) offloaded[size_t(k)] = {args.slots[k]};
  offloaded[Rule::slots] = {args.master};
  s.offload_lanes().stream(
      s, std::span(offloaded).first(Rule::slots + (args.master ? 1 : 0)), n,
      [&](int64_t begin, int64_t count, std::span<std::byte* const> near) {
        auto* const master = args.master ? reinterpret_cast<float*>(near[Rule::slots]) : nullptr;
        [&]<size_t... k>(std::index_sequence<k...>) {
          update({all.w + begin, master, all.grad + begin}, count,
                 reinterpret_cast<Slots*>(near[k])...);
        }
        (std::index_sequence_for<Slots...>());
      });
}

}  // namespace

void gate_update(Stream& stream, const GateUpdateArgs& args) {
  expect_dtypes("gate_update", DType::f32, args.squares, args.loss);
  gate<<<1, 1, 0, on(stream).handle>>>(as<UpdateState>(args.state), as<float>(args.squares),
                                       as<float>(args.loss), as<Scalars>(args.scalars));
  check_launch("gate_update");
}

void update_weights(Stream& stream, const UpdateArgs& args) {
  if (args.weight.numel() == 0) return;
  if (args.scales[0]) return update_coded(on(stream), args);
  by_rule(args.spec.rule, [&]<class Rule>(Rule) {
    expect_dtypes(Rule::name, DType::f32, args.master, args.grad);
    by_dtype(Rule::name, args.weight, [&]<class T>(T*) {
      by_slots<Rule::slots>(Rule::name, args, [&]<class... Slots>(Slots*... slots) {
        update_all<Rule, T>(on(stream), args, slots...);
      });
    });
    check_launch(Rule::name);
  });
}

}  // namespace hearth::cuda
