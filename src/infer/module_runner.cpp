#include "infer/module_runner.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <utility>

#include "infer/block_pool.h"
#include "infer/sampler.h"
#include "model/decoder.h"
#include "ops/record.h"

namespace hearth::inline infer {
namespace {

constexpr const char* module_inputs_name = "engine.module.inputs";
constexpr const char* module_drawn_name = "engine.module.drawn";
constexpr int64_t controls_size = sizeof(SampleControls) / 4, drawn_size = sizeof(Drawn) / 4;

// All host inputs of a run are in one buffer and one upload.
struct ModuleInputs {
  int64_t rows, logits, sequences, width;  // width: blocks per table
  ModuleInputs(const RunnerSpec& s, int64_t rows, int64_t logits)
      : rows(rows), logits(logits), sequences(s.sequences), width(blocks_for(s.context)) {}
  explicit ModuleInputs(const RunnerSpec& s)
      : ModuleInputs(s, ModuleRunner::most_rows(s), s.sequences) {}
  int64_t positions() const { return rows; }
  int64_t sequence() const { return 2 * rows; }
  int64_t sources() const { return 3 * rows; }
  int64_t wanted() const { return 4 * rows; }
  int64_t controls() const { return wanted() + logits; }
  int64_t tables() const { return controls() + logits * controls_size; }
  int64_t size() const { return tables() + sequences * width; }
};

// The likeliest token of each row of logits, where the device samples.
void record_greedy(Tape& t, const ModelConfig& c, const RunnerSpec& spec, Var logits,
                   Var controls) {
  const int64_t rows = t.shape(logits)[0];
  const auto launch = [drawable = spec.vocab, vocab = c.vocab](auto* f, Stream& s, In in, Out out) {
    f(s, {.drawn = out[0],
          .tokens = out[1],
          .logits = in[0],
          .controls = in[1],
          .allowed = {},
          .drawable = drawable,
          .vocab = vocab});
  };
  const Var drawn = t.state(module_drawn_name, {spec.sequences, drawn_size}, DType::i32);
  const Var tokens = t.state("engine.module.tokens", {spec.sequences, 1}, DType::i32);
  t.push(kernel_op<&Kernels::sample>("sample", launch), {logits, controls},
         {t.rows(drawn, 0, rows), t.rows(tokens, 0, rows)});
}

Tape module_program(const ModelConfig& c, DType dtype, const RunnerSpec& spec, int64_t module,
                    const StepShape& shape, bool draws) {
  const int64_t rows = shape.rows, wanted = shape.logits;
  Tape t(dtype, "engine");
  t.trains = false;
  const ModuleInputs in(spec, rows, wanted);
  const Var inputs = t.state(module_inputs_name, {ModuleInputs(spec).size(), 1}, DType::i32);
  const auto part = [&](int64_t at, Shape s) { return t.view(t.rows(inputs, at, s.numel()), s); };
  const DecoderInputs model{.tokens = part(0, {1, rows}),
                            .positions = part(in.positions(), {1, rows}),
                            .sequences = part(in.sequence(), {1, rows}),
                            .tables = part(in.tables(), {in.sequences, in.width})};
  const StateLevels levels{state_levels(spec.modules), spec.blocks};
  const Var states =
      t.view(cached_states(t, c, levels), {levels.levels * levels.blocks * cache_block, c.dim});
  Var x = mtp_module(t, c, model, shape.mode(spec), module,
                     gather_rows(t, states, part(in.sources(), {1, rows})));
  if (module + 1 < levels.levels)
    keep_states(t, c, levels, module + 1, x, {model.positions, model.sequences, model.tables});
  if (wanted == 0) return t;
  x = mtp_norm(t, c, module, gather_rows(t, x, part(in.wanted(), {1, wanted})));
  const Var head = t.whole_tiles(head_weight(t, c));
  const Var logits =
      t.rows(t.state("engine.logits", {spec.logits, t.shape(head)[0]}, DType::f32), 0, wanted);
  record_gemm(t, {.c = logits,
                  .a = t.view(x, {wanted, c.dim}),
                  .b = head,
                  .spec = {.tb = true, .alpha = c.logit_scale}});
  if (draws) record_greedy(t, c, spec, logits, part(in.controls(), {wanted, controls_size}));
  return t;
}

}  // namespace

ProgramNeed ModuleRunner::need(const ModelConfig& c, DType dtype, RunnerSpec spec) {
  spec.blocks = 1;
  StepShape largest{most_rows(spec), spec.sequences};
  if (c.mla) largest.sequences = spec.sequences, largest.blocks = blocks_for(spec.context);
  return need_of(module_program(c, dtype, spec, 0, largest, true), "engine.module.");
}

// The first programs allocate the states of the modules.
ModuleRunner::ModuleRunner(const ModelConfig& config, Memory& memory, const RunnerSpec& spec)
    : config_(config), spec_(spec), memory_(memory), programs_(memory, spec.program_bytes) {
  const StepShape one{.rows = 1, .logits = 1, .apart = true};
  for (int64_t k = 0; k < spec.modules; ++k)
    program({k, one.with_depth(config_, spec_, {1, 1, true})});
  inputs_ = {memory.state, module_inputs_name};
  logits_ = {memory.state, "engine.logits"};
  if (memory.backend.kernels().sample) drawn_ = {memory.state, module_drawn_name};
  staged_.resize(size_t(ModuleInputs(spec).size()));
}

int32_t ModuleRunner::source(const RunnerSpec& spec, int64_t level, std::span<const int32_t> table,
                             int64_t position) {
  const int64_t block = table[size_t(position / cache_block)];
  return int32_t((level * spec.blocks + block) * cache_block + position % cache_block);
}

Exec& ModuleRunner::program(const Key& key) {
  ShapePrograms& found = programs_.get(key, [&] {
    return fmt::format("engine module {} {}x{}{} over {}x{} depth {}", key.module, key.shape.rows,
                       key.shape.logits, key.shape.apart ? " apart" : "", key.shape.sequences,
                       key.shape.blocks, key.shape.depth);
  });
  if (found.kinds.empty() || found.kinds[0]->runs() < 2) ++cold_;
  if (found.kinds.empty())
    found.kinds.push_back(std::make_unique<Exec>(
        module_program(config_, memory_.params->dtype(), spec_, key.module, key.shape,
                       memory_.backend.kernels().sample != nullptr),
        memory_));
  return *found.kinds[0];
}

StepShape ModuleRunner::shape_of(const ModuleFeed& f) const {
  const int64_t wanted = int64_t(f.wanted.size());
  const StepShape shape{.rows = bucket(int64_t(f.positions.size()), most_rows(spec_)),
                        .logits = wanted ? bucket(wanted, spec_.sequences) : 0,
                        .apart = f.tables.size() == f.positions.size()};
  // Rows of prompts are only stored. A feed that drafts has a few rows of each sequence.
  return shape.with_depth(config_, spec_,
                          {.tables = int64_t(f.tables.size()),
                           .deepest = blocks_for(1 + *std::ranges::max_element(f.positions)),
                           .decodes = shape.apart || wanted > 0});
}

void ModuleRunner::upload(const ModuleFeed& f, const StepShape& shape) {
  constexpr int32_t no_position = -1;
  const ModuleInputs in(spec_, shape.rows, shape.logits);
  const auto put = [&](int64_t at, std::span<const int32_t> values, int64_t size, int32_t rest) {
    const auto end = std::ranges::copy(values, staged_.begin() + at).out;
    std::fill(end, staged_.begin() + at + size, rest);
  };
  put(0, f.tokens, shape.rows, 0);
  put(in.positions(), f.positions, shape.rows, no_position);
  put(in.sequence(), f.sequences, shape.rows, 0);
  put(in.sources(), f.sources, shape.rows, 0);
  put(in.wanted(), f.wanted, shape.logits, 0);
  const SampleControls greedy{};
  for (int64_t i = 0; i < shape.logits; ++i)
    std::memcpy(&staged_[size_t(in.controls() + i * controls_size)], &greedy, sizeof greedy);
  const int64_t tables = std::max(int64_t(f.tables.size()), shape.sequences);
  for (int64_t i = 0; i < tables; ++i)
    put(in.tables() + i * in.width,
        i < int64_t(f.tables.size()) ? f.tables[size_t(i)] : std::span<const int32_t>(), in.width,
        0);
  inputs_.upload_part(
      0, std::span<const int32_t>(staged_).first(size_t(in.tables() + tables * in.width)));
}

std::vector<int32_t> ModuleRunner::run(const ModuleFeed& f) {
  const StepShape shape = shape_of(f);
  Exec& exec = program({f.module, shape});
  upload(f, shape);
  exec.run();
  std::vector<int32_t> likeliest(f.wanted.size());
  if (f.wanted.empty()) return likeliest;
  if (drawn_) {
    std::vector<int32_t> drawn(f.wanted.size() * size_t(drawn_size));
    drawn_.download_part(0, drawn);
    static_assert(offsetof(Drawn, token) == 0);
    for (size_t i = 0; i < likeliest.size(); ++i) likeliest[i] = drawn[i * size_t(drawn_size)];
    return likeliest;
  }
  const size_t wide = size_t(logits_.tensor().cols());
  std::vector<float> logits(f.wanted.size() * wide);
  logits_.download_part(0, logits);
  for (size_t i = 0; i < likeliest.size(); ++i) {
    const auto row = std::span(logits).subspan(i * wide, size_t(spec_.vocab));
    likeliest[i] = int32_t(std::ranges::max_element(row) - row.begin());
  }
  return likeliest;
}

}  // namespace hearth::inline infer
