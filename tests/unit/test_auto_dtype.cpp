// The table of --dtype auto.
#include "model/auto_dtype.h"

#include <gtest/gtest.h>

#include <cstdlib>

#include "cpu/backend.h"
#include "train/config.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

DType chosen(Workload w, const char* isa, DType stored) { return auto_dtype(w, isa, stored).dtype; }

TEST(AutoDtype, IsBf16WhereProductsTakeIt) {
  for (const char* isa : {"", "amx", "avx512bf16", "neonbf16"})
    for (const Workload w : {Workload::training, Workload::decoding, Workload::scoring})
      for (const DType stored : {DType::f32, DType::bf16})
        EXPECT_EQ(chosen(w, isa, stored), DType::bf16) << isa;
}

TEST(AutoDtype, ElsewhereIsBf16ForDecodingHalves) {
  for (const char* isa : {"generic", "avx2", "avxvnni", "avx512", "avx512vnni", "neon"}) {
    for (const DType stored : {DType::f32, DType::bf16, DType::f16}) {
      EXPECT_EQ(chosen(Workload::training, isa, stored), DType::f32) << isa;
      EXPECT_EQ(chosen(Workload::scoring, isa, stored), DType::f32) << isa;
    }
    EXPECT_EQ(chosen(Workload::decoding, isa, DType::f32), DType::f32) << isa;
    EXPECT_EQ(chosen(Workload::decoding, isa, DType::bf16), DType::bf16) << isa;
    EXPECT_EQ(chosen(Workload::decoding, isa, DType::f16), DType::bf16) << isa;
    EXPECT_NE(auto_dtype(Workload::training, isa, DType::f32).why.find(isa), std::string::npos);
  }
}

// The instruction set that is forced counts, not the best that the machine has.
TEST(AutoDtype, FollowsAForcedInstructionSet) {
  const std::string plainest(name(usable_isas().front()));
  const char* before = std::getenv("HEARTH_ISA");
  const std::string kept = before ? before : "";
  setenv("HEARTH_ISA", plainest.c_str(), 1);
  const auto backend = make_cpu_backend(1);
  const DType choice = auto_dtype(Workload::training, *backend, DType::f32).dtype;
  before ? setenv("HEARTH_ISA", kept.c_str(), 1) : unsetenv("HEARTH_ISA");
  EXPECT_EQ(choice, chosen(Workload::training, plainest.c_str(), DType::f32));
  EXPECT_EQ(choice, DType::f32) << plainest;
}

TEST(AutoDtype, MustBeResolvedBeforeARun) {
  test::expect_error(test::error_of([] { to_dtype(TrainDType::automatic); }), "got auto");
}

}  // namespace
}  // namespace hearth
