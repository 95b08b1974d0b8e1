// The worker threads of the server, the bytes of bodies it may hold, and the lines of its log.
#include "http/workers.h"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <future>
#include <nlohmann/json.hpp>

#include "http/request_log.h"
#include "sys/files/files.h"
#include "unit/message_of.h"
#include "unit/test_io_support.h"

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
                  .answer = {.prompt_tokens = 3, .completion_tokens = 4}};
  const auto at = std::chrono::system_clock::from_time_t(86400) + std::chrono::milliseconds(7);
  EXPECT_EQ(log_line(at, r),
            "1970-01-02T00:00:00.007Z 127.0.0.1:5 GET /a\\x20b\\x0a\\x1b[31m\\x22\\x5c\\xff 404 12 "
            "1.2 3 4");
  EXPECT_EQ(log_line(at, {.status = 400}), "1970-01-02T00:00:00.007Z - - - 400 0 0.0 - -");
  r.path = std::string(100000, 'a');
  EXPECT_LT(log_line(at, r).size(), 400u);
}

TEST(RequestLog, JsonLinesHaveTheFields) {
  const auto at = std::chrono::system_clock::from_time_t(86400);
  const RequestRecord r{.method = "POST",
                        .path = "/v1/completions",
                        .status = 200,
                        .milliseconds = 12.345,
                        .answer = {.id = "cmpl-1",
                                   .model = "m\n",
                                   .finish_reason = "stop",
                                   .prompt_tokens = 3,
                                   .completion_tokens = 4,
                                   .queue_ms = 0.5,
                                   .first_token_ms = 2}};
  const std::string line = json_log_line(at, r);
  EXPECT_EQ(line.find('\n'), std::string::npos);
  const auto j = nlohmann::json::parse(line);
  EXPECT_EQ(j["time"], "1970-01-02T00:00:00.000Z");
  EXPECT_EQ(j["route"], "POST /v1/completions");
  EXPECT_EQ(j["total_ms"], 12.35);
  EXPECT_EQ(j["first_token_ms"], 2);
  EXPECT_EQ(j["completion_tokens"], 4);
  EXPECT_EQ(j.size(), 11u);
  EXPECT_TRUE(nlohmann::json::parse(json_log_line(at, {.status = 404}))["id"].is_null());
}

TEST(RequestLog, FollowsAFileThatIsMoved) {
  const test::TempDir dir;
  const std::filesystem::path path = dir.path() / "log", old = dir.path() / "old";
  {
    RequestLog log(false, path.string());
    EXPECT_TRUE(log.enabled());
    for (int i = 0; i < 50; ++i) log.add({.status = 200});
  }
  {
    LineFile file(path.string());
    std::filesystem::rename(path, old);
    EXPECT_TRUE(file.append("after\n"));
    std::filesystem::remove(path);
    EXPECT_TRUE(file.append("again\n"));
  }
  std::string lines = read_file(old);
  EXPECT_EQ(std::ranges::count(lines, '\n'), 50);
  EXPECT_EQ(read_file(path), "again\n");
  EXPECT_NE(message_of([&] {
              RequestLog(false, (dir.path() / "no/such").string());
            }).find("--request-log"),
            std::string::npos);
}

// A pipe that is full: a line that was cut off does not swallow the next one, and nothing waits.
TEST(RequestLog, LinesThatAreCutOffEnd) {
  const test::TempDir dir;
  const std::string path = (dir.path() / "pipe").string();
  ASSERT_EQ(::mkfifo(path.c_str(), 0600), 0);
  EXPECT_NE(message_of([&] { LineFile nobody_reads(path); }).find("cannot append"),
            std::string::npos);
  const int reader = ::open(path.c_str(), O_RDONLY | O_NONBLOCK);
  ASSERT_GE(reader, 0);
  const auto drained = [&] {
    std::string all(1 << 20, ' ');
    const ssize_t n = ::read(reader, all.data(), all.size());
    return all.substr(0, size_t(std::max<ssize_t>(n, 0)));
  };
  {
    LineFile file(path);
    EXPECT_FALSE(file.append(std::string(300'000, 'x') + "\n"));
    EXPECT_FALSE(file.append("lost\n"));
    const std::string part = drained();
    EXPECT_EQ(part, std::string(part.size(), 'x'));
    EXPECT_TRUE(file.append("a\n"));
    EXPECT_TRUE(file.append("b\n"));
    EXPECT_EQ(drained(), "\na\nb\n");
  }
  {
    RequestLog log(false, path);
    for (int i = 0; i < 2000; ++i) log.add({.path = std::string(200, 'p'), .status = 200});
  }
  EXPECT_GT(drained().size(), 1000u);
  ::close(reader);
}

}  // namespace
}  // namespace hearth
