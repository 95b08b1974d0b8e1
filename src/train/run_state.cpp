#include "train/run_state.h"

#include <array>
#include <bit>
#include <cmath>

#include <fmt/format.h>

#include "formats/json.h"
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

std::string expect_same_run(const std::filesystem::path& checkpoint, const RunIdentity& now) {
  const std::string where = (checkpoint / "state" / "trainer.json").string();
  const json saved = read_json(where);
  trainer_fields(saved, where);  // checks the version
  const std::string kind(now.kind);
  if (!saved.is_object() || !saved.contains(kind))
    fail(where, "expected a checkpoint of hearth {}, got one of another command", kind);
  expect_same_settings(saved[kind], now.settings, where);
  // GRPO runs of earlier versions named their model only if it was a reference too.
  if (saved.contains("base") && saved["base"] != now.base)
    fail(where,
         "expected the model that the run began from, got other weights or another shape: give it "
         "that model by --model");
  if (saved.contains("data") && saved["data"] != now.data)
    fail(where,
         "expected the data that the run began with, got other: give it that by --data (and "
         "--val), or begin a new run");
  return where;
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
  json j = state_to_json(*this);
  j["update"] = update_to_json(update);
  put_mark(j, "log", log), put_mark(j, "samples", samples);
  return j;
}

RunState RunState::from_json(const StateFields& f) {
  RunState s = state_from_json<RunState>(f);
  s.update = update_of(f);
  s.log = mark_of(f, "log"), s.samples = mark_of(f, "samples");
  return s;
}

}  // namespace hearth::inline train
