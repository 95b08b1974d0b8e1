// The engine's own thread: it enters the backend it did not make, and says what goes wrong.
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
