#include "train/update_program.h"

namespace hearth::inline train {

UpdateProgram::UpdateProgram(const std::string& name, Memory& memory, const UpdateSpec& spec)
    : memory_(memory) {
  Tape t(memory.params->dtype(), name);
  losses_ = t.loss_buffer;
  record_update(t, *memory.params, t.rows(t.loss_values(), 0, 1), spec);
  exec_ = std::make_unique<Exec>(std::move(t), memory);
}

void UpdateProgram::run(const Scalars& s, Profile* profile) {
  memory_.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
  exec_->run(profile);
}

double UpdateProgram::loss() const {
  float x = 0;
  memory_.backend.download(&x, memory_.state.find(losses_).data, sizeof x);
  return x;
}

void UpdateProgram::set_loss(double loss) {
  const float x = float(loss);
  memory_.backend.upload(memory_.state.find(losses_).data, &x, sizeof x);
}

UpdateState UpdateProgram::state() const {
  UpdateState u;
  memory_.state.read<UpdateState>("update", std::span(&u, 1));
  return u;
}

void UpdateProgram::set_state(const UpdateState& u) {
  memory_.state.write<UpdateState>("update", std::span<const UpdateState>(&u, 1));
}

}  // namespace hearth::inline train
