// The persistent kernel. Bound by reading the weights and the cache once: they stream without a
// pause from the first phase to the last.
#include "cuda/persistent/step.h"

#include "cuda/persistent/block.cuh"

namespace hearth::cuda::persistent {
namespace {

__global__ void __launch_bounds__(block_threads, 1) decode_step(const __grid_constant__ Step s) {
  extern __shared__ __align__(128) unsigned char step_memory[];
  run_block(s, step_memory);
}

}  // namespace

int64_t control_bytes() { return round_up(int64_t(sizeof(Control)), 128); }

std::string prepare_step(const CudaStream& s, int64_t shared_bytes) {
  int blocks = 0, cooperative = 0;
  cudaError_t e = cudaFuncSetAttribute(decode_step, cudaFuncAttributeMaxDynamicSharedMemorySize,
                                       int(s.card.shared_bytes));
  if (e == cudaSuccess)
    e = cudaDeviceGetAttribute(&cooperative, cudaDevAttrCooperativeLaunch, s.card.index);
  if (e == cudaSuccess)
    e = cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, decode_step, block_threads,
                                                      size_t(shared_bytes));
  if (e != cudaSuccess) {
    cudaGetLastError();
    return cudaGetErrorString(e);
  }
  if (!cooperative) return "the GPU has no cooperative launches";
  if (!blocks) return "a block of the kernel does not fit on a multiprocessor";
  return {};
}

cudaError_t launch_step(const CudaStream& s, const Step& step) {
  cudaLaunchAttribute all_at_once{};
  all_at_once.id = cudaLaunchAttributeCooperative;
  all_at_once.val.cooperative = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(unsigned(s.card.processors)), config.blockDim = dim3(block_threads);
  config.dynamicSmemBytes = size_t(step.layout.bytes()), config.stream = s.handle;
  config.attrs = &all_at_once, config.numAttrs = 1;
  const cudaError_t e = cudaLaunchKernelEx(&config, decode_step, step);
  if (e != cudaSuccess) cudaGetLastError();
  return e;
}

}  // namespace hearth::cuda::persistent
