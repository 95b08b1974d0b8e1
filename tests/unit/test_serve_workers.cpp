// The worker threads of the server, the bytes of bodies it may hold, and the lines of its log.
#include "http/workers.h"

#include <gtest/gtest.h>

#include <future>

#include "http/request_log.h"

namespace hearth {
namespace {

TEST(Workers, RunEveryTaskOnceInOrder) {
  std::vector<int> done;
  std::promise<void> last;
  Workers one(1);
  for (int i = 0; i < 100; ++i) one.post([&, i] { done.push_back(i); });
  one.post([&] { last.set_value(); });
  last.get_future().wait();
  ASSERT_EQ(done.size(), 100u);
  for (int i = 0; i < 100; ++i) EXPECT_EQ(done[size_t(i)], i);
}

TEST(Workers, WorkAtTheSameTime) {
  std::promise<void> first, second;
  Workers two(2);
  // Each waits for the other: one thread would wait for ever.
  two.post([&] { first.set_value(), second.get_future().wait(); });
  first.get_future().wait();
  std::promise<void> done;
  two.post([&] { second.set_value(), done.set_value(); });
  done.get_future().wait();
}

TEST(Workers, DropWhatWaitsAtTheEnd) {
  std::promise<void> begun, go;
  std::atomic<int> ran = 0;
  const auto held = std::make_shared<int>(0);
  std::thread releases;
  {
    Workers one(1);
    one.post([&] { begun.set_value(), go.get_future().wait(), ++ran; });
    for (int i = 0; i < 10; ++i) one.post([&, held] { ++ran; });
    begun.get_future().wait();
    releases = std::thread([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the end has begun by then
      go.set_value();
    });
  }
  releases.join();
  EXPECT_GE(ran, 1) << "what runs is waited for";
  EXPECT_EQ(held.use_count(), 1) << "what waited is gone";
}

TEST(ByteBudget, IsSharedAndGivenBack) {
  ByteBudget budget(100);
  ByteBudget::Share a(budget), b(budget);
  EXPECT_TRUE(a.grow_to(60));
  EXPECT_TRUE(a.grow_to(50)) << "it never shrinks";
  EXPECT_EQ(budget.used(), 60);
  EXPECT_TRUE(budget.fits(40) && !budget.fits(41) && !budget.fits(UINT64_MAX));
  EXPECT_FALSE(b.grow_to(41));
  EXPECT_EQ(budget.used(), 60) << "what is refused takes nothing";
  EXPECT_TRUE(b.grow_to(40));
  {
    const ByteBudget::Share moved = std::move(a);
    EXPECT_EQ(budget.used(), 100);
  }
  EXPECT_EQ(budget.used(), 40);
  b = ByteBudget::Share(budget);
  EXPECT_EQ(budget.used(), 0);
  EXPECT_TRUE(b.grow_to(100));
  b = {};
  EXPECT_EQ(budget.used(), 0);
}

TEST(RequestLog, LinesEscapeWhatClientsSend) {
  RequestRecord r{.client = "127.0.0.1:5",
                  .method = "GET",
                  .path = "/a b\n\x1b[31m\"\\\xff",
                  .status = 404,
                  .bytes = 12,
                  .milliseconds = 1.25,
                  .prompt_tokens = 3,
                  .completion_tokens = 4};
  const auto at = std::chrono::system_clock::from_time_t(86400) + std::chrono::milliseconds(7);
  EXPECT_EQ(log_line(at, r),
            "1970-01-02T00:00:00.007Z 127.0.0.1:5 GET /a\\x20b\\x0a\\x1b[31m\\x22\\x5c\\xff 404 12 "
            "1.2 3 4");
  EXPECT_EQ(log_line(at, {.status = 400}), "1970-01-02T00:00:00.007Z - - - 400 0 0.0 - -");
  r.path = std::string(100000, 'a');
  EXPECT_LT(log_line(at, r).size(), 400u);
}

}  // namespace
}  // namespace hearth
