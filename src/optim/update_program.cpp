#include "optim/update_program.h"

#include "ops/ops.h"
#include "optim/tied_head.h"

namespace hearth::inline optim {

UpdateProgram::UpdateProgram(const std::string& name, Memory& memory, const UpdateSpec& spec,
                             Fp8 fp8)
    : name_(name), memory_(memory), spec_(spec), fp8_(fp8), exec_(record()) {
  losses_ = {memory.state, exec_->tape().loss_buffer};
  scalars_ = {memory.state, "scalars"};
  state_ = {memory.state, "update"};
  if (fp8 == Fp8::on) sites_ = {memory.state, "fp8.sites"};
}

std::unique_ptr<Exec> UpdateProgram::record() const {
  Tape t(memory_.params->dtype(), name_);
  record_update(t, *memory_.params, t.rows(t.loss_values(), 0, 1), spec_);
  if (fp8_ == Fp8::on) advance_fp8_sites(t);
  return std::make_unique<Exec>(std::move(t), memory_);
}

void UpdateProgram::tie_head(bool tied) {
  if (tied != spec_.tied_head) {
    spec_.tied_head = tied;
    std::swap(exec_, other_);
    if (!exec_) exec_ = record();
  }
  if (tied) tie_now(memory_, TiedSide::head);
}

void UpdateProgram::run(const Scalars& s, Profile* profile) {
  scalars_.upload(s);
  exec_->run(profile);
}

double UpdateProgram::loss() const {
  float x = 0;
  losses_.download_part(0, std::span(&x, 1));
  return x;
}

void UpdateProgram::set_loss(double loss) {
  const float x = float(loss);
  losses_.upload_part(0, std::span(&x, 1));
}

UpdateState UpdateProgram::state() const {
  UpdateState u;
  state_.download(std::span(&u, 1));
  return u;
}

void UpdateProgram::set_state(const UpdateState& u) { state_.upload(u); }

}  // namespace hearth::inline optim
