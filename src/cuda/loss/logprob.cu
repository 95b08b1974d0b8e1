// Log-probabilities and entropies of rows of logits at a temperature, and their gradient. One block
// per row, which keeps its row in shared memory if that fits. Memory bound: logits are then read
// once, else two to four times; the gradient is written once.
#include "cuda/kernels.h"
#include "cuda/loss/row_sum.cuh"

namespace hearth::cuda {
namespace {

struct LogitRows {
  const float* logits;
  const int32_t* targets;
  int width, vocab;
  LogitLevel level;
  bool keeps;  // rows fit in dynamic shared memory
};

extern __shared__ float kept_row[];  // a thread reads only what it has written

struct LogprobShared {
  float max[32], sum[32], entropy[32];
};

struct RowSum {
  float top, sum;  // the largest level, and the sum of exp(level - top)
};

// Also lets x point to the copy of the row in shared memory.
__device__ RowSum row_sum(const LogitRows& a, const float*& x, LogprobShared& s) {
  float top = -INFINITY;
  each_of_row<16>(x, 0, a.vocab, [&](int i, float v) {
    top = fmaxf(top, v);
    if (a.keeps) kept_row[i] = v;
  });
  if (a.keeps) x = kept_row;
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
  const float aimed = a.level(x[target]);
  const RowSum row = row_sum(a, x, s);
  const float log_sum = logf(row.sum);
  if (threadIdx.x == 0) logprob[blockIdx.x] = aimed - row.top - log_sum;
  if (!entropy) return;
  float below = 0;
  each_of_row(x, 0, a.vocab, [&](int, float v) {
    const float d = a.level(v) - row.top;
    below += expf(d) * d;
  });
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
    each_of_row(x, 0, a.vocab, [&](int i, float v) {
      const float g = (i == target ? d : 0) - expf(a.level(v) - row.top) * share;
      const float rounded[1] = {g * a.level.slope(v)};
      store_rounded(out + i, rounded);
    });
  }
  const float zero[1] = {0};
  for (int i = used + int(threadIdx.x); i < a.width; i += row_threads) store_rounded(out + i, zero);
}

LogitRows rows_of(CudaStream& s, Tensor logits, Tensor targets, const LogprobSpec& spec) {
  const float cap = spec.softcap;
  const int64_t vocab = spec.vocab ? spec.vocab : logits.cols();
  return {.logits = as<float>(logits),
          .targets = as<int32_t>(targets),
          .width = int(logits.cols()),
          .vocab = int(vocab),
          .level = {(cap > 0 ? cap : 1) / spec.temperature, cap > 0 ? 1 / cap : 0},
          .keeps = 4 * vocab + int64_t(sizeof(LogprobShared)) <= s.card.shared_bytes};
}

// Launches a kernel with one block per row.
template <class... Args>
void launch_rows(CudaStream& s, void (*kernel)(Args...), int64_t rows, const LogitRows& a,
                 const std::type_identity_t<Args>&... args) {
  const int kept = a.keeps ? 4 * a.vocab : 0;
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kept),
        "asking for shared memory");
  kernel<<<unsigned(rows), row_threads, size_t(kept), s.handle>>>(args...);
  check_launch("logprob");
}

}  // namespace

void logprob(Stream& stream, const LogprobArgs& args) {
  expect_dtypes("logprob", DType::f32, args.logprob, args.entropy, args.logits);
  if (args.logits.numel() == 0) return;
  CudaStream& s = on(stream);
  const LogitRows a = rows_of(s, args.logits, args.targets, args.spec);
  launch_rows(s, logprob_rows, args.logits.rows(), a, as<float>(args.logprob),
              as<float>(args.entropy), a);
}

void logprob_bwd(Stream& stream, const LogprobBwdArgs& args) {
  const LogprobSpec& spec = args.spec;
  expect_dtypes("logprob_bwd", DType::f32, args.dlogprob, args.logits);
  if (args.logits.numel() == 0) return;
  CudaStream& s = on(stream);
  const LogitRows a = rows_of(s, args.logits, args.targets, spec);
  by_dtype("logprob_bwd", args.dlogits, [&]<class T>(T*) {
    launch_rows(s, logprob_grad_rows<T>, args.logits.rows(), a, as<T>(args.dlogits),
                as<float>(args.dlogprob), a, 1 / spec.temperature);
  });
}

}  // namespace hearth::cuda
