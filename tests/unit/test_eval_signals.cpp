// A signal during an evaluation: the run stops after the current batch, and when it is resumed it
// repeats the evaluation.
#include <gtest/gtest.h>

#include <atomic>
#include <set>

#include "data/shards.h"
#include "served_folder.h"
#include "sys/files/files.h"
#include "test_io_support.h"
#include "train/examples/example_task.h"
#include "train/pretrain/pretrain.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

using namespace test;
using nlohmann::json;

// Counts the batches that the host writes for programs without gradients, and sends a signal at one
// of them.
class Signalling final : public WrappedBackend {
 public:
  std::byte* allocate(int64_t n, const std::string& what) override {
    std::byte* p = WrappedBackend::allocate(n, what);
    const bool evaluates = what.starts_with("train ") || what.starts_with("examples ") ||
                           what.starts_with("reference ");
    if (evaluates && what.ends_with(".tokens")) inputs_.insert(p);
    return p;
  }
  void release(std::byte* p, int64_t n) override {
    inputs_.erase(p);
    WrappedBackend::release(p, n);
  }
  void upload(std::byte* to, const void* from, int64_t n) override {
    if (inputs_.contains(to) && ++batches == signal_at) stop = 1;
    WrappedBackend::upload(to, from, n);
  }

  int batches = 0, signal_at = 0;  // from 1; 0: no signal
  std::atomic<int> stop = 0;

 private:
  std::set<std::byte*> inputs_;
};

RunSpec run_in(const std::filesystem::path& folder, const Signalling& backend) {
  RunSpec spec;
  spec.run = folder, spec.quiet = true, spec.stop = &backend.stop;
  return spec;
}

TEST(EvalSignals, PretrainingStopsWithinAValidation) {
  const TempDir dir;
  std::vector<int32_t> ids;
  for (int i = 0; i < 2000; ++i) ids.push_back((i * i + i / 7) % 32);
  write_tokens(dir / "data.bin", TokenFormat::llmc, 32, ids);
  PretrainSpec spec;
  spec.model =
      ModelConfig{.vocab = 32, .context = 16, .layers = 1, .dim = 16, .heads = 2}.resolve();
  spec.train.data = spec.train.val = {(dir / "data.bin").string()};
  spec.train.steps = 4, spec.train.batch = 2, spec.train.seq = "16";
  spec.train.eval_every = 2, spec.train.eval_tokens = 8 * 32;
  const auto trained = [&](const std::string& run, bool resume, int signal_at) {
    Signalling backend;
    backend.signal_at = signal_at;
    static_cast<RunSpec&>(spec) = run_in(dir / run, backend);
    spec.resume = resume;
    const RunResult r = pretrain(spec, backend);
    if (signal_at) {
      EXPECT_EQ(backend.batches, signal_at);
      EXPECT_EQ(r.reason, Ending::stopped);
    }
    return r.steps;
  };
  EXPECT_EQ(trained("whole", false, 0), 4);
  EXPECT_EQ(trained("first", false, 3), 0);      // in the validation before the first step
  EXPECT_EQ(trained("parts", false, 8 + 2), 2);  // in the one after step 2
  EXPECT_EQ(trained("parts", true, 5), 2);       // in its repetition
  EXPECT_EQ(trained("parts", true, 0), 4);
  EXPECT_EQ(read_file(dir / "parts/log.jsonl"), read_file(dir / "whole/log.jsonl"));
}

class ExampleSignals : public testing::Test {
 protected:
  void SetUp() override {
    write_served_folder(dir / "model");
    std::string rows;
    for (int i = 0; i < 12; ++i)
      rows += json{{"prompt", "q" + std::to_string(i)},
                   {"completion", std::string(size_t(1 + i % 3), char('a' + i))},
                   {"chosen", std::string(size_t(1 + i % 3), char('a' + i))},
                   {"rejected", "z"}}
                  .dump() +
              "\n";
    write_file_atomic(dir / "rows.jsonl", rows);
  }
  template <class Config>
  Config config() const {
    Config c;
    c.model = (dir / "model").string();
    c.data = c.val = {(dir / "rows.jsonl").string()};
    c.max_length = 32, c.batch = 2, c.epochs = 1, c.clock = 1;
    return c;
  }

  const TempDir dir;
};

TEST_F(ExampleSignals, SftStopsWithinAValidation) {
  SftConfig c = config<SftConfig>();
  c.packing = SftPacking::none;
  Signalling backend;
  backend.signal_at = 2;
  const RunResult r = sft(c, run_in(dir / "run", backend), backend);
  EXPECT_EQ(r.reason, Ending::stopped);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(backend.batches, 2);  // of 6
}

TEST_F(ExampleSignals, DpoStopsWithinAValidation) {
  const DpoConfig c = config<DpoConfig>();
  constexpr int of_reference = (12 + 12) / 2;
  Signalling backend;
  backend.signal_at = of_reference + 2;
  const RunResult r = dpo(c, run_in(dir / "run", backend), backend);
  EXPECT_EQ(r.reason, Ending::stopped);
  EXPECT_EQ(r.steps, 0);
  EXPECT_EQ(backend.batches, of_reference + 2);  // of 6 in the validation
}

}  // namespace
}  // namespace hearth
