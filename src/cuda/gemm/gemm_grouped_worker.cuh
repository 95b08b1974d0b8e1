// A warp group that multiplies and stores for gemm_grouped_hopper.cu.
#pragma once

#include "cuda/gemm/gemm_grouped_hopper.cuh"

namespace hearth::cuda::grouped_hopper {

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
    typename F::Sums sums;
    const int count = tiles.count();
    Rounds rounds;
    for (int index; (index = rounds.next(count)) >= 0;) {
      const Tile tile = tiles.at(index);
      if (F::weights && tile.blocks == 0) {
        if (!p_.add) store_zeros(tile);
        continue;
      }
      multiply(sums, tile);
      if constexpr (F::weights) {
        finish_weights(sums, tile);
      } else if (tile.first + 64 * (group_ + 1) <= tile.end) {
        finish_staged(sums[0], tile);
      } else {
        finish(sums[0], tile);
      }
    }
    if (!F::weights && thread_ == 0) store_wait<0>();
  }

 private:
  __device__ void release(int stage) const {
    if (lane_ == 0) barrier_arrive(bars_.empty(stage));
  }

  // The second group begins a tile once the first has issued `behind` stages of it. Tiles with
  // fewer stages than the ring are left out: the first group could begin two of them before the
  // second begins one, which a barrier cannot tell apart.
  __device__ bool followed(const Tile& tile) const { return tile.blocks >= stages; }

  __device__ void multiply(typename F::Sums& sums, const Tile& tile) {
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
      const uint32_t own = at + group_ * F::parts * panel_bytes;
      const uint64_t left = F::left_down ? desc_mn_major(own, panel_bytes) : desc_k_major(own);
      const uint64_t right = F::right_down ? desc_mn_major(at + F::left_bytes, panel_bytes)
                                           : desc_k_major(at + F::left_bytes);
      wgmma_fence();
#pragma unroll
      for (int k = 0; k < depth / 16; ++k)
#pragma unroll
        for (int i = 0; i < F::parts; ++i)
          Wgmma<T, F::width>::template ss<F::left_down, F::right_down>(
              sums[i], left + k * left_step + i * (panel_bytes >> 4), right + k * right_step,
              block + k > 0);
      wgmma_commit();
      if (group_ == 0 && block == behind - 1 && followed(tile) && lane_ == 0)
        barrier_arrive(bars_.follow());
      wgmma_wait<1>();
      if (block > 0) release(before);
      before = ring_.stage;
      ring_.next();
    }
    wgmma_wait<0>();
#pragma unroll
    for (int i = 0; i < F::parts; ++i) pin(sums[i]);
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
    for (int i = 0; i < F::parts; ++i) clear_panel(at + (group_ * F::parts + i) * panel_bytes);
    if constexpr (!F::gathers)
      for (int i = 0; i < F::width / 64; ++i) clear_panel(at + F::left_bytes + i * panel_bytes);
    async_fence();
    named_sync(1 + group_, 128);
  }

  // The first of the two rows of a block of 64 that this lane has, eight apart.
  __device__ int own_row(int part) const {
    return 64 * (group_ * F::parts + part) + 16 * warp_ + lane_ / 4;
  }
  // Columns 32 j to 32 j + 31 of its row `half`.
  static __device__ __forceinline__ void columns32(float (&x)[8], const float (&sums)[F::width / 2],
                                                   int half, int j) {
#pragma unroll
    for (int i = 0; i < 4; ++i)
#pragma unroll
      for (int c = 0; c < 2; ++c) x[2 * i + c] = sums[16 * j + 4 * i + 2 * half + c];
  }

  // Rows of a tile that ends with its group.
  __device__ void finish(const float (&sums)[F::width / 2], const Tile& tile) const {
#pragma unroll
    for (int half = 0; half < 2; ++half) {
      const int row = tile.first + own_row(0) + 8 * half;
      T* const to = static_cast<T*>(p_.out) + int64_t(row) * p_.N + tile.column;
      const int limit = row < tile.end ? p_.N - tile.column : 0;
#pragma unroll
      for (int j = 0; j < F::width / 32; ++j) {
        float x[8];
        columns32(x, sums, half, j);
        store_row32(to + 32 * j, x, lane_, limit - 32 * j);
      }
    }
  }

  // 64 whole rows, through shared memory.
  __device__ void finish_staged(const float (&sums)[F::width / 2], const Tile& tile) const {
    const uint32_t own = base_ + staged + group_ * buffers * buffer_bytes;
#pragma unroll
    for (int panel = 0; panel < F::width / 64; ++panel) {
      const uint32_t to = own + panel % buffers * buffer_bytes;
      if (thread_ == 0) store_wait_read<buffers - 1>();
      sync();
#pragma unroll
      for (int j = 0; j < 4; ++j) {  // of 16 columns
        uint32_t pairs[4];
#pragma unroll
        for (int e = 0; e < 4; ++e) {
          const float* const x = sums + 8 * (4 * panel + j) + 2 * e;
          pairs[e] = pack2<T>(x[0], x[1]);
        }
        stmatrix4(to + swizzled(16 * warp_ + lane_ % 16, 2 * j + lane_ / 16), pairs[0], pairs[1],
                  pairs[2], pairs[3]);
      }
      async_fence();
      sync();
      const int column = tile.column + 64 * panel;
      if (thread_ != 0) continue;
      if (column < p_.N) tma_store(p_.stores, to, column, tile.first + 64 * group_);
      store_commit();
    }
  }
  __device__ void sync() const { named_sync(1 + group_, 128); }

  __device__ void finish_weights(const typename F::Sums& sums, const Tile& tile) const {
    constexpr int n = 4;  // pieces at once
#pragma unroll
    for (int part = 0; part < F::parts; ++part)
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int row = tile.row + own_row(part) + 8 * half;
        const int64_t at = (int64_t(tile.group) * p_.N + row) * p_.K + tile.column;
        const int limit = row < p_.N ? p_.K - tile.column : 0;
#pragma unroll
        for (int j = 0; j < F::width / 32; j += n) {
          Piece pieces[n];
          float x[n][8];
#pragma unroll
          for (int i = 0; i < n; ++i) {
            pieces[i] = {at + 32 * (j + i), limit - 32 * (j + i)};
            columns32(x[i], sums[part], half, j + i);
          }
          store_pieces<T>(p_.out, p_.wide, pieces, x, lane_, p_.add);
        }
      }
  }

  __device__ void store_zeros(const Tile& tile) const {
    constexpr int own_rows = 64 * F::parts;
    const int top = tile.row + own_rows * group_, rows = min(own_rows, p_.N - top);
    const int size = p_.wide ? 4 : 2;
    const int chunks = min(F::width, p_.K - tile.column) * size / 16;  // of a row
    const int64_t first = int64_t(tile.group) * p_.N + top;
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
