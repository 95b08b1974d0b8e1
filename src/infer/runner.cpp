#include "infer/runner.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>

#include "core/error.h"
#include "model/decoder.h"
#include "ops/record.h"

namespace hearth {
namespace {

constexpr int32_t padding = -1;  // as a position

// Inputs and logits of a program are named by its shape: the slot it starts at may differ.
std::string program_name(int64_t B, int64_t T, int64_t rows) {
  return fmt::format("forward {}x{} {}", B, T, rows);
}

// Sizes go by powers of two, so that few programs serve all.
int64_t rounded(int64_t n, int64_t most) {
  return std::min(int64_t(std::bit_ceil(uint64_t(n))), most);
}

}  // namespace

Runner::Runner(const ModelConfig& config, ParamStore& params, Backend& backend,
               const RunnerSpec& spec)
    : config_(config.resolve()), dtype_(params.dtype()), spec_(spec), memory_(backend, &params) {
  if (dtype_ == DType::f64) fail("engine", "expected weights of at most 32 bits, got f64");
  if (spec.slots < 1 || spec.chunk < 1 || spec.context < 1 || spec.context > config_.context)
    fail("engine", "expected a batch, a chunk and a context from 1 (to {}), got {}, {} and {}",
         config_.context, spec.slots, spec.chunk, spec.context);
  spec_.chunk = std::min(spec.chunk, spec.context);
}

Exec& Runner::program(const Key& key) {
  std::unique_ptr<Exec>& p = programs_[key];
  if (!p) {
    Tape t(dtype_, program_name(key.B, key.T, key.rows));
    t.trains = false;
    const Var hidden = decoder(
        t, config_, declare_inputs(t, key.B, key.T, false),
        {.cache_tokens = spec_.context, .cache_slots = spec_.slots, .cache_first = key.first});
    const Var rows = t.input("rows", {1, key.rows}, DType::i32);
    const Var x = t.view(gather_rows(t, hidden, rows), {key.rows, config_.dim});
    const Var logits = t.result("logits", {key.rows, config_.vocab}, DType::f32);
    record_gemm(t, logits, {}, x, head_weight(t, config_), {}, {}, {.tb = true});
    p = std::make_unique<Exec>(std::move(t), memory_);
  }
  return *p;
}

void Runner::run(const Key& key) {
  Exec& exec = program(key);
  const std::string name = program_name(key.B, key.T, key.rows) + ".";
  memory_.state.write<int32_t>(name + "tokens", tokens_);
  memory_.state.write<int32_t>(name + "positions", positions_);
  memory_.state.write<int32_t>(name + "rows", rows_);
  exec.run();
  memory_.backend.synchronize();
  logits_.resize(size_t(key.rows * config_.vocab));
  memory_.state.read<float>(name + "logits", logits_);
  if (const double cap = config_.logit_softcap; cap > 0)
    for (float& x : logits_) x = float(cap * std::tanh(double(x) / cap));
}

std::span<const float> Runner::prefill(int64_t slot, std::span<const int32_t> prompt,
                                       const Each& each) {
  const int64_t N = int64_t(prompt.size());
  int64_t n = 0;
  for (int64_t at = 0; at < N; at += n) {
    n = std::min(N - at, spec_.chunk);
    const int64_t T = rounded(n, spec_.chunk);
    tokens_.assign(size_t(T), 0);
    std::copy_n(prompt.begin() + at, n, tokens_.begin());
    positions_.assign(size_t(T), padding);
    std::iota(positions_.begin(), positions_.begin() + n, int32_t(at));
    rows_.assign(size_t(each ? T : 1), int32_t(n - 1));
    if (each) std::iota(rows_.begin(), rows_.begin() + n, 0);
    run({slot, 1, T, int64_t(rows_.size())});
    if (each)
      for (int64_t i = 0; i < n; ++i) each(at + i, row(i));
  }
  return row(each ? n - 1 : 0);
}

int64_t Runner::bucket(int64_t used) const { return rounded(used, spec_.slots); }

void Runner::decode(std::span<const Next> next) {
  int64_t used = 0;
  for (const Next& x : next) used = std::max(used, x.slot + 1);
  const int64_t B = bucket(used);
  tokens_.assign(size_t(B), 0);
  positions_.assign(size_t(B), padding);
  rows_.resize(size_t(B));
  std::iota(rows_.begin(), rows_.end(), 0);
  for (const Next& x : next) {
    tokens_[size_t(x.slot)] = x.token;
    positions_[size_t(x.slot)] = x.position;
  }
  run({0, B, 1, B});
}

void Runner::copy(int64_t from, int64_t to, int64_t tokens) {
  for (int64_t layer = 0; layer < config_.layers; ++layer) {
    const Tensor cache = memory_.state.find(fmt::format("cache.{}", layer));
    const int64_t slot = cache.bytes() / spec_.slots, bytes = slot / spec_.context * tokens;
    moved_.resize(size_t(bytes));
    memory_.backend.download(moved_.data(), cache.data + from * slot, bytes);
    memory_.backend.upload(cache.data + to * slot, moved_.data(), bytes);
  }
}

int64_t Runner::cache_bytes() const {
  return config_.layers * spec_.slots * spec_.context * 2 * config_.kv_heads * config_.head_dim *
         size_of(dtype_);
}

}  // namespace hearth
