#include "infer/runner.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "infer/block_pool.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline infer {
namespace {

constexpr int32_t padding = -1;  // position of a padding row
constexpr int64_t control_ints = sizeof(SampleControls) / 4, drawn_ints = sizeof(Drawn) / 4;

// All host inputs of a step are in one buffer and one upload. The tokens come first in every
// program, because the device writes them for a step that follows another.
struct Inputs {
  int64_t rows, logits, sequences, width;  // width: blocks per table
  Inputs(const RunnerSpec& s, int64_t rows, int64_t logits)
      : rows(rows), logits(logits), sequences(s.sequences), width(blocks_for(s.context)) {}
  explicit Inputs(const RunnerSpec& s) : Inputs(s, s.rows, s.logits) {}
  int64_t tokens() const { return 0; }
  int64_t positions() const { return rows; }
  int64_t sequence() const { return 2 * rows; }
  int64_t wanted() const { return 3 * rows; }
  int64_t controls() const { return 3 * rows + logits; }
  int64_t tables() const { return controls() + logits * control_ints; }
  int64_t size() const { return tables() + sequences * width; }
};

// Words of a row of SampleArgs::allowed.
int64_t mask_ints(const RunnerSpec& s) { return (s.vocab + 31) / 32; }

// A row of SampleArgs::allowed.
void write_mask(std::span<int32_t> row, const AllowedTokens& a, int64_t vocab) {
  if (a.all()) {
    std::ranges::fill(row, -1);
    return;
  }
  std::memcpy(row.data(), a.bits.data(), row.size_bytes());
  for (const int32_t id : a.also)
    if (id < vocab) row[size_t(id) / 32] = int32_t(uint32_t(row[size_t(id) / 32]) | 1u << id % 32);
}

constexpr size_t turns = 2;
std::string name_of(const char* what, size_t turn) {
  return fmt::format("engine.{}.{}", what, turn);
}

// Records the forward pass of a step; the logits of the wanted rows go to the state "logits".
Tape forward(const ModelConfig& c, DType dtype, const RunnerSpec& spec, const StepShape& shape,
             bool draws, size_t turn, bool constrained = false) {
  const int64_t rows = shape.rows, wanted = shape.logits;
  Tape t(dtype, "engine");
  t.trains = false;
  const Inputs in(spec, rows, wanted);
  const Shape all_inputs{Inputs(spec).size(), 1};
  const Var inputs = t.state(name_of("inputs", turn), all_inputs, DType::i32);
  const auto part = [&](int64_t at, Shape s) { return t.view(t.rows(inputs, at, s.numel()), s); };
  const DecoderInputs model{.tokens = part(in.tokens(), {1, rows}),
                            .positions = part(in.positions(), {1, rows}),
                            .sequences = part(in.sequence(), {1, rows}),
                            .tables = part(in.tables(), {in.sequences, in.width})};
  const Var chosen = shape.all ? Var{} : part(in.wanted(), {1, wanted});
  DecoderMode mode = shape.mode(spec);
  mode.wanted = chosen, mode.modules = spec.modules;
  const Var x = decoder(t, c, model, mode);
  const Var head = t.whole_tiles(head_weight(t, c));
  const Var logits = t.state("engine.logits", {spec.logits, t.shape(head)[0]}, DType::f32);
  const Var own = t.rows(logits, 0, wanted);
  record_gemm(t, {.c = own,
                  .a = t.view(x, {wanted, c.dim}),
                  .b = head,
                  .spec = {.tb = true, .alpha = c.logit_scale}});
  if (!draws) return t;
  const Var drawn = t.state(name_of("drawn", turn), {spec.logits, drawn_ints}, DType::i32);
  const Var next = t.state(name_of("inputs", (turn + 1) % turns), all_inputs, DType::i32);
  Var allowed;
  if (constrained) {
    t.pause();
    const Shape masks{spec.logits, mask_ints(spec)};
    allowed = t.rows(t.state(name_of("allowed", turn), masks, DType::i32), 0, wanted);
  }
  const auto launch = [drawable = spec.vocab, vocab = c.vocab](auto* f, Stream& s, In in, Out out) {
    f(s, {.drawn = out[0],
          .tokens = out[1],
          .logits = in[0],
          .controls = in[1],
          .allowed = in[2],
          .drawable = drawable,
          .vocab = vocab});
  };
  t.push(kernel_op<&Kernels::sample>("sample", launch),
         {own, part(in.controls(), {wanted, control_ints}), allowed},
         {t.rows(drawn, 0, wanted), t.rows(next, in.tokens(), wanted)});
  return t;
}

// The training loss kernel over `rows` rows of logits, for targets chosen by the host: its value
// for the most likely token gives the log-sum of the row.
Tape record_scorer(const ModelConfig& c, const RunnerSpec& spec, int64_t rows, int64_t wide) {
  Tape t(DType::f32, "engine");
  const Var logits = t.rows(t.state("engine.logits", {spec.logits, wide}, DType::f32), 0, rows);
  const Var targets = t.state("engine.targets", {spec.logits, 1}, DType::i32);
  const Var nll = t.state("engine.nll", {spec.logits, 1}, DType::f32);
  const auto launch = [spec = LossSpec{.vocab = c.vocab}](auto* f, Stream& s, In in, Out out) {
    f(s, {.nll = out[0], .logits = in[0], .targets = in[1], .spec = spec});
  };
  t.push(kernel_op<&Kernels::cross_entropy>("cross_entropy", launch),
         {logits, t.rows(targets, 0, rows)}, {t.rows(nll, 0, rows)});
  return t;
}

// Log-probabilities as in training, over all rows of logits; a row without a target costs nothing.
Tape record_tempered(const ModelConfig& c, const RunnerSpec& spec, int64_t wide,
                     float temperature) {
  Tape t(DType::f32, "engine");
  const Var logits = t.state("engine.logits", {spec.logits, wide}, DType::f32);
  const LogprobSpec level{.vocab = c.vocab, .softcap = c.logit_softcap, .temperature = temperature};
  const auto launch = [level](auto* f, Stream& s, In in, Out out) {
    f(s, {.logprob = out[0], .logits = in[0], .targets = in[1], .spec = level});
  };
  t.push(kernel_op<&Kernels::logprob>("logprob", launch),
         {logits, t.state("engine.targets", {spec.logits, 1}, DType::i32)},
         {t.state("engine.nll", {spec.logits, 1}, DType::f32)});
  return t;
}

ProgramNeed largest_need(const ModelConfig& c, DType dtype, RunnerSpec spec) {
  spec.blocks = 1;
  StepShape largest{spec.rows, spec.logits};
  if (c.mla) largest.sequences = spec.sequences, largest.blocks = blocks_for(spec.context);
  Tape t = forward(c, dtype, spec, largest, true, 0);
  return need_of(std::move(t));
}

}  // namespace

void Feed::clear() {
  follows = false;
  for (auto* v : {&tokens, &positions, &sequences, &wanted}) v->clear();
  draws.clear();
  scores.clear();
  allowed.clear();
  tables.clear();
}

bool Feed::masks() const {
  return std::ranges::any_of(draws, [](const auto& d) { return d && d->constrained; });
}

bool Feed::pauses() const {
  for (size_t i = 0; i < draws.size(); ++i)
    if (draws[i] && draws[i]->constrained && allowed[i].all()) return true;
  return false;
}

Runner::Runner(const ModelConfig& config, ParamStore& params, Backend& backend,
               const RunnerSpec& spec)
    : config_(for_length(config.resolve(), spec.context)),
      spec_(spec),
      memory_(backend, &params),
      rope_(config_, spec.context),
      programs_(memory_, spec.program_bytes) {
  if (params.dtype() == DType::f64) fail("engine", "expected weights of at most 32 bits, got f64");
  for (const LayerSpec& l : layer_specs(config_))
    if (const std::string why =
            l.attends() ? backend.refuses_cache(params.dtype(), l.cache(spec.cache, params.dtype()))
                        : "";
        !why.empty())
      fail("engine", "{}", why);
  check_layers_run(config_, backend, params.dtype());
  if (config_.mla && !absorbs()) spec_.exact = true;
  spec_.deep_rows = deep_rows(backend);
  if (spec.logits > spec.rows)  // drawn tokens are written to the input tokens of these rows
    fail("engine", "expected logits of at most {} rows, got {}", spec.rows, spec.logits);
  // Reserved once: growing the arena later would invalidate every captured program.
  int64_t arena = largest_need(config_, params.dtype(), spec_).arena;
  if (spec_.modules)
    arena = std::max(arena, ModuleRunner::need(config_, params.dtype(), spec_).arena);
  memory_.reserve(arena);
  const StepShape one{bucket(1, spec.rows), 1, true, true};
  program({Key::Kind::step, one.with_depth(config_, spec_, {1, 1, true})});
  device_logits_ = {memory_.state, "engine.logits"};
  wide_ = device_logits_.tensor().cols();
  if (spec_.modules) {
    RunnerSpec drafting = spec_;
    drafting.exact = !absorbs();  // drafts change no output, so they may round as they like
    modules_ = std::make_unique<ModuleRunner>(config_, memory_, drafting);
  }
  find_caches();
  inputs_.resize(size_t(Inputs(spec).size()));
  for (auto& a : arrivals_) a = backend.make_transfer(spec.logits * int64_t(sizeof(Drawn)));
  backend.synchronize();  // inputs are zeroed before the first launch
}

// Decoding has at least one thread block per row and KV head.
int64_t Runner::deep_rows(const Backend& backend) const {
  const int64_t blocks = backend.splits_keys_below();
  if (blocks == 0) return 0;
  if (config_.mla) return std::numeric_limits<int64_t>::max();  // always splits keys
  int64_t heads = blocks;
  for (const LayerSpec& l : layer_specs(config_))
    if (l.attends()) heads = std::min(heads, l.kv_heads);
  return (blocks + heads - 1) / heads;
}

// The tensors of which a block has a part: of layers, of modules, and one for each level of states.
void Runner::find_caches() {
  const auto find = [&](const std::string& name) {
    if (memory_.state.has(name)) caches_.push_back(memory_.state.find(name));
  };
  for (int64_t layer = 0; layer < config_.layers + spec_.modules; ++layer) {
    find(fmt::format("cache.{}", layer));
    find(fmt::format("cache.keys.{}", layer));
  }
  find("cache.tokens");
  if (!spec_.modules) return;
  Tensor level = memory_.state.find("cache.states");
  const int64_t bytes = level.bytes() / state_levels(spec_.modules);
  level.shape.dim[0] = spec_.blocks;
  for (int64_t i = 0; i < state_levels(spec_.modules); ++i, level.data += bytes)
    caches_.push_back(level);
}

int64_t Runner::block_bytes(const ModelConfig& config, DType dtype, CacheFormat cache,
                            int64_t modules) {
  return cache_block_bytes(config, cache, dtype) + mtp_block_bytes(config, modules, cache, dtype);
}

int64_t Runner::step_bytes(const ModelConfig& config, DType dtype, const RunnerSpec& spec) {
  const ModelConfig c = config.resolve();
  ProgramNeed n = largest_need(c, dtype, spec);
  if (spec.modules) {
    const ProgramNeed module = ModuleRunner::need(c, dtype, spec);
    n.arena = std::max(n.arena, module.arena), n.kept += module.kept;
  }
  return n.arena + n.kept;
}

std::vector<int32_t> Runner::run_module(const ModuleFeed& f) {
  copy_blocks();
  rope_.cover(memory_, 1 + *std::ranges::max_element(f.positions));
  return modules_->run(f);
}

Tape Runner::record(const Key& key) const {
  switch (key.kind) {
    case Key::Kind::step:
      return forward(config_, memory_.params->dtype(), spec_, key.shape, draws(), key.turn,
                     key.masks);
    case Key::Kind::log_sums:
      return record_scorer(config_, spec_, key.shape.logits, wide_);
    case Key::Kind::logprobs:
      break;
  }
  return record_tempered(config_, spec_, wide_, key.temperature);
}

// A reference is valid until the next call.
Exec& Runner::program(const Key& key) {
  ShapePrograms& found = programs_.get(key, [&] {
    return fmt::format("engine {} {}x{}{}{}{} over {}x{} depth {} turn {} temperature {}",
                       int(key.kind), key.shape.rows, key.shape.logits, key.shape.all ? " all" : "",
                       key.shape.apart ? " apart" : "", key.masks ? " masks" : "",
                       key.shape.sequences, key.shape.blocks, key.shape.depth, key.turn,
                       key.temperature);
  });
  if (found.kinds.empty() || found.kinds[0]->runs() < 2) ++cold_;
  if (!found.kinds.empty()) return *found.kinds[0];
  found.kinds.push_back(std::make_unique<Exec>(record(key), memory_));
  if (key.kind != Key::Kind::step) {
    targets_ = {memory_.state, "engine.targets"};
    nll_ = {memory_.state, "engine.nll"};
  } else if (Turn& t = turns_[key.turn]; !t.inputs) {
    t.inputs = {memory_.state, name_of("inputs", key.turn)};
    if (draws()) t.drawn = {memory_.state, name_of("drawn", key.turn)};
  }
  if (key.masks) turns_[key.turn].allowed = {memory_.state, name_of("allowed", key.turn)};
  return *found.kinds[0];
}

int64_t Runner::cold_launches() const { return cold_ + (modules_ ? modules_->cold_launches() : 0); }

bool Runner::draws() const {
  return memory_.backend.kernels().sample && config_.logit_softcap == 0;
}

void Runner::upload(const Feed& f, const StepShape& shape, size_t turn) {
  const Inputs in(spec_, shape.rows, shape.logits);
  const auto put = [&](int64_t at, std::span<const int32_t> values, int64_t size, int32_t rest) {
    const auto end = std::ranges::copy(values, inputs_.begin() + at).out;
    std::fill(end, inputs_.begin() + at + size, rest);
  };
  put(in.tokens(), f.tokens, shape.rows, 0);
  put(in.positions(), f.positions, shape.rows, padding);
  put(in.sequence(), f.sequences, shape.rows, 0);
  put(in.wanted(), f.wanted, shape.logits, 0);
  for (size_t i = 0; draws() && i < size_t(shape.logits); ++i) {
    const SampleControls c = i < f.draws.size() && f.draws[i] ? *f.draws[i] : SampleControls{};
    std::memcpy(&inputs_[size_t(in.controls()) + i * control_ints], &c, sizeof c);
  }
  // All tables that the step reads: block 0 fills those that no sequence has.
  const int64_t tables = std::max(int64_t(f.tables.size()), shape.sequences);
  for (int64_t i = 0; i < tables; ++i)
    put(in.tables() + i * in.width,
        i < int64_t(f.tables.size()) ? f.tables[size_t(i)] : std::span<const int32_t>(), in.width,
        0);
  const int64_t begin = f.follows ? in.positions() : in.tokens();
  const int64_t end = in.tables() + tables * in.width;
  const auto written =
      std::span<const int32_t>(inputs_).subspan(size_t(begin), size_t(end - begin));
  // An abandoned launch that paused may still read its inputs.
  if (std::exchange(turns_[turn].undrawn, false))
    arrivals_[turn]->begin(turns_[turn].drawn.tensor().data, int64_t(sizeof(Drawn)));
  arrivals_[turn]->wait();  // the last launch of this turn has finished, collected or not
  if (f.follows)
    turns_[turn].inputs.upload_part_ahead(begin, written);
  else  // the previous launch may still run and write to them
    turns_[turn].inputs.upload_part(begin, written);
}

StepShape Runner::shape_of(const Feed& f) const {
  const int64_t rows = bucket(int64_t(f.positions.size()), spec_.rows);
  const int64_t logits = bucket(std::max<int64_t>(int64_t(f.wanted.size()), 1), spec_.logits);
  // Ascending numbers without repetition, as many as rows, are all rows. Likewise sequences.
  const bool all = rows == logits && f.wanted.size() == f.positions.size() &&
                   std::ranges::adjacent_find(f.wanted) == f.wanted.end();
  const StepShape shape{rows, logits, all, f.tables.size() == f.positions.size()};
  const int64_t tables = int64_t(f.tables.size());
  // A step that verifies draft tokens decodes in the same form as one without them, so that they
  // change no bit.
  const bool verifies =
      spec_.drafts > 0 && all && rows <= bucket((1 + spec_.drafts) * tables, spec_.rows);
  return shape.with_depth(config_, spec_,
                          {.tables = tables,
                           .deepest = blocks_for(1 + *std::ranges::max_element(f.positions)),
                           .decodes = shape.apart || verifies});
}

// Whether decoding may attend over latents: not with adapters, of which kv_b may have some.
bool Runner::absorbs() const {
  return !config_.lora && config_.mla.kv_latent <= most_absorbed &&
         config_.attention_softcap == 0 && memory_.backend.kernels().attention_latent != nullptr;
}

void Runner::launch(const Feed& f) {
  const StepShape shape = shape_of(f);
  const size_t turn = draws() ? launched_ % turns : 0;
  const bool masks = f.masks(), pauses = f.pauses();
  Exec& exec = program({Key::Kind::step, shape, turn, masks});
  copy_blocks();
  rope_.cover(memory_, 1 + *std::ranges::max_element(f.positions));
  upload(f, shape, turn);
  if (masks && !pauses) upload_masks(f, turn);
  ++launched_;
  turns_[turn].undrawn = pauses;
  if (pauses) return exec.run_part(0);
  exec.run();
  if (draws())
    arrivals_[turn]->begin(turns_[turn].drawn.tensor().data, shape.logits * int64_t(sizeof(Drawn)));
}

void Runner::draw(const Feed& f) {
  const StepShape shape = shape_of(f);
  const size_t turn = (launched_ - 1) % turns;
  Exec& exec = program({Key::Kind::step, shape, turn, true});
  upload_masks(f, turn);
  turns_[turn].undrawn = false;
  exec.run_part(1);
  arrivals_[turn]->begin(turns_[turn].drawn.tensor().data, shape.logits * int64_t(sizeof(Drawn)));
}

// Uploads the masks of constrained rows, neighbours together. A constant mask that its row already
// has stays. The device ignores the masks of other rows.
void Runner::upload_masks(const Feed& f, size_t turn) {
  const size_t words = size_t(mask_ints(spec_)), rows = f.draws.size();
  Turn& t = turns_[turn];
  t.kept.resize(size_t(spec_.logits));
  masks_.resize(rows * words);
  const auto changes = [&](size_t i) {
    if (i == rows || !f.draws[i] || !f.draws[i]->constrained) return false;
    const AllowedTokens& a = f.allowed[i];
    ConstantMask mask;
    if (a.constant) mask = {a.bits.data(), {a.also.begin(), a.also.end()}};
    return !mask.bits || std::exchange(t.kept[i], mask) != mask;
  };
  for (size_t i = 0, first = 0; i <= rows; ++i) {
    if (changes(i)) {
      write_mask(std::span(masks_).subspan(i * words, words), f.allowed[i], spec_.vocab);
      if (!f.allowed[i].constant) t.kept[i] = {};
      continue;
    }
    if (i > first)
      t.allowed.upload_part(int64_t(first * words), std::span<const int32_t>(masks_).subspan(
                                                        first * words, (i - first) * words));
    first = i + 1;
  }
}

void Runner::collect(const Feed& f) {
  const size_t wanted = f.wanted.size(), turn = collected_++ % arrivals_.size();
  if (!std::ranges::all_of(f.draws, [](const auto& d) { return bool(d); }))
    logits_.resize(wanted * size_t(wide_));
  drawn_.resize(wanted);
  if (draws()) {
    const auto* here = reinterpret_cast<const Drawn*>(arrivals_[turn]->wait());
    std::copy_n(here, wanted, drawn_.begin());
  }
  for (size_t i = 0, end = 0; i < wanted; i = end + 1) {  // runs of rows that the host samples from
    for (end = i; end < wanted && !f.draws[end];) ++end;
    if (const size_t wide = size_t(wide_); end > i)
      device_logits_.download_part(int64_t(i * wide),
                                   std::span(logits_).subspan(i * wide, (end - i) * wide));
  }
  sums_.assign(wanted, {});
  if (const double cap = config_.logit_softcap; cap > 0)
    for (float& x : logits_) x = float(cap * std::tanh(double(x) / cap));
  else if (std::ranges::find(f.scores, 1) != f.scores.end())
    score(f);
}

void Runner::score(const Feed& f) {
  constexpr int32_t no_target = -100;
  const int64_t wanted = int64_t(f.wanted.size()), rows = bucket(wanted, spec_.logits);
  std::vector<int32_t> likeliest(size_t(rows), no_target);
  for (int64_t i = 0; i < wanted; ++i)
    if (f.scores[size_t(i)] && !f.draws[size_t(i)])
      likeliest[size_t(i)] = int32_t(std::ranges::max_element(logits(i)) - logits(i).begin());
  Exec& exec = program({Key::Kind::log_sums, {.logits = rows}});
  targets_.upload_part(0, likeliest);
  exec.run();
  std::vector<float> logs(static_cast<size_t>(wanted));
  nll_.download_part(0, logs);
  for (int64_t i = 0; i < wanted; ++i)
    if (const int32_t best = likeliest[size_t(i)]; best != no_target)
      sums_[size_t(i)] = LogSum{logits(i)[size_t(best)], logs[size_t(i)]};
}

float Runner::logprob(int64_t i, int32_t token, float temperature) {
  Exec& exec = program({.kind = Key::Kind::logprobs, .temperature = temperature});
  std::vector<int32_t> targets(size_t(spec_.logits), -1);
  targets[size_t(i)] = token;
  targets_.upload(targets);
  exec.run();
  float logprob = 0;
  nll_.download_part(i, std::span(&logprob, 1));
  return logprob;
}

void Runner::copy_block(int32_t from, int32_t to) {
  const auto meets = [&](const auto& c) {
    return c.second == from || c.second == to || c.first == to;
  };
  if (std::ranges::any_of(copies_, meets)) copy_blocks();
  copies_.emplace_back(from, to);
}

void Runner::copy_blocks() {
  std::vector<Copy> all;
  for (const Tensor& cache : caches_) {
    const int64_t bytes = cache.bytes() / spec_.blocks;
    for (const auto& [from, to] : copies_)
      all.push_back({cache.data + to * bytes, cache.data + from * bytes, bytes});
  }
  if (!all.empty()) memory_.backend.copy_all(all);
  copies_.clear();
}

}  // namespace hearth::inline infer
