// AdamW with 8-bit moments (core/dynamic_code.h), in one pass: a warp decodes a block of 256
// elements, updates it in fp32, finds its largest magnitudes and encodes it. Moves 16 bytes per
// fp32 parameter, and 18 per bf16 or f16 parameter with its master.
#include <array>
#include <utility>

#include "cuda/device/host_offload.h"
#include "cuda/optim/update.cuh"

namespace hearth::cuda {
namespace {

using Rule = AdamwRule;

__device__ constexpr DynamicCode code_tables[] = {make_dynamic_code(false),
                                                  make_dynamic_code(true)};

struct CodedSlots {
  uint8_t* codes[Rule::slots];
  float* scales[Rule::slots];
};

constexpr int threads = 256, warps = threads / 32;
constexpr int resident = 4;  // blocks per processor, one wave: each copies the tables once
// A lane has two packs of four elements, half a block apart.
constexpr int packs = 2, pack = 4, half_block = 32 * pack;
static_assert(packs * half_block == code_block);

// One lane's part of a block.
struct Elements {
  float grad[packs][pack], w[packs][pack], state[Rule::slots][packs][pack];
};

template <class T>
__device__ __forceinline__ void load_weights(Elements& e, const Weights<T>& a, int p, int64_t i) {
  load_floats(e.grad[p], a.grad + i);
  if (a.master)
    load_floats(e.w[p], a.master + i);
  else
    load_floats(e.w[p], a.w + i);
}

__device__ __forceinline__ float decoded(const DynamicCode& table, uint32_t code, float scale) {
  return __fmul_rn(table.value[code], scale);  // rounded like the CPU's, not part of an FMA
}

// `whole`: the block has 256 elements and all arrays allow packs; else elements are loaded one by
// one up to n, and those past n are 0.
template <class T>
__device__ __forceinline__ void load_block(Elements& e, const Weights<T>& a, const CodedSlots& c,
                                           const DynamicCode* const (&tables)[Rule::slots],
                                           int64_t block, int64_t n, bool whole) {
  float scale[Rule::slots];
#pragma unroll
  for (int k = 0; k < Rule::slots; ++k) scale[k] = c.scales[k][block];
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int64_t i = block * code_block + p * half_block + int(threadIdx.x) % 32 * pack;
    if (whole) {
      load_weights(e, a, p, i);
#pragma unroll
      for (int k = 0; k < Rule::slots; ++k) {
        const uint32_t codes = *reinterpret_cast<const uint32_t*>(c.codes[k] + i);
#pragma unroll
        for (int j = 0; j < pack; ++j)
          e.state[k][p][j] = decoded(*tables[k], codes >> (8 * j) & 255u, scale[k]);
      }
    } else {
#pragma unroll
      for (int j = 0; j < pack; ++j) {
        const bool in = i + j < n;
        float grad[1] = {0}, w[1] = {0};
        if (in) {
          load_floats(grad, a.grad + i + j);
          if (a.master)
            load_floats(w, a.master + i + j);
          else
            load_floats(w, a.w + i + j);
        }
        e.grad[p][j] = grad[0], e.w[p][j] = w[0];
#pragma unroll
        for (int k = 0; k < Rule::slots; ++k)
          e.state[k][p][j] = in ? decoded(*tables[k], c.codes[k][i + j], scale[k]) : 0.0f;
      }
    }
  }
}

template <class T>
__device__ __forceinline__ void store_block(const Elements& e, const Weights<T>& a,
                                            const CodedSlots& c,
                                            const DynamicCode* const (&tables)[Rule::slots],
                                            const float (&inverse)[Rule::slots], int64_t block,
                                            int64_t n, bool whole) {
#pragma unroll
  for (int p = 0; p < packs; ++p) {
    const int64_t i = block * code_block + p * half_block + int(threadIdx.x) % 32 * pack;
    uint32_t codes[Rule::slots] = {};
#pragma unroll
    for (int k = 0; k < Rule::slots; ++k)
#pragma unroll
      for (int j = 0; j < pack; ++j)
        codes[k] |= uint32_t(tables[k]->encode(__fmul_rn(e.state[k][p][j], inverse[k]))) << (8 * j);
    if (whole) {
      if (a.master) store_rounded(a.master + i, e.w[p]);
      store_rounded(a.w + i, e.w[p]);
#pragma unroll
      for (int k = 0; k < Rule::slots; ++k) *reinterpret_cast<uint32_t*>(c.codes[k] + i) = codes[k];
    } else {
#pragma unroll
      for (int j = 0; j < pack; ++j) {
        if (i + j >= n) continue;
        const float w[1] = {e.w[p][j]};
        if (a.master) store_rounded(a.master + i + j, w);
        store_rounded(a.w + i + j, w);
#pragma unroll
        for (int k = 0; k < Rule::slots; ++k) c.codes[k][i + j] = uint8_t(codes[k] >> (8 * j));
      }
    }
  }
}

// Applies the rule; most[k] becomes the largest magnitude of slot k in the block, in all lanes.
__device__ __forceinline__ void apply_rule(Elements& e, float (&most)[Rule::slots],
                                           const Rule::Factors& factors) {
#pragma unroll
  for (int k = 0; k < Rule::slots; ++k) most[k] = 0;
#pragma unroll
  for (int p = 0; p < packs; ++p)
#pragma unroll
    for (int j = 0; j < pack; ++j) {
      float s[Rule::slots];
#pragma unroll
      for (int k = 0; k < Rule::slots; ++k) s[k] = e.state[k][p][j];
      e.w[p][j] = Rule::apply<FloatMath>(e.w[p][j], e.grad[p][j], s, factors);
#pragma unroll
      for (int k = 0; k < Rule::slots; ++k)
        e.state[k][p][j] = s[k], most[k] = fmaxf(most[k], fabsf(s[k]));
    }
#pragma unroll
  for (int k = 0; k < Rule::slots; ++k) most[k] = warp_max(most[k]);
}

template <class T>
__global__ void __launch_bounds__(threads, resident)
    update_blocks(Weights<T> a, CodedSlots c, const UpdateState* gate, const Scalars* scalars,
                  RuleSpec spec, int64_t n, bool aligned) {
  __shared__ Rule::Factors shared_factors;
  __shared__ DynamicCode shared_tables[2];
  if (gate->skip != 0) return;
  constexpr int words = int(sizeof(code_tables) / sizeof(uint32_t));
  static_assert(words * sizeof(uint32_t) == sizeof(code_tables));
  for (int i = int(threadIdx.x); i < words; i += threads)
    reinterpret_cast<uint32_t*>(shared_tables)[i] =
        reinterpret_cast<const uint32_t*>(code_tables)[i];
  if (threadIdx.x == 0) shared_factors = Rule::factors(*gate, *scalars, spec);
  __syncthreads();
  const Rule::Factors factors = shared_factors;
  const DynamicCode* tables[Rule::slots];
#pragma unroll
  for (int k = 0; k < Rule::slots; ++k) tables[k] = &shared_tables[Rule::is_signed(k)];

  const int64_t blocks = ceil_div(n, code_block), step = int64_t(gridDim.x) * warps;
  for (int64_t b = int64_t(blockIdx.x) * warps + threadIdx.x / 32; b < blocks; b += step) {
    const bool whole = aligned && (b + 1) * code_block <= n;
    Elements e;
    load_block(e, a, c, tables, b, n, whole);
    float most[Rule::slots], inverse[Rule::slots];
    apply_rule(e, most, factors);
#pragma unroll
    for (int k = 0; k < Rule::slots; ++k) {
      const BlockScale scale = block_scale(most[k]);
      inverse[k] = scale.inverse;
      if (threadIdx.x % 32 == 0) c.scales[k][b] = scale.scale;
    }
    store_block(e, a, c, tables, inverse, b, n, whole);
  }
}

template <class T>
void update_all(CudaStream& s, const UpdateArgs& args) {
  const int64_t n = args.weight.numel();
  bool aligned = packs_fit(16, args.weight, args.master, args.grad);
  for (const Tensor& t : args.slots) aligned = aligned && packs_fit(16, t);
  const auto launch = [&](const Weights<T>& a, const CodedSlots& c, int64_t count) {
    const int64_t wanted = ceil_div(ceil_div(count, code_block), warps);
    const int64_t grid = std::min(wanted, int64_t(s.card.processors) * resident);
    update_blocks<<<unsigned(grid), threads, 0, s.handle>>>(
        a, c, as<UpdateState>(args.gate), as<Scalars>(args.scalars), args.spec, count, aligned);
  };
  const Weights<T> all{as<T>(args.weight), as<float>(args.master), as<float>(args.grad)};
  if (!is_offloaded(args.slots[0].data)) {
    CodedSlots c{};
    for (int k = 0; k < Rule::slots; ++k)
      c.codes[k] = as<uint8_t>(args.slots[k]), c.scales[k] = as<float>(args.scales[k]);
    return launch(all, c, n);
  }
  std::vector<OffloadLanes::Array> arrays;
  for (int k = 0; k < Rule::slots; ++k) {
    arrays.push_back({args.slots[k]});
    arrays.push_back({args.scales[k], code_block});
  }
  if (args.master) arrays.push_back({args.master});
  s.offload_lanes().stream(
      s, arrays, n, [&](int64_t begin, int64_t count, std::span<std::byte* const> near) {
        CodedSlots c{};
        for (int k = 0; k < Rule::slots; ++k) {
          c.codes[k] = reinterpret_cast<uint8_t*>(near[2 * size_t(k)]);
          c.scales[k] = reinterpret_cast<float*>(near[2 * size_t(k) + 1]);
        }
        auto* const master = args.master ? reinterpret_cast<float*>(near.back()) : nullptr;
        launch({all.w + begin, master, all.grad + begin}, c, count);
      });
}

}  // namespace

void update_coded(CudaStream& s, const UpdateArgs& args) {
  expect_dtypes(Rule::name, DType::f32, args.master, args.grad);
  for (int k = 0; k < Rule::slots; ++k) {
    expect_dtypes(Rule::name, DType::u8, args.slots[k]);
    expect_dtypes(Rule::name, DType::f32, args.scales[k]);
  }
  by_dtype(Rule::name, args.weight, [&]<class T>(T*) { update_all<T>(s, args); });
  check_launch(Rule::name);
}

}  // namespace hearth::cuda
