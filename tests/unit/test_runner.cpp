// The engine's programs: those used least recently are dropped when they hold too much, and
// recorded again when they are needed.
#include "infer/runner.h"

#include <algorithm>
#include <numeric>
#include <set>
#include <utility>

#include "infer_model.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

// The logits after a prompt of n tokens, and the log-probability of token 3 at a temperature.
std::vector<float> answer(Runner& runner, int64_t n) {
  static constexpr int32_t block = 0;
  Feed f;
  for (int32_t t = 0; t < n; ++t) {
    f.tokens.push_back((t * 5 + 1) % 23), f.positions.push_back(t), f.sequences.push_back(0);
  }
  f.wanted = {int32_t(n - 1)};
  f.draws.resize(1), f.scores = {1}, f.tables = {std::span(&block, 1)};
  runner.launch(f);
  runner.collect(f);
  std::vector<float> all(runner.logits(0).begin(), runner.logits(0).end());
  all.push_back(runner.logprob(0, 3, 0.5f + float(n)));
  return all;
}

TEST(Runner, KeepsFewProgramsAndTheSameBits) {
  const ModelConfig config = tiny_config().resolve();
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(config), DType::f32);
  params.initialise(3);
  RunnerSpec spec{.rows = 16, .logits = 2, .context = 24, .blocks = 2, .vocab = config.vocab};
  Runner all(config, params, *backend, spec);
  spec.program_bytes = 1;
  Runner few(config, params, *backend, spec);
  for (const int64_t n : {3, 9, 1, 3, 16, 9, 3}) EXPECT_EQ(answer(few, n), answer(all, n)) << n;
  EXPECT_LE(few.programs(), 2u);
  EXPECT_GE(all.programs(), 8u);
}

// A CPU for which programs of few rows are recorded by the depth of the texts, as for a device that
// splits their keys.
class SplittingBackend final : public WrappedBackend {
 public:
  SplittingBackend() : table_(WrappedBackend::kernels()) {
    attend = std::exchange(table_.attention_cached, note);
  }
  const Kernels& kernels() const override { return table_; }
  int64_t splits_keys_below() const override { return 100; }

  static inline std::set<int64_t> depths;  // since it was cleared last

 private:
  static void note(Stream& s, const AttentionCachedArgs& args) {
    const int32_t* at = args.positions.as<const int32_t>();
    const int32_t last = *std::max_element(at, at + args.positions.numel());
    const int64_t depth = args.depth ? args.depth : args.tables.cols();
    EXPECT_LT(last, depth * cache_block);
    EXPECT_LE(args.depth, args.tables.cols());
    depths.insert(args.depth);
    attend(s, args);
  }
  static inline decltype(Kernels::attention_cached) attend = nullptr;
  Kernels table_;
};

TEST(Runner, RecordsSmallStepsForTheDepthOfTexts) {
  ModelConfig config = tiny_config();
  config.context = 200 * cache_block;
  config = config.resolve();
  SplittingBackend splits;
  const auto plain = make_cpu_backend(1);
  std::vector<int32_t> table(200);
  std::iota(table.begin(), table.end(), 0);
  const RunnerSpec spec{
      .rows = 64, .logits = 2, .context = config.context, .blocks = 200, .vocab = config.vocab};
  std::vector<std::unique_ptr<TinyModel>> models;
  std::vector<std::unique_ptr<Runner>> runners;
  for (Backend* b : {static_cast<Backend*>(&splits), plain.get()}) {
    models.push_back(std::make_unique<TinyModel>(*b, config));
    runners.push_back(std::make_unique<Runner>(config, models.back()->params, *b, spec));
  }
  // The depths of the attention over a text whose last rows begin at a position.
  const auto depths_at = [&](int32_t first, int32_t rows) {
    Feed f;
    for (int32_t i = 0; i < rows; ++i)
      f.tokens.push_back(i % 23), f.positions.push_back(first + i), f.sequences.push_back(0);
    f.wanted = {rows - 1};
    f.draws.resize(1), f.scores = {0}, f.tables = {table};
    SplittingBackend::depths.clear();
    std::vector<std::vector<float>> all;
    for (const auto& r : runners) {
      r->launch(f);
      r->collect(f);
      all.emplace_back(r->logits(0).begin(), r->logits(0).end());
    }
    EXPECT_EQ(all[0], all[1]) << first;
    return SplittingBackend::depths;
  };
  using Depths = std::set<int64_t>;
  EXPECT_EQ(depths_at(0, 1), Depths{32});
  EXPECT_EQ(depths_at(2047, 1), Depths{32});
  EXPECT_EQ(depths_at(2048, 1), Depths{128});
  EXPECT_EQ(depths_at(8191, 1), Depths{128});
  EXPECT_EQ(depths_at(8192, 1), Depths{200});
  EXPECT_EQ(depths_at(200 * cache_block - 1, 1), Depths{200});
  EXPECT_EQ(runners[0]->programs(), 3u);
  EXPECT_EQ(runners[1]->programs(), 1u);
  // Two KV heads: 64 rows make enough blocks, 32 do not.
  EXPECT_EQ(depths_at(100, 64), Depths{0});
  EXPECT_EQ(depths_at(100, 32), Depths{32});
}

}  // namespace
}  // namespace hearth
