// The kernel of gemm_stream.h: c (M, N) = act(a (M, K) wᵀ + bias), M up to 16, bound by reading w
// once. Every multiprocessor has one block, which owns an equal share of the rows of w. A warp of
// its own copies them into a ring in shared memory. The copies start before the previous kernel
// has ended, and two blocks fit on a multiprocessor, so the memory is busy while a kernel waits for
// its predecessor, reads a, or adds its sums. Rows are normalised as in gemm_rows16.cuh.
//
// Eight warps multiply: they share 16 rows of w and split K, and their sums are added in order. So
// this kernel gives a row of c the same bits for every M and every number of multiprocessors.
#pragma once

#include "cuda/device/hopper.cuh"
#include "cuda/gemm/gemm_rows16_quantised.cuh"

namespace hearth::cuda::streamed {

using namespace hopper;

constexpr int warps = 8, consumers = 32 * warps, threads = consumers + 32;
constexpr int ahead = few::ahead;                    // stretches of a warp in a slot of the ring
constexpr int chunk = warps * ahead * few::stretch;  // k of a slot: shorter copies are slower
constexpr int most_slots = 16;
constexpr int consumer_barrier = 1, begun_barrier = 2;

__device__ __forceinline__ uint4 shared_four(uint32_t at) {
  uint4 v;
  asm volatile("ld.shared.v4.u32 {%0, %1, %2, %3}, [%4];"
               : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
               : "r"(at));
  return v;
}
__device__ __forceinline__ uint2 shared_two(uint32_t at) {
  uint2 v;
  asm volatile("ld.shared.v2.u32 {%0, %1}, [%2];" : "=r"(v.x), "=r"(v.y) : "r"(at));
  return v;
}
__device__ __forceinline__ void store_four(uint32_t at, const uint4& v) {
  asm volatile("st.shared.v4.u32 [%0], {%1, %2, %3, %4};" ::"r"(at), "r"(v.x), "r"(v.y), "r"(v.z),
               "r"(v.w)
               : "memory");
}

// Where things lie in a block's shared memory, in bytes. Rows of a, and of plain w, are 64 bytes
// longer than a multiple of 128, so that two neighbouring rows use all banks.
struct Layout {
  int slot, slots;  // bytes of a slot, number of slots
  int pitch;        // of the rows of a
  int x;            // rows of a; if they are normalised, the gain and the shift follow
  int parts;        // of the sums of rows: a float2 for every unit of 256 columns
  int sums, barriers, end;
};

__host__ __device__ constexpr int padded_row(int64_t k) { return int((k + 63) / 64 * 128 + 64); }

// --- formats of w: how a share is divided, copied and read ---

template <class T>
struct Plain : FewPlain<T> {
  using Base = FewPlain<T>;
  static int64_t slot_bytes(int64_t K) { return few::tile * padded_row(K < chunk ? K : chunk); }

  // Rows of w from `row` on, at most 16, columns from k on. Called by a warp.
  template <class Args>
  __device__ static void copy(const Args& p, uint32_t slot, uint32_t bar, int row, int rows,
                              int k) {
    const int lane = int(threadIdx.x) % 32, columns = min(chunk, p.K - k);
    if (lane == 0) barrier_expect(bar, uint32_t(rows * columns * 2));
    __syncwarp();
    if (lane < rows)
      bulk_load(slot + uint32_t(lane * padded_row(min(chunk, p.K))),
                static_cast<const T*>(p.w) + int64_t(row + lane) * p.K + k, uint32_t(columns * 2),
                bar);
  }
  // The stretch from column k of the slot on, which has `columns` columns.
  template <class Args>
  __device__ __forceinline__ void read(const Args& p, uint32_t slot, int i, int k, int columns) {
    const int group = int(threadIdx.x) % 32 / 4, at = k + Base::column(0);
#pragma unroll
    for (int half = 0; half < 2; ++half)
      this->w[i][half] =
          at < columns
              ? shared_four(slot +
                            uint32_t((group + 8 * half) * padded_row(min(chunk, p.K)) + at * 2))
              : uint4{0, 0, 0, 0};
  }
};

template <class T, class Code>
struct Bytes : FewBytes<T, Code> {
  using Base = FewBytes<T, Code>;
  static int64_t slot_bytes(int64_t) { return chunk * quant_panel; }

  template <class Args>
  __device__ static void copy(const Args& p, uint32_t slot, uint32_t bar, int row, int, int k) {
    if (threadIdx.x % 32 != 0) return;
    const int bytes = min(chunk * few::tile, p.panel_bytes - k * few::tile);
    barrier_expect(bar, uint32_t(bytes));
    bulk_load(slot, panel(p, row) + k * few::tile, uint32_t(bytes), bar);
  }
  template <class Args>
  __device__ static const unsigned char* panel(const Args& p, int row) {
    return static_cast<const unsigned char*>(p.w) + int64_t(row / few::tile) * p.panel_bytes;
  }
  template <class Args>
  __device__ __forceinline__ void read(const Args&, uint32_t slot, int i, int k, int columns) {
    const uint32_t own = slot + 8 * (threadIdx.x % 32 / 4);
#pragma unroll
    for (int quad = 0; quad < 2; ++quad)
      this->w[i][quad] = k < columns
                             ? shared_two(own + uint32_t(((k + Base::column(0)) / 4 + quad) * 64))
                             : make_uint2(0, 0);
  }
};

template <class T>
struct HalfBytes : FewHalfBytes<T> {
  using Base = FewHalfBytes<T>;
  static constexpr int codes = chunk / int(quant_group) * 256;  // then the factors
  static int64_t slot_bytes(int64_t) { return codes + chunk / quant_group * quant_panel; }

  template <class Args>
  __device__ static void copy(const Args& p, uint32_t slot, uint32_t bar, int row, int, int k) {
    if (threadIdx.x % 32 != 0) return;
    const auto* all =
        static_cast<const unsigned char*>(p.w) + int64_t(row / few::tile) * p.panel_bytes;
    const int group = k / int(quant_group), whole = (p.panel_bytes - p.factor_bytes) / 256;
    const int groups = min(chunk / int(quant_group), whole - group);
    barrier_expect(bar, uint32_t(groups * (256 + int(quant_panel))));
    bulk_load(slot, all + p.factor_bytes + group * 256, uint32_t(groups * 256), bar);
    bulk_load(slot + codes, all + group * int(quant_panel), uint32_t(groups * int(quant_panel)),
              bar);
  }
  template <class Args>
  __device__ __forceinline__ void read(const Args&, uint32_t slot, int i, int k, int columns) {
    const uint32_t lane = threadIdx.x % 32, group = lane / 4;
    const uint32_t at = uint32_t(k) / uint32_t(quant_group);
    if (k >= columns) {
      this->w[i] = make_uint2(Base::zeros, Base::zeros), this->factors[i] = 0;
      return;
    }
    this->w[i] = shared_two(slot + at * 256 + 64 * (lane % 4) + 8 * group);
    uint16_t both;
    asm volatile("ld.shared.u16 %0, [%1];"
                 : "=h"(both)
                 : "r"(slot + uint32_t(codes) + at * uint32_t(quant_panel) + 2 * group));
    this->factors[i] = both;
  }
};

// --- the block ---

constexpr int unit = 32;  // eights of a row that a warp reads at once
__host__ __device__ constexpr int units_of(int K) { return (K + 8 * unit - 1) / (8 * unit); }

// Groups of eight rows that blocks multiply at once.
constexpr int columns_for(int M, bool normed) { return M > (normed ? 7 : 8) ? 2 : 1; }

template <class W>
Layout layout_of(int M, int K, bool normed, int64_t limit, int64_t tiles) {
  Layout l{};
  l.slot = int(W::slot_bytes(K)), l.pitch = padded_row(K);
  const int rows = (normed ? M + 2 : M) * l.pitch, parts = normed ? M * units_of(K) * 8 : 0;
  const int sums = 2 * warps * (columns_for(M, normed) * 8 + normed) * few::tile * 4;
  const int fixed = rows + parts + sums + 2 * most_slots * 8;
  l.slots = int(std::clamp<int64_t>((limit - fixed) / l.slot, 1, most_slots));
  l.slots = int(std::min<int64_t>(l.slots, std::max<int64_t>(tiles, 2)));
  l.x = l.slots * l.slot;
  l.parts = l.x + rows, l.sums = l.parts + parts, l.barriers = l.sums + sums;
  l.end = l.barriers + 2 * most_slots * 8;
  return l;
}

// Puts gain and shift after the rows of a. They are weights, so this need not wait.
template <class T, class Out>
__device__ __forceinline__ void copy_gains(const FewArgs<T, Out>& p, const Layout& l,
                                           uint32_t base) {
  const uint32_t to = base + uint32_t(l.x + p.M * l.pitch);
  for (int k = 8 * int(threadIdx.x); k < (l.pitch - 64) / 2; k += 8 * consumers) {
    store_four(to + uint32_t(2 * k), p.gain ? few_eight(p.gain, 0, 1, k, p.K) : eight_ones<T>());
    store_four(to + uint32_t(l.pitch + 2 * k), few_eight(p.shift, 0, p.shift ? 1 : 0, k, p.K));
  }
}

// Copies rows of a into shared memory, with zeros from K to the end of the row. If they are
// normalised, the sums of each unit's elements are stored. A warp reads whole units, so the order
// of a row's sums depends on K alone.
template <class T, class Out, bool Normed>
__device__ __forceinline__ void copy_rows(const FewArgs<T, Out>& p, const Layout& l, uint32_t base,
                                          float2* parts) {
  constexpr int held = 8;  // units in flight
  const int lane = int(threadIdx.x) % 32, each = units_of(p.K), all = p.M * each;
  const auto row_of = [&](int u) { return p.M == 1 ? u >= all : u / each; };
  for (int first = int(threadIdx.x) / 32; first < all; first += held * warps) {
    uint4 x[held];
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int u = first + i * warps;
      x[i] = few_eight(p.a, row_of(u), p.M, 8 * ((u - row_of(u) * each) * unit + lane), p.K);
    }
#pragma unroll
    for (int i = 0; i < held; ++i) {
      const int u = first + i * warps, k = 8 * ((u - row_of(u) * each) * unit + lane);
      if (u >= all) break;
      if constexpr (Normed) {
        FewSums own;
        own.add<T>(x[i]);
        own.join<32>();
        if (lane == 0) parts[u] = {own.sum, own.squares};
      }
      if (2 * k < l.pitch - 64)
        store_four(base + uint32_t(l.x + row_of(u) * l.pitch + 2 * k), x[i]);
    }
  }
}

// The eight elements of a that a lane multiplies in the stretch at k.
template <class W>
__device__ __forceinline__ uint4 own_of_row(uint32_t row, int k) {
  if constexpr (W::parts == 1) {
    return shared_four(row + uint32_t(2 * (k + W::column(0))));
  } else {
    const uint2 low = shared_two(row + uint32_t(2 * (k + W::column(0))));
    const uint2 high = shared_two(row + uint32_t(2 * (k + W::column(1))));
    return {low.x, low.y, high.x, high.y};
  }
}

// The rows of w that a block owns, in tiles of 16. Packed rows are shared out by whole panels.
struct Share {
  int first, last;
  template <class W>
  __device__ static Share of(int N) {
    const int64_t unit = W::packed ? few::tile : 1, all = (N + unit - 1) / unit;
    const int64_t block = blockIdx.x, blocks = gridDim.x;
    return {int(all * block / blocks * unit),
            int(min(all * (block + 1) / blocks * unit, int64_t(N)))};
  }
};

template <class W, class Out>
__device__ void copy_share(const FewArgs<typename W::Element, Out>& p, const Layout& l,
                           uint32_t base, const Share& share) {
  int slot = 0, turn = 0;
  for (int row = share.first; row < share.last; row += few::tile)
    for (int k = 0; k < p.K; k += chunk) {
      const uint32_t full = base + uint32_t(l.barriers + 16 * slot), empty = full + 8;
      if (turn > 0) barrier_wait(empty, uint32_t(turn - 1) & 1);
      W::copy(p, base + uint32_t(slot * l.slot), full, row, min(few::tile, share.last - row), k);
      __syncwarp();
      if (++slot == l.slots) slot = 0, ++turn;
    }
}

// One element of c per thread: what its sum is finished with.
template <class W, class Out>
struct Element {
  using T = typename W::Element;
  bool writes;
  int64_t to;
  float bias = 0, scale = 1, prior = 0;

  __device__ Element(const FewArgs<T, Out>& p, int row, int last) {
    const int m = int(threadIdx.x) / few::tile, n = row + int(threadIdx.x) % few::tile;
    writes = m < p.M && n < last;
    to = int64_t(m) * p.N + n;
    if (!writes) return;
    if (p.bias) bias = float(p.bias[n]);
    if (W::packed) scale = p.scales[n];
    if (!p.prior) return;
    prior = W::packed && p.wide ? reinterpret_cast<const float*>(p.prior)[to] : float(p.prior[to]);
  }
  __device__ void finish(const FewArgs<T, Out>& p, float x) const {
    if (W::packed) x *= scale;
    x += bias;
    if (W::packed && p.wide)
      few_finish<T, float>(p, reinterpret_cast<float*>(p.c) + to, nullptr, x, prior);
    else
      few_finish<T, Out>(p, p.c + to, p.aux ? p.aux + to : nullptr, x, prior);
  }
};

// Adds the products of a slot, which begins at column k of w.
template <class W, int Columns, bool Normed, class Args>
__device__ __forceinline__ void add_slot(FewPart<W, Columns, Normed>& part, const Args& p,
                                         const Layout& l, uint32_t base, uint32_t slot, int k) {
  using T = typename W::Element;
  const int group = int(threadIdx.x) % 32 / 4, own = int(threadIdx.x) / 32 * few::stretch;
  const int columns = min(chunk, p.K - k);
  const auto row_at = [&](int row) { return base + uint32_t(l.x + row * l.pitch); };
  W weights;
  uint4 x[ahead][Columns];
#pragma unroll
  for (int i = 0; i < ahead; ++i) {
    const int at = own + i * warps * few::stretch;
    weights.read(p, slot, i, at, columns);
#pragma unroll
    for (int c = 0; c < Columns; ++c)
      x[i][c] = group + 8 * c < p.M && at < columns ? own_of_row<W>(row_at(group + 8 * c), k + at)
                                                    : uint4{0, 0, 0, 0};
    if (Normed && group == 7) x[i][Columns - 1] = eight_ones<T>();
  }
#pragma unroll
  for (int i = 0; i < ahead; ++i) {
    const int at = own + i * warps * few::stretch;
    uint4 gain{};
    if (at >= columns) break;
    if constexpr (Normed) {
      gain = own_of_row<W>(row_at(p.M), k + at);
      const uint4 shift = p.shift ? own_of_row<W>(row_at(p.M + 1), k + at) : uint4{0, 0, 0, 0};
      part.fold(weights, i, p.shift, gain, shift);
    }
    weights.template multiply_by<Columns, Normed>(part.sum[i % 2], i, x[i], gain);
  }
}

template <class W, class Out, int Columns, bool Normed>
__device__ void multiply_share(const FewArgs<typename W::Element, Out>& p, const Layout& l,
                               unsigned char* memory, const Share& share) {
  using Rows = FewRows<Columns, Normed>;
  using Part = float[Rows::all][few::tile];
  const uint32_t base = shared_at(memory);
  Part* const sums = reinterpret_cast<Part*>(memory + l.sums);
  const int warp = int(threadIdx.x) / 32, m = int(threadIdx.x) / few::tile;
  FewSums of_row;
  if (Normed && m < p.M)
    for (int i = 0, n = units_of(p.K); i < n; ++i)
      of_row.add(reinterpret_cast<const float2*>(memory + l.parts)[m * n + i]);
  int slot = 0, turn = 0, parity = 0;
  Element<W, Out> next(p, share.first, share.last);
  for (int row = share.first; row < share.last; row += few::tile, parity ^= 1) {
    const Element<W, Out> own = next;  // read while the tile before was multiplied
    next = Element<W, Out>(p, row + few::tile, share.last);
    FewPart<W, Columns, Normed> part;
    for (int k = 0; k < p.K; k += chunk) {
      const uint32_t full = base + uint32_t(l.barriers + 16 * slot);
      barrier_wait(full, uint32_t(turn) & 1);
      add_slot(part, p, l, base, base + uint32_t(slot * l.slot), k);
      __syncwarp();
      if (threadIdx.x % 32 == 0) barrier_arrive(full + 8);
      if (++slot == l.slots) slot = 0, ++turn;
    }
    Part* const all = sums + parity * warps;  // the other half may still be read
    part.put(all[warp]);
    named_sync(consumer_barrier, consumers);
    if (!own.writes) continue;
    const auto total = [&](int of) {
      float x = 0;
#pragma unroll
      for (int w = 0; w < warps; ++w) x += all[w][of][int(threadIdx.x) % few::tile];
      return x;
    };
    float x = total(m);
    if constexpr (Normed)
      x = of_row.normed(p, x, p.layer ? total(Rows::ones) : 0, p.shift ? total(Rows::shift) : 0);
    own.finish(p, x);
  }
}

template <class W, class Out, int Columns, bool Normed>
__global__ void __launch_bounds__(threads, 2)
    multiply_streamed(const FewArgs<typename W::Element, Out> p, const Layout l) {
  using T = typename W::Element;
  extern __shared__ __align__(128) unsigned char streamed_memory[];
  const uint32_t base = shared_at(streamed_memory);
  const Share share = Share::of<W>(p.N);
  let_next_start();
  if (threadIdx.x >= consumers) {
    if (threadIdx.x == consumers) {
      for (int i = 0; i < l.slots; ++i) {
        barrier_init(base + uint32_t(l.barriers + 16 * i), 1);
        barrier_init(base + uint32_t(l.barriers + 16 * i + 8), warps);
      }
      barrier_init_fence();
    }
    __syncwarp();
    named_arrive(begun_barrier, threads);
    if (!p.weight) wait_for_previous();
    return copy_share<W, Out>(p, l, base, share);
  }
  if (!p.weight) wait_for_previous();
  if constexpr (Normed) copy_gains(p, l, base);
  named_sync(begun_barrier, threads);
  wait_for_previous();
  copy_rows<T, Out, Normed>(p, l, base, reinterpret_cast<float2*>(streamed_memory + l.parts));
  named_sync(consumer_barrier, consumers);
  multiply_share<W, Out, Columns, Normed>(p, l, streamed_memory, share);
}

// --- launch ---

constexpr int64_t half_memory = 113 * 1024;  // of a multiprocessor, less a block's overhead

template <class W, bool Normed, class Out>
void launch_streamed(CudaStream& s, const FewArgs<typename W::Element, Out>& p) {
  const int64_t units = W::packed ? ceil_div(p.N, few::tile) : p.N;
  const int64_t blocks = std::min<int64_t>(s.card.processors, units);
  const int64_t tiles = ceil_div(ceil_div(units, blocks) * (W::packed ? few::tile : 1), few::tile) *
                        ceil_div(p.K, chunk);
  Layout l = layout_of<W>(p.M, p.K, Normed, half_memory, tiles);
  if (l.slots < std::min<int64_t>(2, tiles))
    l = layout_of<W>(p.M, p.K, Normed, s.card.shared_bytes, tiles);
  const DependentLaunch shape{
      .blocks = dim3(unsigned(blocks)), .threads = threads, .shared = l.end};
  if (columns_for(p.M, Normed) == 1)
    launch_dependent(s, multiply_streamed<W, Out, 1, Normed>, shape, p, l);
  else
    launch_dependent(s, multiply_streamed<W, Out, 2, Normed>, shape, p, l);
}

}  // namespace hearth::cuda::streamed
