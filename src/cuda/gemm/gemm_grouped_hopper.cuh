// What one block of the grouped products for Hopper does. It stays for many tiles of 128 x 256. A
// warp group loads operands (TMA, and cp.async for gathered rows), and two warp groups multiply:
// both read the same 256 columns, each for 64 rows of its own. The second follows the first by a
// few stages, so that one of them multiplies while the other one stores its part of a tile.
#pragma once

#include "cuda/device/hopper.cuh"
#include "cuda/gemm/gemm_grouped.h"
#include "cuda/gemm/gemm_grouped_tiles.cuh"

namespace hearth::cuda::grouped_hopper {

using namespace hopper;
using namespace grouped;

constexpr int height = 128, width = 256;  // of a tile of the result
constexpr int depth = 64;                 // of the sum, in one stage
constexpr int stages = 4;
constexpr int behind = 2;   // stages by which the second group follows the first
constexpr int workers = 2;  // warp groups that multiply
constexpr int threads = 128 * (workers + 1);

// An operand in a stage is a row of panels of 64 columns. If the sum runs along the rows, there is
// one panel of 128 or 256 rows; if it runs down the rows, there are two or four panels of 64 rows.
constexpr int panel_bytes = depth * 128;  // of the second kind
constexpr int left_bytes = height * depth * 2, right_bytes = width * depth * 2;
constexpr int stage_bytes = left_bytes + right_bytes;
constexpr int barriers = stages * stage_bytes;
constexpr int bounds = barriers + 8 * (2 * stages + 1);  // GroupTiles
constexpr int shared_bytes(int64_t groups) {
  return bounds + GroupTiles<height>::bytes(groups) + 1024;  // 1024: alignment
}

template <class Element, GroupedForm kind, bool gathered>
struct Form {
  using T = Element;
  static constexpr GroupedForm form = kind;
  static constexpr bool weights = kind == GroupedForm::weights;
  static constexpr bool gathers = gathered;
  // The sum runs down the rows of this operand.
  static constexpr bool left_down = weights, right_down = kind != GroupedForm::transposed;
};

struct Params {
  CUtensorMap left, right;  // the operand that is gathered has none
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

// All tiles in the order in which the blocks take them: those that share rows of the left operand
// are adjacent.
template <class F>
struct Tiles {
  const Params& p;
  const GroupTiles<height> rows;

  __device__ int count() const {
    return F::weights ? p.groups * p.tiles : rows.count() * p.columns;
  }
  __device__ Tile at(int index) const {
    if constexpr (F::weights) {
      const int group = index / p.tiles, rest = index % p.tiles;
      const int first = p.offsets[group], end = p.offsets[group + 1];
      return {group,
              first,
              end,
              rest / p.columns * height,
              rest % p.columns * width,
              (end - first + depth - 1) / depth};
    } else {
      const RowTile t = rows.at(index / p.columns);
      return {t.group, t.first, t.end, 0, index % p.columns * width, (p.K + depth - 1) / depth};
    }
  }
};

// ---- one warp group: loads ----

// The barrier counts this thread once its copies so far have arrived.
__device__ __forceinline__ void arrive_after_copies(uint32_t bar) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];" ::"r"(bar) : "memory");
}

template <class F>
class Loader {
 public:
  using T = typename F::T;
  __device__ Loader(const Params& p, uint32_t base)
      : p_(p), base_(base), thread_(int(threadIdx.x) % 128) {}

  __device__ void run(const Tiles<F>& tiles) {
    const Bars bars{base_ + barriers};
    const int count = tiles.count();
    Ring<stages> ring;
    for (int index = int(blockIdx.x); index < count; index += int(gridDim.x)) {
      const Tile tile = tiles.at(index);
      if constexpr (F::gathers) find_rows(tile, 0);
      for (int block = 0; block < tile.blocks; ++block, ring.next()) {
        const uint32_t to = base_ + ring.stage * stage_bytes, bar = bars.full(ring.stage);
        barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
        if (thread_ == 0) load(tile, block, to, bar);
        if constexpr (F::gathers) {
          if constexpr (F::weights) {
            copy_right(tile, to + left_bytes);
            if (block + 1 < tile.blocks) find_rows(tile, block + 1);
          } else {
            copy_left(block, to);
          }
          arrive_after_copies(bar);
        }
      }
    }
  }

 private:
  // Each eight threads copy 128 bytes of a row; a thread has every 16th row.
  static constexpr int rows_each = (F::weights ? depth : height) / 16;

  __device__ void load(const Tile& tile, int block, uint32_t to, uint32_t bar) const {
    constexpr bool left = !F::gathers || F::weights, right = !F::gathers || !F::weights;
    barrier_expect(bar, (left ? left_bytes : 0) + (right ? right_bytes : 0));
    const int k = block * depth, row = tile.first + k;
    if constexpr (F::weights) {
      for (int i = 0; i < height / 64; ++i)
        tma_load(to + i * panel_bytes, p_.left, bar, tile.row + 64 * i, row);
    } else if constexpr (left) {
      tma_load(to, p_.left, bar, k, tile.first);
    }
    if constexpr (F::form == GroupedForm::transposed)
      tma_load(to + left_bytes, p_.right, bar, k, tile.column, tile.group);
    else if constexpr (right)
      for (int i = 0; i < width / 64; ++i) {
        const uint32_t at = to + left_bytes + i * panel_bytes;
        if constexpr (F::weights)
          tma_load(at, p_.right, bar, tile.column + 64 * i, row);
        else
          tma_load(at, p_.right, bar, tile.column + 64 * i, k, tile.group);
      }
  }

  // Reads which rows of a this thread copies next; -1: zeros.
  __device__ void find_rows(const Tile& tile, int block) {
    const int first = tile.first + (F::weights ? block * depth : 0) + thread_ / 8;
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      const int row = first + 16 * i;
      from_[i] = row < tile.end ? p_.gather[row] : -1;
    }
  }
  __device__ const T* row_of(int i) const {
    return static_cast<const T*>(p_.gathered) + int64_t(max(from_[i], 0)) * p_.K;
  }
  __device__ uint32_t place() const { return swizzled(thread_ / 8, thread_ % 8); }

  __device__ void copy_left(int block, uint32_t to) const {
    const int k = block * depth + thread_ % 8 * 8;
#pragma unroll
    for (int i = 0; i < rows_each; ++i) {
      const bool real = from_[i] >= 0 && k < p_.K;
      copy_async(to + place() + i * 2048, row_of(i) + (real ? k : 0), real);
    }
  }
  __device__ void copy_right(const Tile& tile, uint32_t to) const {
#pragma unroll
    for (int i = 0; i < rows_each; ++i)
#pragma unroll
      for (int panel = 0; panel < width / 64; ++panel) {
        const int k = tile.column + 64 * panel + thread_ % 8 * 8;
        const bool real = from_[i] >= 0 && k < p_.K;
        copy_async(to + panel * panel_bytes + place() + i * 2048, row_of(i) + (real ? k : 0), real);
      }
  }

  const Params& p_;
  const uint32_t base_;
  const int thread_;
  int from_[F::gathers ? rows_each : 1];
};

// ---- two warp groups: products ----

template <class F>
class Worker {
 public:
  using T = typename F::T;
  __device__ Worker(const Params& p, uint32_t base, int group)
      : p_(p),
        base_(base),
        bars_{base + barriers},
        group_(group),
        thread_(int(threadIdx.x) % 128),
        warp_(thread_ / 32),
        lane_(thread_ % 32) {}

  __device__ void run(const Tiles<F>& tiles) {
    float sums[width / 2];
    const int count = tiles.count();
    for (int index = int(blockIdx.x); index < count; index += int(gridDim.x)) {
      const Tile tile = tiles.at(index);
      if (F::weights && tile.blocks == 0) {
        if (!p_.add) store_zeros(tile);
        continue;
      }
      multiply(sums, tile);
      if constexpr (F::weights)
        finish_weights(sums, tile);
      else
        finish(sums, tile);
    }
  }

 private:
  __device__ void release(int stage) const {
    if (lane_ == 0) barrier_arrive(bars_.empty(stage));
  }

  // The second group begins a tile once the first has issued `behind` stages of it. Tiles with
  // fewer stages than the ring are left out: the first group could begin two of them before the
  // second begins one, which a barrier cannot tell apart.
  __device__ bool followed(const Tile& tile) const { return tile.blocks >= stages; }

  __device__ void multiply(float (&sums)[width / 2], const Tile& tile) {
    constexpr uint64_t left_step = (F::left_down ? 2048 : 32) >> 4;  // 16 of the sum
    constexpr uint64_t right_step = (F::right_down ? 2048 : 32) >> 4;
    if (group_ == 1 && followed(tile)) {
      barrier_wait(bars_.follow(), follow_phase_);
      follow_phase_ ^= 1;
    }
    int before = 0;
    for (int block = 0; block < tile.blocks; ++block) {
      barrier_wait(bars_.full(ring_.stage), ring_.phase);
      const uint32_t at = base_ + ring_.stage * stage_bytes;
      if constexpr (F::gathers) async_fence();  // cp.async writes as ordinary stores do
      if constexpr (F::weights) {
        const int rows = tile.end - tile.first - block * depth;
        if (rows < depth) clear(at, rows);
      }
      const uint64_t left = F::left_down ? desc_mn_major(at + group_ * panel_bytes, panel_bytes)
                                         : desc_k_major(at + group_ * 64 * 128);
      const uint64_t right = F::right_down ? desc_mn_major(at + left_bytes, panel_bytes)
                                           : desc_k_major(at + left_bytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < depth / 16; ++k)
        Wgmma<T, width>::template ss<F::left_down, F::right_down>(
            sums, left + k * left_step, right + k * right_step, block + k > 0);
      wgmma_commit();
      if (group_ == 0 && block == behind - 1 && followed(tile) && lane_ == 0)
        barrier_arrive(bars_.follow());
      wgmma_wait<1>();
      if (block > 0) release(before);
      before = ring_.stage;
      ring_.next();
    }
    wgmma_wait<0>();
    pin(sums);
    release(before);
  }

  // The last rows of a stage belong to other groups: replaces what this warp group reads of them by
  // zeros. Both groups do so with the right operand.
  __device__ void clear(uint32_t at, int rows) const {
    const auto clear_panel = [&](uint32_t panel) {
      for (int i = rows * 128 + thread_ * 16; i < panel_bytes; i += 128 * 16)
        asm volatile("st.shared.v4.u32 [%0], {%1, %1, %1, %1};" ::"r"(panel + i), "r"(0)
                     : "memory");
    };
    clear_panel(at + group_ * panel_bytes);
    if constexpr (!F::gathers)
      for (int i = 0; i < width / 64; ++i) clear_panel(at + left_bytes + i * panel_bytes);
    async_fence();
    named_sync(1 + group_, 128);
  }

  // The first of the two rows of a tile that this lane has, eight apart.
  __device__ int own_row() const { return 64 * group_ + 16 * warp_ + lane_ / 4; }
  // Columns 32 j to 32 j + 31 of its row `half`.
  static __device__ __forceinline__ void columns32(float (&x)[8], const float (&sums)[width / 2],
                                                   int half, int j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
      x[2 * i] = sums[16 * j + 4 * i + 2 * half],
            x[2 * i + 1] = sums[16 * j + 4 * i + 2 * half + 1];
  }

  __device__ void finish(const float (&sums)[width / 2], const Tile& tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.first + own_row() + 8 * half;
      T* const to = static_cast<T*>(p_.out) + int64_t(row) * p_.N + tile.column;
      const int limit = row < tile.end ? p_.N - tile.column : 0;
#pragma unroll
      for (int j = 0; j < width / 32; ++j) {
        float x[8];
        columns32(x, sums, half, j);
        store_row32(to + 32 * j, x, lane_, limit - 32 * j);
      }
    }
  }

  __device__ void finish_weights(const float (&sums)[width / 2], const Tile& tile) const {
    constexpr int n = 4;  // pieces at once
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.row + own_row() + 8 * half;
      const int64_t at = (int64_t(tile.group) * p_.N + row) * p_.K + tile.column;
      const int limit = row < p_.N ? p_.K - tile.column : 0;
#pragma unroll
      for (int j = 0; j < width / 32; j += n) {
        Piece pieces[n];
        float x[n][8];
#pragma unroll
        for (int i = 0; i < n; ++i) {
          pieces[i] = {at + 32 * (j + i), limit - 32 * (j + i)};
          columns32(x[i], sums, half, j + i);
        }
        store_pieces<T>(p_.out, p_.wide, pieces, x, lane_, p_.add);
      }
    }
  }

  __device__ void store_zeros(const Tile& tile) const {
    const int size = p_.wide ? 4 : 2, rows = min(64, p_.N - tile.row - 64 * group_);
    const int chunks = min(width, p_.K - tile.column) * size / 16;  // of a row
    const int64_t first = int64_t(tile.group) * p_.N + tile.row + 64 * group_;
    for (int i = thread_; i < rows * chunks; i += 128) {
      char* const row =
          static_cast<char*>(p_.out) + ((first + i / chunks) * p_.K + tile.column) * size;
      reinterpret_cast<uint4*>(row)[i % chunks] = {0, 0, 0, 0};
    }
  }

  const Params& p_;
  const uint32_t base_;
  const Bars bars_;
  const int group_, thread_, warp_, lane_;
  Ring<stages> ring_;
  uint32_t follow_phase_ = 0;
};

}  // namespace hearth::cuda::grouped_hopper
