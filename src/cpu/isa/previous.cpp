// The token before each token of its sequence: a few integers per row, on one thread.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

// The place in the cache of position p of row n's sequence.
HEARTH_INLINE int32_t* place_of(const PreviousTokensArgs& args, int64_t n, int64_t p) {
  const int64_t sequence = args.sequences.as<const int32_t>()[n];
  const int64_t block =
      args.tables.as<const int32_t>()[sequence * args.tables.cols() + p / cache_block];
  return args.cache.as<int32_t>() + block * cache_block + p % cache_block;
}

}  // namespace

void previous_tokens(Stream&, const PreviousTokensArgs& args) {
  const int32_t *token = args.tokens.as<const int32_t>(), *at = args.positions.as<const int32_t>();
  const int64_t T = args.tokens.cols(), N = count(args.tokens);
  for (int64_t n = 0; args.cache && n < N; ++n)
    if (at[n] >= 0) *place_of(args, n, at[n]) = token[n];
  for (int64_t n = 0; n < N; ++n) {
    const bool has = at[n] > 0 && (args.cache || n % T > 0);
    const int32_t before = !has ? -1 : args.cache ? *place_of(args, n, at[n] - 1) : token[n - 1];
    if (args.before) args.before.as<int32_t>()[n] = before;
    if (args.row) args.row.as<int32_t>()[n] = has ? int32_t(n - 1) : -1;
    if (args.bigram) args.bigram.as<int32_t>()[n] = bigram_bucket(before, token[n], args.buckets);
  }
}

void further_tokens(Stream&, const FurtherTokensArgs& args) {
  const int32_t *x = args.x.as<const int32_t>(), *at = args.positions.as<const int32_t>();
  const int64_t T = args.x.cols(), N = count(args.x), by = args.by;
  for (int64_t n = 0; n < N; ++n)
    args.y.as<int32_t>()[n] = n % T + by < T && at[n + by] == at[n] + by ? x[n + by] : no_token;
}

}  // namespace hearth::HEARTH_ISA
