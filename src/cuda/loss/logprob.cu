// Log-probabilities and entropies of rows of logits at a temperature, and their gradient. One block
// per row. Memory bound: the row is read two to four times, after the first mostly from L2; the
// gradient is written once.
#include "cuda/kernels.h"
#include "cuda/loss/row_sum.cuh"

namespace hearth::cuda {
namespace {

struct LogitRows {
  const float* logits;
  const int32_t* targets;
  int width, vocab;
  LogitLevel level;
};

struct LogprobShared {
  float max[32], sum[32], entropy[32];
};

struct RowSum {
  float top, sum;  // the largest level, and the sum of exp(level - top)
};

__device__ RowSum row_sum(const LogitRows& a, const float* x, LogprobShared& s) {
  float top = -INFINITY;
  for (int i = int(threadIdx.x); i < a.vocab; i += row_threads) top = fmaxf(top, x[i]);
  top = a.level(block_max(top, s.max));  // level is monotonic
  return {top, exp_sum(x, a.vocab, top, a.level, s.sum)};
}

__global__ void __launch_bounds__(row_threads)
    logprob_rows(float* logprob, float* entropy, LogitRows a) {
  __shared__ LogprobShared s;
  const float* x = a.logits + blockIdx.x * int64_t(a.width);
  const int target = a.targets[blockIdx.x];
  if (target < 0) {
    if (threadIdx.x == 0) {
      logprob[blockIdx.x] = 0;
      if (entropy) entropy[blockIdx.x] = 0;
    }
    return;
  }
  const RowSum row = row_sum(a, x, s);
  const float log_sum = logf(row.sum);
  if (threadIdx.x == 0) logprob[blockIdx.x] = a.level(x[target]) - row.top - log_sum;
  if (!entropy) return;
  float below = 0;
  for (int i = int(threadIdx.x); i < a.vocab; i += row_threads) {
    const float d = a.level(x[i]) - row.top;
    below += expf(d) * d;
  }
  below = block_sum(below, s.entropy);
  if (threadIdx.x == 0) entropy[blockIdx.x] = log_sum - below / row.sum;
}

// dlogits may alias logits: each element is read by the thread that writes it.
template <class T>
__global__ void __launch_bounds__(row_threads)
    logprob_grad_rows(T* dlogits, const float* dlogprob, LogitRows a, float inverse_temperature) {
  __shared__ LogprobShared s;
  const float* x = a.logits + blockIdx.x * int64_t(a.width);
  T* out = dlogits + blockIdx.x * int64_t(a.width);
  const int target = a.targets[blockIdx.x];
  const int used = target < 0 ? 0 : a.vocab;
  if (used) {
    const RowSum row = row_sum(a, x, s);
    const float d = dlogprob[blockIdx.x] * inverse_temperature, share = d / row.sum;
    for (int i = int(threadIdx.x); i < a.vocab; i += row_threads) {
      const float v = x[i];
      const float g = (i == target ? d : 0) - expf(a.level(v) - row.top) * share;
      const float rounded[1] = {g * a.level.slope(v)};
      store_rounded(out + i, rounded);
    }
  }
  const float zero[1] = {0};
  for (int i = used + int(threadIdx.x); i < a.width; i += row_threads) store_rounded(out + i, zero);
}

LogitRows rows_of(Tensor logits, Tensor targets, const LogprobSpec& spec) {
  const float cap = spec.softcap;
  return {.logits = as<float>(logits),
          .targets = as<int32_t>(targets),
          .width = int(logits.cols()),
          .vocab = int(spec.vocab ? spec.vocab : logits.cols()),
          .level = {(cap > 0 ? cap : 1) / spec.temperature, cap > 0 ? 1 / cap : 0}};
}

}  // namespace

void logprob(Stream& stream, const LogprobArgs& args) {
  expect_dtypes("logprob", DType::f32, args.logprob, args.entropy, args.logits);
  if (args.logits.numel() == 0) return;
  logprob_rows<<<unsigned(args.logits.rows()), row_threads, 0, on(stream).handle>>>(
      as<float>(args.logprob), as<float>(args.entropy),
      rows_of(args.logits, args.targets, args.spec));
  check_launch("logprob");
}

void logprob_bwd(Stream& stream, const LogprobBwdArgs& args) {
  const LogprobSpec& spec = args.spec;
  expect_dtypes("logprob_bwd", DType::f32, args.dlogprob, args.logits);
  if (args.logits.numel() == 0) return;
  by_dtype("logprob_bwd", args.dlogits, [&]<class T>(T*) {
    logprob_grad_rows<T><<<unsigned(args.logits.rows()), row_threads, 0, on(stream).handle>>>(
        as<T>(args.dlogits), as<float>(args.dlogprob), rows_of(args.logits, args.targets, spec),
        1 / spec.temperature);
  });
  check_launch("logprob_bwd");
}

}  // namespace hearth::cuda
