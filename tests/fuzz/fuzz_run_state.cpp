// state/trainer.json of every task: pretraining, SFT and DPO ("align"), and GRPO.
#include "align/align_state.h"
#include "align/grpo_state.h"
#include "fuzz.h"
#include "io/json.h"
#include "train/run_state.h"

namespace {

using hearth::StateFields;
using hearth::fuzz::require;
using nlohmann::json;

template <class State>
void check(const StateFields& run) {
  const State s = State::from_json(run);
  require(s.step >= 0 && s.step <= hearth::max_step && s.tokens >= 0 && s.log.bytes >= 0);
  const hearth::KeptSteps kept = hearth::kept_steps(run);
  require(kept.best == s.best_step && kept.best.value_or(-1) <= s.step && kept.good <= s.step);
  // What is taken can be written and read back as the same state.
  const json again = s.to_json();
  require(State::from_json({again, "again", "run"}).to_json() == again);
}

template <class State>
std::string seed(const char* task, State s) {
  s.step = 12, s.tokens = 3456, s.best_step = 8;
  s.update.good_steps = 11, s.update.skipped = 1;
  s.log = {789, std::string(64, 'a')};
  return json{{"version", 1}, {task, json::object()}, {"run", s.to_json()}}.dump();
}

}  // namespace

int fuzz_run_state(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const json j = hearth::parse_json(hearth::fuzz::text_of(data, size), "fuzz");
    const StateFields run = hearth::trainer_fields(j, "fuzz").object("run");
    if (j.contains("grpo"))
      check<hearth::GrpoState>(run);
    else if (j.contains("align"))
      check<hearth::AlignState>(run);
    else
      check<hearth::RunState>(run);
  });
}

hearth::fuzz::Seeds seeds_run_state() {
  hearth::RunState pretraining;
  pretraining.cursor = {0, 1, 640, 3456, {{0, 0, 16, 32}, {1, 0, 0, 48}}};
  pretraining.losses = {4.5, 3.25}, pretraining.batches = {4, 2};
  pretraining.good_step = 12, pretraining.best_val = pretraining.last_val = 3.5;
  hearth::AlignState align;
  align.best_val = 0.5, align.last_val = -0.25;
  hearth::GrpoState grpo;
  grpo.completions = 96, grpo.unrewarded = 2, grpo.evaluated = 8, grpo.ema.mean = 0.5;
  grpo.rewards = json::array({json(), {{"failed", 2}}}), grpo.best_reward = 1;
  return {seed("train", pretraining), seed("align", align), seed("grpo", grpo)};
}
