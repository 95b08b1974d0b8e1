// What a run logs about a router, and the selection biases that follow its loads. Sums have a fixed
// order: one block for each of row_parts parts of the tokens, then one block for the parts.
#include "cuda/kernels.h"
#include "cuda/moe/router_row.cuh"

namespace hearth::cuda {
namespace {

constexpr int stat_warps = 8, stat_values = 3;

// parts (row_parts, 3). A warp takes every eighth token of its block's part.
__global__ void __launch_bounds__(stat_warps * 32)
    stat_parts(float* parts, const float* logits, const int32_t* offsets, const int32_t* counts,
               int64_t T, int E, bool sigmoid) {
  __shared__ double sums[stat_warps][stat_values];
  const int lane = int(threadIdx.x) % 32, warp = int(threadIdx.x) / 32;
  const int64_t part = blockIdx.x, begin = T * part / row_parts, end = T * (part + 1) / row_parts;
  double total[stat_values] = {};
  for (int64_t t = begin + warp; t < end; t += stat_warps) {
    if (counts && counts[t] == 0) continue;
    const float* row = logits + t * E;
    const RouterSums s = router_sums(row, E, sigmoid);
    float balance = 0, entropy = 0;
    for (int i = lane; i < E; i += 32) {
      const float p = raw_score(row[i], s.top, sigmoid) / s.sum;
      balance += fraction_of(offsets, E, i) * p;
      if (p > 0) entropy -= p * logf(p);
    }
    total[0] += double(float(E) * warp_sum(balance));
    total[1] += double(s.lse * s.lse);
    total[2] += double(warp_sum(entropy));
  }
  if (lane == 0)
    for (int i = 0; i < stat_values; ++i) sums[warp][i] = total[i];
  __syncthreads();
  if (threadIdx.x >= stat_values) return;
  double sum = 0;
  for (int w = 0; w < stat_warps; ++w) sum += sums[w][threadIdx.x];
  parts[part * stat_values + threadIdx.x] = float(sum);
}

struct StatEnd {
  float* values;
  int32_t* load;
  const float* parts;
  const int32_t* offsets;
  const Scalars* scalars;
  int E;
  RouterStatsSpec spec;
};

__global__ void __launch_bounds__(256) finish_stats(StatEnd a) {
  const int i = int(threadIdx.x);
  if (i < stat_values) {
    double sum = 0;
    for (int p = 0; p < int(row_parts); ++p) sum += double(a.parts[p * stat_values + i]);
    const double factor = double(a.spec.part) * double(a.scalars->share) /
                          double(counted_tokens(a.offsets, a.E, int(a.spec.k)));
    a.values[i] = float((a.spec.add_values ? double(a.values[i]) : 0.0) + factor * sum);
  }
  for (int e = i; e < a.E; e += 256)
    a.load[e] = (a.spec.add_load ? a.load[e] : 0) + a.offsets[e + 1] - a.offsets[e];
}

__global__ void __launch_bounds__(256)
    move_biases(float* bias, const int32_t* load, const UpdateState* gate, int E, float rate) {
  if (gate->skip != 0) return;
  int64_t sum = 0;
  for (int e = 0; e < E; ++e) sum += load[e];
  for (int e = int(threadIdx.x); e < E; e += 256) {
    const int64_t lacking = sum - int64_t(load[e]) * E;
    bias[e] += rate * float((lacking > 0) - (lacking < 0));
  }
}

}  // namespace

void router_stats(Stream& stream, const RouterStatsArgs& args) {
  expect_dtypes("router_stats", DType::f32, args.values, args.parts, args.logits);
  const int64_t T = args.logits.rows();
  const int E = int(args.logits.cols());
  const cudaStream_t s = on(stream).handle;
  stat_parts<<<unsigned(row_parts), stat_warps * 32, 0, s>>>(
      as<float>(args.parts), as<float>(args.logits), as<int32_t>(args.offsets),
      as<int32_t>(args.counts), T, E, args.spec.kind == Router::sigmoid);
  finish_stats<<<1, 256, 0, s>>>({as<float>(args.values), as<int32_t>(args.load),
                                  as<float>(args.parts), as<int32_t>(args.offsets),
                                  as<Scalars>(args.scalars), E, args.spec});
  check_launch("router_stats");
}

void balance_bias(Stream& stream, const BalanceBiasArgs& args) {
  expect_dtypes("balance_bias", DType::f32, args.bias);
  move_biases<<<1, 256, 0, on(stream).handle>>>(as<float>(args.bias), as<int32_t>(args.load),
                                                as<UpdateState>(args.gate), int(args.load.numel()),
                                                args.rate);
  check_launch("balance_bias");
}

}  // namespace hearth::cuda
