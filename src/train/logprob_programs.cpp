#include "train/logprob_programs.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <tuple>

#include "model/further_losses.h"
#include "sys/error.h"

namespace hearth::inline train {
namespace {

constexpr int32_t no_target = -100;

std::vector<float> first_of(const StateRef<float>& values, size_t rows) {
  std::vector<float> v(rows);
  values.download_part(0, v);
  return v;
}

}  // namespace

LogprobPrograms::LogprobPrograms(const LogprobProgramsSpec& spec, Memory& memory)
    : spec_(spec),
      memory_(memory),
      programs_(memory),
      nll_(memory.backend),
      terms_(memory.backend) {
  spec_.model = spec.model.resolve();
  if (spec.eval_model) spec_.eval_model = spec.eval_model->resolve();
}

// Logits are kept only if the memory allows it: a program that fits without them runs.
Tape LogprobPrograms::record(const std::string& name, const Key& key, Kind kind) const {
  if (spec_.keep_bytes > 0 && (kind == Kind::first || kind == Kind::next)) {
    Tape t = record(spec_, name, key, kind, spec_.keep_bytes), planned = t;
    simplify(planned);
    if (MemoryBudget::for_kept_logits_arena(memory_.backend, memory_.allocated_arena_bytes())
            .fits(plan(planned).arena_bytes))
      return t;
  }
  return record(spec_, name, key, kind, 0);
}

namespace {

Tape begin_tape(const LogprobProgramsSpec& spec, const std::string& name,
                LogprobPrograms::Kind kind) {
  using Kind = LogprobPrograms::Kind;
  const bool learns = kind == Kind::nll_first || kind == Kind::nll_next;
  const bool evaluates = kind == Kind::nll_eval;
  Tape t(spec.dtype, name);
  t.trains = kind != Kind::score && !evaluates;
  if (t.trains) t.fp8 = spec.fp8;  // evaluation computes in the dtype, as the saved model will
  // The host compares log-probabilities with those of the sampler or of a reference, so they are
  // the same as without fp8. How large the gradients are depends on what the host makes of them.
  if (t.fp8 && !learns) t.fp8->forward = false, t.fp8->measured = true;
  // Batches of any shape add to the terms of one step.
  t.loss_buffer = spec.name + (evaluates ? ".eval.losses" : ".losses");
  t.accumulate = kind == Kind::next || kind == Kind::nll_next;
  return t;
}

Var policy_logprob(Tape& t, const ModelConfig& model, Var x, Var targets,
                   const LogprobProgramsSpec& spec, int64_t keep_bytes) {
  return head_logprob(t, x, head_weight(t, model), targets,
                      {.scale = model.logit_scale,
                       .softcap = model.logit_softcap,
                       .temperature = spec.temperature,
                       .entropy = spec.entropy,
                       .chunk_bytes = spec.logits_bytes,
                       .keep_bytes = keep_bytes});
}

}  // namespace

Tape LogprobPrograms::record(const LogprobProgramsSpec& spec, const std::string& name,
                             const Key& key, Kind kind, int64_t keep_bytes) {
  const bool learns = kind == Kind::nll_first || kind == Kind::nll_next;
  const bool evaluates = kind == Kind::nll_eval;
  const ModelConfig& model = evaluates ? spec.evaluated() : spec.model;
  Tape t = begin_tape(spec, name, kind);
  const Shape asked = key.rows ? Shape{1, key.rows} : Shape{key.B, key.T};
  // Adapters leave routers alone, and so does training on what was sampled or compared before.
  const bool balances = learns && !model.lora;
  const float balance = balances ? spec.losses.balance_loss : 0;
  const float router_z = balances ? spec.losses.router_z_loss : 0;
  const bool modules = t.trains && spec.modules && model.mtp;
  const auto declare = [&] {
    DecoderInputs in = declare_inputs(t, key.B, key.T, key.documents);
    if (t.trains && model.moe && key.rows)  // other batches have no padding
      in.counts = t.input("counts", {key.B, key.T}, DType::i32);
    return std::tuple(
        in, key.rows ? t.input("rows", asked, DType::i32) : Var{},
        t.input("targets", asked, DType::i32),
        modules && key.rows ? t.input("module_targets", {model.mtp, key.rows}, DType::i32) : Var{});
  };
  const auto [in, rows, targets, module_targets] = learns ? t.feed(declare) : declare();
  // Scales that are measured are those of this batch, not of others before it.
  if (t.fp8 && t.fp8->measured) advance_fp8_sites(t);
  std::vector<Routing> routings;
  std::vector<Var> further;
  const Var x = decoder(t, model, in,
                        {.recompute = spec.recompute,
                         .dropout = learns,
                         .adapters = spec.adapters,
                         .balance_loss = balance,
                         .router_z_loss = router_z,
                         .further = modules ? &further : nullptr,
                         .detached = !learns,
                         .routings = &routings});
  const Var wanted = rows ? gather_rows(t, x, rows) : x;
  const MtpLossVars learned{further, targets, in.positions, rows, module_targets};
  if (learns || evaluates) {
    const HeadSpec head{
        .chunk_bytes = spec.logits_bytes, .grad = learns, .acc_logits = evaluates && key.rows};
    record_losses(t, model, wanted, targets, spec.losses, head);
    if (modules) record_mtp_losses(t, model, learned, spec.losses.mtp_loss, head);
    record_further_losses(t, model, wanted, rows ? Var{} : in.positions, targets,
                          spec.losses.further_loss, head);
    if (learns) router_losses(t, routings, {balance, router_z, router_load_name(t)});
  } else {
    const Var y = policy_logprob(t, model, wanted, targets, spec, keep_bytes);
    if (t.trains) router_loads(t, routings, router_load_name(t));
    if (t.trains) t.host_grad(y, "dlogprob");
    if (modules) {
      t.add_loss({.name = "policy"});  // the host computes it: UpdateProgram::set_loss()
      record_mtp_losses(t, model, learned, spec.losses.mtp_loss,
                        {.chunk_bytes = spec.logits_bytes, .grad = true, .grad_w = false});
    }
  }
  if (t.trains) differentiate(t);
  return t;
}

MemoryNeed LogprobPrograms::need(const LogprobProgramsSpec& spec, const Key& key, Kind kind,
                                 const UpdateSpec& update) {
  LogprobProgramsSpec resolved = spec;
  resolved.model = spec.model.resolve();
  return memory_need(record(resolved, "need", key, kind, 0), update);
}

// 0 .. T - 1 in each of B sequences.
std::span<const int32_t> LogprobPrograms::counted_positions(int64_t B, int64_t T) {
  if (counted_T_ != T) counted_.clear();
  counted_T_ = T;
  for (int64_t b = int64_t(counted_.size()) / T; b < B; ++b)
    for (int64_t t = 0; t < T; ++t) counted_.push_back(int32_t(t));
  return std::span(counted_).first(size_t(B * T));
}

LogprobPrograms::Program LogprobPrograms::bind(const std::string& name, Exec& exec, const Key& key,
                                               Kind kind) const {
  const bool learns = kind == Kind::nll_first || kind == Kind::nll_next;  // its inputs are fed
  const auto input = [&](const char* what) {
    return StateRef<int32_t>(memory_.state, name + "." + what + (learns ? host_suffix : ""));
  };
  const auto result = [&](const char* what) {
    return StateRef<float>(memory_.state, name + "." + what);
  };
  Program p{.exec = &exec,
            .rows = key.rows,
            .tokens = input("tokens"),
            .positions = input("positions"),
            .targets = input("targets")};
  if (key.rows) p.asked = input("rows");
  if (key.documents) p.documents = input("documents");
  if (exec.tape().find(name + ".counts")) p.counts = input("counts");
  if (exec.tape().find(name + ".module_targets")) p.module_targets = input("module_targets");
  if (const std::string load = router_load_name(exec.tape()); exec.tape().find(load))
    p.load = {memory_.state, load};
  if (!exec.tape().losses.empty()) {
    p.losses = {memory_.state, exec.tape().loss_buffer};
    p.scalars = {memory_.state, "scalars"};
  }
  if (learns || kind == Kind::nll_eval) {
    p.nll = result("nll");
  } else {
    p.logprob = result("logprob");
    if (spec_.entropy) p.entropy = result("entropy");
    if (kind != Kind::score) p.dlogprob = result("dlogprob");
  }
  return p;
}

// Programs of one shape, the same windows and the same weights share their buffers, whose names
// begin alike. Only training has the losses that the weights are of. No name continues another one
// after a point: ProgramCache drops values by that.
const LogprobPrograms::Program& LogprobPrograms::bound(const Key& key, Kind kind) {
  const ModelConfig& model = kind == Kind::nll_eval ? spec_.evaluated() : spec_.model;
  const int64_t window = model.window, long_window = model.long_window;
  const bool weighs = kind == Kind::nll_first || kind == Kind::nll_next;
  const float mtp = weighs && model.mtp ? spec_.losses.mtp_loss : 0;
  const float further = weighs ? spec_.losses.further_loss : 0;
  BoundPrograms& shape = programs_.get({key, window, long_window, mtp, further}, [&] {
    std::string name = fmt::format("{} {}x{}", spec_.name, key.B, key.T);
    if (key.rows) name += fmt::format(" {}", key.rows);
    if (key.documents) name += " documents";
    if (window || long_window) name += fmt::format(" windows {} {}", window, long_window);
    if (mtp || further) name += fmt::format(" weights {} {} of terms", mtp, further);
    return name;
  });
  shape.kinds.resize(kinds);
  Program& p = shape.bound[size_t(kind)];
  if (!p.exec) {
    auto exec = std::make_unique<Exec>(record(shape.name, key, kind), memory_);
    p = bind(shape.name, *exec, key, kind);
    shape.kinds[size_t(kind)] = std::move(exec);
  }
  return p;
}

std::span<const int32_t> LogprobPrograms::positions_of(const BatchView& b) {
  return b.positions.empty() ? counted_positions(b.B, b.T) : b.positions;
}

// The program for a batch, with its inputs written. A reference holds until the next call.
const LogprobPrograms::Program& LogprobPrograms::prepare(const BatchView& b, Kind kind) {
  check_batch(b, spec_.model.vocab);
  pending_ = nullptr;  // its activations are overwritten, and the cache may drop its program
  const int64_t rows =
      b.asks_all() ? 0 : bucket(std::max(int64_t(b.rows.size()), spec_.rows), buckets::head_rows);
  const Program& p = bound({b.B, b.T, rows, !b.documents.empty()}, kind);
  if (kind == Kind::nll_first || kind == Kind::nll_next) memory_.backend.finish(StreamKind::upload);
  p.tokens.upload(b.tokens);
  const std::span<const int32_t> positions = positions_of(b);
  p.positions.upload(positions);
  if (p.documents) p.documents.upload(b.documents);
  if (p.counts) {
    padded_.assign(b.counts.begin(), b.counts.end());
    padded_.resize(b.tokens.size(), 1);
    p.counts.upload(padded_);
  }
  if (b.asks_all()) {
    p.targets.upload(b.targets);
    return p;
  }
  const auto upload_padded = [&](const StateRef<int32_t>& to, std::span<const int32_t> v,
                                 int32_t with) {
    padded_.assign(v.begin(), v.end());
    padded_.resize(size_t(rows), with);
    to.upload(padded_);
  };
  upload_padded(p.asked, b.rows, -1);
  upload_padded(p.targets, b.targets, no_target);
  if (p.module_targets) {
    padded_.assign(size_t(spec_.model.mtp * rows), no_target);
    for (int64_t k = 0; k < spec_.model.mtp; ++k)
      further_targets(std::span(padded_).subspan(size_t(k * rows)), b, positions, k + 1);
    p.module_targets.upload(padded_);
  }
  return p;
}

Logprobs LogprobPrograms::score(const BatchView& b) {
  const Program& p = prepare(b, Kind::score);
  p.exec->run();
  memory_.backend.synchronize();
  return {first_of(p.logprob, b.rows.size()),
          spec_.entropy ? first_of(p.entropy, b.rows.size()) : std::vector<float>()};
}

void LogprobPrograms::fetch(Arrival& a, const StateRef<float>& from) {
  const int64_t most = from.tensor().bytes();
  if (a.bytes < most) a = {memory_.backend.make_transfer(most), most};
  a.transfer->begin(from.tensor().data, int64_t(begun_rows_ * sizeof(float)));
}

std::span<const float> LogprobPrograms::arrived(Arrival& a) const {
  if (!a.transfer) fail("logprob", "expected a forward pass that finds this, got none");
  return {reinterpret_cast<const float*>(a.transfer->wait()), begun_rows_};
}

void LogprobPrograms::begin(const BatchView& b, bool first, const Scalars& s) {
  const Program& p = prepare(b, first ? Kind::first : Kind::next);
  pending_ = trained_ = &p, begun_rows_ = b.rows.size();
  if (p.scalars) set_scalars(b, s, first);
  p.exec->run_part(0);
  fetch(logprob_, p.logprob);
  if (spec_.entropy) fetch(entropy_, p.entropy);
}

Logprobs LogprobPrograms::forward(const BatchView& b, bool first, const Scalars& s) {
  begin(b, first, s);
  const auto copy = [](std::span<const float> v) { return std::vector<float>(v.begin(), v.end()); };
  return {copy(logprob()), spec_.entropy ? copy(entropy()) : std::vector<float>()};
}

template <class T>
void LogprobPrograms::backward_of(std::span<const T> dlogprob, const Scalars& s) {
  if (!pending_ || dlogprob.size() != begun_rows_)
    fail("logprob", "expected a gradient for each of {} rows of a forward pass, got {}",
         pending_ ? begun_rows_ : 0, dlogprob.size());
  dlogprob_.assign(size_t(pending_->rows), 0);
  for (size_t i = 0; i < dlogprob.size(); ++i)
    dlogprob_[i] = float(scaled_gradient(s, dlogprob[i]));
  pending_->dlogprob.upload(dlogprob_);
  pending_->exec->run_part(1);
  pending_ = nullptr;
}

template void LogprobPrograms::backward_of(std::span<const float>, const Scalars&);
template void LogprobPrograms::backward_of(std::span<const double>, const Scalars&);

void LogprobPrograms::report_terms(nlohmann::ordered_json& to) {
  if (!has_terms()) return;
  for (const LossValue& l : terms_.take()) to[l.name] = l.value;
  if (spec_.model.moe) to["expert_load"] = expert_load();
}

void LogprobPrograms::feed(const BatchView& b, const Scalars& s, bool first) {
  trained_ = &prepare(b, first ? Kind::nll_first : Kind::nll_next);
  set_scalars(b, s, first);
}

void LogprobPrograms::set_scalars(const BatchView& b, const Scalars& s, bool first) {
  trained_->scalars.upload(s);
  const std::vector<LossTerm>& terms = trained_->exec->tape().losses;
  if (first) shares_.assign(terms.size(), 0);
  for (size_t i = 0; i < terms.size(); ++i)
    if (const int64_t by = terms[i].ahead)
      shares_[i] += double(s.inv_targets) * double(count_further_targets(b, positions_of(b), by));
    else
      shares_[i] = 1;
}

void LogprobPrograms::launch_train(const BatchView& b, const Scalars& s, bool first,
                                   Profile* profile) {
  feed(b, s, first);
  trained_->exec->run(profile);
  if (b.asks_all()) return;
  nll_.send(trained_->nll.tensor(), b.count);
  send_terms(terms_);
}

std::vector<float> LogprobPrograms::evaluate(const BatchView& b) {
  const Program& p = prepare(b, Kind::nll_eval);
  const Scalars s{.inv_targets = 1 / float(b.count)};
  p.scalars.upload(s);
  p.exec->run();
  memory_.backend.synchronize();
  evaluated_ = read_losses(p.losses, p.exec->tape().losses, LossTerms::validated);
  return first_of(p.nll, b.targets.size());
}

}  // namespace hearth::inline train
