// The weight update: the decision to clip or skip, then one pass of an optimizer's rule
// (core/update_rules.h). Memory bound: AdamW moves 28 bytes per fp32 parameter, and 30 per bf16 or
// f16 parameter with its master. State in host memory streams through the GPU, bound by the bus.
#include <algorithm>
#include <array>
#include <type_traits>
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

// What all elements of a launch share.
template <class Rule>
struct Common {
  typename Rule::Factors factors;
  RoundingKey key;
};

template <class... Slots>
constexpr bool any_half = (std::is_same_v<Slots, __nv_bfloat16> || ...);

// Rounds the state that is stored in bf16; i: the number of the first of N elements.
template <int N, class... Slots>
__device__ __forceinline__ void round_state(float (&state)[sizeof...(Slots) + 1][N],
                                            const RoundingKey& key, uint64_t i) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const uint64_t at = i + uint64_t(k);
    const uint32_t word = rounding_word(key, uint32_t(at), uint32_t(at >> 32));
    const auto round = [&](float& x, int slot) {
      if (x == x) x = __uint_as_float(rounded_stochastically(__float_as_uint(x), word, slot));
    };
    int slot = 0;
    ((std::is_same_v<Slots, __nv_bfloat16> ? round(state[slot][k], slot) : void(), ++slot), ...);
  }
}

// Returns the new weights as they are stored.
template <class Rule, int N, class T, class G, class... Slots>
__device__ __forceinline__ Pack<T, N> update(const Weights<T, G>& a, int64_t i,
                                             const Common<Rule>& common, Slots*... slots) {
  float grad[N], w[N], state[Rule::slots + 1][N];  // one to spare: none is no array
  load_floats(grad, a.grad + i);
  if constexpr (std::is_same_v<Rule, DescentRule>) a.factors.multiply(grad, i);
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
    w[k] = Rule::template apply<FloatMath>(w[k], grad[k], s, common.factors);
#pragma unroll
    for (int j = 0; j < Rule::slots; ++j) state[j][k] = s[j];
  }
  if constexpr (any_half<Slots...>)
    round_state<N, Slots...>(state, common.key, uint64_t(a.first + i));
  slot = 0;
  (store_rounded(slots + i, state[slot++]), ...);
  if (a.master) store_rounded(a.master + i, w);
  Pack<T, N> stored;
  round_to(stored, w);
  store(a.w + i, stored);
  return stored;
}

// What a block needs beside its memory.
struct Settings {
  const UpdateState* gate;
  const Scalars* scalars;
  RuleSpec spec;
};

// Computed once per block.
template <class Rule, class... Slots>
__device__ __forceinline__ Common<Rule> block_common(const Settings& settings) {
  __shared__ Common<Rule> shared;
  if (threadIdx.x == 0) {
    shared.factors = Rule::factors(*settings.gate, *settings.scalars, settings.spec);
    if constexpr (any_half<Slots...>) shared.key = rounding_key(*settings.gate, *settings.scalars);
  }
  __syncthreads();
  return shared;
}

// The blocks of grid.x share the elements [0, n).
template <class Rule, int N, class T, class G, class... Slots>
__device__ __forceinline__ void update_shared(const Weights<T, G>& a, const Settings& settings,
                                              int64_t n, Slots*... slots) {
  if (settings.gate->skip != 0) return;
  const Common<Rule> common = block_common<Rule, Slots...>(settings);
  const int64_t step = int64_t(gridDim.x) * blockDim.x * N;
  int64_t i = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) * N;
  for (; i + N <= n; i += step) update<Rule, N>(a, i, common, slots...);
  for (; i < n; ++i) update<Rule, 1>(a, i, common, slots...);  // the tail, by one thread
}

template <class Rule, int N, class T, class G, class... Slots>
__global__ void __launch_bounds__(256)
    update_range(Weights<T, G> a, Settings settings, int64_t n, Slots*... slots) {
  update_shared<Rule, N>(a, settings, n, slots...);
}

// Where the pieces of one launch begin: a kernel's parameters hold at most 4 KiB.
constexpr int64_t most_pieces = 256;
struct PieceTable {
  int64_t begin[most_pieces];
};

// Piece blockIdx.y of n elements, with this many factors. In the temporary of the rule the pieces
// lie one after another.
template <class Rule, int N, class T, class G, class... Slots>
__global__ void __launch_bounds__(256)
    update_pieces(Weights<T, G> a, Settings settings, const __grid_constant__ PieceTable table,
                  int64_t n, int64_t factors, Slots*... slots) {
  constexpr bool packs_weight = std::is_same_v<Rule, NesterovRule>;
  const int64_t packed = int64_t(blockIdx.y) * n, at = table.begin[blockIdx.y];
  a.w += packs_weight ? packed : at;
  a.grad += packs_weight ? at : packed;
  if (a.master) a.master += at;
  a.first += at;
  if (a.factors.data) a.factors.data += int64_t(blockIdx.y) * factors;
  update_shared<Rule, N>(a, settings, n, (slots + at)...);
}

// Blocks of this many threads, row_parts of them to a matrix, fill a large GPU with 12 matrices.
constexpr int nesterov_threads = 512;

// Nesterov's rule for matrix blockIdx.y of n elements: block p adds the squares of its part.
template <int N, class T, class Slot>
__global__ void __launch_bounds__(nesterov_threads)
    nesterov_squares(float* squares, Weights<T> a, Settings settings,
                     const __grid_constant__ PieceTable table, int64_t n, Slot* momentum) {
  __shared__ float sums[32];
  if (settings.gate->skip != 0) return;
  const Common<NesterovRule> common = block_common<NesterovRule, Slot>(settings);
  const int64_t at = table.begin[blockIdx.y];
  a.w += int64_t(blockIdx.y) * n, a.grad += at, a.first += at, momentum += at;
  const auto [begin, end] = part_of_row<N>(n);
  float total = 0;
  for (int64_t i = begin + int64_t(threadIdx.x) * N; i < end; i += nesterov_threads * N) {
    const Pack<T, N> x = update<NesterovRule, N>(a, i, common, momentum);
#pragma unroll
    for (int k = 0; k < N; ++k) total = fmaf(get(x, k), get(x, k), total);
  }
  total = block_sum(total, sums);
  if (threadIdx.x == 0) squares[int64_t(blockIdx.y) * row_parts + blockIdx.x] = total;
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

// Calls f(static_cast<G*>(nullptr)) with the type of the gradient.
template <class Rule, class F>
void by_grad(const UpdateArgs& args, const F& f) {
  if constexpr (std::is_same_v<Rule, DescentRule>)
    if (args.grad.dtype == DType::bf16) return f(static_cast<__nv_bfloat16*>(nullptr));
  expect_dtypes(Rule::name, DType::f32, args.grad);
  f(static_cast<float*>(nullptr));
}

constexpr int pack = 4;  // elements that a thread updates at once

bool packs_fit_all(const UpdateArgs& args) {
  bool fit = packs_fit(8, args.weight, args.master, args.grad);
  for (const Tensor& t : args.slots) fit = fit && packs_fit(8, t);
  if (args.factors) fit = fit && args.grad.shape[-1] % pack == 0 && packs_fit(pack, args.factors);
  const Pieces& p = args.pieces;
  for (int64_t i = 0; i < p.count; ++i) fit = fit && p.begin[i] % pack == 0 && p.size % pack == 0;
  return fit;
}

// Of the first matrix of a gradient (.., R, C).
GradientFactors factors_of(const UpdateArgs& args) {
  if (!args.factors) return {};
  expect_dtypes(DescentRule::name, DType::f32, args.factors);
  const int64_t R = args.grad.shape[-2], C = args.grad.shape[-1];
  return {.data = as<float>(args.factors), .C = uint32_t(C), .columns = R < C};
}

Settings settings_of(const UpdateArgs& args) {
  return {as<UpdateState>(args.gate), as<Scalars>(args.scalars), args.spec};
}

// Blocks along x that fill the GPU where `rows` of them run side by side.
unsigned blocks_for(const CudaStream& s, int64_t elements, int width, int64_t rows) {
  const int64_t full = ceil_div(int64_t(s.card.processors) * 8, rows);
  return unsigned(std::min(ceil_div(elements, 256 * width), full));
}

// Updates a range in device memory, or one whose state is in host memory.
template <class Rule, class T, class G, class... Slots>
void update_all(CudaStream& s, const UpdateArgs& args, Slots*... slots) {
  const int64_t n = args.weight.numel();
  const bool packs = packs_fit_all(args);
  const auto launch = [&]<int N>(Number<N>, const Weights<T, G>& a, int64_t count, Slots*... at) {
    update_range<Rule, N>
        <<<blocks_for(s, count, N, 1), 256, 0, s.handle>>>(a, settings_of(args), count, at...);
  };
  const auto update = [&](const Weights<T, G>& a, int64_t count, Slots*... at) {
    packs ? launch(Number<pack>{}, a, count, at...) : launch(Number<1>{}, a, count, at...);
  };
  const Weights<T, G> all{as<T>(args.weight), as<float>(args.master), as<G>(args.grad),
                          factors_of(args), args.first};
  const Tensor& kept = Rule::slots ? args.slots[0] : args.master;  // in the host's memory, or not
  if (!is_offloaded(kept.data)) return update(all, n, slots...);
  std::array<OffloadLanes::Array, Rule::slots + 1> offloaded;
  for (int k = 0; k < Rule::slots; ++k) offloaded[size_t(k)] = {args.slots[k]};
  offloaded[Rule::slots] = {args.master};
  s.offload_lanes().stream(
      s, std::span(offloaded).first(Rule::slots + (args.master ? 1 : 0)), n,
      [&](int64_t begin, int64_t count, std::span<std::byte* const> near) {
        auto* const master = args.master ? reinterpret_cast<float*>(near[Rule::slots]) : nullptr;
        GradientFactors factors = all.factors;
        factors.first = uint32_t(begin);
        [&]<size_t... k>(std::index_sequence<k...>) {
          update({all.w + begin, master, all.grad + begin, factors, all.first + begin}, count,
                 reinterpret_cast<Slots*>(near[k])...);
        }
        (std::index_sequence_for<Slots...>());
      });
}

// Updates all pieces by one launch, or piece by piece if their state is in host memory.
template <class Rule, class T, class G, class... Slots>
void update_all_pieces(CudaStream& s, const UpdateArgs& args, Slots*... slots) {
  const Pieces& p = args.pieces;
  const Tensor& kept = Rule::slots ? args.slots[0] : args.master;
  if (is_offloaded(kept.data)) {
    for (int64_t i = 0; i < p.count; ++i)
      update_all<Rule, T, G>(s, piece_of(args, i), (slots + p.begin[i])...);
    if (args.squares) sum_squares_in_parts(s, args.squares, args.weight);
    return;
  }
  const bool packs = packs_fit_all(args);
  constexpr bool packs_weight = std::is_same_v<Rule, NesterovRule>;
  for (int64_t first = 0; first < p.count; first += most_pieces) {
    const int64_t count = std::min(most_pieces, p.count - first), packed = first * p.size;
    PieceTable table{};
    std::copy_n(p.begin + first, count, table.begin);
    Weights<T, G> a{as<T>(args.weight) + (packs_weight ? packed : 0), as<float>(args.master),
                    as<G>(args.grad) + (packs_weight ? 0 : packed), factors_of(args), args.first};
    const int64_t factors = args.factors ? args.factors.shape[-1] : 0;
    if (factors) a.factors.data += first * factors;
    const auto launch = [&]<int N>(Number<N>) {
      if constexpr (packs_weight) {
        if (args.squares) {
          nesterov_squares<N>
              <<<dim3(unsigned(row_parts), unsigned(count)), nesterov_threads, 0, s.handle>>>(
                  as<float>(args.squares) + first * row_parts, a, settings_of(args), table, p.size,
                  slots...);
          return;
        }
      }
      const dim3 grid(blocks_for(s, p.size, N, count), unsigned(count));
      update_pieces<Rule, N>
          <<<grid, 256, 0, s.handle>>>(a, settings_of(args), table, p.size, factors, slots...);
    };
    packs ? launch(Number<pack>{}) : launch(Number<1>{});
  }
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
    expect_dtypes(Rule::name, DType::f32, args.master);
    constexpr bool takes_pieces =
        std::is_same_v<Rule, NesterovRule> || std::is_same_v<Rule, DescentRule>;
    by_dtype(Rule::name, args.weight, [&]<class T>(T*) {
      by_slots<Rule::slots>(Rule::name, args, [&]<class... Slots>(Slots*... slots) {
        by_grad<Rule>(args, [&]<class G>(G*) {
          if constexpr (takes_pieces)
            if (args.pieces.count) return update_all_pieces<Rule, T, G>(on(stream), args, slots...);
          update_all<Rule, T, G>(on(stream), args, slots...);
        });
      });
    });
    check_launch(Rule::name);
  });
}

}  // namespace hearth::cuda
