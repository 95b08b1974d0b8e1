// What one block of gemm_hopper.cu does: a thread loads operands by TMA, and two warp groups take
// turns at the tensor cores. Each computes whole tiles of 128 x 128, so that one of them finishes
// and stores its tile while the other one multiplies. The blocks of a cluster compute neighbouring
// tiles: each loads a part of the operands that they share, for all of them.
#pragma once

#include "cuda/device/column_total.cuh"
#include "cuda/gemm/gemm_hopper_tile.cuh"

namespace hearth::cuda::gemm_hopper_tiles {

// ---- one thread: loads ----

// The operand for rows or columns of c from `first` on; its second half begins `apart` after it.
// `parts` blocks share it: this one loads its part for all blocks of the mask.
template <bool by_mn, int parts, bool halves = false>
__device__ __forceinline__ void load_operand(uint32_t to, const CUtensorMap& map, uint32_t bar,
                                             int first, int k, int matrix, int part, uint16_t mask,
                                             int apart = side / 2) {
  if constexpr (parts > 1) {
    static_assert(parts == 2);
    const int from = first + part * apart;
    tma_load_all(to + uint32_t(part * half_bytes), map, bar, by_mn ? from : k, by_mn ? k : from,
                 matrix, mask);
  } else if constexpr (by_mn) {
    tma_load(to, map, bar, first, k, matrix);
    tma_load(to + half_bytes, map, bar, first + apart, k, matrix);
  } else if constexpr (halves) {
    tma_load(to, map, bar, k, first, matrix);
    tma_load(to + half_bytes, map, bar, k, first + apart, matrix);
  } else {
    tma_load(to, map, bar, k, first, matrix);
  }
}

template <class F>
__device__ void produce(const Params& p, uint32_t base) {
  constexpr bool gated = F::finish == Finish::glu;
  const Bars<F::stages> bars{base + barriers<F>};
  const Place<F> own;
  const uint16_t row_mask = own.row_mask(), column_mask = own.column_mask();
  Ring<F::stages> ring;
  for (int index = first_index<F>(); index < p.total; index += index_step<F>()) {
    const Tile<F> tile(p, index, own);
    const bool once = tile.on_diagonal();
    for (int block = 0; block < p.blocks; ++block, ring.next()) {
      const uint32_t to = base + ring.stage * 2 * operand_bytes, bar = bars.full(ring.stage);
      barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
      barrier_expect(bar, once ? operand_bytes : 2 * operand_bytes);
      load_operand<F::a_by_mn, F::cluster_columns>(to, p.a, bar, tile.row * side, block * depth,
                                                   tile.matrix, own.column, row_mask);
      if (!once)
        load_operand<F::b_by_mn, F::cluster_rows, gated>(
            to + operand_bytes, p.b, bar, tile.column * F::width, block * depth, tile.matrix,
            own.row, column_mask, gated ? p.N : side / 2);
    }
  }
}

// ---- two warp groups: products ----

template <bool by_mn>
__device__ __forceinline__ uint64_t operand_desc(uint32_t at) {
  return by_mn ? desc_mn_major(at, half_bytes) : desc_k_major(at);
}

__device__ __forceinline__ float low_of(uint32_t pair) { return __uint_as_float(pair << 16); }
__device__ __forceinline__ float high_of(uint32_t pair) {
  return __uint_as_float(pair & 0xffff0000u);
}

template <class F>
class Group {
 public:
  using Sums = float[2][side / 2];

  __device__ Group(const Params& p, uint32_t base, int group)
      : p_(p),
        base_(base),
        bars_{base + barriers<F>},
        staging_(base + staged<F> + group * F::tiles * tile_bytes),
        group_(group),
        thread_(int(threadIdx.x) % 128),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {
    if constexpr (F::cluster > 1) {  // lane i tells loader i of this block
      const int rank = lane_ < F::cluster_columns
                           ? Place<F>::rank_of(own_.row, lane_)
                           : Place<F>::rank_of((own_.row + 1) % F::cluster_rows, own_.column);
      loader_bars_ = Bars<F::stages>{in_block(bars_.at, lane_ < F::loaders ? rank : 0)};
    }
  }

  // The groups take the tiles of this block in turn. A group waits for its turn before it waits for
  // operands: a barrier tells only two uses of a stage apart, so all earlier ones must have begun.
  __device__ void run() {
    Sums sums;
    const int step = index_step<F>();
    int index = first_index<F>() + group_ * step;
    int place = group_ * p_.blocks;  // of the tile's first stage, among all that are loaded
    uint32_t phase = 0;
    for (; index < p_.total; index += groups * step, place += groups * p_.blocks) {
      const Tile<F> tile(p_, index, own_);
      if (thread_ == 0) {
        store_wait_read<0>();  // the last tile has left the staging memory
        if (p_.reads) load_in(tile);
      }
      barrier_wait(bars_.turn(group_), group_ == 0 ? phase ^ 1 : phase);
      multiply(sums, tile, place);
      if (p_.reads)
        barrier_wait(bars_.read(group_), phase);
      else
        sync();  // the first thread has waited for the last stores
      finish(sums, tile);
      phase ^= 1;
    }
    if (thread_ == 0) store_wait<0>();
  }

 private:
  __device__ void load_in(const Tile<F>& tile) const {
    const uint32_t bar = bars_.read(group_);
    barrier_expect(bar, F::tiles * tile_bytes);
    for (int panel = 0; panel < 2 * F::tiles; ++panel)
      tma_load(staging_ + panel * panel_bytes, p_.in, bar,
               panel / 2 * p_.N + tile.column * side + panel % 2 * 64, tile.row * side,
               tile.matrix);
  }

  // This warp has read a stage: tells all blocks that load into it.
  __device__ void release(int stage) const {
    if constexpr (F::cluster > 1) {
      if (lane_ < F::loaders) arrive_in_block(loader_bars_.empty(stage));
    } else {
      if (lane_ == 0) barrier_arrive(bars_.empty(stage));
    }
  }

  // sums[h] are rows 64 h to 64 h + 63 of the tile, in the layout of Wgmma.
  __device__ void multiply(Sums& sums, const Tile<F>& tile, int place) const {
    constexpr uint64_t a_step = (F::a_by_mn ? 2048 : 32) >> 4;  // 16 of K
    constexpr uint64_t b_step = (F::b_by_mn ? 2048 : 32) >> 4;
    const uint32_t to_b = tile.on_diagonal() ? 0 : operand_bytes;
    Ring<F::stages> ring{.stage = place % F::stages, .phase = uint32_t(place / F::stages) & 1};
    int before = 0;
    for (int block = 0; block < p_.blocks; ++block) {
      barrier_wait(bars_.full(ring.stage), ring.phase);
      const uint32_t at = base_ + ring.stage * 2 * operand_bytes;
      const uint64_t a = operand_desc<F::a_by_mn>(at), b = operand_desc<F::b_by_mn>(at + to_b);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < depth / 16; ++k)
#pragma unroll
        for (int h = 0; h < 2; ++h)
          Wgmma<__nv_bfloat16, side>::template ss<F::a_by_mn, F::b_by_mn>(
              sums[h], a + k * a_step + h * (half_bytes >> 4), b + k * b_step, block + k > 0);
      wgmma_commit();
      wgmma_wait<1>();
      if (block > 0) release(before);
      before = ring.stage;
      ring.next();
    }
    if (lane_ == 0) barrier_arrive(bars_.turn(1 - group_));
    wgmma_wait<0>();
    pin(sums[0]);
    pin(sums[1]);
    release(before);
  }

  // ---- the end of a tile, through the staging memory, which holds `in` ----

  // Pair 4 j + e of half h has columns 16 j + 8 (e / 2) and following, of rows 8 (e % 2) and
  // following of the warp. This lane's row of the four 8 x 8 matrices is staged here, for ldmatrix4
  // and stmatrix4.
  __device__ uint32_t place_of(int h, int j) const {
    return staging_ + j / 4 * panel_bytes +
           swizzled(64 * h + 16 * warp_ + lane_ % 16, j % 4 * 2 + lane_ / 16);
  }
  // The same in the transposed tile, whose rows are the columns of the tile.
  __device__ uint32_t mirrored_place_of(int h, int j) const {
    return staging_ + h * panel_bytes +
           swizzled(16 * j + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2);
  }
  // The first of this lane's two columns of pairs 4 j + e.
  __device__ int column_of(const Tile<F>& tile, int j, int e) const {
    return tile.column * side + 16 * j + e / 2 * 8 + lane_ % 4 * 2;
  }
  // The bias of pairs 4 j + 2 i and 4 j + 2 i + 1.
  __device__ void load_bias(uint32_t (&bias)[2], const Tile<F>& tile, int j) const {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const int column = column_of(tile, j, 2 * i);
      bias[i] =
          p_.bias && column < p_.N ? __ldg(reinterpret_cast<const unsigned*>(p_.bias + column)) : 0;
    }
  }

  __device__ void finish(Sums& sums, const Tile<F>& tile) const {
    if constexpr (F::finish == Finish::act)
      finish_act(sums, tile);
    else if constexpr (F::finish == Finish::slope)
      finish_slope(sums, tile);
    else if constexpr (F::finish == Finish::glu)
      finish_glu(sums, tile);
    else if constexpr (F::finish == Finish::glu_slope)
      finish_glu_slope(sums, tile);
    else
      finish_scaled(sums, tile);
  }

  // c = alpha sums + bias + beta prior.
  __device__ void finish_scaled(const Sums& sums, const Tile<F>& tile) const {
    uint32_t pairs[2][side / 4];
#pragma unroll
    for (int j = 0; j < side / 16; ++j) {
      uint32_t bias[2];
      load_bias(bias, tile, j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t at = place_of(h, j);
        uint32_t prior[4] = {};
        if (p_.reads) ldmatrix4(prior, at);
        uint32_t* const x = pairs[h] + 4 * j;
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float low = fmaf(p_.alpha, sums[h][8 * j + 2 * e], low_of(bias[e / 2])),
                high = fmaf(p_.alpha, sums[h][8 * j + 2 * e + 1], high_of(bias[e / 2]));
          if (p_.reads) {
            low = fmaf(p_.beta, low_of(prior[e]), low);
            high = fmaf(p_.beta, high_of(prior[e]), high);
          }
          x[e] = pack2<__nv_bfloat16>(low, high);
        }
        stmatrix4(at, x[0], x[1], x[2], x[3]);
      }
    }
    store(p_.c, tile);
    if constexpr (F::mirrors) {
      if (tile.on_diagonal()) return;
      wait_for_store();
#pragma unroll
      for (int h = 0; h < 2; ++h)
#pragma unroll
        for (int j = 0; j < side / 16; ++j) {
          const uint32_t* const x = pairs[h] + 4 * j;
          stmatrix4_transposed(mirrored_place_of(h, j), x[0], x[1], x[2], x[3]);
        }
      Tile<F> mirrored = tile;
      mirrored.row = tile.column, mirrored.column = tile.row;
      store(p_.c, mirrored);
    }
  }

  // kept = sums + bias, c = act(kept).
  __device__ void finish_act(const Sums& sums, const Tile<F>& tile) const {
    uint32_t pairs[2][side / 4];
#pragma unroll
    for (int j = 0; j < side / 16; ++j) {
      uint32_t bias[2];
      load_bias(bias, tile, j);
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        uint32_t* const x = pairs[h] + 4 * j;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = pack2<__nv_bfloat16>(sums[h][8 * j + 2 * e] + low_of(bias[e / 2]),
                                      sums[h][8 * j + 2 * e + 1] + high_of(bias[e / 2]));
        if (p_.keeps) stmatrix4(place_of(h, j), x[0], x[1], x[2], x[3]);
      }
    }
    if (p_.keeps) {
      store(p_.kept, tile);
      wait_for_store();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < side / 16; ++j) {
        uint32_t* const x = pairs[h] + 4 * j;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = pack2<__nv_bfloat16>(act_value_for<F::act, __nv_bfloat16>(low_of(x[e])),
                                      act_value_for<F::act, __nv_bfloat16>(high_of(x[e])));
        stmatrix4(place_of(h, j), x[0], x[1], x[2], x[3]);
      }
    store(p_.c, tile);
  }

  // Stores the sums of columns 16 j to 16 j + 15 over the rows of this warp.
  __device__ void store_sums(const float (&totals)[4], const Tile<F>& tile, int j) const {
    const ColumnTotal total = column_total(totals, lane_);
    const int column = tile.column * side + 16 * j + total.column;
    if (total.owned && column < p_.N && tile.row * side < p_.M)
      p_.sums[int64_t(tile.row * 4 + warp_) * p_.N + column] = total.sum;
  }

  // c = alpha sums act'(aux).
  __device__ void finish_slope(const Sums& sums, const Tile<F>& tile) const {
#pragma unroll
    for (int j = 0; j < side / 16; ++j) {
      float totals[4] = {};
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t at = place_of(h, j);
        uint32_t x[4];
        ldmatrix4(x, at);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float low = p_.alpha * sums[h][8 * j + 2 * e] *
                            act_slope_for<F::act, __nv_bfloat16>(low_of(x[e])).dy,
                      high = p_.alpha * sums[h][8 * j + 2 * e + 1] *
                             act_slope_for<F::act, __nv_bfloat16>(high_of(x[e])).dy;
          x[e] = pack2<__nv_bfloat16>(low, high);
          totals[e / 2 * 2] += low;
          totals[e / 2 * 2 + 1] += high;
        }
        stmatrix4(at, x[0], x[1], x[2], x[3]);
      }
      if (p_.sums) store_sums(totals, tile, j);
    }
    store(p_.c, tile);
  }

  // kept = sums, c = act(gate) up: columns 0 to 63 of the tile are gates, the others ups.
  __device__ void finish_glu(const Sums& sums, const Tile<F>& tile) const {
    constexpr int n = side / 32;  // blocks of 16 columns of each
    uint32_t pairs[2][side / 4];
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < 2 * n; ++j) {
        uint32_t* const x = pairs[h] + 4 * j;
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = pack2<__nv_bfloat16>(sums[h][8 * j + 2 * e], sums[h][8 * j + 2 * e + 1]);
        if (p_.keeps) stmatrix4(place_of(h, j), x[0], x[1], x[2], x[3]);
      }
    const int column = tile.column * (side / 2);
    if (p_.keeps) {
      store_panels(p_.kept, tile, 2,
                   [&](int panel) { return column < p_.N ? panel * p_.N + column : -1; });
      wait_for_store();
    }
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < n; ++j) {
        const uint32_t *const gate = pairs[h] + 4 * j, *const up = pairs[h] + 4 * (n + j);
        uint32_t x[4];
#pragma unroll
        for (int e = 0; e < 4; ++e)
          x[e] = pack2<__nv_bfloat16>(
              act_value_for<F::act, __nv_bfloat16>(low_of(gate[e])) * low_of(up[e]),
              act_value_for<F::act, __nv_bfloat16>(high_of(gate[e])) * high_of(up[e]));
        stmatrix4(place_of(h, j), x[0], x[1], x[2], x[3]);
      }
    store_panels(p_.c, tile, 1, [&](int) { return column < p_.N ? column : -1; });
  }

  // c = (sums up act'(gate), sums act(gate)). The staging memory holds the tile of gates, then that
  // of ups.
  __device__ void finish_glu_slope(const Sums& sums, const Tile<F>& tile) const {
#pragma unroll
    for (int j = 0; j < side / 16; ++j)
#pragma unroll
      for (int h = 0; h < 2; ++h) {
        const uint32_t at = place_of(h, j);
        uint32_t gate[4], up[4];
        ldmatrix4(gate, at);
        ldmatrix4(up, at + tile_bytes);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const Slope<float> low = act_slope_for<F::act, __nv_bfloat16>(low_of(gate[e])),
                             high = act_slope_for<F::act, __nv_bfloat16>(high_of(gate[e]));
          const float d_low = p_.alpha * sums[h][8 * j + 2 * e],
                      d_high = p_.alpha * sums[h][8 * j + 2 * e + 1];
          gate[e] = pack2<__nv_bfloat16>(d_low * low_of(up[e]) * low.dy,
                                         d_high * high_of(up[e]) * high.dy);
          up[e] = pack2<__nv_bfloat16>(d_low * low.y, d_high * high.y);
        }
        stmatrix4(at, gate[0], gate[1], gate[2], gate[3]);
        stmatrix4(at + tile_bytes, up[0], up[1], up[2], up[3]);
      }
    store_panels(p_.c, tile, 4, [&](int panel) {
      const int column = tile.column * side + panel % 2 * 64;
      return column < p_.N ? panel / 2 * p_.N + column : -1;
    });
  }

  __device__ void sync() const { named_sync(1 + group_, 128); }

  // Stores staged panels of 64 columns, each from a column of the result on; -1: not at all.
  template <class ColumnOf>
  __device__ void store_panels(const CUtensorMap& map, const Tile<F>& tile, int panels,
                               ColumnOf column_of) const {
    async_fence();
    sync();
    if (thread_ != 0) return;
    for (int panel = 0; panel < panels; ++panel)
      if (const int column = column_of(panel); column >= 0 && tile.row * side < p_.M)
        tma_store(map, staging_ + panel * panel_bytes, column, tile.row * side, tile.matrix);
    store_commit();
  }
  // Stores the staged tile.
  __device__ void store(const CUtensorMap& map, const Tile<F>& tile) const {
    store_panels(map, tile, 2, [&](int panel) {
      const int column = tile.column * side + panel * 64;
      return column < p_.N ? column : -1;
    });
  }
  // The staging memory may be written again.
  __device__ void wait_for_store() const {
    if (thread_ == 0) store_wait_read<0>();
    sync();
  }

  const Params& p_;
  const uint32_t base_;
  const Bars<F::stages> bars_;
  const uint32_t staging_;
  const int group_, thread_, warp_, lane_;
  const Place<F> own_;
  Bars<F::stages> loader_bars_{};
};

}  // namespace hearth::cuda::gemm_hopper_tiles
