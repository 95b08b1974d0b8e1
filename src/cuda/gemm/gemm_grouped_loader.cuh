// The warp group that loads the operands of gemm_grouped_hopper.cu: by TMA, and gathered rows by
// cp.async.
#pragma once

#include "cuda/gemm/gemm_grouped_hopper.cuh"

namespace hearth::cuda::grouped_hopper {

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
    Rounds rounds;
    for (int index; (index = rounds.next(count)) >= 0;) {
      const Tile tile = tiles.at(index);
      if constexpr (F::gathers) find_rows(tile, 0);
      for (int block = 0; block < tile.blocks; ++block, ring.next()) {
        const uint32_t to = base_ + ring.stage * stage_bytes, bar = bars.full(ring.stage);
        barrier_wait(bars.empty(ring.stage), ring.phase ^ 1);
        if (thread_ == 0) load(tile, block, to, bar);
        if constexpr (F::gathers) {
          if constexpr (F::weights) {
            copy_right(tile, to + F::left_bytes);
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
  static constexpr int rows_each = (F::weights ? depth : F::height) / 16;

  __device__ void load(const Tile& tile, int block, uint32_t to, uint32_t bar) const {
    constexpr bool left = !F::gathers || F::weights, right = !F::gathers || !F::weights;
    barrier_expect(bar, (left ? F::left_bytes : 0) + (right ? F::right_bytes : 0));
    const int k = block * depth, row = tile.first + k;
    if constexpr (F::weights) {
      for (int i = 0; i < F::height / 64; ++i)
        tma_load(to + i * panel_bytes, p_.left, bar, tile.row + 64 * i, row);
    } else if constexpr (left) {
      tma_load(to, p_.left, bar, k, tile.first);
    }
    if constexpr (F::form == GroupedForm::transposed)
      tma_load(to + F::left_bytes, p_.right, bar, k, tile.column, tile.group);
    else if constexpr (right)
      for (int i = 0; i < F::width / 64; ++i) {
        const uint32_t at = to + F::left_bytes + i * panel_bytes;
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
      for (int panel = 0; panel < F::width / 64; ++panel) {
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

}  // namespace hearth::cuda::grouped_hopper
