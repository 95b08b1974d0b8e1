// Pretraining on a device that runs ahead of the host: what is logged, and learned, does not depend
// on when the host reads it, even where the shape of the batches changes between two steps.
#include <gtest/gtest.h>

#include <algorithm>

#include "data/shards.h"
#include "sys/files/files.h"
#include "train/pretrain/pretrain.h"
#include "unit/data_files.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

class Ahead final : public WrappedBackend {
 public:
  bool runs_ahead() const override { return ahead; }
  bool ahead = true;
};

TEST(PretrainAhead, LogsTheTermsOfEachStepAcrossSchedules) {
  const TemporaryFolder dir;
  std::vector<int32_t> tokens = counting_tokens(4000);
  for (int32_t& t : tokens) t = t * t % 61;
  write_tokens(dir / "t.bin", TokenFormat::llmc, 64, tokens);
  std::vector<std::string> logs;
  for (const bool ahead : {true, false}) {
    Ahead backend;
    backend.ahead = ahead;
    PretrainSpec spec;
    spec.run = dir / (ahead ? "ahead" : "plain"), spec.quiet = true;
    spec.model =
        ModelConfig{.vocab = 64, .context = 16, .layers = 1, .dim = 16, .heads = 2}.resolve();
    spec.train.data = {(dir / "t.bin").string()};
    spec.train.batch = 2, spec.train.steps = 9, spec.train.seq = "0:8,5:16";
    spec.train.tokens_per_step = "0:16,3:32,5:64";
    spec.train.losses.z_loss = 0.01f;
    spec.train.eval_every = 0, spec.train.checkpoint_every = 0, spec.train.dtype = TrainDType::fp32;
    const RunResult r = pretrain(spec, backend);
    EXPECT_EQ(r.steps, 9);
    logs.push_back(read_file(spec.run / "log.jsonl"));
  }
  EXPECT_EQ(logs[0], logs[1]);
  EXPECT_EQ(std::ranges::count(logs[0], '\n'), 9);
  EXPECT_NE(logs[0].find("\"z_loss\""), std::string::npos) << logs[0];
}

}  // namespace
}  // namespace hearth
