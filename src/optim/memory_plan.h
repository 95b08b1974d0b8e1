// The memory plan of a training run: what it needs by part, and whether that fits in the budget.
#pragma once

#include <string>

#include "core/memory_budget.h"
#include "core/params.h"
#include "core/tape.h"
#include "optim/update.h"

namespace hearth::inline optim {

// Memory of a run by part in bytes, known before it starts.
struct MemoryNeed {
  int64_t weights = 0, masters = 0, gradients = 0, optimizer_state = 0, activations = 0;
  int64_t fp8_weights = 0;       // copies of the weights in fp8, plain and transposed
  int64_t tables = 0;            // position tables: RoPE, ALiBi
  int64_t reference = 0;         // weights of a reference model, and its activations
  int64_t rollouts = 0;          // KV cache of rollouts, and a step of their engine
  int64_t activation_bound = 0;  // lower bound of any plan
  bool offload = false;          // master weights and optimizer state are not on the device
  int64_t total() const {
    return weights + gradients + activations + fp8_weights + tables + reference + rollouts +
           (offload ? 0 : masters + optimizer_state);
  }
};

// Of a program that computes gradients, with the update that follows it.
MemoryNeed memory_need(Tape, const UpdateSpec&);
std::string describe(const MemoryNeed&);
// Of the weights of modules of multi-token prediction that are not trained: no program has them.
int64_t idle_module_bytes(const ParamStore&);

// Throws if the need does not fit in the budget. The error says what each part needs, and the
// remedy in words.
void expect_fit(const MemoryNeed&, const MemoryBudget&, const std::string& remedy);

// Throws if the host has less free memory than `bytes`, which a step's `what` take: it holds all of
// a step at once. `got` says how many there are; `remedy` ends the error.
void expect_host_room(const char* flag, double bytes, const char* what, const std::string& got,
                      const std::string& remedy = {});

}  // namespace hearth::inline optim
