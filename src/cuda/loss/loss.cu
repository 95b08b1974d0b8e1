// Cross-entropy over rows of logits, with the gradient written over them, and the mean loss. Memory
// bound: a block keeps its row in shared memory, so that logits are read once and written once (a
// row that does not fit is read again, mostly from L2). Which thread adds which elements depends
// only on the width, so a row has the same bits in any batch.
#include "cuda/kernels.h"
#include "cuda/loss/logit_rows.cuh"

namespace hearth::cuda {
namespace {

// One block per row; rows begin at multiples of N elements. `keep`: the row fits in shared memory.
template <class T, int N, bool capped, bool grad, bool keep>
__global__ void __launch_bounds__(512, 2) cross_entropy_rows(LogitRows<T> a) {
  extern __shared__ uint4 memory[];
  __shared__ float shared[64];
  T* row = a.logits + blockIdx.x * int64_t(a.width);
  T* kept = keep ? reinterpret_cast<T*>(memory) : row;
  const int first = int(threadIdx.x) * N, step = int(blockDim.x) * N;
  const int target = a.targets[blockIdx.x];
  if (target == masked) {
    if (threadIdx.x == 0) a.nll[blockIdx.x] = 0;
    if (threadIdx.x == 0 && a.z) a.z[blockIdx.x] = 0;
    const float zeros[N] = {};
    if constexpr (grad)
      for (int i = first; i < a.width; i += step) store_rounded(row + i, zeros);
    return;
  }
  const float hit = get(load<1>(row + target), 0);
  const ExpSums sums = joined(thread_sums<N, capped, keep>(a, row, kept), shared);
  if (threadIdx.x == 0) a.nll[blockIdx.x] = nll_of<capped>(a, sums, hit);
  if (threadIdx.x == 0 && a.z) a.z[blockIdx.x] = lse_of(sums) * lse_of(sums);
  if constexpr (grad) {
    const float share = scaled_gradient(*a.scalars, a.scalars->inv_targets);
    const GradFactors factors = factors_of(a, sums, share);
#pragma unroll 4
    for (int i = first; i < a.width; i += step) {
      float out[N];
      grads_of<capped>(out, a, load_logits<N>(a, kept, i), i, sums, factors, target);
      store_rounded(row + i, out);
    }
  }
}

int threads_for(int64_t packs) { return packs >= 2048 ? 512 : packs >= 256 ? 128 : 32; }

template <class T>
void launch_kernel(CudaStream& s, void (*kernel)(LogitRows<T>), const LogitRows<T>& a, int64_t rows,
                   int64_t packs, int64_t shared) {
  check(cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, int(shared)),
        "asking for shared memory");
  kernel<<<unsigned(rows), threads_for(packs), size_t(shared), s.handle>>>(a);
  check_launch("cross_entropy");
}

template <class T, bool capped>
void launch(CudaStream& s, const LogitRows<T>& a, int64_t rows, bool packed, bool grad) {
  constexpr int N = wide<T>;
  const int64_t packs = a.width / N;
  const int64_t bytes = round_up(a.width * int64_t(sizeof(T)), 16);
  const bool fits = bytes + 1024 <= s.card.shared_bytes;  // 1024: the block's static shared memory
  if (packed && !grad)
    launch_kernel(s, cross_entropy_rows<T, N, capped, false, false>, a, rows, packs, 0);
  else if (packed && fits)
    launch_kernel(s, cross_entropy_rows<T, N, capped, true, true>, a, rows, packs, bytes);
  else if (packed)
    launch_kernel(s, cross_entropy_rows<T, N, capped, true, false>, a, rows, packs, 0);
  else if (grad)
    launch_kernel(s, cross_entropy_rows<T, 1, capped, true, false>, a, rows, packs, 0);
  else
    launch_kernel(s, cross_entropy_rows<T, 1, capped, false, false>, a, rows, packs, 0);
}

__global__ void __launch_bounds__(1024)
    mean_of(float* loss, const float* nll, const Scalars* scalars, int64_t n, bool add) {
  __shared__ double shared[32];
  double total = 0;
#pragma unroll 8
  for (int64_t i = threadIdx.x; i < n; i += 1024) total += double(nll[i]);
  total = block_sum(total, shared);
  if (threadIdx.x) return;
  const float mean = float(total * double(scalars->inv_targets));
  *loss = add ? *loss + mean : mean;
}

}  // namespace

void cross_entropy(Stream& stream, const CrossEntropyArgs& args) {
  const LossSpec& spec = args.spec;
  expect_dtypes("cross_entropy", DType::f32, args.nll, args.z);
  if (args.logits.numel() == 0) return;
  CudaStream& s = on(stream);
  if (args.fp8) {
    cross_entropy_fp8(s, args);
    if (!spec.grad) return;
  }
  by_dtype("cross_entropy", args.logits, [&]<class T>(T*) {
    const LogitRows<T> a = logit_rows<T>(args);
    const bool packed = packs_fit(a.width, args.logits);
    if (spec.softcap > 0)
      launch<T, true>(s, a, args.logits.rows(), packed, spec.grad);
    else
      launch<T, false>(s, a, args.logits.rows(), packed, spec.grad);
  });
}

void mean_loss(Stream& stream, const MeanLossArgs& args) {
  expect_dtypes("mean_loss", DType::f32, args.loss, args.nll);
  mean_of<<<1, 1024, 0, on(stream).handle>>>(as<float>(args.loss), as<float>(args.nll),
                                             as<Scalars>(args.scalars), args.nll.numel(), args.add);
  check_launch("mean_loss");
}

}  // namespace hearth::cuda
