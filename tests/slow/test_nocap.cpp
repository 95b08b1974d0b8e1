// The loss of an untrained nocap-d12 on real tokens, as its definition gives it.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

#include "cpu/backend.h"
#include "train/programs.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

fs::path test_data() {
  const char* set = std::getenv("HEARTH_TEST_DATA");
  return set ? fs::path(set) : fs::path(HEARTH_SOURCE_DIR "/../shared/data");
}

TEST(Nocap, StartsAtTheLossOfItsInitialisation) {
  const fs::path packed = test_data() / "tokens/mix_val_000000.bin.xz";
  if (!fs::exists(packed)) GTEST_SKIP() << "no test data: " << packed << " is absent";
  char folder[] = "/tmp/hearth-nocap-XXXXXX";
  ASSERT_NE(mkdtemp(folder), nullptr);
  const fs::path shard = fs::path(folder) / "val.bin";
  const std::string unpack = "xz -dc '" + packed.string() + "' > '" + shard.string() + "'";
  ASSERT_EQ(std::system(unpack.c_str()), 0) << unpack;
  const ProgramSpec spec{.model = preset("nocap-d12"), .B = 1, .T = 256};
  Batch batch;
  {
    Loader loader({.files = {shard}, .batch = spec.B, .seq = spec.T, .vocab = spec.model.vocab});
    loader.next(batch);
  }
  fs::remove_all(folder);
  const auto backend = make_cpu_backend(0);
  ParamStore params(*backend, decoder_params(spec.model), DType::f32);
  params.initialise(1);
  Memory memory(*backend, &params);
  Programs programs(spec, memory);
  const double loss = programs.evaluate(batch);
  EXPECT_GT(loss, 10.85);
  EXPECT_LT(loss, 11.1);
  Scalars s;
  s.inv_targets = 1 / float(batch.count);
  programs.micro(batch, s, true);
  EXPECT_NEAR(programs.loss(), loss, 1e-4);
}

}  // namespace
}  // namespace hearth
