// Grouped products of 16-bit floats by mma.sync, for Ampere and later: 2 R N K FLOPs. A block
// computes tiles of 128 x 128, one after another; eight warps have 64 x 32 of a tile each.
#include <algorithm>

#include "cuda/device/mma.cuh"
#include "cuda/gemm/gemm_grouped.h"
#include "cuda/gemm/gemm_grouped_tiles.cuh"

namespace hearth::cuda {
namespace {

using namespace grouped;

constexpr int side = 128;  // of a tile of the result
constexpr int depth = 32;  // of the sum, in one stage
constexpr int stages = 3;
constexpr int threads = 256;
constexpr int blocks_each = 2;  // per multiprocessor
constexpr int operand_bytes = side * depth * 2;
constexpr int bounds = stages * 2 * operand_bytes;  // GroupTiles or GroupOrder, in shared memory

// A tile of the result. `first` and `end` are rows of the group: those of the result, or those to
// add for a gradient of weights.
struct MmaTile {
  int group, first, end;
  int row, column;  // of the result; the row is only that of a gradient
  int blocks;       // stages of the sum
};

template <class T, GroupedForm form>
class MmaBlock {
 public:
  static constexpr bool weights = form == GroupedForm::weights;
  // The sum runs down the rows of this operand.
  static constexpr bool left_down = weights, right_down = form != GroupedForm::transposed;

  __device__ MmaBlock(const SquareParams& p, uint32_t base)
      : p_(p), base_(base), thread_(int(threadIdx.x)), lane_(thread_ % 32) {}

  __device__ void run(const MmaTile& tile) {
    if (weights && p_.add && tile.blocks == 0) return;
    float sums[4][4][4] = {};  // 16 rows by 8 columns each
    find_rows(tile, 0);
#pragma unroll
    for (int s = 0; s < stages - 1; ++s) {
      if (s < tile.blocks) load(tile, s);
      commit_copies();
    }
    for (int block = 0; block < tile.blocks; ++block) {
      wait_for_copies<stages - 2>();
      __syncthreads();
      if (block + stages - 1 < tile.blocks) load(tile, block + stages - 1);
      commit_copies();
      multiply_stage(sums, block % stages);
    }
    __syncthreads();  // the next tile overwrites the stages
    finish(sums, tile);
  }

 private:
  using Along = SharedTile<depth>;  // the sum runs along the rows: 128 rows
  using Down = SharedTile<side>;    // down the rows: 32 rows
  template <bool down>
  static constexpr int chunks = down ? Down::chunks : Along::chunks;
  // A thread copies one 16-byte chunk of two rows of an operand, `apart` rows apart.
  template <bool down>
  static constexpr int apart = threads / chunks<down>;

  __device__ uint32_t stage(int i, bool right) const {
    return base_ + uint32_t((2 * i + int(right)) * operand_bytes);
  }
  // Row r of a.
  __device__ int64_t gathered(int r, int end) const {
    return r < end && p_.gather ? p_.gather[r] : r;
  }

  // Reads which rows of a this thread copies: those of the tile, or those of a stage.
  __device__ void find_rows(const MmaTile& tile, int block) {
    const int first = tile.first + (weights ? block * depth : 0) + thread_ / chunks<weights>;
#pragma unroll
    for (int i = 0; i < 2; ++i) from_[i] = gathered(first + i * apart<weights>, tile.end);
  }

  // One chunk of two rows: row i is `rows[i]` of the matrix and `row + i apart` of the tile.
  template <bool down>
  __device__ void copy(uint32_t to, const T* matrix, const int64_t (&rows)[2],
                       const bool (&real)[2], int64_t stride, int column, int limit) const {
    const int c = thread_ % chunks<down>, row = thread_ / chunks<down>;
    column += 8 * c;
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      const bool there = real[i] && column < limit;
      const uint32_t at = down ? Down{to}.chunk(row + i * apart<down>, c)
                               : Along{to}.chunk(row + i * apart<down>, c);
      copy_async(at, there ? matrix + rows[i] * stride + column : matrix, there);
    }
  }

  __device__ void load(const MmaTile& tile, int block) {
    const T* const left = static_cast<const T*>(p_.left);
    const T* const right = static_cast<const T*>(p_.right);
    const uint32_t to_left = stage(block % stages, false), to_right = stage(block % stages, true);
    const int k = block * depth, row = thread_ / chunks<right_down>;
    if constexpr (weights) {
      const int first = tile.first + k + row;
      const int64_t rows[2] = {first, first + apart<true>};
      const bool real[2] = {rows[0] < tile.end, rows[1] < tile.end};
      copy<true>(to_left, left, rows, real, p_.N, tile.row, p_.N);
      copy<true>(to_right, right, from_, real, p_.K, tile.column, p_.K);
      find_rows(tile, block + 1);
      return;
    }
    const int left_row = tile.first + thread_ / chunks<false>;
    const bool left_real[2] = {left_row < tile.end, left_row + apart<false> < tile.end};
    copy<false>(to_left, left, from_, left_real, p_.K, k, p_.K);
    // Rows of b count from those of the group.
    const int height = right_down ? p_.K : p_.N, first = (right_down ? k : tile.column) + row;
    const T* const b = right + int64_t(tile.group) * p_.N * p_.K;
    const int64_t rows[2] = {first, first + apart<right_down>};
    const bool real[2] = {rows[0] < height, rows[1] < height};
    if constexpr (right_down)
      copy<true>(to_right, b, rows, real, p_.N, tile.column, p_.N);
    else
      copy<false>(to_right, b, rows, real, p_.K, k, p_.K);
  }

  __device__ int own_row() const { return thread_ / 32 / 4 * 64; }
  __device__ int own_column() const { return thread_ / 32 % 4 * 32; }

  __device__ void multiply_stage(float (&sums)[4][4][4], int i) const {
    const uint32_t left = stage(i, false), right = stage(i, true);
#pragma unroll
    for (int k = 0; k < depth; k += 16) {
      uint32_t a[4][4], b[2][4];
#pragma unroll
      for (int m = 0; m < 4; ++m)
        if constexpr (left_down)
          Down{left}.a_transposed(a[m], k, (own_row() + 16 * m) / 8, lane_);
        else
          Along{left}.a(a[m], own_row() + 16 * m, k / 8, lane_);
#pragma unroll
      for (int n = 0; n < 2; ++n)
        if constexpr (right_down)
          Down{right}.b_transposed(b[n], k, (own_column() + 16 * n) / 8, lane_);
        else
          Along{right}.b(b[n], own_column() + 16 * n, k / 8, lane_);
#pragma unroll
      for (int m = 0; m < 4; ++m)
#pragma unroll
        for (int n = 0; n < 4; ++n)
          multiply(sums[m][n], a[m], b[n / 2][n % 2 * 2], b[n / 2][n % 2 * 2 + 1], T());
    }
  }

  // 32 columns of one row, as store_row32 takes them.
  static __device__ __forceinline__ void columns32(float (&x)[8], const float (&sums)[4][4],
                                                   int half) {
#pragma unroll
    for (int n = 0; n < 4; ++n) x[2 * n] = sums[n][2 * half], x[2 * n + 1] = sums[n][2 * half + 1];
  }

  __device__ void finish(const float (&sums)[4][4][4], const MmaTile& tile) const {
    constexpr int n = 2;  // rows at once
    const int column = tile.column + own_column();
#pragma unroll
    for (int half = 0; half < 2; ++half)
#pragma unroll
      for (int m = 0; m < 4; m += n) {
        Piece pieces[n];
        float x[n][8];
#pragma unroll
        for (int i = 0; i < n; ++i) {
          const int row = own_row() + 16 * (m + i) + 8 * half + lane_ / 4;
          columns32(x[i], sums[m + i], half);
          if constexpr (weights) {
            const int real = tile.row + row;
            pieces[i] = {(int64_t(tile.group) * p_.N + real) * p_.K + column,
                         real < p_.N ? p_.K - column : 0};
          } else {
            const int real = tile.first + row;
            store_row32(static_cast<T*>(p_.out) + int64_t(real) * p_.N + column, x[i], lane_,
                        real < tile.end ? p_.N - column : 0);
          }
        }
        if constexpr (weights) store_pieces<T>(p_.out, p_.wide, pieces, x, lane_, p_.add);
      }
  }

  const SquareParams& p_;
  const uint32_t base_;
  const int thread_, lane_;
  int64_t from_[2];  // rows of a
};

template <class T, GroupedForm form>
__global__ void __launch_bounds__(threads, blocks_each)
    multiply_groups_mma(const __grid_constant__ SquareParams p) {
  extern __shared__ __align__(128) char mma_memory[];
  constexpr bool weights = form == GroupedForm::weights;
  MmaBlock<T, form> block(p, shared_address(mma_memory));
  Rounds rounds;
  if constexpr (weights) {
    const GroupOrder order(mma_memory + bounds, p.groups);
    order.build(p.offsets);
    __syncthreads();
    for (int index; (index = rounds.next(p.groups * p.tiles)) >= 0;) {
      const int group = order[index / p.tiles], rest = index % p.tiles;
      const int first = p.offsets[group], end = p.offsets[group + 1];
      block.run({group, first, end, rest / p.columns * side, rest % p.columns * side,
                 (end - first + depth - 1) / depth});
    }
  } else {
    const GroupTiles<side> rows(mma_memory + bounds, p.groups);
    if (threadIdx.x < 32) rows.build(p.offsets);
    __syncthreads();
    const int count = rows.count() * p.columns;
    for (int index; (index = rounds.next(count)) >= 0;) {
      const RowTile t = rows.at(index / p.columns);
      block.run({t.group, t.first, t.end, 0, index % p.columns * side, (p.K + depth - 1) / depth});
    }
  }
}

template <class T, GroupedForm form>
void launch_groups(CudaStream& s, const GroupedCall& c) {
  const SquareParams p = square_params(c, side);
  const int shared = bounds + GroupTiles<side>::bytes(c.groups);
  check(cudaFuncSetAttribute(multiply_groups_mma<T, form>,
                             cudaFuncAttributeMaxDynamicSharedMemorySize, shared),
        "asking for shared memory");
  const int64_t blocks =
      std::min<int64_t>(int64_t(blocks_each) * s.card.processors, most_tiles(c, p, side));
  multiply_groups_mma<T, form><<<unsigned(blocks), threads, size_t(shared), s.handle>>>(p);
}

template <class T>
void launch_form(CudaStream& s, const GroupedCall& c) {
  switch (c.form) {
    case GroupedForm::transposed:
      return launch_groups<T, GroupedForm::transposed>(s, c);
    case GroupedForm::plain:
      return launch_groups<T, GroupedForm::plain>(s, c);
    case GroupedForm::weights:
      return launch_groups<T, GroupedForm::weights>(s, c);
  }
}

bool aligned(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

}  // namespace

bool gemm_grouped_mma_takes(const GroupedCall& c) {
  return (c.dtype == DType::bf16 || c.dtype == DType::f16) && c.N % 8 == 0 && c.K % 8 == 0 &&
         aligned(c.left) && aligned(c.right) && aligned(c.out);
}

void gemm_grouped_mma(CudaStream& s, const GroupedCall& c) {
  c.dtype == DType::f16 ? launch_form<__half>(s, c) : launch_form<__nv_bfloat16>(s, c);
  check_launch("grouped_gemm");
}

}  // namespace hearth::cuda
