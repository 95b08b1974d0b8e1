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
          {"best_exact", best_exact},
          {"last_exact", last_exact},
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
    j.at("best_exact").get_to(s.best_exact), j.at("last_exact").get_to(s.last_exact);
    j.at("log_bytes").get_to(s.log_bytes), j.at("samples_bytes").get_to(s.samples_bytes);
    j.at("seconds").get_to(s.seconds);
    return s;
  } catch (const json::exception& e) {
    fail(where, "expected the state of a GRPO run, got {}", e.what());
  }
}

}  // namespace hearth
