#include "train/grpo/grpo_state.h"

namespace hearth::inline train {

using nlohmann::json;

json GrpoState::to_json() const {
  const auto or_null = [](std::optional<double> x) { return x ? json(*x) : json(); };
  return {{"version", version},          {"completions", completions},
          {"unrewarded", unrewarded},    {"rewards", rewards},
          {"ema", or_null(ema.mean)},    {"beta", beta},
          {"last_exact", last_exact},    {"last_reward", or_null(last_reward)},
          {"micro_tokens", micro_tokens}};
}

GrpoState GrpoState::from_json(const StateFields& f) {
  GrpoState s;
  s.version = uint64_t(f.integer("version"));
  s.completions = f.integer("completions");
  s.unrewarded = f.integer("unrewarded", 0, s.completions);
  if (f.has("rewards")) s.rewards = f.value("rewards");
  if (f.has("ema")) s.ema.mean = f.number("ema");
  s.beta = f.number("beta", 0);
  s.last_exact = f.number("last_exact", -1, 1);
  if (f.has("last_reward")) s.last_reward = f.number("last_reward");
  s.micro_tokens = f.integer("micro_tokens", 1);
  return s;
}

}  // namespace hearth::inline train
