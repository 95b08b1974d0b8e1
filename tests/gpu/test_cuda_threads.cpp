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

}  // namespace
}  // namespace hearth
