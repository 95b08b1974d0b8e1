#include "train/run_folder.h"

#include <fcntl.h>
#include <sys/file.h>

#include "core/error.h"
#include "io/checkpoint_dir.h"

namespace hearth {
namespace fs = std::filesystem;

void expect_new_or_resumed(const fs::path& run, bool resume) {
  if (fs::exists(run / "config.toml") && !resume)
    fail(run.string(),
         "expected a new run folder, got one with a run in it; add --resume "
         "to go on with it");
}

Fd lock_run(const fs::path& run) {
  const fs::path file = run / ".lock";
  Fd fd = open_file(file, O_RDWR | O_CREAT, "a writable run folder");
  if (flock(fd.get(), LOCK_EX | LOCK_NB) != 0)
    fail(run.string(), "expected a run folder no other process trains in, got a locked one");
  return fd;
}

Fd open_run_folder(const fs::path& run, const std::string& config_toml) {
  make_dirs(run);
  Fd lock = lock_run(run);
  if (const fs::path toml = run / "config.toml"; !fs::exists(toml))
    write_file_atomic(toml, config_toml);
  return lock;
}

std::optional<fs::path> resumed_checkpoint(const fs::path& run, bool resume,
                                           const std::function<void(const std::string&)>& warn) {
  const fs::path parent = run / "checkpoints";
  if (!resume || !fs::exists(parent)) return {};
  clean_stale(parent);
  return checkpoint_to_resume(parent, warn);
}

std::string toml_lines(const nlohmann::ordered_json& settings) {
  std::string text;
  for (const auto& [key, value] : settings.items()) text += key + " = " + value.dump() + "\n";
  return text;
}

}  // namespace hearth
