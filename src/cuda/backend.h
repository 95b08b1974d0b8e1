// The CUDA backend: one card, one stream, its memory, and programs replayed as whole graphs. A
// build without CUDA has these functions too and says so.
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
  std::string problem = {};  // why this build cannot use it, in one sentence; empty: it can
  std::string gets = {};     // what it gets of this build: "attention by mma.sync; bf16, fp16 .."
};

struct CudaDriver {
  int cards = 0;
  std::string problem = {};     // why there are none, in one sentence
  int driver = 0, runtime = 0;  // versions as 13000; runtime 0: a build without CUDA
};
// What the machine has; these never throw. A card that is looked at is opened by this process, and
// stays so: only who means all of them asks for all.
CudaDriver cuda_driver();
CudaCard cuda_card(int index);
std::vector<CudaCard> cuda_cards();

struct CudaSpec {
  int card = 0;
  bool graphs = true;          // replay programs as graphs; HEARTH_GRAPH=0 turns it off
  bool tf32 = false;           // f32 products round their inputs to TF32
  bool hopper_kernels = true;  // false: mma.sync attention on Hopper too; HEARTH_HOPPER=0
  bool some_rows = true;       // false: cuBLASLt from 17 rows on, not 65; HEARTH_SOME=0
  // Rows of a forward pass have the same bits in any batch, and over a cache those of training: in
  // 16 bits, over a plain cache.
  bool batch_invariant = false;
  int64_t shared_limit = 0;  // act as if a block could ask for no more shared memory; 0: the card's
  int64_t memory_limit = 0;  // act as if the card had no more than this; 0: what it has
};
std::unique_ptr<Backend> make_cuda_backend(const CudaSpec&);

}  // namespace hearth
