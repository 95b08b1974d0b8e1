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

#include "sys/hash/hash.h"

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
// A checkpoint that drop_files() has thinned out also lists "dropped": ["state/optimizer.bin"].
struct Manifest {
  std::vector<FileDigest> files;
  std::vector<std::string> dropped;  // files that the checkpoint once had
};
Manifest parse_manifest(std::string_view text, std::string_view where);

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
    bool thinned = false;  // by drop_files(): whole, but of no use to who needs all its files
  };
  std::optional<std::filesystem::path> dir;
  std::vector<Skipped> skipped;  // newer ones that do not serve; the caller says so
};
FoundCheckpoint find_newest_valid(const std::filesystem::path& parent,
                                  CheckpointFiles = CheckpointFiles::all);

// Where a resumed run goes on: the newest valid checkpoint in `parent` that has all its files,
// nothing when there are no checkpoints yet. `warn` is told of every one that is passed over; that
// none serves is an error.
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
// Returns the folders that are left only because `keep` names them.
std::vector<std::filesystem::path> rotate_checkpoints(const std::filesystem::path& parent,
                                                      int keep_last,
                                                      const std::set<std::string>& keep,
                                                      int64_t newest = INT64_MAX);

// Deletes the files of a checkpoint whose names begin with `prefix`. The manifest goes first: it
// forgets the files and lists them as dropped, so that the checkpoint is whole at every moment. A
// call that was killed is completed by the next one. A folder without a readable manifest, or one
// behind a symbolic link, is left alone.
void drop_files(const std::filesystem::path& checkpoint, std::string_view prefix);
// Whether drop_files() has taken files from a checkpoint.
bool has_dropped_files(const std::filesystem::path& checkpoint);

// Deletes, in the same way, the checkpoints of all higher steps.
void remove_checkpoints_after(const std::filesystem::path& parent, int64_t step);

// Points run_dir/link at `target` (relative to run_dir) in one step.
void set_link(const std::filesystem::path& run_dir, const std::string& link,
              const std::filesystem::path& target);

}  // namespace hearth
