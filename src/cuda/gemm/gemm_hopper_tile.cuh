// How gemm_hopper.cu cuts products into tiles: the forms of its kernel, their parameters, shared
// memory and barriers, and which tile a block has.
#pragma once

#include "cuda/device/cluster.cuh"
#include "cuda/device/hopper.cuh"
#include "cuda/elementwise/act.cuh"

namespace hearth::cuda::gemm_hopper_tiles {

using namespace hopper;

constexpr int side = 128;  // of a tile of c
constexpr int depth = 64;  // of K, in one stage
constexpr int groups = 2;  // warp groups that multiply
constexpr int threads = 128 * (groups + 1);

// How a tile is finished.
enum class Finish : uint8_t {
  scaled,     // c = alpha x + bias + beta prior
  mirrored,   // the same for a symmetric c: only the tiles on and below its diagonal are computed,
              // and written in both places
  act,        // c = act(x + bias), and x + bias is kept
  slope,      // c = alpha x act'(aux)
  glu,        // x = (gate, up) is kept, c = act(gate) up: a tile has 64 columns of each
  glu_slope,  // x is the gradient of act(gate) up, c that of (gate, up), which is read
};

// a_mn, b_mn: the operand runs along its rows in M or N instead of in K. A cluster is rows x
// columns blocks, each 1 or 2.
template <bool a_mn, bool b_mn, Finish kind, Act activation = Act::none, int rows = 1,
          int columns = 1>
struct Form {
  static constexpr bool a_by_mn = a_mn, b_by_mn = b_mn, mirrors = kind == Finish::mirrored;
  static constexpr Finish finish = kind;
  static constexpr Act act = activation;
  static constexpr int cluster_rows = rows, cluster_columns = columns, cluster = rows * columns;
  static constexpr int loaders = rows + columns - 1;  // blocks that load operands for a block
  // Stages of operands and staged tiles of a warp group in shared memory: what fits.
  static constexpr int tiles = kind == Finish::glu_slope ? 2 : 1, stages = 7 - 2 * tiles;
  // Columns of N in a tile.
  static constexpr int width = kind == Finish::glu ? side / 2 : side;
};

struct Params {
  CUtensorMap a, b;
  CUtensorMap in;    // the prior, or the argument of act for its slope
  CUtensorMap kept;  // the argument of act
  CUtensorMap c;
  const __nv_bfloat16* bias;  // or null
  float* sums;                // or null: for each warp's 32 rows of a tile, their column sums
  int M, N;                   // N: columns of c, or half of those of (gate, up)
  int blocks;                 // stages that K takes
  int columns;                // clusters of tiles in a row of c
  int tiles;                  // clusters of tiles of one product
  int total;                  // of all products
  float alpha, beta;
  bool reads;  // there is an `in`
  bool keeps;  // there is a `kept`
};

// Bytes and offsets in shared memory. An operand of a stage is 128 x 64: one panel of 128 rows of
// K, or two panels of 64 rows, in which K runs down the rows. A staged tile is two panels of 128
// rows.
constexpr int operand_bytes = side * depth * 2;
constexpr int half_bytes = operand_bytes / 2;  // 64 of the 128, in either layout
constexpr int panel_bytes = side * 128;        // of a staged tile
constexpr int tile_bytes = 2 * panel_bytes;
template <class F>
constexpr int staged = F::stages * 2 * operand_bytes;
template <class F>
constexpr int barriers = staged<F> + groups* F::tiles* tile_bytes;
template <class F>
constexpr int shared_bytes = barriers<F> + 8 * (2 * F::stages + 2 * groups) + 1024;  // alignment

template <int stages>
struct Bars {
  uint32_t at;
  __device__ uint32_t full(int stage) const { return at + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return at + 8 * (stages + stage); }
  __device__ uint32_t read(int group) const { return at + 8 * (2 * stages + group); }
  // All warps of the other group have issued the products of a tile.
  __device__ uint32_t turn(int group) const { return at + 8 * (2 * stages + groups + group); }

  // loaders: blocks that load operands for a block, and so wait for those they load for.
  __device__ void init(int loaders) const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full(s), 1);
      barrier_init(empty(s), 4 * loaders);  // the warps of the groups that had the tile
    }
    for (int g = 0; g < groups; ++g) {
      barrier_init(read(g), 1);
      barrier_init(turn(g), 4);
    }
    barrier_init_fence();
  }
};

// This block's place in its cluster.
template <class F>
struct Place {
  int row, column;
  __device__ Place() {
    const int rank = F::cluster > 1 ? cluster_rank() : 0;
    row = rank / F::cluster_columns, column = rank % F::cluster_columns;
  }
  static __device__ int rank_of(int row, int column) { return row * F::cluster_columns + column; }
  // The blocks of its row and of its column, as bits.
  __device__ uint16_t row_mask() const {
    return uint16_t(((1 << F::cluster_columns) - 1) << rank_of(row, 0));
  }
  __device__ uint16_t column_mask() const {
    uint16_t mask = 0;
    for (int r = 0; r < F::cluster_rows; ++r) mask |= uint16_t(1 << rank_of(r, column));
    return mask;
  }
};

// Cluster `index` of all tiles, of which this block has one.
template <class F>
struct Tile {
  int matrix, row, column;  // in tiles
  __device__ Tile(const Params& p, int index, const Place<F>& own) : matrix(index / p.tiles) {
    const int rest = index % p.tiles;
    if constexpr (F::mirrors) {  // row i has i + 1 tiles
      row = 0, column = rest;
      while (column > row) column -= ++row;
    } else {
      row = rest / p.columns * F::cluster_rows + own.row;
      column = rest % p.columns * F::cluster_columns + own.column;
    }
  }
  // a and b of such a tile are the same rows of the same matrix.
  __device__ bool on_diagonal() const { return F::mirrors && row == column; }
};

// The clusters of tiles that this cluster of blocks takes.
template <class F>
__device__ int first_index() {
  return int(blockIdx.x) / F::cluster;
}
template <class F>
__device__ int index_step() {
  return int(gridDim.x) / F::cluster;
}

}  // namespace hearth::cuda::gemm_hopper_tiles
