// The protocol by which a folder of files appears whole or not at all, whatever the files are: a
// temporary folder, a manifest of sizes and SHA-256, syncs, one rename.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "io/hash.h"

namespace hearth {

class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path parent, std::string name);
  ~CheckpointWriter();  // without commit() removes what was written
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::filesystem::path& dir() const { return tmp_; }
  std::filesystem::path path(std::string_view file) const;  // where to write it; makes subfolders
  void add(FileDigest);  // a digest already known; other files are hashed by commit()

  // Replaces parent/name if there is one. Returns its path.
  std::filesystem::path commit();

 private:
  std::filesystem::path parent_, tmp_;
  std::string name_;
  std::map<std::string, FileDigest> known_;
  bool committed_ = false;
};

// manifest.json: {"version": 1, "files": {"state/optimizer.bin": {"size": n, "sha256": "..."}}}.
std::vector<FileDigest> parse_manifest(std::string_view text, std::string_view where);

// What of a checkpoint its reader uses: who only runs the model has no use for its state/.
enum class CheckpointFiles { all, model };

// Why the folder is not a whole checkpoint (file missing, truncated, hash mismatch, bad manifest),
// or nothing. Files the manifest does not name are ignored; one that this process has found good is
// not read again while it is the same file. Several files are hashed at a time.
std::optional<std::string> verify_checkpoint(const std::filesystem::path& dir,
                                             CheckpointFiles = CheckpointFiles::all);

std::string step_name(int64_t step);                       // "step-00001000"
std::optional<int64_t> parse_step_name(std::string_view);  // nothing if not such a name

struct FoundCheckpoint {
  struct Skipped {
    std::filesystem::path dir;
    std::string reason;
  };
  std::optional<std::filesystem::path> dir;
  std::vector<Skipped> skipped;  // newer ones that do not verify; the caller says so
};
FoundCheckpoint find_newest_valid(const std::filesystem::path& parent,
                                  CheckpointFiles = CheckpointFiles::all);

// Where a resumed run goes on: the newest valid checkpoint in `parent`, nothing when it has none
// yet. `warn` is told of every damaged one that is passed over; that all are damaged is an error.
std::optional<std::filesystem::path> checkpoint_to_resume(
    const std::filesystem::path& parent, const std::function<void(const std::string&)>& warn);

// Where a run's model lies: the newest checkpoint in run/checkpoints whose model is whole. Those
// passed over are named on stderr; none is an error.
std::filesystem::path newest_checkpoint_of(const std::filesystem::path& run);

// Removes what writers and rotations that were killed left. Only for a process that is alone in
// `parent`.
void clean_stale(const std::filesystem::path& parent);

// Of the checkpoints up to step `newest`, deletes all but the highest `keep_last` and the folders
// named in `keep`. Higher ones are damaged and were passed over: they neither count nor go. A
// folder loses its name before its files, so a kill leaves nothing that looks like a checkpoint.
void rotate_checkpoints(const std::filesystem::path& parent, int keep_last,
                        const std::set<std::string>& keep, int64_t newest = INT64_MAX);

// Deletes, in the same way, the checkpoints of all higher steps.
void remove_checkpoints_after(const std::filesystem::path& parent, int64_t step);

// Points run_dir/link at `target` (relative to run_dir) in one step.
void set_link(const std::filesystem::path& run_dir, const std::string& link,
              const std::filesystem::path& target);

}  // namespace hearth
