#include "align/grpo_state.h"

namespace hearth {

using nlohmann::json;

json GrpoState::to_json() const {
  json j{{"step", step},
         {"version", version},
         {"completions", completions},
         {"tokens", tokens},
         {"unrewarded", unrewarded},
         {"rewards", rewards},
         {"evaluated", evaluated},
         {"ema", ema.mean ? json(*ema.mean) : json()},
         {"beta", beta},
         {"update", update_to_json(update)},
         {"last_exact", last_exact},
         {"best_reward", best_reward ? json(*best_reward) : json()},
         {"seconds", seconds}};
  if (last_reward) j["last_reward"] = *last_reward;
  if (best_step) j["best_step"] = *best_step;
  put_mark(j, "log", log), put_mark(j, "samples", samples);
  return j;
}

GrpoState GrpoState::from_json(const StateFields& f) {
  GrpoState s;
  s.step = f.integer("step", 0, max_step), s.version = uint64_t(f.integer("version"));
  s.completions = f.integer("completions"), s.tokens = f.integer("tokens");
  s.unrewarded = f.integer("unrewarded", 0, s.completions);
  // Older ones were saved after what was due.
  s.evaluated = f.has("evaluated") ? f.integer("evaluated", -1, s.step) : s.step;
  if (f.has("rewards")) s.rewards = f.value("rewards");
  if (f.has("ema")) s.ema.mean = f.number("ema");
  s.beta = f.number("beta", 0);
  s.update = update_of(f);
  s.last_exact = f.number("last_exact", -1, 1);
  if (f.has("last_reward")) s.last_reward = f.number("last_reward");
  if (f.has("best_reward")) s.best_reward = f.number("best_reward");
  s.best_step = best_step_of(f, s.step);
  s.log = mark_of(f, "log"), s.samples = mark_of(f, "samples");
  s.seconds = f.number("seconds", 0);
  return s;
}

}  // namespace hearth
