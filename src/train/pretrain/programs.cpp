#include "train/pretrain/programs.h"

#include "sys/error.h"

namespace hearth::inline train {
namespace {

// The name includes the batch shape, so that each shape has its own inputs.
std::string program_name(const char* what, const ProgramSpec& s) {
  return fmt::format("{}.{}x{}", what, s.B, s.T);
}

Tape record_micro(const ProgramSpec& s, bool accumulate) {
  Tape t(s.dtype, program_name("train", s));
  t.accumulate = accumulate;
  t.fp8 = s.fp8;
  const auto [in, targets] = t.feed([&] {
    return std::pair(declare_inputs(t, s.B, s.T, s.documents),
                     t.input("targets", {s.B, s.T}, DType::i32));
  });
  const Var x = decoder(t, s.model, in, {.recompute = s.recompute, .dropout = true});
  record_losses(t, s.model, x, targets, s.losses, {.chunk_bytes = s.logits_bytes, .grad = true});
  differentiate(t);
  return t;
}

// Validation computes in bf16, as the saved model will.
Tape record_eval(const ProgramSpec& s) {
  Tape t(s.dtype, program_name("eval", s));
  t.trains = false;
  const DecoderInputs in = declare_inputs(t, s.B, s.T, s.eval_documents);
  const Var targets = t.input("targets", {s.B, s.T}, DType::i32);
  const ModelConfig& model = s.eval_model ? *s.eval_model : s.model;
  const Var x = decoder(t, model, in, {});
  record_losses(t, model, x, targets, s.losses, {.chunk_bytes = s.logits_bytes});
  return t;
}

}  // namespace

MemoryNeed memory_need(const ProgramSpec& s) {
  MemoryNeed need = memory_need(record_micro(s, false), s.update);
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

void expect_fp8(const Backend& backend) {
  if (const std::string why = backend.refuses_fp8(); !why.empty())
    fail_usage("--dtype", "{}; use --dtype bf16", why);
}

Programs::Programs(const ProgramSpec& s, Memory& memory)
    : spec_(s),
      backend_(memory.backend),
      update_(program_name("train", s), memory, s.update,
              s.fp8 ? UpdateProgram::Fp8::on : UpdateProgram::Fp8::off) {
  if (s.fp8) expect_fp8(backend_);
  first_ = std::make_unique<Exec>(record_micro(s, false), memory);
  if (s.accumulates) next_ = std::make_unique<Exec>(record_micro(s, true), memory);
  eval_ = std::make_unique<Exec>(record_eval(s), memory);
  const std::string eval = program_name("eval", s);
  train_inputs_ = inputs_of(memory.state, program_name("train", s), host_suffix, s.documents);
  eval_inputs_ = inputs_of(memory.state, eval, "", s.eval_documents);
  scalars_ = {memory.state, "scalars"};
  losses_ = {memory.state, first_->tape().loss_buffer};
  eval_losses_ = {memory.state, eval_->tape().loss_buffer};
  eval_nll_ = {memory.state, eval + ".nll"};
  if (s.fp8) sites_ = {memory.state, "fp8.sites"};
}

std::vector<Fp8Site> Programs::fp8_sites() const {
  std::vector<Fp8Site> sites(size_t(spec_.fp8 ? first_->tape().fp8->sites : 0));
  if (spec_.fp8) sites_.download_part(0, sites);
  return sites;
}

void Programs::set_fp8_sites(std::span<const Fp8Site> sites) {
  const int64_t used = spec_.fp8 ? first_->tape().fp8->sites : 0;
  if (int64_t(sites.size()) != used)
    fail("fp8", "expected the scales of {} tensors, got {}", used, sites.size());
  if (spec_.fp8) sites_.upload_part(0, sites);
}

Programs::Inputs Programs::inputs_of(const StateStore& state, const std::string& program,
                                     const char* suffix, bool documents) {
  const auto input = [&](const char* name) {
    return StateRef<int32_t>(state, program + "." + name + suffix);
  };
  Inputs in{input("tokens"), input("targets"), input("positions")};
  if (documents) in.documents = input("documents");
  return in;
}

void Programs::Inputs::upload(const Batch& b) const {
  tokens.upload(b.tokens), targets.upload(b.targets), positions.upload(b.positions);
  if (documents) documents.upload(b.documents);
}

// Waits until the previous batch has been copied from the host buffers, which then take this one.
// This keeps the host at most one batch ahead.
void Programs::feed(const Batch& b, const Scalars& s) {
  backend_.finish(StreamKind::upload);
  train_inputs_.upload(b);
  scalars_.upload(s);
}

void Programs::micro(const Batch& b, const Scalars& s, bool first) {
  feed(b, s);
  (first ? *first_ : *next_).run(profile_);
}

double Programs::evaluate(const Batch& b) {
  eval_inputs_.upload(b);
  Scalars s;
  s.inv_targets = 1 / float(b.count);
  scalars_.upload(s);
  eval_->run();
  // The host sums in double precision, since an evaluation has millions of tokens.
  std::vector<float> nll(b.targets.size());
  eval_nll_.download(nll);
  double sum = 0;
  for (float x : nll) sum += x;
  return sum / double(b.count);
}

}  // namespace hearth::inline train
