// Writes a folder of files atomically: a temporary folder, a manifest with sizes and SHA-256,
// syncs, then one rename.
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

namespace hearth::inline formats {

class CheckpointWriter {
 public:
  CheckpointWriter(std::filesystem::path parent, std::string name);
  ~CheckpointWriter();  // without commit() deletes the files written so far
  CheckpointWriter(const CheckpointWriter&) = delete;
  CheckpointWriter& operator=(const CheckpointWriter&) = delete;

  const std::filesystem::path& dir() const { return tmp_; }
  std::filesystem::path path(
      std::string_view file) const;  // where to write the file; creates subfolders
  void add(FileDigest);              // a known digest; commit() hashes other files

  // Replaces an existing parent/name, whose mark of keep_for_others() stays. Returns its path.
  std::filesystem::path commit();

 private:
  std::filesystem::path parent_, tmp_;
  std::string name_;
  std::map<std::string, FileDigest> known_;
  bool committed_ = false;
};

// manifest.json: {"version": 1, "files": {"state/optimizer.bin": {"size": n, "sha256": "..."}}}.
// After drop_files() it also lists "dropped": ["state/optimizer.bin"].
struct Manifest {
  std::vector<FileDigest> files;
  std::vector<std::string> dropped;  // files removed by drop_files()
};
Manifest parse_manifest(std::string_view text, std::string_view where);

// The part of a checkpoint that a reader needs: running the model does not need state/.
enum class CheckpointFiles { all, model };

// The reason why the folder is not a complete checkpoint (missing or truncated file, hash mismatch,
// bad manifest), or nothing. Files not in the manifest are ignored. A file that this process has
// verified is not read again while it is unchanged. Files are hashed in parallel.
std::optional<std::string> verify_checkpoint(const std::filesystem::path& dir,
                                             CheckpointFiles = CheckpointFiles::all);

std::string step_name(int64_t step);                       // "step-00001000"
std::optional<int64_t> parse_step_name(std::string_view);  // nothing if the name has another form

struct FoundCheckpoint {
  struct Skipped {
    std::filesystem::path dir;
    std::string reason;
    bool thinned = false;  // by drop_files(): valid, but without some files
  };
  std::optional<std::filesystem::path> dir;
  std::vector<Skipped> skipped;  // newer ones that cannot be used; the caller reports them
};
FoundCheckpoint find_newest_valid(const std::filesystem::path& parent,
                                  CheckpointFiles = CheckpointFiles::all);

// The checkpoint to resume from: the newest valid one in `parent` with all its files, or nothing if
// there are no checkpoints yet. `warn` is called for every skipped one; if all are skipped, throws.
std::optional<std::filesystem::path> checkpoint_to_resume(
    const std::filesystem::path& parent, const std::function<void(const std::string&)>& warn);

// The checkpoint of a run's model: the newest in run/checkpoints whose model files are complete.
// Prints skipped ones on stderr; throws if there is none.
std::filesystem::path newest_checkpoint_of(const std::filesystem::path& run);
// Where the files of a model are: for a run folder newest_checkpoint_of(), else the path itself.
std::filesystem::path model_path(const std::filesystem::path&);

// Removes leftovers of killed writers and rotations. No other process may be using `parent`.
void clean_stale(const std::filesystem::path& parent);

// Marks a checkpoint of a run, .../checkpoints/step-N, with a file named `kept`, so that no
// rotation deletes it: another run reads it again. Other folders need no mark. Returns whether the
// folder is safe, which it is not if the file cannot be written.
bool keep_for_others(const std::filesystem::path& checkpoint);

// Deletes the checkpoints up to step `newest`, except the highest `keep_last`, the folders named in
// `keep` and those with the mark of keep_for_others(). Higher steps are damaged and were skipped:
// they are neither counted nor deleted. A folder is renamed before its files are deleted, so a kill
// leaves nothing that looks like a checkpoint. Returns the folders that are kept for their name or
// their mark alone.
std::vector<std::filesystem::path> rotate_checkpoints(const std::filesystem::path& parent,
                                                      int keep_last,
                                                      const std::set<std::string>& keep,
                                                      int64_t newest = INT64_MAX);

// Deletes the files of a checkpoint whose names start with `prefix`. The manifest is updated first
// and lists them as dropped, so the checkpoint is valid at every moment. The next call completes a
// call that was killed. A folder without a readable manifest, or behind a symbolic link, is left
// alone.
void drop_files(const std::filesystem::path& checkpoint, std::string_view prefix);
// Whether drop_files() has removed files from a checkpoint.
bool has_dropped_files(const std::filesystem::path& checkpoint);

// Deletes the checkpoints of all higher steps in the same way.
void remove_checkpoints_after(const std::filesystem::path& parent, int64_t step);

// Atomically points run_dir/link at `target` (relative to run_dir).
void set_link(const std::filesystem::path& run_dir, const std::string& link,
              const std::filesystem::path& target);

}  // namespace hearth::inline formats
