// Gradients of the norm and rotation of q and k. Memory bound: reads dy (and qkv if there is a
// norm), writes dqkv once. Teams of lanes iterate over tokens and keep their partial gradients of
// the gains in registers; the partial sums are added in a fixed order.
#include "cuda/elementwise/qk_bwd.cuh"

#include "cuda/device/reduce.h"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int threads = 128, resident = 7;  // resident: blocks per multiprocessor

template <class T, int N, bool interleaved, bool normed>
__global__ void __launch_bounds__(threads, resident)
    qk_heads_bwd(QkBwd<T> a, QkTeams teams, int lanes) {
  const QkShape& q = a.q;
  const int lane = int(threadIdx.x) & (lanes - 1);
  // A team has the same heads in every token, so that its sums belong to one gain.
  const int64_t count = int64_t(gridDim.x) * blockDim.x / unsigned(lanes);
  const int64_t at_once = count / teams.all(),
                own = (int64_t(blockIdx.x) * blockDim.x + threadIdx.x) / unsigned(lanes);
  const int64_t first_token = own / teams.all();
  const QkHeads heads = heads_of(int(own - first_token * teams.all()), teams, q);
  const bool holds = lane * 2 * N < q.head_dim && first_token < at_once;
  const Columns at = columns_of<N, interleaved>(lane, q.rotary);
  const T* gains = heads.of_q ? a.q_gain : a.k_gain;
  Pack<T, N> gain_a = {}, gain_b = {};
  if (normed && gains && holds) gain_a = load<N>(gains + at.a), gain_b = load<N>(gains + at.b);
  float dgain[2 * N] = {};

  // Teams of one warp share its shuffles, so all run as many rounds as the first.
  const int64_t rounds = (q.tokens + at_once - 1) / at_once;
  for (int64_t round = 0; round < rounds; ++round) {
    const int64_t token = first_token + round * at_once;
    const bool mine = holds && token < q.tokens;
    const int64_t first = token * q.token;
    const auto read = [&](int h) {
      return mine && h < heads.end ? QkBwdHead<T, N>(a, token, h, at, normed) : QkBwdHead<T, N>{};
    };
    QkBwdHead<T, N> next = read(heads.first);
    Angles<N> turn = {};
    if (mine && q.rotary)
      turn = angles_of<N, interleaved>(a.rope, a.positions[token], at, q.rotary);
#pragma unroll 1
    for (int i = 0, h = heads.first; i < teams.rounds; ++i, h += heads.stride) {
      const QkBwdHead<T, N> now = next;
      next = read(h + heads.stride);
      float d[2 * N];
      now.template gradient<interleaved, normed>(d, dgain, h, q, turn, gains, gain_a, gain_b,
                                                 lanes);
      if (mine && h < heads.end) store_pair<N>(a.dx + first + int64_t(h) * q.head_dim, at, d);
    }
  }
  if constexpr (normed)
    if (a.parts) {
      extern __shared__ float memory[];
      float of_q[2 * N], of_k[2 * N];
#pragma unroll
      for (int k = 0; k < 2 * N; ++k)
        of_q[k] = heads.of_q ? dgain[k] : 0, of_k[k] = heads.of_q ? 0 : dgain[k];
      put_gain_sums<N, threads>(a.parts + blockIdx.x * int64_t(2 * q.head_dim), memory, of_q, of_k,
                                at, lanes, q.head_dim);
    }
}

// Heads of any size: a warp iterates over heads, held in shared memory with its sums.
template <class T>
__global__ void qk_any_heads_bwd(QkBwd<T> a, bool interleaved) {
  extern __shared__ float memory[];
  const QkShape& q = a.q;
  const int D = q.head_dim, lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t warps = int64_t(gridDim.x) * (blockDim.x / 32);
  const int64_t own = int64_t(blockIdx.x) * (blockDim.x / 32) + warp;
  float *d = memory + warp * 4 * D, *n = d + D, *sums = n + D;  // sums (2, D)
  for (int i = lane; i < 2 * D; i += 32) sums[i] = 0;
  const float sign = q.reverse ? -1.0f : 1.0f;
  for (int64_t index = own; index < q.tokens * q.all(); index += warps) {
    const int64_t token = index / q.all();
    const int h = int(index % q.all());
    const int64_t first = token * q.token + h * D;
    const int position = q.rotary ? a.positions[token] : 0;
    __syncwarp();  // all lanes move to the next head together
    for (int i = lane; i < D; i += 32) d[i] = get(load<1>(a.dy + first + i), 0);
    if (h < q.normed()) {
      if (q.norm != QkNorm::after_rope) rotate_shared(d, a.rope, position, q, interleaved, -sign);
      if (q.norm != QkNorm::none) {
        const T* gain = h < q.heads ? a.q_gain : a.k_gain;
        float* sum = h < q.heads ? sums : sums + D;
        const float inverse = a.stat[token * q.normed() + h];
        for (int i = lane; i < D; i += 32) n[i] = get(load<1>(a.x + first + i), 0);
        if (q.norm == QkNorm::after_rope) rotate_shared(n, a.rope, position, q, interleaved, sign);
        float total = 0;
        for (int i = lane; i < D; i += 32) {
          n[i] *= inverse;
          sum[i] = fmaf(d[i], n[i], sum[i]);
          if (gain) d[i] *= get(load<1>(gain + i), 0);
          total = fmaf(d[i], n[i], total);
        }
        const float mean = warp_sum(total) / float(D);
        for (int i = lane; i < D; i += 32) d[i] = (d[i] - n[i] * mean) * inverse;
      }
      if (q.norm == QkNorm::after_rope) rotate_shared(d, a.rope, position, q, interleaved, -sign);
    }
    for (int i = lane; i < D; i += 32) {
      const float out[1] = {d[i]};
      store_rounded(a.dx + first + i, out);
    }
  }
  __syncwarp();  // another lane may have written the sum
  if (a.parts)
    for (int i = lane; i < 2 * D; i += 32) a.parts[own * 2 * D + i] = sums[i];
}

struct Grid {
  bool packs;
  int warps;       // per block, for heads of any size
  int64_t blocks;  // if packs, each block has a part; else each of its warps
  int64_t parts() const { return packs ? blocks : blocks * warps; }
};

Grid grid_of(const CudaStream& s, const QkShape& q, int N, bool packs, bool sums) {
  if (packs) {
    // All tokens at once if no sums are needed. With sums, teams iterate over tokens: as many
    // blocks as the GPU holds, but enough for one token.
    const int64_t per_token = qk_teams(q, false).all() * qk_lanes(q.head_dim, N);
    const int64_t need = ceil_div(q.tokens * per_token, threads);
    const int64_t most =
        std::max(int64_t(s.card.processors) * resident, ceil_div(per_token, threads));
    return {true, 0, sums ? std::min(need, most) : need};
  }
  const int warps = q.head_dim <= 512 ? 4 : 1;
  return {false, warps,
          std::min(ceil_div(q.tokens * q.all(), warps), int64_t(s.card.processors) * 16 / warps)};
}

template <class T>
void launch(CudaStream& s, const QkBwd<T>& a, const Grid& g, bool interleaved) {
  constexpr int N = qk_bwd_pack<T>;
  const auto blocks = unsigned(g.blocks);
  const int lanes = qk_lanes(a.q.head_dim, N);
  const QkTeams teams = qk_teams(a.q, a.dx == a.dy);
  const size_t shared = size_t(threads / 32 * 2 * a.q.head_dim) * 4;
  const bool normed = a.q.norm != QkNorm::none;
  if (!g.packs)
    qk_any_heads_bwd<<<blocks, g.warps * 32, size_t(g.warps * 4 * a.q.head_dim) * 4, s.handle>>>(
        a, interleaved);
  else if (normed && interleaved)
    qk_heads_bwd<T, N, true, true><<<blocks, threads, shared, s.handle>>>(a, teams, lanes);
  else if (normed)
    qk_heads_bwd<T, N, false, true><<<blocks, threads, shared, s.handle>>>(a, teams, lanes);
  else if (interleaved)
    qk_heads_bwd<T, N, true, false><<<blocks, threads, 0, s.handle>>>(a, teams, lanes);
  else
    qk_heads_bwd<T, N, false, false><<<blocks, threads, 0, s.handle>>>(a, teams, lanes);
  check_launch("qk_norm_rope_bwd");
}

}  // namespace

void qk_norm_rope_bwd(Stream& stream, const QkNormRopeBwdArgs& args) {
  const QkSpec& spec = args.spec;
  const bool normed = spec.norm != QkNorm::none;
  expect_dtypes("qk_norm_rope_bwd", args.dy.dtype, args.dqkv, args.q_gain, args.k_gain);
  if (normed) expect_dtypes("qk_norm_rope_bwd", args.dy.dtype, args.qkv);
  expect_dtypes("qk_norm_rope_bwd", DType::f32, args.dq_gain, args.dk_gain, args.stat, args.rope);
  if (args.dy.numel() == 0) return;
  CudaStream& s = on(stream);
  const int64_t D = spec.head_dim;
  by_dtype("qk_norm_rope_bwd", args.dy, [&]<class T>(T*) {
    const bool packs =
        packs_fit(D, args.dqkv, args.dy, normed ? args.qkv : Tensor{}, args.q_gain, args.k_gain) &&
        qk_packs_fit(spec, qk_bwd_pack<T>);
    QkBwd<T> a{.dx = as<T>(args.dqkv),
               .parts = nullptr,
               .dy = as<T>(args.dy),
               .x = as<T>(args.qkv),
               .stat = as<float>(args.stat),
               .positions = as<int32_t>(args.positions),
               .rope = as<float>(args.rope),
               .q_gain = as<T>(args.q_gain),
               .k_gain = as<T>(args.k_gain),
               .q = qk_shape(spec, args.dy.numel())};
    const bool sums = args.dq_gain || args.dk_gain;
    const int64_t fused = args.fp8 && packs ? qk_norm_rope_bwd_fp8_blocks(s, a.q, args.fp8) : 0;
    const Grid grid = grid_of(s, a.q, qk_bwd_pack<T>, packs, sums);
    const int64_t parts = fused ? fused : grid.parts();
    const int64_t part_bytes = sums ? round_up(parts * 2 * D * 4, 256) : 0;
    // The separate rounding reads dqkv, even if nothing else does.
    const bool lacks = !fused && !args.dqkv;
    auto* scratch = static_cast<std::byte*>(s.scratch(part_bytes + (lacks ? args.dy.bytes() : 0)));
    if (sums) a.parts = reinterpret_cast<float*>(scratch);
    if (lacks) a.dx = reinterpret_cast<T*>(scratch + part_bytes);
    if constexpr (std::is_same_v<T, __nv_bfloat16>)
      if (fused) qk_norm_rope_bwd_fp8(s, a, args.fp8, spec.interleaved);
    if (!fused) {
      launch(s, a, grid, spec.interleaved);
      copy_values(a.dx, a.dy, spec, a.q, args.dy.dtype, s);
    }
    if (a.parts)
      add_parts(s, {{as<float>(args.dq_gain), 1, spec.add}, {as<float>(args.dk_gain), 1, spec.add}},
                a.parts, parts, D);
    if (args.fp8 && !fused)
      quantise_fp8(s, {.to = args.fp8,
                       .x = {reinterpret_cast<std::byte*>(a.dx), args.dy.shape, args.dy.dtype}});
  });
}

}  // namespace hearth::cuda
