// ParamSnapshot: a copy of what a checkpoint reads of a ParamStore (model weights and optimizer
// state), in host memory, so that it can be written while training continues.
#pragma once

#include <memory>
#include <vector>

#include "core/params.h"

namespace hearth::inline optim {

class ParamSnapshot {
 public:
  // Allocates nothing yet. `adapters`: a checkpoint then has no frozen parameters.
  ParamSnapshot(ParamStore& from, bool adapters);

  int64_t bytes() const;
  // The host's memory in the shape of a backend.
  Backend& memory() { return *memory_; }
  // Allocates the memory and touches every page of it, so that the first copy takes no longer than
  // later ones.
  void make();
  // Copies the store.
  void take();
  ParamStore& source() { return source_; }
  ParamStore& params() { return params_; }  // as of the last take()

 private:
  ParamStore& source_;
  std::unique_ptr<Backend> memory_;
  std::vector<Part> parts_;
  ParamStore params_;
};

}  // namespace hearth::inline optim
