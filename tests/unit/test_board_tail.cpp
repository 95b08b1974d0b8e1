// Lines that are appended to a file while it is read: partial ones, long ones, cuts, other files.
#include "board/line_tail.h"

#include <gtest/gtest.h>

#include <sys/stat.h>

#include <fstream>
#include <random>

#include "board/run_events.h"
#include "board/run_store.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using Outcome = LineTail::Outcome;

class LineTails : public testing::Test {
 protected:
  void append(const std::string& text) const {
    std::ofstream(file_, std::ios::app | std::ios::binary) << text;
  }
  Outcome read(LineTail& tail, uint64_t most = UINT64_MAX) {
    lines_.clear();
    return tail.read(
        [&](std::string_view line, uint64_t end) {
          lines_.emplace_back(line);
          ends_ = end;
        },
        most);
  }

  test::TempDir dir_;
  std::filesystem::path file_ = dir_ / "log.jsonl";
  std::vector<std::string> lines_;
  uint64_t ends_ = 0;
};
using Lines = std::vector<std::string>;

TEST_F(LineTails, GivesWholeLinesOnce) {
  LineTail tail(file_);
  EXPECT_EQ(read(tail), Outcome::all) << "there is no file yet";
  append("one\ntw");
  EXPECT_EQ(read(tail), Outcome::all);
  EXPECT_EQ(lines_, Lines{"one"});
  EXPECT_EQ(tail.offset(), 4u);
  EXPECT_EQ(read(tail), Outcome::all);
  EXPECT_TRUE(lines_.empty());
  append("o\n\nthree\n");
  read(tail);
  EXPECT_EQ(lines_, (Lines{"two", "", "three"}));
  EXPECT_EQ(tail.offset(), std::filesystem::file_size(file_));
  EXPECT_EQ(ends_, tail.offset());
}

TEST_F(LineTails, GivesEveryLineWhateverThePartsAre) {
  std::mt19937 random(3);
  std::string all;
  Lines expected, got;
  for (int i = 0; i < 3000; ++i) {
    expected.push_back(std::string(random() % (i % 100 == 0 ? 400000 : 300), char('a' + i % 26)));
    all += expected.back() + "\n";
  }
  LineTail tail(file_);
  for (size_t at = 0; at < all.size();) {
    const size_t part = std::min<size_t>(all.size() - at, 1 + random() % 200000);
    append(all.substr(at, part));
    at += part;
    while (read(tail, 1 + random() % 100000) == Outcome::some)
      got.insert(got.end(), lines_.begin(), lines_.end());
    got.insert(got.end(), lines_.begin(), lines_.end());
  }
  EXPECT_EQ(got, expected);
  EXPECT_EQ(tail.skipped(), 0);
}

TEST_F(LineTails, ReadsOnlySoMuchAtOnce) {
  std::string all;
  for (int i = 0; i < 20000; ++i) all += std::string(99, 'a') + "\n";
  append(all);
  LineTail tail(file_);
  size_t calls = 0, total = 0;
  for (Outcome outcome = Outcome::some; outcome == Outcome::some; ++calls) {
    outcome = read(tail, 10000);
    EXPECT_LE(lines_.size(), 200u);
    total += lines_.size();
  }
  EXPECT_EQ(total, 20000u);
  EXPECT_GE(calls, 100u);
  // A line longer than that is read whole.
  append(std::string(500000, 'b') + "\n");
  EXPECT_NE(read(tail, 10), Outcome::reset);
  ASSERT_EQ(lines_.size(), 1u);
  EXPECT_EQ(lines_[0].size(), 500000u);
}

TEST_F(LineTails, SkipsALineThatIsTooLong) {
  append("first\n");
  LineTail tail(file_);
  const std::string block(1 << 20, 'x');
  for (int i = 0; i < 40; ++i) {
    append(block);
    EXPECT_EQ(read(tail), Outcome::all);
    EXPECT_EQ(lines_.size(), i == 0 ? 1u : 0u);
  }
  append("\nlast\n");
  read(tail);
  EXPECT_EQ(lines_, Lines{"last"});
  EXPECT_EQ(tail.skipped(), 1);
  // One whose end is there at once.
  append(std::string(max_line_bytes + 1, 'y') + "\nafter\n");
  read(tail);
  EXPECT_EQ(lines_, Lines{"after"});
  EXPECT_EQ(tail.skipped(), 2);
}

TEST_F(LineTails, NoticesAFileThatWasCutOrReplaced) {
  append("1\n2\n3\n");
  LineTail tail(file_);
  read(tail);
  std::filesystem::resize_file(file_, 2);
  EXPECT_EQ(read(tail), Outcome::reset);
  EXPECT_EQ(read(tail), Outcome::all);
  EXPECT_EQ(lines_, Lines{"1"});
  // Cut, and longer than before when it is looked at again.
  append("2\n3\n");
  read(tail);
  std::filesystem::resize_file(file_, 2);
  append("two\nthree\nfour\n");
  EXPECT_EQ(read(tail), Outcome::reset);
  read(tail);
  EXPECT_EQ(lines_, (Lines{"1", "two", "three", "four"}));
  // What is the same as before needs no new start: a resumed run writes the same lines.
  const std::string same = read_file(file_);
  std::filesystem::resize_file(file_, 2);
  append(same.substr(2) + "five\n");
  EXPECT_EQ(read(tail), Outcome::all);
  EXPECT_EQ(lines_, Lines{"five"});
  // Another file with the same contents.
  write_file_atomic(file_, read_file(file_));
  EXPECT_EQ(read(tail), Outcome::reset);
  std::filesystem::remove(file_);
  read(tail);
  append("new\n");
  read(tail);
  EXPECT_EQ(lines_, Lines{"new"});
}

TEST_F(LineTails, StartsAtTheNextLine) {
  append("one\ntwo\nthree\n");
  for (const auto& [offset, expected] :
       std::vector<std::pair<uint64_t, Lines>>{{0, {"one", "two", "three"}},
                                               {4, {"two", "three"}},
                                               {5, {"three"}},
                                               {13, {}},
                                               {14, {}}}) {
    LineTail tail(file_, offset);
    EXPECT_EQ(read(tail), Outcome::all) << offset;
    EXPECT_EQ(lines_, expected) << offset;
  }
  LineTail beyond(file_, 1000);
  EXPECT_EQ(read(beyond), Outcome::reset);
}

TEST_F(LineTails, FollowsNoLinkAndReadsNoPipe) {
  write_file_atomic(dir_ / "secret", "secret\n");
  std::filesystem::create_symlink(dir_ / "secret", file_);
  LineTail link(file_);
  read(link);
  EXPECT_TRUE(lines_.empty());
  std::filesystem::remove(file_);
  ASSERT_EQ(mkfifo(file_.c_str(), 0600), 0);
  LineTail pipe(file_);
  EXPECT_EQ(read(pipe), Outcome::all);
}

// The store reads on where it was, and starts again after a cut.
TEST_F(LineTails, AStoreFollowsItsRun) {
  RunStore store(dir_.path());
  const SeriesQuery loss{.keys = {"loss"}};
  const auto series = [&] { return nlohmann::json::parse(store.series_json(loss)); };
  EXPECT_TRUE(series()["series"]["loss"]["x"].empty());
  append("{\"step\":1,\"loss\":3}\n{\"step\":2,\"loss\":2}\n{\"st");
  nlohmann::json j = series();
  EXPECT_EQ(j["series"]["loss"]["x"], (std::vector<int>{1, 2}));
  EXPECT_EQ(j["offset"]["log"], 40);
  append("ep\":3,\"loss\":null}\n");
  j = series();
  EXPECT_EQ(j["series"]["loss"]["mean"], nlohmann::json::parse("[3,2,null]"));
  std::filesystem::resize_file(file_, 20);
  j = series();
  EXPECT_EQ(j["series"]["loss"]["x"], std::vector<int>{1});
  EXPECT_EQ(j["offset"]["log"], 20);
}

TEST(LogOffsets, AreReadStrictly) {
  const auto parsed = [](const char* text) {
    const auto o = LogOffsets::parse(text);
    return o ? o->id() : "none";
  };
  EXPECT_EQ(parsed("12,34"), "12,34,0");
  EXPECT_EQ(parsed("12,34,56"), "12,34,56");
  for (const char* wrong : {"", "12", "12,", ",12", "12,x", "-1,2", "1,2,3,4", "1,2,", "1 ,2",
                            "99999999999999999999,1", "18446744073709551615,1"})
    EXPECT_EQ(parsed(wrong), "none") << wrong;
}

}  // namespace
}  // namespace hearth
