// UpdateProgram: the optimizer update as a program of its own. It reads the loss that the programs
// of a step left on the device, or one that the host sets.
#pragma once

#include <memory>
#include <string>

#include "core/exec.h"
#include "core/fp8.h"
#include "optim/update.h"

namespace hearth::inline optim {

class UpdateProgram {
 public:
  enum class Fp8 : bool { off, on };
  // Reads the first of the loss terms that programs leave in "<name>.losses". With fp8 on, it also
  // ends the step of the scales: see AdvanceFp8Args.
  UpdateProgram(const std::string& name, Memory&, const UpdateSpec&, Fp8 = Fp8::off);

  // Ties the head to the token table, which becomes a copy of it, or unties it, from here on. Both
  // programs are kept, since the device may still run one of them.
  void tie_head(bool tied);

  // An update is skipped where the loss or the gradient is not finite.
  void run(const Scalars&, Profile* = nullptr);
  double loss() const;
  void set_loss(double);      // for a loss that the host computes
  UpdateState state() const;  // waits for what was launched
  const Tensor& state_tensor() const { return state_.tensor(); }  // sizeof(UpdateState) bytes
  void set_state(const UpdateState&);
  const StateRef<Fp8Site>& fp8_sites() const { return sites_; }  // absent without fp8
  // Of the sites that the programs recorded so far have.
  std::span<const DType> fp8_formats() const { return memory_.fp8_formats; }
  Exec& exec() { return *exec_; }

 private:
  std::unique_ptr<Exec> record() const;

  const std::string name_;
  Memory& memory_;
  UpdateSpec spec_;
  const Fp8 fp8_;
  std::unique_ptr<Exec> exec_, other_;  // for spec_, and with the head the other way
  StateRef<Fp8Site> sites_;
  StateRef<float> losses_;  // the terms of the loss
  StateRef<Scalars> scalars_;
  StateRef<UpdateState> state_;
};

}  // namespace hearth::inline optim
