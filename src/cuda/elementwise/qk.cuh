// Rotary embedding of heads in packed qkv, for forward and backward. A thread holds two packs of a
// head that rotate together, so pairs never cross threads; `lanes` threads of a warp share a head.
#pragma once

#include "cuda/device/device.cuh"

namespace hearth::cuda {

struct QkShape {
  int heads, kv_heads, head_dim, rotary;
  bool reverse;
  QkNorm norm;
  float eps;
  int values;             // heads of v in the kernels: 0 if not as wide as q's and k's
  int64_t token, tokens;  // elements per token; number of tokens
  __host__ __device__ int normed() const { return heads + kv_heads; }
  __host__ __device__ int all() const { return heads + kv_heads + values; }
};

inline QkShape qk_shape(const QkSpec& s, int64_t elements) {
  const bool even = s.v_size() == s.kv_heads * s.head_dim;
  return {int(s.heads),    int(s.kv_heads),
          int(s.head_dim), int(s.rotary),
          s.reverse,       s.norm,
          s.eps,           even ? int(s.kv_heads) : 0,
          s.token(),       elements / s.token()};
}

// Copies heads of v that are not as wide as those of q and k, which the kernels skip.
inline void copy_values(void* y, const void* x, const QkSpec& s, const QkShape& q, DType dtype,
                        CudaStream& stream) {
  if (q.values > 0 || y == x) return;
  const auto bytes = [&](int64_t elements) { return size_t(elements * size_of(dtype)); };
  const size_t before = bytes(q.normed() * s.head_dim), token = bytes(q.token);
  check(cudaMemcpy2DAsync(static_cast<char*>(y) + before, token,
                          static_cast<const char*>(x) + before, token, bytes(s.v_size()),
                          size_t(q.tokens), cudaMemcpyDeviceToDevice, stream.handle),
        "copying values");
}

// The teams of lanes that share a token, about four heads each. A team has heads of q, or of k and
// v, so that it needs only one gain.
struct QkTeams {
  int of_q, of_kv;
  int kv_count;  // heads of k and, unless in place, of v
  int rounds;    // the most heads of any team
  __host__ __device__ int all() const { return of_q + of_kv; }
};

inline QkTeams qk_teams(const QkShape& q, bool in_place) {
  QkTeams t{int(ceil_div(q.heads, 4)), 0, q.kv_heads + (in_place ? 0 : q.values), 0};
  t.of_kv = int(ceil_div(t.kv_count, 4));
  t.rounds = int(std::max(ceil_div(q.heads, t.of_q), ceil_div(t.kv_count, t.of_kv)));
  return t;
}

// The heads of one team: first, first + stride, .. below end.
struct QkHeads {
  int first, stride, end;
  bool of_q;
};

__device__ __forceinline__ QkHeads heads_of(int team, const QkTeams& t, const QkShape& q) {
  if (team < t.of_q) return {team, t.of_q, q.heads, true};
  return {q.heads + team - t.of_q, t.of_kv, q.heads + t.kv_count, false};
}

// Whether a power of two of threads, with two packs of N each, can hold a head.
inline bool qk_packs_fit(const QkSpec& s, int N) {
  const int64_t lanes = s.head_dim / (2 * N);
  return s.head_dim % (2 * N) == 0 && lanes <= 32 && (s.interleaved || s.rotary / 2 % N == 0) &&
         s.token() % N == 0;
}

// Threads that share a head: the smallest power of two that holds it.
inline int qk_lanes(int64_t head_dim, int N) {
  int lanes = 1;
  while (lanes * 2 * N < head_dim) lanes *= 2;
  return lanes;
}

__device__ __forceinline__ float team_sum(float x, int lanes) {
  for (int offset = lanes / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(~0u, x, offset);
  return x;
}

// The columns of a thread's two packs: rotation partners, or neighbours where pairs are interleaved
// or nothing rotates.
struct Columns {
  int a, b;
};
template <int N, bool interleaved>
__device__ __forceinline__ Columns columns_of(int lane, int rotary) {
  const int half = rotary / 2, first = lane * N;
  if (!interleaved && first < half) return {first, first + half};
  return {2 * first, 2 * first + N};
}

// Cosines and sines of a thread's N pairs; pairs that do not rotate have 1 and 0.
template <int N>
struct Angles {
  float cos[N], sin[N];
};

template <int N, bool interleaved>
__device__ __forceinline__ Angles<N> angles_of(const float* rope, int position, Columns at,
                                               int rotary) {
  Angles<N> r;
#pragma unroll
  for (int k = 0; k < N; ++k) r.cos[k] = 1, r.sin[k] = 0;
  if (rotary == 0) return r;
  // Padding has a negative position; its result is never used.
  const float2* row = reinterpret_cast<const float2*>(rope + int64_t(max(position, 0)) * rotary);
  if (!interleaved && at.b == at.a + N && at.a >= rotary) return r;
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int pair = interleaved ? at.a / 2 + k : at.a + k;
    if (pair < rotary / 2) {
      const float2 turn = row[pair];
      r.cos[k] = turn.x, r.sin[k] = turn.y;
    }
  }
  return r;
}

// Rotates the 2N values x (pack a, then pack b) by the angles times `sign`.
template <int N, bool interleaved>
__device__ __forceinline__ void rotate(float (&x)[2 * N], const Angles<N>& t, float sign) {
#pragma unroll
  for (int k = 0; k < N; ++k) {
    const int i = interleaved ? 2 * k : k, j = interleaved ? 2 * k + 1 : k + N;
    const float a = x[i], b = x[j], sine = sign * t.sin[k];
    x[i] = a * t.cos[k] - b * sine;
    x[j] = b * t.cos[k] + a * sine;
  }
}

// The same for a head in shared memory, one pair per lane of a warp.
__device__ inline void rotate_shared(float* x, const float* rope, int position, const QkShape& q,
                                     bool interleaved, float sign) {
  const int half = q.rotary / 2;
  const float* row = rope + int64_t(max(position, 0)) * q.rotary;
  __syncwarp();
  for (int p = int(threadIdx.x) % 32; p < half; p += 32) {
    float &a = x[interleaved ? 2 * p : p], &b = x[interleaved ? 2 * p + 1 : p + half];
    const float cosine = row[2 * p], sine = sign * row[2 * p + 1], old = a;
    a = old * cosine - b * sine;
    b = b * cosine + old * sine;
  }
  __syncwarp();
}

template <int N, class T>
__device__ __forceinline__ void unpack_pair(float (&x)[2 * N], const Pack<T, N>& a,
                                            const Pack<T, N>& b) {
#pragma unroll
  for (int k = 0; k < N; ++k) x[k] = get(a, k), x[k + N] = get(b, k);
}

template <int N, class T>
__device__ __forceinline__ void store_pair(T* head, Columns at, const float (&x)[2 * N]) {
  float a[N], b[N];
#pragma unroll
  for (int k = 0; k < N; ++k) a[k] = x[k], b[k] = x[k + N];
  store_rounded(head + at.a, a);
  store_rounded(head + at.b, b);
}

}  // namespace hearth::cuda
