// Upcycling: a dense model becomes one with experts that computes the same function. Each MLP is
// split into shards, every shard is copied to several experts, and the shards of one copy share
// their row of the router, so that they are chosen together. Training then lets the copies differ.
#pragma once

#include "core/params.h"
#include "model/config.h"

namespace hearth::inline model {

struct UpcycleSpec {
  int64_t experts = 0;      // of the result; 0: no upcycling
  int64_t top_k = 0;        // a multiple of granularity; 0: two copies, or one if there is only one
  int64_t granularity = 1;  // shards of an MLP; divides its width and the number of experts
  uint64_t seed = 1;        // of the router's rows

  explicit operator bool() const { return experts != 0; }
};

// Throws a usage error if the model or the spec does not allow it.
ModelConfig upcycled_config(const ModelConfig& dense, const UpcycleSpec&);
// Fills `to`, a store of upcycled_config(), from the dense model; both hold plain weights.
void upcycle(ParamStore& to, ParamStore& from, const ModelConfig& dense, const UpcycleSpec&);

}  // namespace hearth::inline model
