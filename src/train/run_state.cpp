#include "train/run_state.h"

#include <array>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "sys/error.h"

namespace hearth::inline train {
namespace {

using nlohmann::json;

using UpdateBits = std::array<uint32_t, sizeof(UpdateState) / sizeof(uint32_t)>;

void put_mark(json& run, const std::string& log, const LogMark& mark) {
  run[log + "_bytes"] = mark.bytes;
  if (!mark.sha256.empty()) run[log + "_sha256"] = mark.sha256;
}

LogMark mark_of(const StateFields& run, const std::string& log) {
  const std::string sum = log + "_sha256";
  return {run.integer(log + "_bytes"), run.has(sum) ? run.sha256(sum) : ""};
}

}  // namespace

StateFields trainer_fields(const json& trainer, const std::string& where) {
  StateFields f(trainer, where);
  if (f.integer("version", 1, trainer_version) < trainer_version)
    fail(where,
         "the run was made by an older version of hearth, which alone can resume it; to go on from "
         "its weights, start a new run with --model");
  return f;
}

json update_to_json(const UpdateState& u) { return std::bit_cast<UpdateBits>(u); }

UpdateState update_of(const StateFields& run) {
  const std::vector<int64_t> words =
      run.integers("update", std::tuple_size_v<UpdateBits>, 0, UINT32_MAX);
  UpdateBits bits{};
  if (words.size() != bits.size())
    run.refuse("update", fmt::format("a list of {} words", bits.size()), run.value("update"));
  for (size_t i = 0; i < bits.size(); ++i) bits[i] = uint32_t(words[i]);
  const UpdateState u = std::bit_cast<UpdateState>(bits);
  // The norm and the loss of a skipped step need not be finite; the other fields must be valid.
  constexpr float whole_floats = 1 << 24;  // float counters stop increasing here
  const auto is_count = [&](float x) { return x >= 0 && x <= whole_floats && x == std::floor(x); };
  if (!is_count(u.good_steps) || !is_count(u.skipped) || !is_count(u.streak) ||
      !(u.skip == 0 || u.skip == 1) || !(u.grad_scale >= 0) || !std::isfinite(u.grad_scale))
    run.refuse("update", "the words of counts of updates that are 0 or more", run.value("update"));
  return u;
}

KeptSteps kept_steps(const StateFields& run) {
  const int64_t step = run.integer("step", 0, max_step);
  return {run.integer("best_step", -1, step), run.integer("good_step", -1, step)};
}

json RunState::to_json() const {
  const auto or_null = [](std::optional<double> x) { return x ? json(*x) : json(); };
  json j{{"step", step},
         {"total", total},
         {"data_step", data_step},
         {"tokens", tokens},
         {"update", update_to_json(update)},
         {"reloads", reloads},
         {"good_step", good_step},
         {"spikes", spikes},
         {"losses", losses},
         {"loss_scale", loss_scale},
         {"scale_steps", scale_steps},
         {"logits_bytes", logits_bytes},
         {"last_eval", or_null(last_eval)},
         {"best_eval", or_null(best_eval)},
         {"evaluated", evaluated},
         {"last_eval_step", last_eval_step},
         {"best_step", best_step},
         {"train_seconds", train_seconds}};
  put_mark(j, "log", log), put_mark(j, "samples", samples);
  return j;
}

RunState RunState::from_json(const StateFields& f) {
  RunState s;
  s.step = f.integer("step", 0, max_step);
  s.total = f.integer("total", 0, max_step);
  s.data_step = f.integer("data_step", s.step, max_step);
  s.tokens = f.integer("tokens");
  s.update = update_of(f);
  s.reloads = f.integer("reloads");
  s.spikes = f.integer("spikes", 0, max_bad_steps);
  s.losses = f.numbers("losses", spike_window);
  s.loss_scale = f.number("loss_scale", 0x1p-24, max_loss_scale);
  s.scale_steps = f.integer("scale_steps", 0, loss_scale_window);
  s.logits_bytes = f.integer("logits_bytes");
  if (f.has("last_eval")) s.last_eval = f.number("last_eval");
  if (f.has("best_eval")) s.best_eval = f.number("best_eval");
  s.evaluated = f.integer("evaluated", -1, s.step);
  s.last_eval_step = f.integer("last_eval_step", -1, s.evaluated);
  const KeptSteps kept = kept_steps(f);
  s.best_step = kept.best, s.good_step = kept.good;
  s.log = mark_of(f, "log"), s.samples = mark_of(f, "samples");
  s.train_seconds = f.number("train_seconds", 0);
  return s;
}

}  // namespace hearth::inline train
