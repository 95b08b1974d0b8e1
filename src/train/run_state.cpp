#include "train/run_state.h"

#include <array>
#include <bit>
#include <cmath>

#include <fmt/format.h>

namespace hearth {
namespace {

using nlohmann::json;

constexpr size_t max_sources = 4096, max_shapes = 1 << 20;

using UpdateBits = std::array<uint32_t, sizeof(UpdateState) / sizeof(uint32_t)>;

json to_json(const Cursor& c) {
  json j{{"epoch", c.epoch}, {"shard", c.shard}, {"position", c.position}, {"tokens", c.tokens}};
  for (const SourceCursor& s : c.sources)
    j["sources"].push_back(
        {{"epoch", s.epoch}, {"shard", s.shard}, {"position", s.position}, {"tokens", s.tokens}});
  return j;
}

// Whether it lies within the files is the loader's to check.
Cursor cursor_of(const StateFields& f) {
  Cursor c{f.integer("epoch"), f.integer("shard"), f.integer("position"), f.integer("tokens")};
  if (f.has("sources"))
    for (const StateFields& s : f.objects("sources", max_sources))
      c.sources.push_back(
          {s.integer("epoch"), s.integer("shard"), s.integer("position"), s.integer("tokens")});
  return c;
}

int64_t good_step_of(const StateFields& run, int64_t otherwise) {
  const int64_t step = run.integer("step", 0, max_step);
  return run.has("good_step") ? run.integer("good_step", -1, step) : otherwise;
}

}  // namespace

StateFields trainer_fields(const json& trainer, const std::string& where) {
  StateFields f(trainer, where);
  f.integer("version", 1, 1);
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
  // Norm and loss of a skipped step need not be finite; the rest counts.
  constexpr float whole_floats = 1 << 24;  // a count beyond stays where it is
  const auto is_count = [&](float x) { return x >= 0 && x <= whole_floats && x == std::floor(x); };
  if (!is_count(u.good_steps) || !is_count(u.skipped) || !is_count(u.streak) ||
      !(u.skip == 0 || u.skip == 1) || !(u.grad_scale >= 0) || !std::isfinite(u.grad_scale))
    run.refuse("update", "the words of counts of updates that are 0 or more", run.value("update"));
  return u;
}

void put_mark(json& run, const std::string& log, const LogMark& mark) {
  run[log + "_bytes"] = mark.bytes;
  if (!mark.sha256.empty()) run[log + "_sha256"] = mark.sha256;
}

LogMark mark_of(const StateFields& run, const std::string& log) {
  const std::string sum = log + "_sha256";
  return {run.integer(log + "_bytes"), run.has(sum) ? run.sha256(sum) : ""};
}

std::optional<int64_t> best_step_of(const StateFields& run, int64_t step) {
  if (!run.has("best_step")) return {};
  return run.integer("best_step", -1, step);
}

std::optional<int64_t> last_val_step_of(const StateFields& run, int64_t step) {
  if (!run.has("last_val_step")) return {};
  return run.integer("last_val_step", 0, step);
}

KeptSteps kept_steps(const StateFields& run) {
  return {best_step_of(run, run.integer("step", 0, max_step)), good_step_of(run, -1)};
}

json RunState::to_json() const {
  json j{{"step", step},
         {"tokens", tokens},
         {"cursor", hearth::to_json(cursor)},
         {"data", data},
         {"update", update_to_json(update)},
         {"reloads", reloads},
         {"good_step", good_step},
         {"spikes", spikes},
         {"logits_bytes", logits_bytes},
         {"loss_scale", loss_scale},
         {"scale_steps", scale_steps},
         {"best_val", best_val},
         {"last_val", last_val},
         {"losses", losses},
         {"batches", batches},
         {"train_seconds", train_seconds}};
  if (best_step) j["best_step"] = *best_step;
  if (last_val_step) j["last_val_step"] = *last_val_step;
  put_mark(j, "log", log), put_mark(j, "samples", samples);
  return j;
}

RunState RunState::from_json(const StateFields& f) {
  RunState s;
  s.step = f.integer("step", 0, max_step), s.tokens = f.integer("tokens");
  s.cursor = cursor_of(f.object("cursor"));
  if (f.has("data")) s.data = f.text("data");  // older ones lack it
  s.update = update_of(f);
  s.reloads = f.integer("reloads");
  s.good_step = good_step_of(f, s.update.streak == 0 ? s.step : -1);  // older ones lack it
  if (f.has("spikes")) s.spikes = f.integer("spikes", 0, max_bad_steps);
  s.logits_bytes = f.integer("logits_bytes");
  s.loss_scale = f.number("loss_scale", 0x1p-24, max_loss_scale);
  s.scale_steps = f.integer("scale_steps", 0, loss_scale_window);
  s.best_val = f.number("best_val"), s.best_step = best_step_of(f, s.step);
  s.last_val = f.number("last_val"), s.last_val_step = last_val_step_of(f, s.step);
  s.losses = f.numbers("losses", spike_window);
  s.batches = f.integers("batches", max_shapes, 1);
  s.log = mark_of(f, "log"), s.samples = mark_of(f, "samples");
  s.train_seconds = f.number("train_seconds", 0);
  return s;
}

}  // namespace hearth
