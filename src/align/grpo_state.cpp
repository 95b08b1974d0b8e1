#include "align/grpo_state.h"

#include "core/error.h"
#include "train/checkpoint.h"

namespace hearth {

using nlohmann::json;

json GrpoState::to_json() const {
  return {{"step", step},
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
          {"log_bytes", log_bytes},
          {"samples_bytes", samples_bytes},
          {"seconds", seconds}};
}

GrpoState GrpoState::from_json(const json& j, const std::string& where) {
  try {
    GrpoState s;
    j.at("step").get_to(s.step), j.at("version").get_to(s.version);
    j.at("completions").get_to(s.completions), j.at("tokens").get_to(s.tokens);
    j.at("unrewarded").get_to(s.unrewarded);
    s.evaluated = j.value("evaluated", s.step);  // older ones were saved after what was due
    s.rewards = j.value("rewards", json());
    if (!j.at("ema").is_null()) s.ema.mean = j.at("ema").get<double>();
    j.at("beta").get_to(s.beta);
    s.update = update_from_json(j.at("update"));
    j.at("last_exact").get_to(s.last_exact);
    if (const json best = j.value("best_reward", json()); !best.is_null())
      s.best_reward = best.get<double>();
    j.at("log_bytes").get_to(s.log_bytes), j.at("samples_bytes").get_to(s.samples_bytes);
    j.at("seconds").get_to(s.seconds);
    return s;
  } catch (const json::exception& e) {
    fail(where, "expected the state of a GRPO run, got {}", e.what());
  }
}

}  // namespace hearth
