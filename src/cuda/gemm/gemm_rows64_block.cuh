// The steps of a block of gemm_rows64.cu: its loads and barriers, its multiplications, and what it
// exchanges with the other blocks of its cluster.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/eight_halves.cuh"
#include "cuda/gemm/gemm_rows64.cuh"

namespace hearth::cuda {

using namespace hopper;

// The sum over eight adjacent lanes, in all of them.
__device__ __forceinline__ float2 sum_of_eight(float2 x) {
#pragma unroll
  for (int step = 1; step < 8; step *= 2) {
    x.x += __shfl_xor_sync(~0u, x.x, step);
    x.y += __shfl_xor_sync(~0u, x.y, step);
  }
  return x;
}

template <class T, int Split, bool Normed>
struct SomeBlock {
  static constexpr int own_rows = some_rows / Split;  // rows that a block finishes
  const SomeArgs<T>& p;
  const SomeShared lies;
  const uint32_t base;
  unsigned char* const memory;
  const int part;          // which part of K
  const int first, begin;  // first column of c; first column of a

  __device__ __forceinline__ SomeBlock(const SomeArgs<T>& args, unsigned char* aligned)
      : p(args),
        lies(args.panels, Split, Normed),
        base(shared_at(aligned)),
        memory(aligned),
        part(Split > 1 ? cluster_rank() : 0),
        first(int(blockIdx.x) / Split * some_columns),
        begin(part * args.panels * some_panel) {}

  __device__ __forceinline__ uint32_t rows_arrived(int panel) const {
    return base + uint32_t(lies.barriers + 8 * panel);
  }
  __device__ __forceinline__ uint32_t weights_arrived() const { return rows_arrived(some_panels); }
  __device__ __forceinline__ uint32_t terms_arrived() const {
    return rows_arrived(some_panels + 1);
  }
  __device__ __forceinline__ uint32_t sums_arrived() const { return rows_arrived(some_panels + 2); }
  __device__ __forceinline__ uint32_t rows_at(int panel) const {
    return base + uint32_t(panel * some_panel_bytes);
  }
  __device__ __forceinline__ uint32_t weights_at(int panel) const {
    return rows_at(panel) + uint32_t(lies.w);
  }

  // Called by one thread.
  __device__ __forceinline__ void prepare() const {
    for (int i = 0; i < some_panels + 3; ++i) barrier_init(rows_arrived(i), 1);
    barrier_init_fence();
  }
  // Called by one thread. Also sets the byte counts of all barriers.
  __device__ __forceinline__ void copy_weights() const {
    const int vector = 2 * min(max(p.K - begin, 0), p.panels * some_panel);  // bytes of the gain
    int bytes = p.panels * some_panel_bytes;
    if constexpr (Normed) bytes += vector * ((p.gain != nullptr) + (p.shift != nullptr));
    barrier_expect(weights_arrived(), uint32_t(bytes));
    for (int i = 0; i < p.panels; ++i)
      tma_load(weights_at(i), p.w, weights_arrived(), begin + i * some_panel, first);
    if (Normed && vector > 0) {
      const auto copy = [&](int to, const T* from) {
        if (from) bulk_load(base + uint32_t(to), from + begin, uint32_t(vector), weights_arrived());
      };
      copy(lies.gain, p.gain), copy(lies.shift, p.shift);
    }
    for (int i = 0; i < p.panels; ++i) barrier_expect(rows_arrived(i), some_panel_bytes);
    constexpr int others = Split - 1;
    barrier_expect(terms_arrived(), uint32_t(Normed ? others * some_columns * 8 : 0));
    barrier_expect(sums_arrived(),
                   uint32_t(others * own_rows * (some_columns * 4 + (Normed ? 8 : 0))));
    prefetch_map(p.a);
  }
  __device__ __forceinline__ void copy_rows(int panel) const {
    tma_load(rows_at(panel), p.a, rows_arrived(panel), begin + panel * some_panel, 0);
  }

  // Eight threads read a row of a panel, one chunk of eight elements each.
  static __device__ __forceinline__ int chunk() { return int(threadIdx.x) % 8; }
  __device__ __forceinline__ uint4 eight_of(int vector, bool real, int panel) const {
    const int k = panel * some_panel + 8 * chunk();
    if (!real || begin + k >= p.K) return {0, 0, 0, 0};
    return *reinterpret_cast<const uint4*>(memory + vector + 2 * k);
  }

  // Stores to the same place in the block of another part of K; its barrier counts the bytes.
  template <class V>
  __device__ __forceinline__ void send(int to_part, int place, uint32_t bar, const V& x) const {
    put_in_block(in_block(base + uint32_t(place), to_part), in_block(bar, to_part), x);
  }

  // Multiplies gain into w. Sends what the norm subtracts from and adds to each column to every
  // block that finishes rows of these columns. Two warp groups; a thread has two columns.
  __device__ __forceinline__ void norm_weights() const {
    const int column = int(threadIdx.x) / 8;
    float2 term[2] = {};
#pragma unroll 2
    for (int i = 0; i < p.panels; ++i) {
      float gain[8], shift[8], w[8];
      eight_floats<T>(gain, eight_of(lies.gain, p.gain, i));
      eight_floats<T>(shift, eight_of(lies.shift, p.shift, i));
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        auto* const at = reinterpret_cast<uint4*>(memory + lies.w + i * some_panel_bytes +
                                                  swizzled(column + 32 * half, chunk()));
        eight_floats<T>(w, *at);
#pragma unroll
        for (int e = 0; e < 8; ++e) term[half].y = fmaf(w[e], shift[e], term[half].y);
        if (p.gain) {
#pragma unroll
          for (int e = 0; e < 8; ++e) w[e] *= gain[e];
          const uint4 scaled = {pack(w[0], w[1], T()), pack(w[2], w[3], T()), pack(w[4], w[5], T()),
                                pack(w[6], w[7], T())};
          *at = scaled;
          eight_floats<T>(w, scaled);
        }
#pragma unroll
        for (int e = 0; e < 8; ++e) term[half].x += w[e];
      }
    }
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const float2 sum = sum_of_eight(term[half]);
      const int place = lies.terms + (part * some_columns + column + 32 * half) * 8;
      if (chunk() == part) *reinterpret_cast<float2*>(memory + place) = sum;
      if (chunk() < Split && chunk() != part) send(chunk(), place, terms_arrived(), sum);
    }
    async_fence();  // wgmma reads w
  }

  // Sums of the elements of rows and of their squares, by a third warp group beside the two that
  // multiply. Each warp multiplies its sixteen rows by ones, and eight rows at a time by
  // themselves; the diagonal of that product has the sums of squares.
  __device__ __forceinline__ void sum_rows() const {
    const int lane = int(threadIdx.x) % 32, first_row = int(threadIdx.x) % 128 / 32 * 16;
    const uint32_t one = pack(1.0f, 1.0f, T());
    float sum[4] = {}, upper[4] = {}, lower[4] = {};
    for (int i = 0; i < p.panels; ++i) {
      barrier_wait(rows_arrived(i), 0);
#pragma unroll
      for (int k = 0; k < some_panel / 16; ++k) {
        uint32_t x[4];
        load_matrices(x, rows_at(i) + swizzled(first_row + lane % 16, 2 * k + lane / 16));
        cuda::multiply(sum, x, one, one, T());
        cuda::multiply(upper, x, x[0], x[2], T());
        cuda::multiply(lower, x, x[1], x[3], T());
      }
    }
    const int group = lane / 4, odd = group % 2;  // a thread has columns 2 (lane % 4) and the next
    if (lane % 4 == group / 2) {
      send_row(first_row + group, {sum[0], odd ? upper[1] : upper[0]});
      send_row(first_row + 8 + group, {sum[2], odd ? lower[3] : lower[2]});
    }
    __syncwarp();  // reconverge before the next barrier
  }
  __device__ __forceinline__ void send_row(int row, float2 sums) const {
    const int owner = row / own_rows;
    const int place = lies.rows + (part * own_rows + row % own_rows) * 8;
    if (owner == part)
      *reinterpret_cast<float2*>(memory + place) = sums;
    else
      send(owner, place, sums_arrived(), sums);
  }

  __device__ __forceinline__ void multiply(float (&sum)[16]) const {
    const uint32_t columns = threadIdx.x / 128 * (some_panel_bytes / 2);
    if constexpr (!Normed) barrier_wait(weights_arrived(), 0);
    for (int i = 0; i < p.panels; ++i) {
      barrier_wait(rows_arrived(i), 0);
      wgmma_fence();
      const uint64_t a = desc_k_major(rows_at(i)), w = desc_k_major(weights_at(i) + columns);
#pragma unroll
      for (int k = 0; k < some_panel / 16; ++k)
        Wgmma<T, 32>::template ss<0, 0>(sum, a + uint64_t(2 * k), w + uint64_t(2 * k), i + k > 0);
      wgmma_commit();
    }
    wgmma_wait<0>();
    pin(sum);
  }

  // Where the sums of a row lie in the block that finishes it, by the part of K they come from.
  __device__ __forceinline__ int sums_place(int from, int owner, int row, int column) const {
    const int slot = (from < owner ? from : from - 1) * own_rows;
    return (from == owner ? lies.w : lies.sums + slot * SomeShared::sum_pitch * 4) +
           (row * SomeShared::sum_pitch + column) * 4;
  }
  // A warp group holds half of the columns, and a thread two rows by four pairs of columns; two
  // adjacent threads exchange pairs to store four columns at a time.
  __device__ __forceinline__ void send_sums(const float (&sum)[16]) const {
    const int lane = int(threadIdx.x) % 32, odd = lane % 2;
    const int column = int(threadIdx.x) / 128 * 32 + lane % 4 / 2 * 4;
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = int(threadIdx.x) / 32 % 4 * 16 + 8 * half + lane / 4, owner = row / own_rows;
#pragma unroll
      for (int j = 0; j < 4; j += 2) {
        const float *left = &sum[4 * j + 2 * half], *right = &sum[4 * j + 4 + 2 * half];
        const float x = __shfl_xor_sync(~0u, odd ? left[0] : right[0], 1);
        const float y = __shfl_xor_sync(~0u, odd ? left[1] : right[1], 1);
        const float4 four = odd ? float4{x, y, right[0], right[1]} : float4{left[0], left[1], x, y};
        const int place = sums_place(part, owner, row % own_rows, column + 8 * (j + odd));
        if (owner == part)
          *reinterpret_cast<float4*>(memory + place) = four;
        else
          send(owner, place, sums_arrived(), four);
      }
    }
  }
  // Adds the sums of all parts, in order.
  __device__ __forceinline__ void join(float (&x)[8], int row, int column) const {
#pragma unroll
    for (int r = 0; r < Split; ++r) {
      const auto* v = reinterpret_cast<const float4*>(memory + sums_place(r, part, row, column));
      x[0] += v[0].x, x[1] += v[0].y, x[2] += v[0].z, x[3] += v[0].w;
      x[4] += v[1].x, x[5] += v[1].y, x[6] += v[1].z, x[7] += v[1].w;
    }
  }
  // Mean (0 for RMSNorm) and 1 / standard deviation, from single-pass sums. For a row whose mean is
  // a hundred deviations they keep two digits; its bf16 elements have no more.
  __device__ __forceinline__ float2 row_stats(int row) const {
    float2 all = {0, 0};
#pragma unroll
    for (int r = 0; r < Split; ++r) {
      const float2 v = reinterpret_cast<const float2*>(memory + lies.rows)[r * own_rows + row];
      all.x += v.x, all.y += v.y;
    }
    const float mean = p.layer ? all.x * p.each : 0;
    return {mean, rsqrtf(fmaxf(fmaf(-mean, mean, all.y * p.each), 0) + p.eps)};
  }
  // What the norm subtracts from eight columns, and what it adds.
  __device__ __forceinline__ void column_terms(float (&take)[8], float (&add)[8],
                                               int column) const {
#pragma unroll
    for (int r = 0; r < Split; ++r)
#pragma unroll
      for (int e = 0; e < 8; ++e) {
        const auto* terms = reinterpret_cast<const float2*>(memory + lies.terms);
        const float2 v = terms[r * some_columns + column + e];
        take[e] += v.x, add[e] += v.y;
      }
  }
};

}  // namespace hearth::cuda
