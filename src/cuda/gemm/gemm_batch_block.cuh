// What one block of gemm_batch.cu does: a thread loads operands by TMA, and two warp groups take
// turns at the tensor cores. Each computes whole tiles of 128 x 128, so that one of them finishes
// and stores its tile while the other one multiplies.
#pragma once

#include "cuda/device/hopper.cuh"

namespace hearth::cuda::gemm_batch_tiles {

using namespace hopper;

constexpr int side = 128;  // of a tile of c
constexpr int depth = 64;  // of K, in one stage
constexpr int stages = 5;  // of operands in shared memory
constexpr int groups = 2;  // warp groups that multiply
constexpr int threads = 128 * (groups + 1);

// Which operands run along their rows in M or N instead of in K, and whether c is symmetric: then
// only its tiles on and below the diagonal are computed, and written in both places.
template <bool a_mn, bool b_mn, bool mirrored>
struct Form {
  static constexpr bool a_by_mn = a_mn, b_by_mn = b_mn, mirrors = mirrored;
};

struct Params {
  CUtensorMap a, b, prior, c;
  int N;
  int blocks;   // stages that K takes
  int columns;  // tiles in a row of c
  int tiles;    // of one product
  int total;    // of all products
  float alpha, beta;
  bool adds;  // there is a prior
};

// Bytes and offsets in shared memory. An operand of a stage is 128 x 64: one panel of 128 rows of
// K, or two panels of 64 rows, in which K runs down the rows. A staged tile is two panels of 128
// rows.
constexpr int operand_bytes = side * depth * 2;
constexpr int half_bytes = operand_bytes / 2;  // 64 of the 128, in either layout
constexpr int panel_bytes = side * 128;        // of a staged tile
constexpr int tile_bytes = 2 * panel_bytes;
constexpr int staged = stages * 2 * operand_bytes;
constexpr int barriers = staged + groups * tile_bytes;
constexpr int shared_bytes = barriers + 8 * (2 * stages + 2 * groups) + 1024;  // 1024: alignment

struct Bars {
  uint32_t at;
  __device__ uint32_t full(int stage) const { return at + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return at + 8 * (stages + stage); }
  __device__ uint32_t prior(int group) const { return at + 8 * (2 * stages + group); }
  // All warps of the other group have issued the products of a tile.
  __device__ uint32_t turn(int group) const { return at + 8 * (2 * stages + groups + group); }

  __device__ void init() const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full(s), 1);
      barrier_init(empty(s), 4);  // the warps of the group that had the tile
    }
    for (int g = 0; g < groups; ++g) {
      barrier_init(prior(g), 1);
      barrier_init(turn(g), 4);
    }
    barrier_init_fence();
  }
};

// Tile `index` of all products.
template <class F>
struct Tile {
  int matrix, row, column;  // in tiles
  __device__ Tile(const Params& p, int index) : matrix(index / p.tiles) {
    const int rest = index % p.tiles;
    if constexpr (F::mirrors) {  // row i has i + 1 tiles
      row = 0, column = rest;
      while (column > row) column -= ++row;
    } else {
      row = rest / p.columns, column = rest % p.columns;
    }
  }
  // a and b of such a tile are the same rows of the same matrix.
  __device__ bool on_diagonal() const { return F::mirrors && row == column; }
};

// ---- one thread: loads ----

// The part of an operand for rows or columns of c from `first` on.
template <bool by_mn>
__device__ __forceinline__ void load_operand(uint32_t to, const CUtensorMap& map, uint32_t bar,
                                             int first, int k, int matrix) {
  if constexpr (by_mn) {
    tma_load(to, map, bar, first, k, matrix);
    tma_load(to + half_bytes, map, bar, first + side / 2, k, matrix);
  } else {
    tma_load(to, map, bar, k, first, matrix);
  }
}

template <class F>
__device__ void produce(const Params& p, uint32_t base) {
  const Bars bars{base + barriers};
  Ring<stages> ring;
  for (int index = int(blockIdx.x); index < p.total; index += int(gridDim.x)) {
    const Tile<F> tile(p, index);
    const bool once = tile.on_diagonal();
    for (int block = 0; block < p.blocks; ++block, ring.next()) {
      const uint32_t to = base + ring.stage * 2 * operand_bytes, bar = bars.full(ring.stage);
      barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
      barrier_expect(bar, once ? operand_bytes : 2 * operand_bytes);
      load_operand<F::a_by_mn>(to, p.a, bar, tile.row * side, block * depth, tile.matrix);
      if (!once)
        load_operand<F::b_by_mn>(to + operand_bytes, p.b, bar, tile.column * side, block * depth,
                                 tile.matrix);
    }
  }
}

// ---- two warp groups: products ----

template <bool by_mn>
__device__ __forceinline__ uint64_t operand_desc(uint32_t at) {
  return by_mn ? desc_mn_major(at, half_bytes) : desc_k_major(at);
}

template <class F>
class Group {
 public:
  __device__ Group(const Params& p, uint32_t base, int group)
      : p_(p),
        base_(base),
        bars_{base + barriers},
        staging_(base + staged + group * tile_bytes),
        group_(group),
        thread_(int(threadIdx.x) % 128),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  // The groups take the tiles of this block in turn. A group waits for its turn before it waits for
  // operands: a barrier tells only two uses of a stage apart, so all earlier ones must have begun.
  __device__ void run() {
    float sums[2][side / 2];
    int index = int(blockIdx.x) + group_ * int(gridDim.x);
    int place = group_ * p_.blocks;  // of the tile's first stage, among all that are loaded
    uint32_t phase = 0;
    for (; index < p_.total; index += groups * int(gridDim.x), place += groups * p_.blocks) {
      const Tile<F> tile(p_, index);
      if (thread_ == 0) {
        store_wait_read<0>();  // the last tile has left the staging memory
        if (p_.adds) load_prior(tile);
      }
      barrier_wait(bars_.turn(group_), group_ == 0 ? phase ^ 1 : phase);
      multiply(sums, tile, place);
      finish(sums, tile, phase);
      phase ^= 1;
    }
    if (thread_ == 0) store_wait<0>();
  }

 private:
  __device__ void load_prior(const Tile<F>& tile) const {
    const uint32_t bar = bars_.prior(group_);
    barrier_expect(bar, tile_bytes);
    for (int panel = 0; panel < 2; ++panel)
      tma_load(staging_ + panel * panel_bytes, p_.prior, bar, tile.column * side + panel * 64,
               tile.row * side, tile.matrix);
  }

  __device__ void release(int stage) const {
    if (lane_ == 0) barrier_arrive(bars_.empty(stage));
  }

  // sums[h] are rows 64 h to 64 h + 63 of the tile, in the layout of Wgmma.
  __device__ void multiply(float (&sums)[2][side / 2], const Tile<F>& tile, int place) const {
    constexpr uint64_t a_step = (F::a_by_mn ? 2048 : 32) >> 4;  // 16 of K
    constexpr uint64_t b_step = (F::b_by_mn ? 2048 : 32) >> 4;
    const uint32_t to_b = tile.on_diagonal() ? 0 : operand_bytes;
    Ring<stages> ring{.stage = place % stages, .phase = uint32_t(place / stages) & 1};
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

  // Where this lane's row of four 8 x 8 matrices is staged, for ldmatrix4 and stmatrix4: rows 16
  // warp and columns 16 j of half h.
  __device__ uint32_t place_of(int h, int j) const {
    return staging_ + j / 4 * panel_bytes +
           swizzled(64 * h + 16 * warp_ + lane_ % 16, j % 4 * 2 + lane_ / 16);
  }
  // The same in the transposed tile, whose rows are the columns of the tile.
  __device__ uint32_t mirrored_place_of(int h, int j) const {
    return staging_ + h * panel_bytes +
           swizzled(16 * j + lane_ / 16 * 8 + lane_ % 8, 2 * warp_ + lane_ / 8 % 2);
  }

  // c = alpha sums + beta prior, through the staging memory, which holds the prior.
  __device__ void finish(const float (&sums)[2][side / 2], const Tile<F>& tile, uint32_t phase) {
    uint32_t pairs[2][side / 4];
    if (p_.adds)
      barrier_wait(bars_.prior(group_), phase);
    else
      sync();  // the first thread has waited for the last stores
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < side / 16; ++j) {
        const uint32_t at = place_of(h, j);
        uint32_t prior[4] = {};
        if (p_.adds) ldmatrix4(prior, at);
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          float low = p_.alpha * sums[h][8 * j + 2 * e],
                high = p_.alpha * sums[h][8 * j + 2 * e + 1];
          if (p_.adds) {
            low = fmaf(p_.beta, __uint_as_float(prior[e] << 16), low);
            high = fmaf(p_.beta, __uint_as_float(prior[e] & 0xffff0000u), high);
          }
          pairs[h][4 * j + e] = pack2<__nv_bfloat16>(low, high);
        }
        const uint32_t* const x = pairs[h] + 4 * j;
        stmatrix4(at, x[0], x[1], x[2], x[3]);
      }
    store(tile.row, tile.column, tile.matrix);
    if (!F::mirrors || tile.on_diagonal()) return;
    if (thread_ == 0) store_wait_read<0>();
    sync();
#pragma unroll
    for (int h = 0; h < 2; ++h)
#pragma unroll
      for (int j = 0; j < side / 16; ++j) {
        const uint32_t* const x = pairs[h] + 4 * j;
        stmatrix4_transposed(mirrored_place_of(h, j), x[0], x[1], x[2], x[3]);
      }
    store(tile.column, tile.row, tile.matrix);
  }

  __device__ void sync() const { named_sync(1 + group_, 128); }

  // Stores the staged tile at a place counted in tiles.
  __device__ void store(int row, int column, int matrix) const {
    async_fence();
    sync();
    if (thread_ != 0) return;
    for (int panel = 0; panel < 2; ++panel) {
      const int first = column * side + panel * 64;
      if (first < p_.N) tma_store(p_.c, staging_ + panel * panel_bytes, first, row * side, matrix);
    }
    store_commit();
  }

  const Params& p_;
  const uint32_t base_;
  const Bars bars_;
  const uint32_t staging_;
  const int group_, thread_, warp_, lane_;
};

}  // namespace hearth::cuda::gemm_batch_tiles
