// The loss of an untrained nocap-d12 on real tokens, as its definition gives it.
#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "test_data.h"
#include "train/programs.h"

namespace hearth {
namespace {

TEST(Nocap, StartsAtTheLossOfItsInitialisation) {
  const ProgramSpec spec{.model = preset("nocap-d12"), .B = 1, .T = 256};
  Batch batch;
  Loader({.files = {test::test_data("tokens/novels.bin")},
          .batch = spec.B,
          .seq = spec.T,
          .vocab = spec.model.vocab})
      .next(batch);
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
