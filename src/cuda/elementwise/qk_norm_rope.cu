// RMS norm and rotary embedding of the heads of q and k in packed qkv. Memory bound: reads and
// writes qkv once (in place: without v).
#include "cuda/elementwise/qk.cuh"

#include "cuda/device/dependent_launch.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T>
struct Args {
  T* y;
  float* stat;  // may be null
  const T* x;
  const int32_t* positions;
  const float* rope;
  const T *q_gain, *k_gain;  // may be null
  QkShape q;
};

template <class T, int N>
struct Pair {
  Pack<T, N> a, b;
};

template <int N, class T>
__device__ __forceinline__ Pair<T, N> load_pair(const T* head, Columns at) {
  return {load<N>(head + at.a), load<N>(head + at.b)};
}

template <class T, int N, bool interleaved, bool normed>
__global__ void __launch_bounds__(128, normed ? 7 : 8)
    qk_heads(Args<T> a, QkTeams teams, int lanes) {
  let_next_start();
  wait_for_previous();
  const QkShape& q = a.q;
  const int lane = int(threadIdx.x) & (lanes - 1);
  // 32 bits are enough for a team index: each team has at least 64 bytes.
  const uint32_t team = uint32_t((uint64_t(blockIdx.x) * blockDim.x + threadIdx.x) / lanes);
  const int64_t token = team / uint32_t(teams.all());
  const QkHeads heads = heads_of(int(team % uint32_t(teams.all())), teams, q);
  const bool mine = lane * 2 * N < q.head_dim && token < q.tokens;
  const int64_t first = token * q.token;
  const Columns at = columns_of<N, interleaved>(lane, q.rotary);
  const float sign = q.reverse ? -1.0f : 1.0f;
  const auto read = [&](int h) {
    return mine && h < heads.end ? load_pair<N>(a.x + first + int64_t(h) * q.head_dim, at)
                                 : Pair<T, N>{};
  };
  Pair<T, N> next = read(heads.first), gain = {};
  Angles<N> turn = {};
  if (mine && q.rotary) turn = angles_of<N, interleaved>(a.rope, a.positions[token], at, q.rotary);
  const T* gains = heads.of_q ? a.q_gain : a.k_gain;
  if (normed && mine && gains) gain = load_pair<N>(gains, at);

    // Teams of one warp may have one head more or less; all take part in every sum.
#pragma unroll 1
  for (int round = 0, h = heads.first; round < teams.rounds; ++round, h += heads.stride) {
    float x[2 * N];
    unpack_pair(x, next.a, next.b);
    next = read(h + heads.stride);
    const bool live = h < q.normed(), turns = live && q.rotary;  // v is unchanged
    if (q.norm != QkNorm::before_rope && turns) rotate<N, interleaved>(x, turn, sign);
    if constexpr (normed) {
      float squares = 0;
#pragma unroll
      for (int k = 0; k < 2 * N; ++k) squares = fmaf(x[k], x[k], squares);
      const float inverse = rsqrtf(team_sum(squares, lanes) / float(q.head_dim) + q.eps);
      if (live) {
#pragma unroll
        for (int k = 0; k < 2 * N; ++k) {
          x[k] *= inverse;
          if (gains) x[k] *= k < N ? get(gain.a, k % N) : get(gain.b, k % N);
        }
        if (a.stat && mine && lane == 0 && h < heads.end) a.stat[token * q.normed() + h] = inverse;
      }
    }
    if (q.norm == QkNorm::before_rope && turns) rotate<N, interleaved>(x, turn, sign);
    if (mine && h < heads.end) store_pair<N>(a.y + first + int64_t(h) * q.head_dim, at, x);
  }
}

// Heads of any size: one warp per head, in shared memory.
template <class T>
__global__ void qk_any_heads(Args<T> a, bool interleaved) {
  extern __shared__ float memory[];
  const QkShape& q = a.q;
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t index = int64_t(blockIdx.x) * (blockDim.x / 32) + warp;
  const int64_t token = index / q.all();
  if (token >= q.tokens) return;
  const int h = int(index % q.all());
  float* x = memory + warp * q.head_dim;
  const int64_t first = token * q.token + h * q.head_dim;
  const T* head = a.x + first;
  for (int i = lane; i < q.head_dim; i += 32) x[i] = get(load<1>(head + i), 0);
  if (h < q.normed()) {
    const int position = q.rotary ? a.positions[token] : 0;
    const float sign = q.reverse ? -1.0f : 1.0f;
    if (q.norm != QkNorm::before_rope) rotate_shared(x, a.rope, position, q, interleaved, sign);
    if (q.norm != QkNorm::none) {
      float squares = 0;
      for (int i = lane; i < q.head_dim; i += 32) squares = fmaf(x[i], x[i], squares);
      const float inverse = 1 / sqrtf(warp_sum(squares) / float(q.head_dim) + q.eps);
      const T* gain = h < q.heads ? a.q_gain : a.k_gain;
      for (int i = lane; i < q.head_dim; i += 32)
        x[i] *= gain ? inverse * get(load<1>(gain + i), 0) : inverse;
      if (a.stat && lane == 0) a.stat[token * q.normed() + h] = inverse;
    }
    if (q.norm == QkNorm::before_rope) rotate_shared(x, a.rope, position, q, interleaved, sign);
  }
  for (int i = lane; i < q.head_dim; i += 32) {
    const float out[1] = {x[i]};
    store_rounded(a.y + first + i, out);
  }
}

template <class T, int N>
void launch_packs(CudaStream& s, const Args<T>& a, bool interleaved) {
  const int lanes = qk_lanes(a.q.head_dim, N);
  const QkTeams teams = qk_teams(a.q, a.y == a.x);
  const auto blocks = unsigned(ceil_div(a.q.tokens * teams.all() * lanes, 128));
  const bool normed = a.q.norm != QkNorm::none;
  if (normed && interleaved)
    launch_dependent(s, qk_heads<T, N, true, true>, blocks, 128, a, teams, lanes);
  else if (normed)
    launch_dependent(s, qk_heads<T, N, false, true>, blocks, 128, a, teams, lanes);
  else if (interleaved)
    launch_dependent(s, qk_heads<T, N, true, false>, blocks, 128, a, teams, lanes);
  else
    launch_dependent(s, qk_heads<T, N, false, false>, blocks, 128, a, teams, lanes);
}

}  // namespace

void qk_norm_rope(Stream& stream, const QkNormRopeArgs& args) {
  const QkSpec& spec = args.spec;
  expect_dtypes("qk_norm_rope", args.qkv.dtype, args.y, args.q_gain, args.k_gain);
  expect_dtypes("qk_norm_rope", DType::f32, args.stat, args.rope);
  if (args.qkv.numel() == 0) return;
  CudaStream& s = on(stream);
  by_dtype("qk_norm_rope", args.qkv, [&]<class T>(T*) {
    const Args<T> a{.y = as<T>(args.y),
                    .stat = as<float>(args.stat),
                    .x = as<T>(args.qkv),
                    .positions = as<int32_t>(args.positions),
                    .rope = as<float>(args.rope),
                    .q_gain = as<T>(args.q_gain),
                    .k_gain = as<T>(args.k_gain),
                    .q = qk_shape(spec, args.qkv.numel())};
    if (packs_fit(spec.head_dim, args.y, args.qkv, args.q_gain, args.k_gain) &&
        qk_packs_fit(spec, wide<T>)) {
      launch_packs<T, wide<T>>(s, a, spec.interleaved);
    } else {
      const int warps = spec.head_dim <= 1024 ? 4 : 1;
      const int64_t blocks = ceil_div(a.q.tokens * a.q.all(), warps);
      qk_any_heads<<<unsigned(blocks), warps * 32, size_t(warps * spec.head_dim) * 4, s.handle>>>(
          a, spec.interleaved);
    }
    copy_values(a.y, a.x, spec, a.q, args.qkv.dtype, s);
  });
  check_launch("qk_norm_rope");
}

}  // namespace hearth::cuda
