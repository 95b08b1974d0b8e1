// Numbers of log lines, and series with at most so many points, compared with plain computations.
#include "board/columns.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <random>

namespace hearth {
namespace {

std::map<std::string, double> numbers_in(std::string_view line) {
  LineNumbers n;
  std::map<std::string, double> found;
  EXPECT_TRUE(n.read(line)) << line;
  for (const auto& [key, value] : n.items()) found[std::string(key)] = value;
  return found;
}

TEST(LineNumbers, FindsNumbersAtAnyPlace) {
  const auto found = numbers_in(
      R"( {"step": 12, "loss":2.3456789012345678,"lr":1e-3,"big":123456789012345678,"neg":-0.5,)"
      R"("skipped":true,"spike":false,"none":null,"text":"a \"quoted\" \\ text","load":[1,2.5,[3]],)"
      R"("seconds":{"load":1.5,"deep":{"x":7}},"empty":{},"list":[]} )");
  EXPECT_EQ(found.at("step"), 12);
  EXPECT_EQ(found.at("loss"), 2.3456789012345678);
  EXPECT_EQ(found.at("lr"), 1e-3);
  EXPECT_EQ(found.at("big"), 123456789012345678.0);
  EXPECT_EQ(found.at("neg"), -0.5);
  EXPECT_EQ(found.at("skipped"), 1);
  EXPECT_EQ(found.at("spike"), 0);
  EXPECT_TRUE(std::isnan(found.at("none")));
  EXPECT_EQ(found.at("load.1"), 2.5);
  EXPECT_EQ(found.at("load.2.0"), 3);
  EXPECT_EQ(found.at("seconds.load"), 1.5);
  EXPECT_EQ(found.at("seconds.deep.x"), 7);
  EXPECT_FALSE(found.contains("text"));
  EXPECT_EQ(found.size(), 13u);
}

TEST(LineNumbers, RefusesWhatIsNoObject) {
  LineNumbers n;
  for (const std::string line :
       {"", "1", "[1]", "null", "{", "}", "{\"a\"}", "{\"a\":}", "{\"a\":1", "{\"a\":1,}",
        "{\"a\":1}x", "{\"a\":1}{\"b\":2}", "{a:1}", "{\"a\":--1}", "{\"a\":tru}", "{\"a\":\"open}",
        "{\"a\":[1,}", "{\"a\":1 \"b\":2}", "\xff\xfe"}) {
    EXPECT_FALSE(n.read(line)) << line;
    EXPECT_TRUE(n.items().empty()) << line;
  }
  EXPECT_FALSE(n.read("{\"a\":" + std::string(1000000, '[')));
  EXPECT_FALSE(n.read("{\"a\":" + std::string(100, '[') + std::string(100, ']') + "}"));
}

TEST(LineNumbers, ToleratesNumbersAndNamesOfOthers) {
  const auto found = numbers_in(
      "{\"a\":NaN,\"b\":Infinity,\"c\":-Infinity,\"bad\xff\":1,\"\":2,"
      "\"e\\n\":3,\"huge\":1e999,\"last\":4}");
  EXPECT_TRUE(std::isnan(found.at("a")) && std::isinf(found.at("b")) && std::isinf(found.at("c")));
  EXPECT_TRUE(std::isnan(found.at("huge")));
  EXPECT_EQ(found.at("last"), 4);
  EXPECT_EQ(found.size(), 5u) << "keys that are no names are left out";
  EXPECT_TRUE(numbers_in("{\"" + std::string(1000, 'k') + "\":1}").empty());
}

// The same as series_of, by its definition.
Series plain_series(const std::vector<std::pair<double, double>>& points, const SeriesSpec& spec) {
  std::vector<std::pair<double, double>> in;
  for (const auto& p : points)
    if (p.first >= spec.from && p.first <= spec.to) in.push_back(p);
  std::ranges::stable_sort(in, {}, &std::pair<double, double>::first);
  Series s;
  if (in.size() <= spec.points) {
    for (const auto& [x, y] : in) s.x.push_back(x), s.mean.push_back(std::isfinite(y) ? y : NAN);
    return s;
  }
  s.decimated = true;
  const double low = in.front().first, high = in.back().first;
  for (size_t part = 0; part < spec.points; ++part) {
    double min = INFINITY, max = -INFINITY, sum = 0, last = NAN;
    int64_t finite = 0;
    for (const auto& [x, y] : in) {
      const double scale = high > low ? double(spec.points) / (high - low) : 0;
      if (std::min(spec.points - 1, size_t((x - low) * scale)) != part) continue;
      last = x;
      if (!std::isfinite(y)) continue;
      min = std::min(min, y), max = std::max(max, y), sum += y, ++finite;
    }
    if (std::isnan(last)) continue;
    s.x.push_back(last);
    s.min.push_back(finite ? min : NAN), s.max.push_back(finite ? max : NAN);
    s.mean.push_back(finite ? sum / double(finite) : NAN);
  }
  return s;
}

void expect_same(const std::vector<double>& a, const std::vector<double>& b, const char* what) {
  ASSERT_EQ(a.size(), b.size()) << what;
  for (size_t i = 0; i < a.size(); ++i)
    EXPECT_TRUE(a[i] == b[i] || (std::isnan(a[i]) && std::isnan(b[i])))
        << what << " " << i << ": " << a[i] << " and " << b[i];
}

TEST(SeriesOf, EqualsAPlainComputation) {
  std::mt19937 random(7);
  for (int round = 0; round < 60; ++round) {
    const size_t count = random() % 3000;
    const bool back = round % 3 == 0;  // runs that go back repeat steps
    std::vector<std::pair<double, double>> points;
    Column column;
    double step = 0;
    for (size_t i = 0; i < count; ++i) {
      step += double(random() % 3);
      if (back && random() % 200 == 0) step = std::max(0.0, step - 50);
      const double value = random() % 20 == 0 ? NAN : double(random() % 1000) / 7 - 50;
      points.emplace_back(step, value);
      column.add(step, value);
    }
    SeriesSpec spec{.points = 1 + random() % 400};
    if (round % 2)
      spec.from = double(random() % 500), spec.to = spec.from + double(random() % 2000);
    const Series a = series_of(column, {}, spec), b = plain_series(points, spec);
    EXPECT_EQ(a.decimated, b.decimated);
    EXPECT_LE(a.x.size(), std::max(spec.points, size_t(1)));
    expect_same(a.x, b.x, "x");
    expect_same(a.min, b.min, "min");
    expect_same(a.max, b.max, "max");
    expect_same(a.mean, b.mean, "mean");
  }
}

TEST(SeriesOf, FollowsAnotherAxis) {
  ColumnStore log, perf;
  for (int step = 1; step <= 100; ++step) {
    log.add_line(R"({"step":)" + std::to_string(step) + R"(,"tokens":)" +
                 std::to_string(step * 512) + R"(,"loss":)" + std::to_string(100 - step) + "}");
    perf.add_line(R"({"step":)" + std::to_string(step) + R"(,"ms":250})");
    if (step == 50) perf.add_line(R"({"step":50,"eval_ms":5000})");
  }
  const Series tokens = series_of(*log.find("loss"), axis_of(*log.find("tokens")), {});
  EXPECT_EQ(tokens.x.front(), 512);
  EXPECT_EQ(tokens.x.back(), 51200);
  EXPECT_EQ(tokens.mean.back(), 0);
  const Series time = series_of(*log.find("loss"), axis_of(perf.elapsed()), {});
  EXPECT_DOUBLE_EQ(time.x[0], 0.25);
  EXPECT_DOUBLE_EQ(time.x[49], 17.5) << "the evaluation of step 50 took five seconds";
  EXPECT_DOUBLE_EQ(time.x[99], 30);
  const Series part = series_of(*log.find("loss"), axis_of(*log.find("tokens")),
                                {.from = 1000, .to = 2048, .points = 100});
  expect_same(part.x, {1024, 1536, 2048}, "x");
}

TEST(ColumnStore, CountsWhatItCannotRead) {
  ColumnStore store;
  for (const char* line :
       {R"({"step":1,"loss":3})", "garbage", "", R"({"loss":3})", R"({"step":null,"loss":3})",
        R"({"step":1e300})", R"({"step":2,"loss":null})", R"({"step":3,"loss":1})"})
    store.add_line(line);
  EXPECT_EQ(store.lines(), 3);
  EXPECT_EQ(store.bad_lines(), 5);
  EXPECT_EQ(store.last_step(), 3);
  EXPECT_EQ(store.keys(), std::vector<std::string>{"loss"});
  const Series s = series_of(*store.find("loss"), {}, {});
  expect_same(s.x, {1, 2, 3}, "x");
  expect_same(s.mean, {3, NAN, 1}, "mean");
  EXPECT_EQ(store.find("other"), nullptr);
}

// Beyond its memory a store keeps the extremes and the means of neighbours.
TEST(ColumnStore, StaysWithinItsMemory) {
  constexpr size_t most = 200000;
  ColumnStore store(most);
  double sum = 0;
  for (int step = 1; step <= 100000; ++step) {
    const double loss = step == 77777 ? -5 : step % 10;
    sum += loss;
    store.add_line(R"({"step":)" + std::to_string(step) + R"(,"loss":)" + std::to_string(loss) +
                   "}");
  }
  EXPECT_LE(store.bytes(), 2 * most);
  EXPECT_GT(store.merged_steps(), 1);
  const Series s = series_of(*store.find("loss"), {}, {.points = 10});
  ASSERT_EQ(s.x.size(), 10u);
  EXPECT_EQ(*std::ranges::min_element(s.min), -5);
  EXPECT_EQ(*std::ranges::max_element(s.max), 9);
  EXPECT_EQ(s.x.back(), 100000);
  double mean = 0;
  for (const double m : s.mean) mean += m / 10;
  EXPECT_NEAR(mean, sum / 100000, 1e-2);
}

TEST(ColumnStore, HasOnlySoManyColumns) {
  ColumnStore store;
  for (int i = 0; i < 5000; ++i) store.add_line(R"({"step":1,"k)" + std::to_string(i) + R"(":1})");
  EXPECT_LE(store.keys().size(), 512u);
}

}  // namespace
}  // namespace hearth
