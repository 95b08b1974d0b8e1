// The CUDA backend: one GPU, its streams and memory, and programs replayed as CUDA graphs. A build
// without CUDA defines the same functions; they report that CUDA is missing.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "core/backend.h"

namespace hearth {

struct CudaCard {
  int index = 0;
  std::string name = {};     // "NVIDIA H200"
  int major = 0, minor = 0;  // compute capability
  int processors = 0;
  int64_t memory_bytes = 0, free_bytes = 0;
  std::string problem = {};  // why this build cannot use the GPU, in one sentence; empty: it can
  std::string gets = {};     // what this build offers on it: "attention by mma.sync; bf16, fp16 .."
};

struct CudaDriver {
  int cards = 0;
  std::string problem = {};     // why there are no GPUs, in one sentence
  int driver = 0, runtime = 0;  // versions as 13000; runtime 0: a build without CUDA
};
// What the machine has; these never throw. Querying a GPU opens it in this process for good, so
// only callers that need every GPU use cuda_cards().
CudaDriver cuda_driver();
CudaCard cuda_card(int index);
std::vector<CudaCard> cuda_cards();

struct CudaSpec {
  int card = 0;
  bool graphs = true;  // replay programs as graphs; HEARTH_GRAPH=0 turns it off
  bool tf32 = false;   // f32 products round their inputs to TF32
  // false: the kernels of other cards on Hopper too, for attention and products; HEARTH_HOPPER=0
  bool hopper_kernels = true;
  bool some_rows = true;  // false: cuBLASLt from 17 rows on instead of 65; HEARTH_SOME=0
  // Use this variant of our own kernel gemm_hopper for every product that it takes; -1: the fastest
  // variant where it was measured to be faster than cuBLASLt.
  int own_products = -1;
  // A row of a forward pass has the same bits in any batch, and decoding over a cache gives the
  // bits of training. Needs a 16-bit dtype and a plain cache.
  bool batch_invariant = false;
  int64_t shared_limit = 0;  // upper limit on a block's shared memory; 0: the GPU's
  int64_t memory_limit = 0;  // upper limit on the GPU's memory; 0: all of it
};
std::unique_ptr<Backend> make_cuda_backend(const CudaSpec&);

}  // namespace hearth
