#include "align/logprob_programs.h"

#include <algorithm>
#include <bit>

#include "core/error.h"

namespace hearth {
namespace {

constexpr int32_t no_target = -100;
constexpr double arena_share = 0.9;  // of the room there is; kernels' scratch needs some, too
constexpr int64_t row_step = 64;  // buffers of rows are of a multiple of it: few programs serve all

std::vector<int32_t> padded(const std::vector<int32_t>& v, int64_t size, int32_t with) {
  std::vector<int32_t> r(v);
  r.resize(size_t(size), with);
  return r;
}

std::vector<int32_t> counted_positions(int64_t B, int64_t T) {
  std::vector<int32_t> r(size_t(B * T));
  for (size_t i = 0; i < r.size(); ++i) r[i] = int32_t(int64_t(i) % T);
  return r;
}

void check(const TokenBatch& b, const ModelConfig& model) {
  const size_t n = size_t(b.B * b.T);
  const auto fits = [&](const std::vector<int32_t>& v) { return v.empty() || v.size() == n; };
  if (n == 0 || b.tokens.size() != n || !fits(b.positions) || !fits(b.documents))
    fail("logprob", "expected {} x {} tokens, got {}", b.B, b.T, b.tokens.size());
  if (b.rows.empty() || b.rows.size() != b.targets.size())
    fail("logprob", "expected a target for each row, got {} for {} rows", b.targets.size(),
         b.rows.size());
  for (const int32_t r : b.rows)
    if (r < 0 || size_t(r) >= n) fail("logprob", "expected rows below {}, got {}", n, r);
  for (const auto* ids : {&b.tokens, &b.targets})
    for (const int32_t id : *ids)
      if (id < 0 || id >= model.vocab)
        fail("logprob", "expected tokens below {}, got {}", model.vocab, id);
}

}  // namespace

LogprobPrograms::LogprobPrograms(const LogprobProgramsSpec& spec, Memory& memory)
    : spec_(spec), memory_(memory) {
  spec_.model = spec.model.resolve();
}

// Logits are kept only where there is room for them: what fits without them runs.
Tape LogprobPrograms::record(const std::string& name, const Key& key) const {
  if (spec_.keep_bytes > 0 && (key.kind == Kind::first || key.kind == Kind::next)) {
    Tape t = record(name, key, spec_.keep_bytes), planned = t;
    prune(planned);
    alias(planned);
    if (double(plan(planned).arena_bytes) <= arena_share * double(memory_.room())) return t;
  }
  return record(name, key, 0);
}

Tape LogprobPrograms::record(const std::string& name, const Key& key, int64_t keep_bytes) const {
  const bool nll = key.kind == Kind::nll_first || key.kind == Kind::nll_next;
  Tape t(spec_.dtype, name);
  t.trains = key.kind != Kind::score;
  t.accumulate = key.kind == Kind::next || key.kind == Kind::nll_next;
  const DecoderInputs in = declare_inputs(t, key.B, key.T, key.documents);
  const Var x = decoder(t, spec_.model, in,
                        {.recompute = spec_.recompute, .dropout = nll, .adapters = spec_.adapters});
  const Var wanted = gather_rows(t, x, t.input("rows", {1, key.rows}, DType::i32));
  const Var targets = t.input("targets", {1, key.rows}, DType::i32);
  const Var w = head_weight(t, spec_.model);
  if (nll) {
    head_loss(
        t, wanted, w, targets,
        {.softcap = spec_.model.logit_softcap, .chunk_bytes = spec_.logits_bytes, .grad = true});
  } else {
    const Var y = head_logprob(t, wanted, w, targets,
                               {.softcap = spec_.model.logit_softcap,
                                .temperature = spec_.temperature,
                                .entropy = spec_.entropy,
                                .chunk_bytes = spec_.logits_bytes,
                                .keep_bytes = keep_bytes});
    if (t.trains) t.host_grad(y, "dlogprob");
  }
  if (t.trains) differentiate(t);
  return t;
}

// The program for a batch, with its inputs written.
LogprobPrograms::Program& LogprobPrograms::prepare(const TokenBatch& b, Kind kind) {
  check(b, spec_.model);
  // Whole eighths of a power of two: rows of any number are met by few programs.
  const int64_t n = int64_t(b.rows.size());
  const int64_t step = std::max(row_step, int64_t(std::bit_ceil(uint64_t(n))) / 8);
  const int64_t rows = (n + step - 1) / step * step;
  const bool documents = !b.documents.empty();
  const Key key{b.B, b.T, rows, documents, kind};
  Program& p = programs_[key];
  if (!p.exec) {
    // Programs of one shape share their buffers.
    const std::string name =
        fmt::format("{} {}x{} {}{}", spec_.name, b.B, b.T, rows, documents ? " documents" : "");
    p = {name + ".", std::make_unique<Exec>(record(name, key), memory_), rows};
  }
  const auto write = [&](const char* what, const std::vector<int32_t>& v) {
    memory_.state.write<int32_t>(p.prefix + what, v);
  };
  write("tokens", b.tokens);
  write("positions", b.positions.empty() ? counted_positions(b.B, b.T) : b.positions);
  if (documents) write("documents", b.documents);
  write("rows", padded(b.rows, rows, -1));
  write("targets", padded(b.targets, rows, no_target));
  return p;
}

std::vector<float> LogprobPrograms::read(const Program& p, const char* what, size_t rows) {
  std::vector<float> v(size_t(p.rows));
  memory_.state.read<float>(p.prefix + what, v);
  v.resize(rows);
  return v;
}

Logprobs LogprobPrograms::read(const Program& p, size_t rows) {
  memory_.backend.synchronize();
  return {read(p, "logprob", rows),
          spec_.entropy ? read(p, "entropy", rows) : std::vector<float>()};
}

Logprobs LogprobPrograms::score(const TokenBatch& b) {
  Program& p = prepare(b, Kind::score);
  pending_ = nullptr;  // its activations are overwritten
  p.exec->run();
  return read(p, b.rows.size());
}

Logprobs LogprobPrograms::forward(const TokenBatch& b, bool first) {
  Program& p = prepare(b, first ? Kind::first : Kind::next);
  p.exec->run_part(0);
  pending_ = &p, pending_rows_ = b.rows.size();
  return read(p, b.rows.size());
}

void LogprobPrograms::backward(std::span<const float> dlogprob) {
  if (!pending_ || dlogprob.size() != pending_rows_)
    fail("logprob", "expected a gradient for each of {} rows of a forward pass, got {}",
         pending_ ? pending_rows_ : 0, dlogprob.size());
  std::vector<float> d(dlogprob.begin(), dlogprob.end());
  d.resize(size_t(pending_->rows), 0);
  memory_.state.write<float>(pending_->prefix + "dlogprob", d);
  pending_->exec->run_part(1);
  pending_ = nullptr;
}

std::vector<float> LogprobPrograms::train(const TokenBatch& b, const Scalars& s, bool first) {
  Program& p = prepare(b, first ? Kind::nll_first : Kind::nll_next);
  pending_ = nullptr;
  memory_.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
  p.exec->run();
  memory_.backend.synchronize();
  return read(p, "nll", b.rows.size());
}

UpdateProgram::UpdateProgram(const std::string& name, Memory& memory, const UpdateSpec& spec)
    : memory_(memory), loss_(name + ".loss") {
  Tape t(memory.params->dtype(), name);
  record_update(t, *memory.params, t.result("loss", {1}, t.acc()), spec);
  exec_ = std::make_unique<Exec>(std::move(t), memory);
}

UpdateState UpdateProgram::run(const Scalars& s, double loss) {
  const float x = float(loss);
  memory_.state.write<float>(loss_, std::span(&x, 1));
  memory_.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
  exec_->run();
  return state();
}

UpdateState UpdateProgram::state() const {
  UpdateState u;
  memory_.state.read<UpdateState>("update", std::span(&u, 1));
  return u;
}

void UpdateProgram::set_state(const UpdateState& u) {
  memory_.state.write<UpdateState>("update", std::span<const UpdateState>(&u, 1));
}

}  // namespace hearth
