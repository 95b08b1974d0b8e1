// Learning-rate schedules and stepwise numbers.
#include <gtest/gtest.h>

#include <array>
#include <cmath>

#include "optim/schedule.h"
#include "sys/error.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(Schedule, WarmsUpLinearly) {
  for (Schedule kind : {Schedule::constant, Schedule::cosine, Schedule::linear, Schedule::wsd}) {
    const ScheduleSpec s{.kind = kind, .steps = 100, .warmup = 10};
    for (int64_t it = 0; it < 10; ++it)
      EXPECT_DOUBLE_EQ(schedule_factor(s, it), double(it + 1) / 10);
    EXPECT_DOUBLE_EQ(schedule_factor(s, 10), 1);
  }
}

TEST(Schedule, DecaysAsItsNameSays) {
  const ScheduleSpec cosine{.kind = Schedule::cosine, .steps = 110, .warmup = 10, .floor = 0.1};
  EXPECT_NEAR(schedule_factor(cosine, 60), 0.55, 1e-12);
  EXPECT_NEAR(schedule_factor(cosine, 110), 0.1, 1e-12);
  const ScheduleSpec linear{.kind = Schedule::linear, .steps = 110, .warmup = 10, .floor = 0.2};
  EXPECT_NEAR(schedule_factor(linear, 60), 0.6, 1e-12);
  // NoCap: lr * (steps - it) / warmdown over the last steps.
  const ScheduleSpec wsd{.kind = Schedule::wsd, .steps = 4768, .warmup = 256, .decay_steps = 1024};
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 3743), 1);
  EXPECT_DOUBLE_EQ(schedule_factor(wsd, 4000), double(4768 - 4000) / 1024);
  const ScheduleSpec root{.kind = Schedule::wsd_sqrt, .steps = 200, .decay_steps = 100};
  EXPECT_NEAR(schedule_factor(root, 125), 1 - std::sqrt(0.25), 1e-12);
}

TEST(Schedule, StepsChangeWhereTheySay) {
  const Steps s = Steps::parse("0:8,10:16,20:4", "test", 30);
  EXPECT_EQ(s.at(0), 8);
  EXPECT_EQ(s.at(9), 8);
  EXPECT_EQ(s.at(10), 16);
  EXPECT_EQ(s.at(1000), 4);
  EXPECT_EQ(Steps::parse("64", "test", 30).at(5), 64);
  for (const char* bad :
       {"", "x", "5:1", "0:1,0:2", "0:1,", "0:-3", "1e3", "0:1,101%:2", "0:1,%:2", "0:1,5%:2,1:3"})
    EXPECT_THROW(Steps::parse(bad, "test", 30), Error) << bad;
}

TEST(Schedule, StepsMayBeOfFractions) {
  const WeightSteps s = WeightSteps::parse("0:0.3,50%:1e-1,20:0", "test", 30);
  EXPECT_EQ(s.at(14), 0.3f);
  EXPECT_EQ(s.at(15), 0.1f);
  EXPECT_EQ(s.at(20), 0);
  for (const char* bad : {"", "x", "0:nan", "0:inf", "0:-0.1", "0.5:1", "0:1,0.5:2"})
    EXPECT_THROW(WeightSteps::parse(bad, "test", 30), Error) << bad;
}

TEST(Schedule, ADecayMayBeAShareOfTheRun) {
  RateConfig c{.schedule = Schedule::wsd, .decay_share = 0.5};
  c.check_rate(340);
  EXPECT_EQ(c.schedule_spec(340).decay_steps, 170);
  EXPECT_EQ(c.schedule_spec(1).decay_steps, 1);
  c.decay_steps = 20;  // goes first, so that a flag overrides the share of a recipe
  EXPECT_EQ(c.schedule_spec(340).decay_steps, 20);
  EXPECT_THROW(c.check_rate(10), Error);
  c.decay_steps = 0, c.decay_share = 0;
  EXPECT_THROW(c.check_rate(340), Error);
}

TEST(Schedule, StepsMayHaveNames) {
  constexpr std::array<std::string_view, 2> names{"off", "on"};
  const Steps s = Steps::parse("0:on,50%:off,20:on", "test", 30, names);
  EXPECT_EQ(s.at(14), 1);
  EXPECT_EQ(s.at(15), 0);
  EXPECT_EQ(s.at(20), 1);
  EXPECT_EQ(Steps::parse("on", "test", 30, names).at(5), 1);
  for (const char* bad : {"", "1", "0:1", "0:On", "0:on,", "0:off,5"})
    EXPECT_THROW(Steps::parse(bad, "test", 30, names), Error) << bad;
  EXPECT_EQ(message_of([&] { Steps::parse("0:onn", "test", 30, names); }),
            "[test] expected off or on or a schedule STEP:NAME,STEP:NAME,.. of off or on, got "
            "'0:onn'");
}

TEST(Schedule, StepsMayBeSharesOfTheRun) {
  for (const int64_t total : {340, 220, 50}) {
    const Steps s = Steps::parse("0:1,20%:2,50%:3", "test", total);
    EXPECT_EQ(s.at(total / 5 - 1), 1);
    EXPECT_EQ(s.at(total / 5), 2);
    EXPECT_EQ(s.at(total / 2 - 1), 2);
    EXPECT_EQ(s.at(total / 2), 3);
  }
  const Steps few = Steps::parse("0:1,20%:2,40%:3,60%:4,80%:5", "test", 2);
  EXPECT_EQ(few.at(0), 2);  // 20% rounds to step 0, and 40% and 60% to step 1
  EXPECT_EQ(few.at(1), 4);
  EXPECT_EQ(few.at(2), 5);
}

}  // namespace
}  // namespace hearth
