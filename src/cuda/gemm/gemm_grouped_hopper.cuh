// The grouped products for Hopper: tiles, shared memory and barriers. A block stays for many tiles.
// One of its warp groups loads operands (gemm_grouped_loader.cuh), and two multiply
// (gemm_grouped_worker.cuh): both read the same right operand, each for half of the rows. The
// second follows the first by a stage, so that one multiplies while the other stores.
#pragma once

#include "cuda/device/hopper.cuh"
#include "cuda/gemm/gemm_grouped.h"
#include "cuda/gemm/gemm_grouped_tiles.cuh"

namespace hearth::cuda::grouped_hopper {

using namespace hopper;
using namespace grouped;

constexpr int depth = 64;  // of the sum, in one stage
constexpr int stages = 4;
constexpr int behind = 1;   // stages by which the second group follows the first
constexpr int workers = 2;  // warp groups that multiply
constexpr int threads = 128 * (workers + 1);

// An operand in a stage is a row of panels of 64 columns. If the sum runs along the rows, there is
// one panel of 128 or 256 rows; if it runs down the rows, there are two or four panels of 64 rows.
constexpr int panel_bytes = depth * 128;  // of the second kind
constexpr int stage_bytes = (128 + 256) * depth * 2;
// A warp group stages 64 x 64 elements of its result in one buffer while TMA stores another.
constexpr int buffers = 2, buffer_bytes = 64 * 128;
constexpr int staged = stages * stage_bytes;
constexpr int barriers = staged + workers * buffers * buffer_bytes;
constexpr int bounds = barriers + 8 * (2 * stages + 1);  // GroupTiles or GroupOrder
constexpr int tile_rows = 128;                           // of a product
constexpr int shared_bytes(int64_t groups) { return bounds + GroupTiles<tile_rows>::bytes(groups); }

template <class Element, GroupedForm kind, bool gathered>
struct Form {
  using T = Element;
  static constexpr GroupedForm form = kind;
  static constexpr bool weights = kind == GroupedForm::weights;
  static constexpr bool gathers = gathered;
  // The sum runs down the rows of this operand.
  static constexpr bool left_down = weights, right_down = kind != GroupedForm::transposed;
  // A tile of the result is 128 x 256. A gathered right operand has the shorter side, because
  // gathering is slower than TMA.
  static constexpr int height = weights && gathered ? 256 : 128, width = 128 * 256 / height;
  static constexpr int parts = height / 128;  // blocks of 64 rows of a warp group
  static constexpr int left_bytes = height * depth * 2, right_bytes = width * depth * 2;
  using Sums = float[parts][width / 2];
};

struct Params {
  CUtensorMap left, right;  // the operand that is gathered has none
  CUtensorMap stores;       // of a product
  const void* gathered;     // (tokens, K)
  const int* gather;
  const int* offsets;
  void* out;
  int groups, N, K;
  int columns;  // tiles in a row of the result
  int tiles;    // of one gradient of weights
  bool wide;    // out is f32
  bool add;
};

struct Bars {
  uint32_t at;
  __device__ uint32_t full(int stage) const { return at + 8 * stage; }
  __device__ uint32_t empty(int stage) const { return at + 8 * (stages + stage); }
  __device__ uint32_t follow() const { return at + 8 * 2 * stages; }

  template <class F>
  __device__ void init() const {
    for (int s = 0; s < stages; ++s) {
      barrier_init(full(s), F::gathers ? 129 : 1);  // one thread for TMA, 128 for cp.async
      barrier_init(empty(s), 4 * workers);
    }
    barrier_init(follow(), 4);
    barrier_init_fence();
  }
};

// A tile of the result, and the stages of its sum. `first` and `end` are rows of the group: those
// of the result, or those to add for a gradient of weights.
struct Tile {
  int group, first, end;
  int row, column;  // of the result; the row is only that of a gradient
  int blocks;
};

// All tiles of a product, in the order in which the blocks take them: those that share rows of the
// left operand are adjacent.
template <class F>
struct Tiles {
  const Params& p;
  const GroupTiles<tile_rows> rows;

  __device__ Tiles(const Params& params, void* memory) : p(params), rows(memory, params.groups) {}
  // Called by all threads; a barrier must follow.
  __device__ void build() const {
    if (threadIdx.x < 32) rows.build(p.offsets);
  }
  __device__ int count() const { return rows.count() * p.columns; }
  __device__ Tile at(int index) const {
    const RowTile t = rows.at(index / p.columns);
    return {t.group, t.first, t.end, 0, index % p.columns * F::width, (p.K + depth - 1) / depth};
  }
};

// All tiles of a gradient: those of one group are adjacent, and the longest come first.
template <class F>
requires F::weights struct Tiles<F> {
  const Params& p;
  const GroupOrder order;

  __device__ Tiles(const Params& params, void* memory) : p(params), order(memory, params.groups) {}
  __device__ void build() const { order.build(p.offsets); }
  __device__ int count() const { return p.groups * p.tiles; }
  __device__ Tile at(int index) const {
    const int group = order[index / p.tiles], rest = index % p.tiles;
    const int first = p.offsets[group], end = p.offsets[group + 1];
    return {.group = group,
            .first = first,
            .end = end,
            .row = rest / p.columns * F::height,
            .column = rest % p.columns * F::width,
            .blocks = (end - first + depth - 1) / depth};
  }
};

}  // namespace hearth::cuda::grouped_hopper
