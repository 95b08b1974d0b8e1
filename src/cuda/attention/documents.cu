// Document ranges, one warp per block of tokens.
#include "cuda/attention/documents.cuh"

namespace hearth::cuda {
namespace {

__global__ void __launch_bounds__(256)
    find_ranges(int2* ranges, const int32_t* documents, int B, int T) {
  const int blocks = document_blocks(T);
  const int at = int(blockIdx.x * blockDim.x + threadIdx.x) / 32;
  if (at >= B * blocks) return;
  const int begin = at % blocks * document_block;
  const int2 range =
      document_range(documents + int64_t(at / blocks) * T, begin, min(T, begin + document_block));
  if (threadIdx.x % 32 == 0) ranges[at] = range;
}

}  // namespace

void find_document_ranges(int2* ranges, const AttnCall& c, CudaStream& stream) {
  const int warps = c.B * document_blocks(c.T);
  find_ranges<<<unsigned(warps + 7) / 8, 256, 0, stream.handle>>>(ranges, c.documents, c.B, c.T);
  check_launch("document_ranges");
}

}  // namespace hearth::cuda
