// The fixture of the tests of runs: a task whose losses the test chooses.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <new>

#include "sys/error.h"
#include "train/run.h"
#include "unit/test_io_support.h"
#include "unit/wrapped_backend.h"

namespace hearth::test {

inline ModelConfig small_model() {
  ModelConfig c;
  c.vocab = 16, c.context = 8, c.layers = 1, c.dim = 8, c.heads = 1, c.hidden = 8;
  return c.resolve();
}

// Steps without arithmetic: what the update program is told of its loss is all there is.
class ChosenLosses : public Task {
 public:
  explicit ChosenLosses(TrainedModel& m) : update_("chosen", m.memory, {}) {}
  std::string_view kind() const override { return "chosen"; }
  int64_t steps() const override { return total; }
  UpdateProgram& update() override { return update_; }
  std::optional<StepReport> step(StepContext& c) override {
    data_steps.push_back(c.data_step);
    if (c.step == fails_at) break_down();
    StepReport r{.tokens = 10, .flops = 1e6};
    const double x = loss(c.data_step);
    c.guard.update(update_, c.scalars, x);
    tell(fmt::format("launched {}", c.step + 1));
    const auto read = [this, x, step = c.step + 1](StepReport& report) {
      report.loss = x;
      tell(fmt::format("read {}", step));
    };
    if (late)
      r.complete = read;
    else
      read(r);
    rates.push_back(c.lr);
    return r;
  }
  bool evaluates() const override { return bool(evaluation); }
  bool evaluates_first() const override { return first; }
  bool at_target(const RunState& s) const override {
    return target && s.last_eval && *s.last_eval <= *target;
  }
  std::optional<EvalReport> evaluate(const RunState& s,
                                     const std::function<void(const std::string&)>&) override {
    return loss_report(evaluation(s.step));
  }
  nlohmann::json save() const override {
    if (cannot_be_saved) throw std::bad_alloc();
    return {{"seen", data_steps.size()}};
  }

  int64_t total = 20;
  std::function<double(int64_t)> loss = [](int64_t) { return 1.0; };
  std::function<double(int64_t)> evaluation;
  std::function<void(const std::string&)> tell = [](const std::string&) {};
  bool late = false;   // the loss is read when the step has been made
  bool first = false;  // evaluates before the first step
  std::optional<double> target;
  std::optional<int64_t> fails_at;
  std::function<void()> break_down = [] { fail("task", "the program broke"); };
  bool cannot_be_saved = false;
  std::vector<int64_t> data_steps;
  std::vector<double> rates;

 private:
  UpdateProgram update_;
};

// A CPU that may run ahead of the host, as a GPU does.
class Ahead final : public WrappedBackend {
 public:
  explicit Ahead(bool ahead) : ahead_(ahead) {}
  bool runs_ahead() const override { return ahead_; }

 private:
  const bool ahead_;
};

class RunTest : public testing::Test {
 protected:
  RunTest() {
    spec.run = dir / "run", spec.quiet = true;
    spec.warn = [this](const std::string& line) { said += line + "\n"; };
    config.checkpoint_every = 5, config.schedule = Schedule::constant, config.eval_every = 4;
  }
  // One process: what `prepare` sets of the task, then the run.
  RunResult go(const std::function<void(ChosenLosses&)>& prepare = {}) {
    Ahead backend(runs_ahead);
    TrainedModel model(small_model(), {}, backend, DType::f32, false);
    ChosenLosses task(model);
    if (prepare) prepare(task);
    const struct Keep {
      ~Keep() { to = from.data_steps, rates = from.rates; }
      ChosenLosses& from;
      std::vector<int64_t>& to;
      std::vector<double>& rates;
    } keep{task, data_steps, rates};
    const RunSettings settings{.values = {{"steps", task.total}, {"lr", config.lr}}};
    return run_task(spec, config, settings, model, task);
  }

  const TempDir dir;
  RunSpec spec;
  RunConfig config;
  std::string said;
  bool runs_ahead = true;
  std::vector<int64_t> data_steps;
  std::vector<double> rates;
};

}  // namespace hearth::test
