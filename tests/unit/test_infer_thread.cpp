// The engines' own thread: it enters the backend it did not make, steps all its engines, and says
// what goes wrong.
#include <future>

#include "unit/infer_model.h"
#include "unit/troubled_backend.h"

namespace hearth {
namespace {

// A request by another thread's steps: "" or what went wrong with it.
std::string fate_of_request(Engine& engine) {
  const auto fate = std::make_shared<std::promise<std::string>>();  // both threads' to the end
  auto told = fate->get_future();
  Request r{.prompt = tiny_prompt(3)};
  r.sampling.max_tokens = 2;
  engine.submit(r, {.done = [fate](std::vector<Completion>, std::exception_ptr error) {
                  try {
                    if (error) std::rethrow_exception(error);
                    fate->set_value("");
                  } catch (const std::exception& e) { fate->set_value(e.what()); }
                }});
  return told.get();
}

TEST(EngineThread, EntersTheBackend) {
  TroubledBackend backend;
  TinyModel m(backend, tiny_config());
  Engine engine = m.engine();
  const EngineThread stepping(engine);
  EXPECT_EQ(fate_of_request(engine), "");
}

// Both advance while both have work, and each wakes the thread.
TEST(EngineThread, StepsSeveralEnginesInTurn) {
  const auto backend = make_cpu_backend(1);
  TinyModel first(*backend, tiny_config()), second(*backend, tiny_config());
  Engine a = first.engine(), b = second.engine();
  std::vector<char> order;  // of the tokens; only the thread writes it
  std::promise<void> ended[2];
  {
    const EngineThread stepping({&a, &b});
    const auto submit = [&](Engine& engine, char name, std::promise<void>& end) {
      Request r{.prompt = tiny_prompt(3)};
      r.sampling.max_tokens = 12, r.sampling.ignore_eos = true;
      engine.submit(r, {.token =
                            [&order, name](const TokenEvent&) {
                              order.push_back(name);
                              return true;
                            },
                        .done = [&end](auto, auto) { end.set_value(); }});
    };
    // Submitted from within a step of `a`, so that neither can finish before the other begins.
    Request begin{.prompt = tiny_prompt(2)};
    begin.sampling.max_tokens = 1;
    a.submit(begin, {.done = [&](auto, auto) {
               submit(a, 'a', ended[0]);
               submit(b, 'b', ended[1]);
             }});
    for (auto& e : ended) e.get_future().wait();
    EXPECT_EQ(fate_of_request(b), "");  // it sleeps now, and either engine wakes it
    EXPECT_EQ(fate_of_request(a), "");
  }
  ASSERT_EQ(order.size(), 24u);
  const auto last = [&](char name) {
    return std::ranges::find(order.rbegin(), order.rend(), name);
  };
  const auto first_of = [&](char name) { return std::ranges::find(order, name) - order.begin(); };
  EXPECT_LT(first_of('a'), order.rend() - last('b'));
  EXPECT_LT(first_of('b'), order.rend() - last('a')) << "one waited for the other's end";
  EXPECT_LE(std::max(first_of('a'), first_of('b')), 2);
}

TEST(EngineThread, SaysEachTroubleOnce) {
  TroubledBackend backend;
  TinyModel m(backend, tiny_config());
  Engine engine = m.engine();
  testing::internal::CaptureStderr();
  {
    const EngineThread stepping(engine);
    for (const char* trouble : {"first", "first", "second\nof two lines", "first"}) {
      backend.fail_with(trouble);
      EXPECT_EQ(fate_of_request(engine), std::string("[card] ") + trouble);
    }
    EXPECT_EQ(engine.failure(), "[card] first");
    backend.fail_with("");
    EXPECT_EQ(fate_of_request(engine), "");
  }
  EXPECT_EQ(engine.failure(), "");
  EXPECT_EQ(testing::internal::GetCapturedStderr(),
            "hearth: the engine failed: [card] first\n"
            "hearth: the engine failed: [card] second of two lines\n");
}

}  // namespace
}  // namespace hearth
