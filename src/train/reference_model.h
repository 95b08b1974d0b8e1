// ReferenceModel: the fixed model that DPO and GRPO compare the policy with. With adapters it is
// their base, in the policy's own store; otherwise it has weights of its own.
#pragma once

#include <functional>
#include <memory>

#include "train/logprob_programs.h"

namespace hearth::inline train {

class ReferenceModel {
 public:
  // `spec` is the policy's. `load` fills the weights; it is not called with adapters.
  ReferenceModel(LogprobProgramsSpec spec, Memory& policy,
                 const std::function<void(ParamStore&)>& load) {
    spec.name = "reference", spec.entropy = false, spec.adapters = false, spec.model.mtp = 0;
    if (!spec.model.lora) {
      params_ = std::make_unique<ParamStore>(policy.backend, frozen(decoder_params(spec.model)),
                                             spec.dtype);
      load(*params_);
      memory_ = std::make_unique<Memory>(policy.backend, params_.get());
    }
    programs_ = std::make_unique<LogprobPrograms>(spec, memory_ ? *memory_ : policy);
  }
  LogprobPrograms& programs() { return *programs_; }
  // Of its own weights.
  int64_t bytes() const { return params_ ? params_->part_bytes(Part::weight) : 0; }

 private:
  std::unique_ptr<ParamStore> params_;  // null with adapters
  std::unique_ptr<Memory> memory_;
  std::unique_ptr<LogprobPrograms> programs_;
};

}  // namespace hearth::inline train
