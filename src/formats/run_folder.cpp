#include "formats/run_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <thread>

#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace fs = std::filesystem;

namespace {

// Prefix of the line in config.toml that records the start folder; a comment, since it is not a
// setting.
constexpr const char* start_mark = "# The run was started in ";

// Empty if there is no such link.
fs::path target_of(const fs::path& run, const std::string& link) {
  std::error_code none;
  return fs::read_symlink(run / link, none);
}

bool has_checkpoint(const fs::path& run) {
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(run / "checkpoints", none))
    if (parse_step_name(entry.path().filename().string())) return true;
  return false;
}

// `locked`: by another process.
void expect_new(const fs::path& run, bool locked) {
  const char* state =
      has_checkpoint(run) ? "has a run in it: add --resume (and --steps N to make it longer), or "
                            "choose a new folder"
      : locked            ? "another process trains in it: choose a new folder"
               : "has a run without a checkpoint to resume from: delete it or choose a new folder";
  for (const char* name :
       {"config.toml", "checkpoints", "log.jsonl", "samples.jsonl", "perf.jsonl"})
    if (fs::exists(run / name)) fail(run.string(), "{}", state);
}

}  // namespace

void expect_new_or_resumed(const fs::path& run, bool resume) {
  if (!resume) expect_new(run, is_running(run));
}

std::string way_out(const fs::path& run) {
  if (has_checkpoint(run) || is_running(run)) return "";
  return fmt::format(
      "; this run has no checkpoint yet: delete {} or choose another --run to start with other "
      "settings",
      run.string());
}

Fd lock_run(const fs::path& run) {
  const fs::path file = run / ".lock";
  Fd fd = open_file(file, O_RDWR | O_CREAT | O_NOFOLLOW, "write to the run folder");
  // A reader that asks is_running() holds the lock for a moment.
  for (int attempt = 0; !try_flock(fd, FileLock::exclusive, file); ++attempt) {
    if (attempt == 20)
      fail(run.string(), "expected a run folder no other process trains in, got a locked one");
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
  }
  return fd;
}

bool is_running(const fs::path& run) {
  const fs::path file = run / ".lock";
  const Fd fd = open_plainly(file);
  try {
    return fd && !try_flock(fd, FileLock::shared, file);
  } catch (const Error&) { return false; }  // without locks nobody can tell
}

namespace {

// A run folder may come from an untrusted source: nothing outside it may be written or removed.
void expect_no_links(const fs::path& run) {
  for (const char* name : {"checkpoints", "tensorboard"})
    if (fs::is_symlink(run / name))
      fail((run / name).string(),
           "expected a folder, got a symbolic link; to keep a run elsewhere, link the whole run "
           "folder");
}

}  // namespace

Fd open_run_folder(const fs::path& run, bool resume, const std::string& config_toml) {
  make_dirs(run);
  Fd lock = lock_run(run);
  expect_no_links(run);
  if (!resume) expect_new(run, false);
  if (resume) clean_stale(run), clean_stale(run / "checkpoints");
  if (const fs::path toml = run / "config.toml"; !fs::exists(toml))
    write_file_atomic(toml, config_toml + start_mark +
                                nlohmann::json(fs::current_path().string())
                                    .dump(-1, ' ', true, nlohmann::json::error_handler_t::replace) +
                                "\n");
  return lock;
}

fs::path started_in(const fs::path& run) {
  const fs::path file = run / "config.toml";
  if (!fs::exists(file)) return {};
  const std::string text = read_file(file);
  const size_t at = text.rfind(start_mark);
  if (at == std::string::npos) return {};
  const size_t from = at + std::string_view(start_mark).size();
  const auto folder =
      nlohmann::json::parse(text.substr(from, text.find('\n', from) - from), nullptr, false);
  return folder.is_string() ? fs::path(folder.get<std::string>()) : fs::path();
}

std::optional<fs::path> resumed_checkpoint(const fs::path& run, bool resume,
                                           const std::function<void(const std::string&)>& warn) {
  if (!resume) return {};
  return checkpoint_to_resume(run / "checkpoints", warn);
}

void point_link(const fs::path& run, const std::string& link, int64_t step) {
  const fs::path target = fs::path("checkpoints") / step_name(step);
  if (target_of(run, link) != target) set_link(run, link, target);
}

void remove_link(const fs::path& run, const std::string& link) {
  if (unlink((run / link).c_str()) == 0)
    fsync_dir(run);
  else if (errno != ENOENT)
    fail_errno(run / link, "delete the link");
}

int64_t linked_step(const fs::path& run, const std::string& link) {
  return parse_step_name(target_of(run, link).filename().string()).value_or(-1);
}

}  // namespace hearth::inline formats
