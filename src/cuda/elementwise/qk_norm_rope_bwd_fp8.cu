// The gradient of the norm and rotation of q and k, rounded to fp8 as well: plain and transposed.
// Memory bound: a token of C two-byte elements moves 4C bytes, 6C with a norm. A block takes 32
// tokens, one per team of lanes, and transposes their codes through shared memory.
#include "cuda/device/fp8_codes.cuh"
#include "cuda/elementwise/qk_bwd.cuh"

namespace hearth::cuda {
namespace {

constexpr int rows = Fp8Lines::rows, threads = 256;

using Bf16 = __nv_bfloat16;
constexpr int N = qk_bwd_pack<Bf16>;
static_assert(N == 4, "a pack is rounded to one word of codes");

enum class Pass : uint8_t { measure, round };  // measure: only finds max |dqkv|

// Rounds a thread's packs of a head.
struct Codes {
  const QkBwd<Bf16>& a;
  const Fp8Target& to;
  Columns at;
  float inverse;
  bool wide_range;
  uint32_t largest = 0;

  __device__ uint32_t four(const float (&v)[N]) const {
    return wide_range ? four_codes<__NV_E5M2>(v, inverse) : four_codes<__NV_E4M3>(v, inverse);
  }
  // Half a head: `first` is the place of its pack in the tensor, `line` that in shared memory.
  template <Pass pass>
  __device__ void put(const float* d, int64_t first, uint8_t* line) {
    float v[N];
#pragma unroll
    for (int k = 0; k < N; ++k) v[k] = d[k];
    Pack<Bf16, N> r;
    round_to(r, v);
#pragma unroll
    for (int k = 0; k < N; ++k) {
      v[k] = get(r, k);
      largest = max(largest, magnitude(v[k]));
    }
    if constexpr (pass == Pass::round) {
      const uint32_t codes = four(v);
      if (a.dx) store(a.dx + first, r);
      if (to.y) *reinterpret_cast<uint32_t*>(to.y + first) = codes;
      *reinterpret_cast<uint32_t*>(line) = codes;
    }
  }
};

template <bool interleaved, bool normed, Pass pass>
__global__ void __launch_bounds__(threads, 3)
    qk_codes_bwd(QkBwd<Bf16> a, Fp8Target to, bool wide_range, int lanes) {
  extern __shared__ uint4 memory[];
  constexpr bool writes = pass == Pass::round;
  const bool measured = to.measures();
  if (!writes && !measured) return;
  auto* lines = reinterpret_cast<uint8_t*>(memory);
  const QkShape& q = a.q;
  const int lane = int(threadIdx.x) & (lanes - 1), C = int(q.token);
  const bool holds = lane * 2 * N < q.head_dim;
  const Columns at = columns_of<N, interleaved>(lane, q.rotary);
  const float inverse =
      writes ? to.inverse_scale(measured, wide_range, blockIdx.x == 0 && threadIdx.x == 0) : 0;
  Codes codes{a, to, at, inverse, wide_range};
  const int64_t row0 = int64_t(blockIdx.x) * rows;
  float dq_gain[2 * N] = {}, dk_gain[2 * N] = {};

  // All teams of a warp run the same number of rounds, since they share its shuffles.
  for (int r = int(threadIdx.x) / lanes; r < rows; r += threads / lanes) {
    const int64_t token = row0 + r;
    const bool mine = holds && token < q.tokens;
    uint8_t* line = lines + Fp8Lines::at(r, C);
    const auto read = [&](int h) {
      return mine && h < q.all() ? QkBwdHead<Bf16, N>(a, token, h, at, normed)
                                 : QkBwdHead<Bf16, N>{};
    };
    QkBwdHead<Bf16, N> next = read(0);
    Angles<N> turn = {};
    if (mine && q.rotary)
      turn = angles_of<N, interleaved>(a.rope, a.positions[token], at, q.rotary);
    // Heads first .. end - 1, which share a gain.
    const auto some = [&](int first, int end, const Bf16* gain, float(&dgain)[2 * N]) {
      Pack<Bf16, N> gain_a = {}, gain_b = {};
      if (normed && gain && holds) gain_a = load<N>(gain + at.a), gain_b = load<N>(gain + at.b);
#pragma unroll 1
      for (int h = first; h < end; ++h) {
        const QkBwdHead<Bf16, N> now = next;
        next = read(h + 1);
        float d[2 * N];
        now.template gradient<interleaved, normed>(d, dgain, h, q, turn, gain, gain_a, gain_b,
                                                   lanes);
        const int head = h * q.head_dim;
        if (mine) {
          const int64_t begin = token * C + head;
          codes.put<pass>(d, begin + at.a, line + head + at.a);
          codes.put<pass>(d + N, begin + at.b, line + head + at.b);
        } else if (writes && holds) {  // zeros in the transposed copy
          *reinterpret_cast<uint32_t*>(line + head + at.a) = 0;
          *reinterpret_cast<uint32_t*>(line + head + at.b) = 0;
        }
      }
    };
    some(0, q.heads, a.q_gain, dq_gain);
    some(q.heads, q.all(), a.k_gain, dk_gain);
  }
  if (writes && to.yt) {
    __syncthreads();
    Fp8Lines::write_transposed<threads>(to, lines, row0);
  }
  if (!writes || !measured) raise_largest<threads>(to.site, codes.largest);
  if constexpr (normed && writes)
    if (a.parts) {
      __syncthreads();
      put_gain_sums<N, threads>(a.parts + blockIdx.x * int64_t(2 * q.head_dim),
                                reinterpret_cast<float*>(memory), dq_gain, dk_gain, at, lanes,
                                q.head_dim);
    }
}

size_t shared_bytes(const QkShape& q) {
  return std::max(Fp8Lines::bytes(q.token), size_t(threads / 32 * 2 * q.head_dim) * 4);
}

template <bool interleaved, bool normed, Pass pass>
void launch(CudaStream& s, const QkBwd<Bf16>& a, const Fp8Target& to, bool wide_range) {
  auto* kernel = qk_codes_bwd<interleaved, normed, pass>;
  const size_t bytes = shared_bytes(a.q);
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(bytes)),
        "asking for shared memory");
  kernel<<<unsigned(ceil_div(a.q.tokens, rows)), threads, bytes, s.handle>>>(
      a, to, wide_range, qk_lanes(a.q.head_dim, N));
  check_launch("qk_norm_rope_bwd in fp8");
}

template <bool interleaved, bool normed>
void launch(CudaStream& s, const QkBwd<Bf16>& a, const Fp8Target& to, bool wide_range) {
  launch<interleaved, normed, Pass::measure>(s, a, to, wide_range);
  launch<interleaved, normed, Pass::round>(s, a, to, wide_range);
}

}  // namespace

int64_t qk_norm_rope_bwd_fp8_blocks(const CudaStream& s, const QkShape& q, const Fp8Output& to) {
  // Two blocks must fit into a multiprocessor, whose shared memory is that of its largest block.
  const bool fits = 2 * (int64_t(shared_bytes(q)) + 1024) <= s.card.shared_bytes;
  if (!fits || q.token % 16 || q.values == 0 || to.sums || !is_fp8(to.dtype())) return 0;
  return ceil_div(q.tokens, rows);
}

void qk_norm_rope_bwd_fp8(CudaStream& s, const QkBwd<Bf16>& a, const Fp8Output& fp8,
                          bool interleaved) {
  const Fp8Target to(fp8, a.q.tokens);
  const bool wide_range = fp8.dtype() == DType::e5m2, normed = a.q.norm != QkNorm::none;
  if (normed)
    interleaved ? launch<true, true>(s, a, to, wide_range)
                : launch<false, true>(s, a, to, wide_range);
  else
    interleaved ? launch<true, false>(s, a, to, wide_range)
                : launch<false, false>(s, a, to, wide_range);
}

}  // namespace hearth::cuda
