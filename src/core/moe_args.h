// The arguments of the kernels of a mixture of experts. The conventions are those of
// core/kernel_args.h.
#pragma once

#include "core/tensor.h"

namespace hearth::inline core {

// c[r] = a[gather[r]] op(b[g]) for the rows r of group g. The rows of c are sorted by group. A row
// of c has the same bits whatever other rows are in the call.
struct GroupedGemmArgs {
  Tensor c;            // (R, N)
  Tensor a;            // (R, K); with gather (tokens, K)
  Tensor b;            // (G, N, K) with tb, else (G, K, N)
  Tensor offsets;      // (G + 1) i32: group g has rows [offsets[g], offsets[g + 1]); the last is R
  Tensor gather = {};  // (R) i32: the row of a for row r of c; absent: r
  bool tb = false;     // names as in GemmSpec
};

// db[g] = [db[g] +] the sum over the rows r of group g of dc[r]^T a[gather[r]].
struct GroupedGemmWeightsArgs {
  Tensor db;           // (G, N, K) acc, or the dtype of a
  Tensor dc;           // (R, N)
  Tensor a;            // (R, K); with gather (tokens, K)
  Tensor offsets;      // (G + 1) i32
  Tensor gather = {};  // (R) i32: the row of a for row r of dc; absent: r
  bool add = false;    // db adds to its contents; otherwise a group without rows becomes 0
};

}  // namespace hearth::inline core
