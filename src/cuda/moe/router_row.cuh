// The scores of one token's logits, computed by a warp. core/moe_args.h has the formulas.
#pragma once

#include <cfloat>

#include "core/moe_args.h"
#include "cuda/device/device.cuh"

namespace hearth::cuda {

constexpr int router_warps = 4;  // tokens per block

// The score of a logit up to a factor: with `top` the largest logit, exp(logit - top), or the
// sigmoid.
__device__ __forceinline__ float raw_score(float logit, float top, bool sigmoid) {
  return sigmoid ? 1.0f / (1.0f + expf(-logit)) : expf(logit - top);
}

struct RouterSums {
  float top, lse;  // the largest logit; the log-sum-exp of all
  float sum;       // of the raw scores
};

// All lanes get the same result; which lane adds what depends on E alone.
__device__ __forceinline__ RouterSums router_sums(const float* logits, int E, bool sigmoid) {
  const int lane = int(threadIdx.x) % 32;
  float top = -INFINITY, exps = 0, sum = 0;
  for (int i = lane; i < E; i += 32) top = fmaxf(top, logits[i]);
  top = warp_max(top);
  for (int i = lane; i < E; i += 32) {
    const float e = expf(logits[i] - top);
    exps += e;
    sum += sigmoid ? raw_score(logits[i], top, true) : e;
  }
  return {top, top + logf(warp_sum(exps)), warp_sum(sum)};
}

// The fraction of all pairs of tokens and experts that expert i received.
__device__ __forceinline__ float fraction_of(const int32_t* offsets, int E, int i) {
  return float(offsets[i + 1] - offsets[i]) / float(max(offsets[E], 1));
}

// How many tokens the offsets count, at least 1.
__device__ __forceinline__ float counted_tokens(const int32_t* offsets, int E, int k) {
  return float(max(offsets[E] / k, 1));
}

}  // namespace hearth::cuda
