#include "train/pretrain/programs.h"

#include "optim/fp8_scales.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

LogprobProgramsSpec programs_of(const ProgramSpec& s) {
  return {.model = s.model,
          .eval_model = s.eval_model,
          .name = "train",
          .dtype = s.dtype,
          .fp8 = s.fp8,
          .recompute = s.recompute,
          .losses = s.losses,
          .logits_bytes = s.logits_bytes};
}

UpdateSpec update_of(const ProgramSpec& s) {
  UpdateSpec update = s.update;
  update.balance_rate = s.losses.balance_rate;
  return update;
}

}  // namespace

MemoryNeed memory_need(const ProgramSpec& s) {
  MemoryNeed need = LogprobPrograms::need(programs_of(s), {s.B, s.T, 0, s.documents},
                                          LogprobPrograms::Kind::nll_first, update_of(s));
  need.offload = s.offload;
  return need;
}

int64_t largest_batch(ProgramSpec s, int64_t sequences, int64_t bytes) {
  return largest_divisor(sequences, [&](int64_t B) {
    s.B = B;
    return memory_need(s).total() <= bytes;
  });
}

void expect_fit(const ProgramSpec& s, const MemoryBudget& budget) {
  const MemoryNeed need = memory_need(s);
  if (budget.fits(need.total())) return;
  std::string remedies;
  const auto remedy = [&](ProgramSpec other, const std::string& flag) {
    if (budget.fits(memory_need(other).total()))
      remedies += (remedies.empty() ? "what fits: " : ", ") + flag;
  };
  if (const int64_t B = largest_batch(s, s.B, budget.left()))
    remedies = fmt::format("what fits: --batch {}", B);
  ProgramSpec other = s;
  other.recompute = Recompute::block;
  remedy(other, "--recompute block");
  other = s, other.offload = true;
  if (budget.host_offload()) remedy(other, "--offload");
  other = s, other.dtype = DType::bf16;
  if (s.dtype != DType::bf16) remedy(other, "--dtype bf16");
  other = s, other.T = std::max<int64_t>(1, s.T / 2);
  if (remedies.empty()) remedy(other, fmt::format("--seq {}", other.T));
  if (remedies.empty()) remedies = "no batch fits: take a smaller model";
  expect_fit(need, budget, remedies);
}

Programs::Programs(const ProgramSpec& s, Memory& memory)
    : spec_(s),
      programs_(programs_of(s), memory),
      update_("train", memory, update_of(s),
              s.fp8 ? UpdateProgram::Fp8::on : UpdateProgram::Fp8::off) {
  if (s.fp8) expect_fp8(memory.backend);
  reshape(s);
}

void Programs::reshape(const ProgramSpec& s) {
  spec_ = s;
  programs_.set_windows(s.model.window, s.model.long_window);
  programs_.set_weights(s.losses.mtp_loss, s.losses.further_loss);
  first_program();
  if (s.accumulates) next_program();
  programs_.program({s.B, s.T, 0, s.eval_documents}, LogprobPrograms::Kind::nll_eval);
  update_.tie_head(s.update.tied_head);
}

double Programs::evaluate(const Batch& b) {
  // The host sums in double precision, since an evaluation has millions of tokens.
  double sum = 0;
  for (const float x : programs_.evaluate(view(b, spec_.eval_documents))) sum += x;
  return sum / double(b.count);
}

}  // namespace hearth::inline train
