// How the steps of a pretraining run are divided into micro-batches.
#include "train/pretrain/batch_shape.h"

#include <gtest/gtest.h>

#include "sys/error.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

// Shapes of a run with these settings on a machine with plenty of memory.
std::vector<BatchShape> shapes(int64_t batch, const std::string& seq, const std::string& tokens) {
  TrainConfig c;
  c.batch = batch, c.seq = seq, c.tokens_per_step = tokens;
  const ModelConfig model =
      ModelConfig{.vocab = 64, .context = 64, .layers = 1, .dim = 16, .heads = 2}.resolve();
  return batch_shapes(model, c, MemoryBudget(int64_t(1) << 40), HeadSpec{}.chunk_bytes);
}

TEST(BatchShapes, KnowsWhetherAStepSizeIsSet) {
  TrainConfig c;
  EXPECT_FALSE(has_step_size(c));
  c.tokens_per_step = "0:0,10:64";
  EXPECT_FALSE(has_step_size(c));
  c.tokens_per_step = "0:32,10:64";
  EXPECT_TRUE(has_step_size(c));
  c.tokens_per_step = "0", c.batch = 2;
  EXPECT_TRUE(has_step_size(c));
}

TEST(BatchShapes, AStepIsOneMicroBatchOrItsTokens) {
  EXPECT_EQ(shapes(2, "16", "0"), (std::vector<BatchShape>{{0, 2, 16, 1}}));
  EXPECT_EQ(shapes(2, "0", "0"), (std::vector<BatchShape>{{0, 2, 64, 1}}));
  EXPECT_EQ(shapes(2, "16", "64"), (std::vector<BatchShape>{{0, 2, 16, 2}}));
  EXPECT_EQ(shapes(0, "16", "64"), (std::vector<BatchShape>{{0, 4, 16, 1}}));
  // As runs of earlier versions began.
  EXPECT_EQ(shapes(0, "16", "0"), (std::vector<BatchShape>{{0, 1, 16, 1}}));
}

// --batch counts sequences of the first length.
TEST(BatchShapes, AChangeOfLengthKeepsTheTokensOfAStep) {
  EXPECT_EQ(shapes(4, "0:16,5:64", "0"), (std::vector<BatchShape>{{0, 4, 16, 1}, {5, 1, 64, 1}}));
  EXPECT_EQ(shapes(2, "0:32,125:16", "0"),
            (std::vector<BatchShape>{{0, 2, 32, 1}, {125, 4, 16, 1}}));
  EXPECT_EQ(shapes(2, "0:0,5:16", "0"), (std::vector<BatchShape>{{0, 2, 64, 1}, {5, 8, 16, 1}}));
  EXPECT_EQ(shapes(4, "0:8,20:16", "0:32,10:64"),
            (std::vector<BatchShape>{{0, 4, 8, 1}, {10, 4, 8, 2}, {20, 2, 16, 2}}));
  EXPECT_EQ(shapes(1, "0:16,5:64", "0"), (std::vector<BatchShape>{{0, 1, 16, 1}, {5, 1, 64, 1}}));
}

// The context of a model that is continued cannot be changed.
TEST(BatchShapes, ALengthBeyondTheContextSaysHowToMakeItLonger) {
  const std::string expected = "[--seq] expected up to the model's context 64, got 128";
  TrainConfig c;
  c.batch = 2, c.seq = "128";
  const ModelConfig model{.vocab = 64, .context = 64, .layers = 2, .dim = 16, .heads = 2};
  const auto shapes = [&] {
    return batch_shapes(model.resolve(), c, MemoryBudget(int64_t(1) << 40), HeadSpec{}.chunk_bytes);
  };
  EXPECT_EQ(message_of(shapes), expected + ": --context 128 makes it longer");
  c.model = "base";
  EXPECT_EQ(message_of(shapes), expected);
}

// Windows follow schedules of their own, which end at the model's.
TEST(BatchShapes, WindowsFollowTheirSchedules) {
  TrainConfig c;
  c.batch = 2, c.seq = "0:16,4:32", c.window_schedule = "0:4,3:8";
  c.long_window_schedule = "0:8,4:32,6:0";
  ModelConfig model{.vocab = 64, .context = 64, .layers = 2, .dim = 16, .heads = 2};
  model.window = 8;
  const auto shapes = [&] {
    return batch_shapes(model.resolve(), c, MemoryBudget(int64_t(1) << 40), HeadSpec{}.chunk_bytes);
  };
  const std::vector<BatchShape> all = shapes();
  EXPECT_EQ(
      all,
      (std::vector<BatchShape>{
          {0, 2, 16, 1, 4, 8}, {3, 2, 16, 1, 8, 8}, {4, 1, 32, 1, 8, 32}, {6, 1, 32, 1, 8, 0}}));
  const ModelConfig now = program_spec(model, c, all[2], HeadSpec{}.chunk_bytes).model;
  EXPECT_EQ(now.window, 8);
  EXPECT_EQ(now.long_window, 32);
  EXPECT_EQ(program_spec(model, c, {0, 2, 16, 1}, HeadSpec{}.chunk_bytes).model.window, 8);

  c.window_schedule = "0:4,3:6";
  EXPECT_EQ(message_of(shapes),
            "[--window-schedule] expected a schedule that ends at the model's window 8, got 6");
  c.window_schedule = "0:20,3:8";
  EXPECT_EQ(
      message_of(shapes),
      "[--window-schedule] expected windows of at most the 16 tokens of a sequence, got 20 at "
      "step 0");
}

// So do the weights of losses of further tokens, which end at those of --mtp-loss and
// --further-loss.
TEST(BatchShapes, WeightsFollowTheirSchedules) {
  TrainConfig c;
  c.batch = 2, c.seq = "0:16,4:32", c.steps = 10;
  c.further_loss_schedule = "0:0.5,4:0.25,60%:0";
  ModelConfig model{.vocab = 64, .context = 64, .layers = 2, .dim = 16, .heads = 2};
  const auto shapes = [&] {
    return batch_shapes(model.resolve(), c, MemoryBudget(int64_t(1) << 40), HeadSpec{}.chunk_bytes);
  };
  const auto losses = [&](const BatchShape& s) {
    return program_spec(model, c, s, HeadSpec{}.chunk_bytes).losses;
  };
  const std::vector<BatchShape> all = shapes();
  ASSERT_EQ(all.size(), 3u);
  EXPECT_EQ(all[1].first_step, 4);
  EXPECT_EQ(all[2].first_step, 6);
  EXPECT_EQ(losses(all[0]).further_loss, 0.5f);
  EXPECT_EQ(losses(all[1]).further_loss, 0.25f);
  EXPECT_EQ(losses(all[2]).further_loss, 0);
  EXPECT_EQ(losses(all[0]).mtp_loss, 0.3f);

  c.dtype = TrainDType::fp8;
  EXPECT_EQ(message_of(shapes),
            "[--further-loss-schedule] expected weights above 0 with --dtype fp8, got 0 at step 6");
  c.dtype = TrainDType::fp32, c.losses.further_loss = 0.5f;
  EXPECT_EQ(message_of(shapes),
            "[--further-loss-schedule] expected a schedule that ends at --further-loss 0.5, got 0: "
            "give --further-loss 0 too");
  c.further_loss_schedule = "0:0.25,10:0.5";
  EXPECT_EQ(message_of(shapes),
            "[--further-loss-schedule] expected changes before the run ends at step 10, got one at "
            "step 10");
  c.further_loss_schedule.clear(), c.losses.further_loss = 0;
  c.mtp_loss_schedule = "0:0.1,5:0.3";
  EXPECT_EQ(message_of(shapes),
            "[--mtp-loss-schedule] has no effect: the model has no mtp modules; leave it out");
  model.mtp = 1;
  ASSERT_EQ(shapes().size(), 3u);
  EXPECT_EQ(losses(shapes()[0]).mtp_loss, 0.1f);
  EXPECT_EQ(losses(shapes()[2]).mtp_loss, 0.3f);
  c.mtp_loss_schedule = "0:0,5:0.3";
  EXPECT_EQ(message_of(shapes), "[--mtp-loss-schedule] expected weights above 0, got 0 at step 0");
}

// A change of the head is one of the shape, so the update program follows it.
TEST(BatchShapes, TheHeadFollowsItsSchedule) {
  TrainConfig c;
  c.steps = 30;
  c.batch = 2, c.seq = "0:16,4:32", c.head_schedule = "0:tied,4:untied,50%:tied";
  ModelConfig model{.vocab = 64, .context = 64, .layers = 2, .dim = 16, .heads = 2};
  model.tied = false;
  const auto shapes = [&] {
    return batch_shapes(model.resolve(), c, MemoryBudget(int64_t(1) << 40), HeadSpec{}.chunk_bytes);
  };
  const std::vector<BatchShape> all = shapes();
  EXPECT_EQ(all, (std::vector<BatchShape>{{0, 2, 16, 1, -1, -1, -1, -1, true},
                                          {4, 1, 32, 1, -1, -1, -1, -1, false},
                                          {15, 1, 32, 1, -1, -1, -1, -1, true}}));
  for (const BatchShape& s : all)
    EXPECT_EQ(program_spec(model, c, s, HeadSpec{}.chunk_bytes).update.tied_head, s.tied);
  model.zero_head = true;
  EXPECT_EQ(message_of(shapes),
            "[--head-schedule] a run that begins tied begins with the token embedding as its head, "
            "so zero_head has no effect: set --zero-head=false");
  c.model = "trained";
  EXPECT_EQ(shapes(), all);
  c.model = {}, c.head_schedule = "0:untied,4:tied";
  EXPECT_EQ(shapes().size(), 2u);
  model.zero_head = false, model.tied = true;
  EXPECT_EQ(message_of(shapes),
            "[--head-schedule] needs a model with a head of its own (--tied=false); this one is "
            "tied at all times");
}

// Such a change may be meant for a longer run, unlike one of windows or weights.
TEST(BatchShapes, ChangesAfterTheEndAreTold) {
  TrainConfig c;
  c.steps = 30, c.seq = "0:16,29:32", c.head_schedule = "0:untied,29:tied";
  EXPECT_TRUE(late_changes(c).empty());
  c.steps = 29, c.head_schedule = "0:untied,100%:tied";
  EXPECT_EQ(late_changes(c),
            (std::vector<std::string>{
                "--seq has a change at step 29, but the run ends at step 29: only a longer run "
                "makes it",
                "--head-schedule has a change at step 29, but the run ends at step 29: only a "
                "longer run makes it"}));
  c.seq = "16", c.head_schedule = "tied", c.tokens_per_step = "0:32,40:64", c.steps = 0;
  EXPECT_EQ(late_changes(c).size(), 1u);
}

TEST(BatchShapes, NamesTheBatchThatDoesNotDivideAStep) {
  const auto message = [](int64_t batch, const std::string& seq, const std::string& tokens) {
    try {
      shapes(batch, seq, tokens);
    } catch (const Error& e) { return std::string(e.what()); }
    return std::string("no error");
  };
  EXPECT_EQ(message(3, "16", "64"),
            "[batch] expected --batch to divide the 4 sequences of a step, got 3");
  EXPECT_EQ(message(3, "0:16,5:8", "0:48,5:64"),
            "[batch] expected --batch to divide the 8 sequences of a step, got 6 (--batch 3 at "
            "--seq 8)");
}

}  // namespace
}  // namespace hearth
