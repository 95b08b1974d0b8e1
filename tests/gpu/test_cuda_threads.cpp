// Threads and cards: each thread begins on the first card, whichever the backend is on.
#include <future>

#include "gpu/cuda_case.h"
#include "unit/infer_model.h"

namespace hearth {
namespace {

TEST(CudaThreads, AnEngineOfItsOwnThreadFindsItsCard) {
  HEARTH_NEEDS_A_CARD();
  const int cards = cuda_driver().cards;
  if (cards < 2) GTEST_SKIP() << "needs two cards: with one, every thread begins on it";
  test::card();  // so that the last one is not the first to be opened
  {
    const auto last = make_cuda_backend({.card = cards - 1});
    ModelConfig c = tiny_config();
    c.head_dim = 32, c.dim = 128;
    TinyModel m(*last, c);
    Engine engine = m.engine();
    const EngineThread stepping(engine);
    const auto good = std::make_shared<std::promise<bool>>();  // both threads' to the end
    auto told = good->get_future();
    Request r{.prompt = tiny_prompt(3)};
    r.sampling.max_tokens = 4;
    engine.submit(r, {.done = [good](std::vector<Completion>, std::exception_ptr error) {
                    good->set_value(!error);
                  }});
    EXPECT_TRUE(told.get());
  }
  test::card().enter_thread();  // for the tests that follow
}

// Models of different sizes take turns on one card: what one launches ahead, captures or keeps as
// scratch must not change what the other computes.
TEST(CudaThreads, EnginesThatTakeTurnsAnswerAsEachAlone) {
  HEARTH_NEEDS_A_CARD();
  ModelConfig small = tiny_config(), large = tiny_config();
  small.context = large.context = 256;
  small.head_dim = 32, small.dim = 128;
  large.head_dim = 64, large.dim = 256, large.hidden = 512, large.layers = 4, large.vocab = 300;
  // So that the other requests of a batch do not change a row either.
  const auto card = make_cuda_backend({.batch_invariant = true});
  TinyModel models[] = {{*card, small, 7, DType::bf16}, {*card, large, 8, DType::bf16}};
  const auto request = [](int i) {
    Request r{.prompt = tiny_prompt(3 + 5 * i)};
    r.sampling.temperature = 0, r.sampling.max_tokens = 120 + 10 * i;
    r.sampling.ignore_eos = true;
    return r;
  };
  constexpr int requests = 4;
  std::vector<std::vector<int32_t>> alone;
  for (TinyModel& m : models) {
    Engine engine = m.engine();
    for (int i = 0; i < requests; ++i)
      alone.push_back(engine.run(std::vector{request(i)})[0][0].tokens);
  }
  Engine first = models[0].engine(), second = models[1].engine();
  std::vector<std::promise<std::vector<int32_t>>> told(alone.size());
  {
    const EngineThread stepping({&first, &second});
    for (int i = 0; i < 2 * requests; ++i)
      (i < requests ? first : second)
          .submit(request(i % requests),
                  {.done = [&to = told[size_t(i)]](std::vector<Completion> all,
                                                   std::exception_ptr error) {
                    if (error)
                      to.set_exception(error);
                    else
                      to.set_value(all[0].tokens);
                  }});
    for (size_t i = 0; i < told.size(); ++i)
      EXPECT_EQ(told[i].get_future().get(), alone[i]) << "request " << i;
  }
  test::card().enter_thread();  // for the tests that follow
}

}  // namespace
}  // namespace hearth
