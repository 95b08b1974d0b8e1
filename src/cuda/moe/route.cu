// The choice of experts and its gradient, one warp per token. Memory bound: the logits are read
// once from memory, and again from cache. A token's result does not depend on other tokens.
#include "cuda/kernels.h"
#include "cuda/moe/router_row.cuh"

namespace hearth::cuda {
namespace {

constexpr float least_score_sum = 1e-20f;

struct RouteRows {
  const float* logits;
  int64_t T;
  int E, k;
  RouteSpec spec;
};

// The first index of the largest key; all lanes get it. At least one key is above -infinity.
__device__ __forceinline__ int first_largest(const float* keys, int n) {
  float key = -INFINITY;
  int id = n;
  for (int i = int(threadIdx.x) % 32; i < n; i += 32)
    if (keys[i] > key) key = keys[i], id = i;
#pragma unroll
  for (int offset = 16; offset > 0; offset /= 2) {
    const float other = __shfl_xor_sync(~0u, key, offset);
    const int other_id = __shfl_xor_sync(~0u, id, offset);
    if (other > key || (other == key && other_id < id)) key = other, id = other_id;
  }
  return id;
}

// Removes the experts outside the best groups. `scores` has room for one number per group.
__device__ __forceinline__ void mask_groups(float* keys, float* scores, const RouteRows& a) {
  const int lane = int(threadIdx.x) % 32, groups = int(a.spec.groups), size = a.E / groups;
  for (int g = lane; g < groups; g += 32) {
    float first = -INFINITY, second = -INFINITY;
    for (int i = g * size; i < (g + 1) * size; ++i) {
      second = fmaxf(second, fminf(first, keys[i]));
      first = fmaxf(first, keys[i]);
    }
    scores[g] = fmaxf(-FLT_MAX, size > 1 ? first + second : first);
  }
  __syncwarp();
  for (int n = 0; n < int(a.spec.top_groups); ++n) {
    const int best = first_largest(scores, groups);
    __syncwarp();
    if (lane == 0) scores[best] = -INFINITY;  // chosen
    __syncwarp();
  }
  for (int i = lane; i < a.E; i += 32)
    if (scores[i / size] != -INFINITY) keys[i] = -INFINITY;
  __syncwarp();
}

// What raw scores are divided by.
__device__ __forceinline__ float divisor_of(const RouteRows& a, const float* logits,
                                            const int32_t* ids, const RouterSums& sums) {
  const bool sigmoid = a.spec.sigmoid();
  if (!a.spec.norm) return sigmoid ? 1.0f : sums.sum;
  float chosen = 0;
  for (int j = int(threadIdx.x) % 32; j < a.k; j += 32)
    chosen += raw_score(logits[ids[j]], sums.top, sigmoid);
  return warp_sum(chosen) + least_score_sum;
}

// Shared memory per warp: a key for each expert, a score for each group.
template <class B>
__global__ void __launch_bounds__(router_warps * 32)
    choose_experts(int32_t* ids, float* weights, const B* bias, RouteRows a) {
  extern __shared__ float shared[];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t t = int64_t(blockIdx.x) * router_warps + warp;
  if (t >= a.T) return;
  float* keys = shared + warp * (a.E + int(a.spec.groups));
  const float* logits = a.logits + t * a.E;
  const bool sigmoid = a.spec.sigmoid(), by_score = bias || a.spec.groups > 1;
  ids += t * a.k, weights += t * a.k;
  const RouterSums sums = router_sums(logits, a.E, sigmoid);
  for (int i = lane; i < a.E; i += 32) {
    float key = logits[i];
    if (by_score) {
      key = raw_score(key, sums.top, sigmoid) / (sigmoid ? 1.0f : sums.sum);
      if (bias) key += get(load<1>(bias + i), 0);
    }
    keys[i] = isnan(key) ? -FLT_MAX : fmaxf(key, -FLT_MAX);
  }
  __syncwarp();
  if (a.spec.groups > 1) mask_groups(keys, keys + a.E, a);
  for (int j = 0; j < a.k; ++j) {
    const int best = first_largest(keys, a.E);
    __syncwarp();
    if (lane == 0) keys[best] = -INFINITY, ids[j] = best;
    __syncwarp();
  }
  const float divisor = divisor_of(a, logits, ids, sums);
  for (int j = lane; j < a.k; j += 32)
    weights[j] = a.spec.scale * raw_score(logits[ids[j]], sums.top, sigmoid) / divisor;
}

// Shared memory per warp: the gradient of each logit.
template <class T>
__global__ void __launch_bounds__(router_warps * 32)
    route_gradient(T* dlogits, const float* dweights, const int32_t* ids, const int32_t* offsets,
                   const int32_t* counts, const Scalars* scalars, RouteRows a) {
  extern __shared__ float shared[];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t t = int64_t(blockIdx.x) * router_warps + warp;
  if (t >= a.T) return;
  float* grad = shared + warp * a.E;
  const float* logits = a.logits + t * a.E;
  const bool sigmoid = a.spec.sigmoid(), reaches_all = !sigmoid && !a.spec.norm;
  ids += t * a.k, dweights += t * a.k;
  const RouterSums sums = router_sums(logits, a.E, sigmoid);
  const float divisor = divisor_of(a, logits, ids, sums), scale = a.spec.scale / divisor;
  float common = 0;
  for (int j = lane; j < a.k; j += 32)
    common += dweights[j] * raw_score(logits[ids[j]], sums.top, sigmoid) / divisor;
  common = sigmoid && !a.spec.norm ? 0.0f : warp_sum(common);
  for (int i = lane; i < a.E; i += 32)
    grad[i] = reaches_all ? -scale * raw_score(logits[i], sums.top, false) * common : 0.0f;
  __syncwarp();
  for (int j = lane; j < a.k; j += 32) {  // the experts of a token are distinct
    const float raw = raw_score(logits[ids[j]], sums.top, sigmoid);
    const float through = reaches_all ? dweights[j] : dweights[j] - common;
    grad[ids[j]] += scale * raw * (sigmoid ? 1.0f - raw : 1.0f) * through;
  }
  __syncwarp();
  float balance = 0, z = 0, mean = 0;
  if ((a.spec.balance != 0 || a.spec.z != 0) && (!counts || counts[t] != 0)) {
    const float share =
        scaled_gradient(*scalars, scalars->share) / counted_tokens(offsets, a.E, a.k);
    balance = a.spec.balance * share * float(a.E), z = a.spec.z * share * 2.0f * sums.lse;
    for (int i = lane; i < a.E; i += 32)
      mean += fraction_of(offsets, a.E, i) * raw_score(logits[i], sums.top, sigmoid) / sums.sum;
    mean = warp_sum(mean);
  }
  for (int i = lane; i < a.E; i += 32) {
    float d[1] = {grad[i]};
    if (balance != 0) {
      const float raw = raw_score(logits[i], sums.top, sigmoid);
      d[0] += balance * raw / sums.sum * (sigmoid ? 1.0f - raw : 1.0f) *
              (fraction_of(offsets, a.E, i) - mean);
    }
    if (z != 0) d[0] += z * expf(logits[i] - sums.lse);
    store_rounded(dlogits + t * a.E + i, d);
  }
}

RouteRows rows_of(const Tensor& logits, const Tensor& ids, const RouteSpec& spec) {
  return {as<float>(logits), logits.rows(), int(logits.cols()), int(ids.cols()), spec};
}

unsigned blocks_for(const RouteRows& a) { return unsigned(ceil_div(a.T, router_warps)); }

}  // namespace

void route(Stream& stream, const RouteArgs& args) {
  expect_dtypes("route", DType::f32, args.logits, args.weights);
  const RouteRows a = rows_of(args.logits, args.ids, args.spec);
  if (a.T == 0) return;
  const size_t shared = sizeof(float) * router_warps * size_t(a.E + args.spec.groups);
  const Tensor bias = args.bias ? args.bias : Tensor{nullptr, {}, DType::f32};
  by_dtype("route", bias, [&]<class B>(B*) {
    choose_experts<B><<<blocks_for(a), router_warps * 32, shared, on(stream).handle>>>(
        as<int32_t>(args.ids), as<float>(args.weights), as<B>(bias), a);
  });
  check_launch("route");
}

void route_bwd(Stream& stream, const RouteBwdArgs& args) {
  expect_dtypes("route_bwd", DType::f32, args.logits, args.dweights);
  const RouteRows a = rows_of(args.logits, args.ids, args.spec);
  if (a.T == 0) return;
  const size_t shared = sizeof(float) * router_warps * size_t(a.E);
  by_dtype("route_bwd", args.dlogits, [&]<class T>(T*) {
    route_gradient<T><<<blocks_for(a), router_warps * 32, shared, on(stream).handle>>>(
        as<T>(args.dlogits), as<float>(args.dweights), as<int32_t>(args.ids),
        as<int32_t>(args.offsets), as<int32_t>(args.counts), as<Scalars>(args.scalars), a);
  });
  check_launch("route_bwd");
}

}  // namespace hearth::cuda
