#include "eval/score.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "core/math.h"
#include "infer/block_pool.h"
#include "model/decoder.h"
#include "ops/record.h"
#include "sys/error.h"

namespace hearth::inline eval {
namespace {

constexpr int32_t unscored = -100;  // target value

std::string scoring_name(int64_t B, int64_t T, int64_t rows, bool logits) {
  return fmt::format("score {}x{} {}{}", B, T, rows, logits ? " logits" : "");
}

// The same batch as rows of sequences, each with its own cache blocks.
DecoderInputs cached_inputs(Tape& t, int64_t B, int64_t T) {
  return {.tokens = t.input("tokens", {1, B * T}, DType::i32),
          .positions = t.input("positions", {1, B * T}, DType::i32),
          .sequences = t.input("sequences", {1, B * T}, DType::i32),
          .tables = t.input("tables", {B, blocks_for(T)}, DType::i32)};
}

ScorerSpec completed(ScorerSpec s, const ModelConfig& c) {
  if (s.context == 0) s.context = c.context;
  return s;
}

// The largest number of blocks for any batch: one long sequence, or many of the shortest.
int64_t most_blocks(const ModelConfig& c, const ScorerSpec& s) {
  const int64_t longest = bucket(s.context, buckets::text_tokens, c.context);
  const int64_t shortest = bucket(1, buckets::text_tokens, c.context);
  return std::max(blocks_for(longest), s.batch_tokens / shortest + 1);
}

}  // namespace

Scorer::Scorer(const ModelConfig& config, ParamStore& params, Backend& backend,
               const ScorerSpec& spec)
    : config_(for_length(config.resolve(), completed(spec, config).context)),
      dtype_(params.dtype()),
      spec_(completed(spec, config_)),
      memory_(backend, &params),
      rope_(config_, padded_length(spec_.context)),
      programs_(memory_) {
  if (dtype_ == DType::f64) fail("eval", "expected weights of at most 32 bits, got f64");
  if (spec.batch_tokens < 1)
    fail("eval", "expected at least 1 token per batch, got {}", spec.batch_tokens);
}

int64_t Scorer::padded_length(int64_t tokens) const {
  return bucket(tokens, buckets::text_tokens, config_.context);
}

const Scorer::BoundProgram& Scorer::program(const Key& key) {
  BoundProgram& shape =
      programs_.get(key, [&] { return scoring_name(key.B, key.T, key.rows, key.logits); });
  if (!shape.kinds.empty()) return shape;
  Tape t(dtype_, shape.name);
  t.trains = false;
  const bool cached = spec_.cache != CacheFormat::plain;
  const Var hidden = cached ? decoder(t, config_, cached_inputs(t, key.B, key.T),
                                      {.cache_blocks = most_blocks(config_, spec_),
                                       .cache = spec_.cache,
                                       .positions = padded_length(spec_.context)})
                            : decoder(t, config_, declare_inputs(t, key.B, key.T, false), {});
  const Var rows = t.input("rows", {1, key.rows}, DType::i32);
  const Var targets = t.input("targets", {1, key.rows}, DType::i32);
  const Var x = gather_rows(t, hidden, rows), head = head_weight(t, config_);
  head_loss(t, x, head, targets,
            {.scale = config_.logit_scale,
             .softcap = config_.logit_softcap,
             .chunk_bytes = logits_chunk_bytes(memory_.backend)});
  if (key.logits)
    record_gemm(t, {.c = t.result("logits", {key.rows, config_.vocab}, DType::f32),
                    .a = t.view(x, {key.rows, config_.dim}),
                    .b = head,
                    .spec = {.tb = true, .alpha = config_.logit_scale}});
  auto exec = std::make_unique<Exec>(std::move(t), memory_);
  const auto input = [&](const char* what) {
    return StateRef<int32_t>(memory_.state, shape.name + "." + what);
  };
  shape.tokens = input("tokens"), shape.positions = input("positions");
  shape.rows = input("rows"), shape.targets = input("targets");
  if (cached) shape.sequences = input("sequences"), shape.tables = input("tables");
  shape.scalars = {memory_.state, "scalars"};
  shape.nll = {memory_.state, shape.name + ".nll"};
  if (key.logits) shape.logits = {memory_.state, shape.name + ".logits"};
  shape.kinds.push_back(std::move(exec));
  return shape;
}

// Uses tokens_ (B, T), rows_ and targets_ (rows).
void Scorer::run(const Key& key) {
  if (const int64_t most = padded_length(spec_.context); key.T > most)
    fail("eval", "expected texts of at most {} tokens, got {}", most, key.T);
  const BoundProgram& shape = program(key);
  std::vector<int32_t> positions(size_t(key.B * key.T));
  for (size_t i = 0; i < positions.size(); ++i) positions[i] = int32_t(int64_t(i) % key.T);
  if (spec_.cache != CacheFormat::plain) {
    std::vector<int32_t> sequences(positions.size()), blocks(size_t(key.B * blocks_for(key.T)));
    for (size_t i = 0; i < sequences.size(); ++i) sequences[i] = int32_t(int64_t(i) / key.T);
    std::iota(blocks.begin(), blocks.end(), 0);
    rope_.cover(memory_, key.T);
    shape.sequences.upload(sequences);
    shape.tables.upload(blocks);
  }
  shape.tokens.upload(tokens_), shape.positions.upload(positions);
  shape.rows.upload(rows_), shape.targets.upload(targets_);
  shape.scalars.upload(Scalars());
  shape.kinds[0]->run();
  memory_.backend.synchronize();
  nll_.resize(size_t(key.rows));
  shape.nll.download(nll_);
  if (!key.logits) return;
  logits_.resize(size_t(key.rows * config_.vocab));
  shape.logits.download(logits_);
  if (const double cap = config_.logit_softcap; cap > 0)
    for (float& x : logits_) x = float(cap * std::tanh(double(x) / cap));
}

void Scorer::score_batch(std::span<const size_t> which, std::span<const ScoreItem> items,
                         std::span<Score> scores) {
  const int64_t T = padded_length(int64_t(items[which[0]].tokens.size()) - 1);  // the longest
  tokens_.assign(which.size() * size_t(T), 0);
  rows_.clear(), targets_.clear();
  for (size_t b = 0; b < which.size(); ++b) {
    const ScoreItem& item = items[which[b]];
    const int64_t at = int64_t(b) * T, n = int64_t(item.tokens.size());
    std::copy_n(item.tokens.begin(), n - 1, tokens_.begin() + at);
    for (int64_t i = item.first; i < n; ++i) {
      rows_.push_back(int32_t(at + i - 1));
      targets_.push_back(item.tokens[size_t(i)]);
    }
  }
  const int64_t rows = bucket(int64_t(rows_.size()), buckets::head_rows);
  rows_.resize(size_t(rows), 0), targets_.resize(size_t(rows), unscored);
  run({int64_t(which.size()), T, rows, spec_.greedy});

  size_t row = 0;
  for (const size_t i : which) {
    Score& s = scores[i];
    for (int64_t k = items[i].first; k < int64_t(items[i].tokens.size()); ++k, ++row) {
      if (!std::isfinite(nll_[row]))
        fail("eval",
             "expected finite logits, got {}: the weights may be damaged, or their training "
             "diverged",
             std::fabs(nll_[row]));
      s.logprob -= double(nll_[row]);
      s.squares += double(nll_[row]) * double(nll_[row]);
      ++s.tokens;
      if (!spec_.greedy) continue;
      const auto logits =
          std::span(logits_).subspan(row * size_t(config_.vocab), size_t(config_.vocab));
      s.greedy &= std::ranges::max_element(logits) - logits.begin() == targets_[row];
    }
  }
}

std::vector<Score> Scorer::score(std::span<const ScoreItem> items,
                                 const std::function<void(size_t)>& progress) {
  for (const ScoreItem& item : items) {
    const int64_t n = int64_t(item.tokens.size());
    if (item.first < 1 || item.first >= n || n > config_.context + 1)
      fail("eval",
           "expected tokens to score after some context, within {} tokens, got {} scored of {}",
           config_.context + 1, n - item.first, n);
    for (const int32_t id : item.tokens)
      if (id < 0 || id >= config_.vocab)
        fail("eval", "expected token ids below the model's {}, got {}", config_.vocab, id);
  }
  std::vector<size_t> order(items.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::stable_sort(order, std::greater{}, [&](size_t i) { return items[i].tokens.size(); });
  std::vector<Score> scores(items.size());
  for (size_t at = 0; at < order.size();) {
    const int64_t T = padded_length(int64_t(items[order[at]].tokens.size()) - 1);
    const size_t fit = size_t(std::max<int64_t>(1, spec_.batch_tokens / T));
    const size_t n = std::min(order.size() - at, fit);
    score_batch(std::span(order).subspan(at, n), items, scores);
    at += n;
    if (progress) progress(at);
  }
  return scores;
}

std::vector<float> Scorer::logits(std::span<const int32_t> tokens) {
  const int64_t n = int64_t(tokens.size());
  if (n < 1 || n > config_.context)
    fail("eval", "expected 1 to {} tokens, got {}", config_.context, n);
  const int64_t T = padded_length(n);
  tokens_.assign(size_t(T), 0);
  std::ranges::copy(tokens, tokens_.begin());
  rows_.resize(size_t(T));
  std::iota(rows_.begin(), rows_.end(), 0);
  targets_.assign(size_t(T), unscored);
  run({1, T, T, true});
  return {logits_.begin(), logits_.begin() + n * config_.vocab};
}

}  // namespace hearth::inline eval
