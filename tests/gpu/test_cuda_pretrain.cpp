// Training runs on the card: stopped and resumed to the byte, fp16 finding its scale, offloaded
// moments, and micro-batches chosen for the memory there is.
#include <cstdlib>
#include <filesystem>

#include "cuda_case.h"
#include "data/shards.h"
#include "run_trace.h"
#include "sys/files/files.h"
#include "train/pretrain/batch_shape.h"
#include "train/pretrain/pretrain.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using test::card;

class CudaPretrain : public testing::Test {
 protected:
  void SetUp() override {
    HEARTH_NEEDS_A_CARD();
    std::string name = (fs::temp_directory_path() / "hearth-cuda-XXXXXX").string();
    ASSERT_NE(mkdtemp(name.data()), nullptr);
    folder = name;
    std::vector<int32_t> ids;
    for (int i = 0; i < 40000; ++i) ids.push_back((i * i + i / 7) % 97);
    write_tokens(folder / "data.bin", TokenFormat::llmc, 97, ids);
  }
  void TearDown() override {
    if (!folder.empty()) fs::remove_all(folder);
  }

  PretrainSpec spec(const std::string& run, TrainDType dtype) const {
    PretrainSpec s;
    s.model.vocab = 97, s.model.context = 128, s.model.layers = 2, s.model.dim = 128;
    s.model.heads = 2, s.model.hidden = 256;
    s.model = s.model.resolve();
    s.train.data = s.train.val = {(folder / "data.bin").string()};
    s.train.dtype = dtype;
    s.train.steps = 40, s.train.batch = 4, s.train.seq = "128", s.train.tokens_per_step = "1024";
    s.train.checkpoint_every = 10, s.train.eval_every = 10, s.train.eval_tokens = 2048;
    s.run = folder / run;
    s.quiet = true;
    return s;
  }

  static RunTrace trace(const fs::path& run) { return run_trace(run, "step-00000040"); }

  fs::path folder;
};

TEST_F(CudaPretrain, ResumesToTheByte) {
  for (const TrainDType dtype : {TrainDType::fp32, TrainDType::bf16, TrainDType::fp16}) {
    const std::string name = std::to_string(int(dtype));
    pretrain(spec("whole" + name, dtype), card());
    PretrainSpec part = spec("parts" + name, dtype);
    part.stop_after_step = 17;
    EXPECT_EQ(pretrain(part, card()).reason, Ending::stopped);
    part.stop_after_step.reset(), part.resume = true;
    pretrain(part, card(true, false));  // and without graphs
    EXPECT_EQ(
        difference_of_runs(trace(folder / ("whole" + name)), trace(folder / ("parts" + name))), "")
        << name;
  }
}

TEST_F(CudaPretrain, ResumesMuonToTheByte) {
  for (const OptimizerKind kind : {OptimizerKind::muon, OptimizerKind::normuon}) {
    const std::string name = std::to_string(int(kind));
    const auto with_muon = [&](const std::string& run) {
      PretrainSpec s = spec(run + name, TrainDType::bf16);
      s.train.optimizer = kind;
      return s;
    };
    const RunResult whole = pretrain(with_muon("muon"), card());
    EXPECT_EQ(whole.steps, 40);
    PretrainSpec part = with_muon("muon-parts");
    part.stop_after_step = 17;
    EXPECT_EQ(pretrain(part, card()).reason, Ending::stopped);
    part.stop_after_step.reset(), part.resume = true;
    pretrain(part, card(true, false));  // and without graphs
    EXPECT_EQ(
        difference_of_runs(trace(folder / ("muon" + name)), trace(folder / ("muon-parts" + name))),
        "")
        << name;
  }
}

TEST_F(CudaPretrain, FindsAScaleForFp16) {
  const RunResult fp16 = pretrain(spec("fp16", TrainDType::fp16), card());
  const RunResult fp32 = pretrain(spec("fp32", TrainDType::fp32), card());
  EXPECT_EQ(fp16.steps, 40);
  EXPECT_EQ(fp16.reloads, 0);
  EXPECT_NEAR(*fp16.val_loss, *fp32.val_loss, 0.05);
}

TEST_F(CudaPretrain, OffloadingChangesNoBit) {
  pretrain(spec("near", TrainDType::bf16), card());
  PretrainSpec far = spec("far", TrainDType::bf16);
  far.train.offload = true;
  pretrain(far, card());
  EXPECT_EQ(difference_of_runs(trace(folder / "near"), trace(folder / "far")), "");
}

TEST_F(CudaPretrain, ChoosesAMicroBatchThatFits) {
  PretrainSpec s = spec("auto", TrainDType::bf16);
  s.train.batch = 0, s.train.steps = 2, s.train.tokens_per_step = "8192";
  const auto need = [&](int64_t B) {
    return memory_need(program_spec(s.model, s.train, {.B = B, .T = 128}, int64_t(64) << 20))
        .total();
  };
  const auto chosen = [&](int64_t bytes) {
    return batch_shapes(s.model, s.train, MemoryBudget(bytes, true), int64_t(64) << 20).front().B;
  };
  EXPECT_EQ(chosen(need(64)), 64);
  EXPECT_EQ(chosen(need(64) - 1), 32);
  EXPECT_EQ(chosen(need(8)), 8);
  // A card with room for 16 of them, what kernels work with, and no more.
  const auto tight = make_cuda_backend({.memory_limit = (int64_t(128) << 20) + need(16)});
  EXPECT_EQ(pretrain(s, *tight).steps, 2);
}

}  // namespace
}  // namespace hearth
