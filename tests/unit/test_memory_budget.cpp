// The shares of memory that each part may take, and reservations by name.
#include "core/memory_budget.h"

#include <gtest/gtest.h>

#include "infer/runner.h"
#include "infer_model.h"
#include "sys/error.h"
#include "wrapped_backend.h"

namespace hearth {
namespace {

constexpr int64_t gib = int64_t(1) << 30;

// A device with as much memory as a test says; with memory of its own it looks like a GPU.
class Device final : public WrappedBackend {
 public:
  Device(int64_t free, int64_t own) : free_(free), own_(own) {}
  int64_t free_bytes() const override { return free_; }
  int64_t device_bytes() const override { return own_; }
  bool has_host_offload() const override { return own_ > 0; }

 private:
  int64_t free_, own_;
};

// The numbers are those that batch sizes and caches have been chosen by: a change of one is a
// change of what a run computes.
TEST(MemoryBudget, GivesEachPartItsShareOfWhatIsFree) {
  Device host(1000, 0), gpu(1000, 80 * gib);
  EXPECT_EQ(MemoryBudget::for_run(host).bytes(), 900);
  EXPECT_EQ(MemoryBudget::for_run(gpu).bytes(), 900);
  EXPECT_EQ(MemoryBudget::for_engine(host).bytes(), 500);
  EXPECT_EQ(MemoryBudget::for_engine(gpu).bytes(), 900);
  EXPECT_EQ(MemoryBudget::for_rollouts(gpu).bytes(), 400);
  EXPECT_EQ(MemoryBudget::for_kept_logits_arena(gpu, 600).bytes(), 1200);
  EXPECT_EQ(MemoryBudget::for_snapshot(host).bytes(), 500);
  EXPECT_FALSE(MemoryBudget::for_run(host).host_offload());
  EXPECT_TRUE(MemoryBudget::for_run(gpu).host_offload());
}

TEST(MemoryBudget, CountsWeightsThatAreThereAsFree) {
  Device host(1000, 0);
  ParamStore params(host, {{"w", {50}, {}, Group::matrix}}, DType::f32);
  EXPECT_EQ(MemoryBudget::for_run(host, &params).bytes(), 900);  // not allocated yet
  params.flat(Part::weight);
  EXPECT_EQ(MemoryBudget::for_run(host, &params).bytes(),
            int64_t(0.9 * double(1000 + params.part_bytes(Part::weight))));
}

TEST(MemoryBudget, LogitsGrowWithTheMemoryOfTheDevice) {
  Device host(gib, 0), small(gib, 4 * gib), large(gib, 48 * gib), huge(gib, 192 * gib);
  EXPECT_EQ(logits_chunk_bytes(host), gib / 16);
  EXPECT_EQ(logits_chunk_bytes(small), gib / 16);
  EXPECT_EQ(logits_chunk_bytes(large), gib / 2);
  EXPECT_EQ(logits_chunk_bytes(huge), gib);
  EXPECT_EQ(kept_logits_bytes(host), 0);
  EXPECT_EQ(kept_logits_bytes(large), 6 * gib);
}

TEST(MemoryBudget, SharesAreFair) {
  using Bytes = std::vector<int64_t>;
  const auto shares = [](int64_t bytes, const Bytes& wanted) { return fair_shares(bytes, wanted); };
  EXPECT_EQ(shares(100, {300}), Bytes{100});
  EXPECT_EQ(shares(100, {30}), Bytes{30});
  EXPECT_EQ(shares(100, {200, 300}), (Bytes{50, 50}));
  EXPECT_EQ(shares(100, {300, 10, 300}), (Bytes{45, 10, 45})) << "the small one leaves some";
  EXPECT_EQ(shares(100, {40, 45, 10}), (Bytes{40, 45, 10}));
  EXPECT_EQ(shares(-5, {1, 2}), (Bytes{0, 0}));
  EXPECT_EQ(shares(5, {}), Bytes{});
}

TEST(MemoryBudget, ReservesByNameAndSaysWhatIsLeft) {
  MemoryBudget budget(8 * gib);
  EXPECT_EQ(budget.describe(), "8.00 GiB: nothing reserved, 8.00 left");
  budget.extend(4 * gib);
  budget.reserve("model step", gib / 2);
  EXPECT_TRUE(budget.fits(23 * gib / 2));
  EXPECT_FALSE(budget.fits(23 * gib / 2 + 1));
  EXPECT_EQ(budget.reserve_up_to("KV cache", 10 * gib), 10 * gib);
  EXPECT_EQ(budget.describe(), "12.00 GiB: model step 0.50 + KV cache 10.00 reserved, 1.50 left");
  EXPECT_EQ(budget.reserve_up_to("programs", 2 * gib), 3 * gib / 2);
  EXPECT_EQ(budget.left(), 0);
  budget.reserve("logits", gib);
  EXPECT_EQ(budget.left(), -gib);
  EXPECT_EQ(budget.reserve_up_to("more", 1), 0);
  EXPECT_NE(budget.describe().find("logits 1.00 + more 0.00 reserved, 1.00 too much"),
            std::string::npos)
      << budget.describe();
}

// The KV cache gets the engine's share less a model step, in whole blocks.
TEST(MemoryBudget, LeavesTheEngineACacheBesideAModelStep) {
  ModelConfig c = tiny_config();
  c.context = 256;
  const int64_t block = Runner::block_bytes(c, DType::f32), free = 400 * block;
  const auto blocks = [&](int64_t free_bytes, int64_t own) {
    Device d(free_bytes, own);
    TinyModel m(d, c);
    return Engine(m.config, m.params, d, {.max_batch = 64, .step_tokens = 64}).stats().blocks;
  };
  const int64_t host = blocks(free, 0), gpu = blocks(free, gib);
  EXPECT_GT(host, 0);
  EXPECT_LT(host, 200);
  EXPECT_EQ(gpu - host, 160);
  EXPECT_EQ(blocks(free + 20 * block, 0) - host, 10);
  EXPECT_EQ(blocks(free + 20 * block, gib) - gpu, 18);
  try {
    blocks(1000, 0);
    FAIL() << "expected an error";
  } catch (const Error& e) {
    EXPECT_NE(std::string(e.what()).find(
                  "expected a KV cache of at least 0.01 GiB for a context of 256 tokens, got 0.00 "
                  "GiB (0.00 GiB: model step 0.00 reserved, 0.00 too much): provide more memory"),
              std::string::npos)
        << e.what();
  }
}

}  // namespace
}  // namespace hearth
