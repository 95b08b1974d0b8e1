// The token before each token of its sequence, one thread per row. A few integers per row.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

struct Previous {
  int32_t *before, *row, *bigram, *cache;  // may be null
  const int32_t *tokens, *positions, *sequences, *tables;
  int64_t N, T, width, buckets;  // width: blocks of a table

  // The place in the cache of position p of row n's sequence.
  __device__ int32_t* place(int64_t n, int64_t p) const {
    const int64_t block = tables[sequences[n] * width + p / cache_block];
    return cache + block * cache_block + p % cache_block;
  }
};

__global__ void __launch_bounds__(256) store_tokens(Previous a) {
  const int64_t n = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n < a.N && a.positions[n] >= 0) *a.place(n, a.positions[n]) = a.tokens[n];
}

__global__ void __launch_bounds__(256) find_previous(Previous a) {
  const int64_t n = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n >= a.N) return;
  const int32_t at = a.positions[n];
  const bool has = at > 0 && (a.cache || n % a.T > 0);
  const int32_t before = !has ? -1 : a.cache ? *a.place(n, at - 1) : a.tokens[n - 1];
  if (a.before) a.before[n] = before;
  if (a.row) a.row[n] = has ? int32_t(n - 1) : -1;
  if (a.bigram) a.bigram[n] = bigram_bucket(before, a.tokens[n], a.buckets);
}

__global__ void __launch_bounds__(256) find_further(int32_t* y, const int32_t* x, const int32_t* at,
                                                    int64_t N, int64_t T, int64_t by) {
  const int64_t n = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (n < N) y[n] = n % T + by < T && at[n + by] == at[n] + by ? x[n + by] : no_token;
}

}  // namespace

void further_tokens(Stream& stream, const FurtherTokensArgs& args) {
  const int64_t N = args.x.numel();
  if (N == 0) return;
  find_further<<<unsigned(ceil_div(N, 256)), 256, 0, on(stream).handle>>>(
      as<int32_t>(args.y), as<int32_t>(args.x), as<int32_t>(args.positions), N, args.x.cols(),
      args.by);
  check_launch("further_tokens");
}

void previous_tokens(Stream& stream, const PreviousTokensArgs& args) {
  const Previous a{.before = as<int32_t>(args.before),
                   .row = as<int32_t>(args.row),
                   .bigram = as<int32_t>(args.bigram),
                   .cache = as<int32_t>(args.cache),
                   .tokens = as<int32_t>(args.tokens),
                   .positions = as<int32_t>(args.positions),
                   .sequences = as<int32_t>(args.sequences),
                   .tables = as<int32_t>(args.tables),
                   .N = args.tokens.numel(),
                   .T = args.tokens.cols(),
                   .width = args.tables ? args.tables.cols() : 0,
                   .buckets = args.buckets};
  if (a.N == 0) return;
  const auto blocks = unsigned(ceil_div(a.N, 256));
  const cudaStream_t s = on(stream).handle;
  if (a.cache) store_tokens<<<blocks, 256, 0, s>>>(a);  // all of them, before any is read
  find_previous<<<blocks, 256, 0, s>>>(a);
  check_launch("previous_tokens");
}

}  // namespace hearth::cuda
