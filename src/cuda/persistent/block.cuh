// What a block of the persistent kernel does: eight warps compute, and one loads what they will
// need. All blocks run at once and go through the same phases, each at its own pace.
#pragma once

#include "cuda/persistent/attention.cuh"
#include "cuda/persistent/product.cuh"

namespace hearth::cuda::persistent {

__device__ __forceinline__ void load_phases(const Step& s, Control& control,
                                            unsigned char* memory) {
  PhaseReader<32> reader(s, control.slots + 2);
  sync_block();
  RingWriter ring{control, memory + s.layout.ring, {uint32_t(s.layout.ring_bytes)}};
  for (int i = 0; i < s.count; ++i) {
    const Phase& f = reader.enter(i);
    if (f.attends)
      load_attention(s, f.attention, control, ring);
    else
      load_product(f.product, ring);
  }
}

__device__ __forceinline__ void compute_phases(const Step& s, Control& control,
                                               unsigned char* memory) {
  PhaseReader<compute_threads> reader(s, control.slots);
  sync_block();
  RingReader ring{control, memory + s.layout.ring, {uint32_t(s.layout.ring_bytes)}};
  unsigned char* const work = memory + s.layout.work;
  for (int i = 0; i < s.count; ++i) {
    const Phase& f = reader.enter(i);
    const uint32_t number = s.number + uint32_t(i);
    if (f.attends)
      run_attention(s, f.attention, control, work, ring, number);
    else
      run_product(s, f.product, control, work, ring, number);
  }
}

__device__ __forceinline__ void run_block(const Step& s, unsigned char* memory) {
  Control& control = *reinterpret_cast<Control*>(memory);
  const int thread = thread_index();
  announce_end();
  if (thread < most_entries) {
    barrier_init(&control.full[thread], 1);
    barrier_init(&control.empty[thread], compute_warps);
    barrier_init_fence();
  } else if (const int row = thread - most_entries; row < s.rows) {
    control.ids[row] = s.ids[row];
    control.positions[row] = s.positions[row];
  }
  // Both parts read their first phase before they wait for this.
  if (thread < compute_threads)
    compute_phases(s, control, memory);
  else
    load_phases(s, control, memory);
}

}  // namespace hearth::cuda::persistent
