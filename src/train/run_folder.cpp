#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <set>

#include "core/error.h"
#include "io/checkpoint_dir.h"
#include "io/json.h"
#include "train/run_state.h"

namespace hearth {
namespace fs = std::filesystem;

namespace {

// Empty where there is no such link.
fs::path target_of(const fs::path& run, const std::string& link) {
  std::error_code none;
  return fs::read_symlink(run / link, none);
}

void point_link(const fs::path& run, const std::string& link, int64_t step) {
  const fs::path target = fs::path("checkpoints") / step_name(step);
  if (target_of(run, link) != target) set_link(run, link, target);
}

void remove_link(const fs::path& run, const std::string& link) {
  if (unlink((run / link).c_str()) == 0)
    fsync_dir(run);
  else if (errno != ENOENT)
    fail_errno(run / link, "to delete the link");
}

}  // namespace

void expect_new_or_resumed(const fs::path& run, bool resume) {
  if (resume) return;
  for (const char* name :
       {"config.toml", "checkpoints", "log.jsonl", "samples.jsonl", "perf.jsonl"})
    if (fs::exists(run / name))
      fail(run.string(),
           "expected a new run folder, got one with a run in it ({}); add --resume to go on with "
           "it",
           name);
}

Fd lock_run(const fs::path& run) {
  const fs::path file = run / ".lock";
  Fd fd = open_file(file, O_RDWR | O_CREAT, "a writable run folder");
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    fail(run.string(), "expected a run folder no other process trains in, got a locked one");
  return fd;
}

Fd open_run_folder(const fs::path& run, bool resume, const std::string& config_toml) {
  make_dirs(run);
  Fd lock = lock_run(run);
  expect_new_or_resumed(run, resume);
  if (resume) clean_stale(run), clean_stale(run / "checkpoints");
  if (const fs::path toml = run / "config.toml"; !fs::exists(toml))
    write_file_atomic(toml, config_toml);
  return lock;
}

std::optional<fs::path> resumed_checkpoint(const fs::path& run, bool resume,
                                           const std::function<void(const std::string&)>& warn) {
  if (!resume) return {};
  return checkpoint_to_resume(run / "checkpoints", warn);
}

int64_t linked_step(const fs::path& run, const std::string& link) {
  return parse_step_name(target_of(run, link).filename().string()).value_or(-1);
}

void reconcile(const fs::path& run, const fs::path& checkpoint, int keep) {
  const fs::path parent = run / "checkpoints", file = checkpoint / "state" / "trainer.json";
  const nlohmann::json trainer = read_json(file);
  const StateFields state = trainer_fields(trainer, file.string()).object("run");
  const int64_t newest = state.integer("step", 0, max_step);
  if (checkpoint.filename() != step_name(newest))
    fail(file.string(), "expected run.step to be that of {}, got {}",
         checkpoint.filename().string(), newest);
  const KeptSteps kept = kept_steps(state);
  point_link(run, "latest", newest);
  if (kept.best == -1)
    remove_link(run, "best");
  else if (kept.best && fs::exists(parent / step_name(*kept.best)))
    point_link(run, "best", *kept.best);
  std::set<std::string> spared{step_name(newest)};
  for (const int64_t step : {kept.good, linked_step(run, "best")})
    if (step >= 0) spared.insert(step_name(step));
  rotate_checkpoints(parent, keep, spared, newest);
}

void go_back_to(const fs::path& run, const fs::path& checkpoint, int keep) {
  reconcile(run, checkpoint, keep);
  remove_checkpoints_after(run / "checkpoints", linked_step(run, "latest"));
}

std::string toml_lines(const nlohmann::ordered_json& settings) {
  std::string text;
  for (const auto& [key, value] : settings.items()) text += key + " = " + value.dump() + "\n";
  return text;
}

}  // namespace hearth
