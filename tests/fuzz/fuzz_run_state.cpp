// state/trainer.json: the state that every run has, and those of the tasks that add to it.
#include "data/cursor_state.h"
#include "formats/json.h"
#include "fuzz.h"
#include "train/grpo/grpo_state.h"
#include "train/run_state.h"

namespace {

using hearth::StateFields;
using hearth::fuzz::require;
using nlohmann::json;

void check(const StateFields& run) {
  const hearth::RunState s = hearth::RunState::from_json(run);
  require(s.step >= 0 && s.step <= hearth::max_step && s.tokens >= 0 && s.log.bytes >= 0);
  const hearth::KeptSteps kept = hearth::kept_steps(run);
  require(kept.best == s.best_step && kept.best <= s.step && kept.good <= s.step);
  // What is taken can be written and read back as the same state.
  const json again = s.to_json();
  require(hearth::RunState::from_json({again, "again", "run"}).to_json() == again);
}

std::string seed(const char* task, const json& of_task) {
  hearth::RunState s;
  s.step = 12, s.data_step = 15, s.tokens = 3456, s.best_step = 8, s.good_step = 12;
  s.update.good_steps = 11, s.update.skipped = 1, s.losses = {4.5, 3.25};
  s.best_eval = s.last_eval = 3.5, s.evaluated = 8;
  s.log = {789, std::string(64, 'a')};
  return json{{"version", hearth::trainer_version},
              {task, json::object()},
              {"run", s.to_json()},
              {"task", of_task}}
      .dump();
}

}  // namespace

int fuzz_run_state(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    const json j = hearth::parse_json(hearth::fuzz::text_of(data, size), "fuzz");
    const StateFields trainer = hearth::trainer_fields(j, "fuzz");
    check(trainer.object("run"));
    const StateFields task = trainer.object("task");
    if (j.contains("grpo")) {
      const json again = hearth::GrpoState::from_json(task).to_json();
      require(hearth::GrpoState::from_json({again, "again", "task"}).to_json() == again);
    } else if (j.contains("pretrain")) {
      const json again = hearth::cursor_to_json(hearth::cursor_of(task.object("cursor")));
      require(hearth::cursor_to_json(hearth::cursor_of({again, "again"})) == again);
    }
  });
}

hearth::fuzz::Seeds seeds_run_state() {
  const hearth::Cursor cursor{0, 1, 640, 3456, {{0, 0, 16, 32}, {1, 0, 0, 48}}};
  hearth::GrpoState grpo;
  grpo.completions = 96, grpo.unrewarded = 2, grpo.ema.mean = 0.5, grpo.micro_tokens = 4096;
  grpo.rewards = json::array({json(), {{"failed", 2}}}), grpo.last_reward = 1;
  return {seed("pretrain", {{"cursor", hearth::cursor_to_json(cursor)}}),
          seed("sft", {{"micro_batch", 8}}), seed("grpo", grpo.to_json())};
}
