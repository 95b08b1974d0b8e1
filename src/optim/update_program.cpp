#include "optim/update_program.h"

#include "ops/ops.h"

namespace hearth::inline optim {

UpdateProgram::UpdateProgram(const std::string& name, Memory& memory, const UpdateSpec& spec,
                             Fp8 fp8)
    : memory_(memory) {
  Tape t(memory.params->dtype(), name);
  const std::string losses = t.loss_buffer;
  record_update(t, *memory.params, t.rows(t.loss_values(), 0, 1), spec);
  if (fp8 == Fp8::on) advance_fp8_sites(t);
  exec_ = std::make_unique<Exec>(std::move(t), memory);
  losses_ = {memory.state, losses};
  scalars_ = {memory.state, "scalars"};
  state_ = {memory.state, "update"};
  if (fp8 == Fp8::on) sites_ = {memory.state, "fp8.sites"};
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
