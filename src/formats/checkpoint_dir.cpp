#include "formats/checkpoint_dir.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <ctime>
#include <mutex>
#include <set>
#include <system_error>
#include <utility>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/parallel.h"
#include "sys/terminal.h"

namespace hearth::inline formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view manifest_name = "manifest.json";
constexpr const char* kept_mark = "kept";  // file of keep_for_others()
constexpr std::string_view step_prefix = "step-";
constexpr std::string_view tmp_prefix = ".tmp-", del_prefix = ".del-";
constexpr int64_t manifest_version = 1;

// Whether a relative path stays inside its folder.
bool stays_inside(const std::string& file) {
  const fs::path path(file);
  return !file.empty() && path.is_relative() && file.find('\0') == file.npos &&
         std::none_of(path.begin(), path.end(), [](const fs::path& part) {
           return part == ".." || part == "." || part.empty();
         });
}

bool is_sha256(const json& v) {
  return v.is_string() && v.get_ref<const std::string&>().size() == 64 &&
         v.get_ref<const std::string&>().find_first_not_of("0123456789abcdef") == std::string::npos;
}

std::string manifest_text(const Manifest& m) {
  json list = json::object();
  for (const FileDigest& d : m.files) list[d.file] = {{"size", d.size}, {"sha256", d.sha256}};
  json manifest{{"version", manifest_version}, {"files", list}};
  if (!m.dropped.empty()) manifest["dropped"] = m.dropped;
  return manifest.dump(1) + "\n";
}

Manifest read_manifest(const fs::path& checkpoint) {
  const fs::path path = checkpoint / manifest_name;
  return parse_manifest(read_file(path), path.string());
}

bool is_folder(const fs::path& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored);
}

void remove_tree(const fs::path& path) {
  std::error_code error;
  fs::remove_all(path, error);
  if (error) fail_errno(path, "delete it", error.value());
}

// The folder's entries; empty if it does not exist.
std::vector<fs::path> entries_of(const fs::path& dir) {
  std::error_code error;
  std::vector<fs::path> paths;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    paths.push_back(it->path());
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    fail_errno(dir, "list the folder", error.value());
  }
  return paths;
}

// Sorted with the highest step first.
std::vector<std::pair<int64_t, fs::path>> steps_in(const fs::path& parent) {
  std::vector<std::pair<int64_t, fs::path>> steps;
  for (const fs::path& path : entries_of(parent)) {
    const auto step = parse_step_name(path.filename().string());
    if (step && is_folder(path)) steps.emplace_back(*step, path);
  }
  std::sort(steps.rbegin(), steps.rend());
  return steps;
}

// Files (relative paths) and folders (absolute, deepest last) below `root`.
struct Tree {
  std::vector<std::string> files;
  std::vector<fs::path> folders;
};
Tree walk(const fs::path& root) {
  Tree tree{{}, {root}};
  for (size_t i = 0; i < tree.folders.size(); ++i) {
    for (const fs::path& path : entries_of(fs::path(tree.folders[i]))) {
      if (is_folder(path)) {
        tree.folders.push_back(path);
      } else {
        tree.files.push_back(path.lexically_relative(root).generic_string());
      }
    }
  }
  return tree;
}

// Renames `from` to `to`. An existing folder `to` ends up under the name `from`, atomically if the
// file system can exchange names (NFS cannot: a kill between the two renames loses the old folder).
void take_name(const fs::path& from, const fs::path& to) {
  if (renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_NOREPLACE) == 0) return;
  if (errno == EEXIST &&
      renameat2(AT_FDCWD, from.c_str(), AT_FDCWD, to.c_str(), RENAME_EXCHANGE) == 0) {
    return;
  }
  if (errno != EINVAL && errno != ENOSYS) fail_errno(to, "move the finished folder into place");
  const fs::path old =
      to.parent_path() / fmt::format("{}{}-{}", del_prefix, to.filename().string(), getpid());
  if (rename(to.c_str(), old.c_str()) != 0 && errno != ENOENT) {
    fail_errno(to, "move the old folder away");
  }
  if (rename(from.c_str(), to.c_str()) != 0) fail_errno(to, "move the finished folder into place");
  remove_tree(old);
}

void remove_checkpoint(const fs::path& dir) {
  const fs::path doomed = dir.parent_path() / (std::string(del_prefix) + dir.filename().string());
  remove_tree(doomed);  // left by a killed rotation
  if (rename(dir.c_str(), doomed.c_str()) != 0)
    fail_errno(dir, "rename the folder before its deletion");
  remove_tree(doomed);
}

// Files whose digest was verified, identified by their state at that time: a resumed run asks about
// the same gigabytes several times.
class KnownFiles {
 public:
  // Identifies the file's current state; empty if it changed so recently that another change might
  // not be visible.
  static std::string name_of(const fs::path& path, const std::string& sha256) {
    constexpr int64_t settled_s = 2;
    struct stat s = {};
    if (stat(path.c_str(), &s) != 0) return {};
    const std::time_t now = std::time(nullptr);
    if (now - s.st_ctim.tv_sec < settled_s || now - s.st_mtim.tv_sec < settled_s) return {};
    return fmt::format("{} {} {} {}.{} {}.{} {}", s.st_dev, s.st_ino, s.st_size, s.st_mtim.tv_sec,
                       s.st_mtim.tv_nsec, s.st_ctim.tv_sec, s.st_ctim.tv_nsec, sha256);
  }
  bool has(const std::string& name) {
    const std::lock_guard lock(mutex_);
    return !name.empty() && good_.contains(name);
  }
  void add(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (!name.empty()) good_.insert(name);
  }

 private:
  std::mutex mutex_;
  std::set<std::string> good_;
};

KnownFiles& known_files() {
  static KnownFiles files;
  return files;
}

std::optional<std::string> problem_with(const FileDigest& wanted, const fs::path& dir) {
  const fs::path path = dir / wanted.file;
  std::error_code error;
  if (!fs::is_regular_file(path, error)) return fmt::format("{} is missing", wanted.file);
  const uint64_t size = fs::file_size(path, error);
  if (error) return fmt::format("{}: {}", wanted.file, error.message());
  if (size != wanted.size) {
    return fmt::format("{} has {} bytes instead of {}", wanted.file, size, wanted.size);
  }
  const std::string name = KnownFiles::name_of(path, wanted.sha256);
  if (known_files().has(name)) return std::nullopt;
  if (digest_file(dir, wanted.file).sha256 != wanted.sha256) {
    return fmt::format("{} differs from its SHA-256", wanted.file);
  }
  known_files().add(name);
  return std::nullopt;
}

}  // namespace

CheckpointWriter::CheckpointWriter(fs::path parent, std::string name)
    : parent_(std::move(parent)), name_(std::move(name)) {
  tmp_ = parent_ / fmt::format("{}{}-{}", tmp_prefix, name_, getpid());
  remove_tree(tmp_);  // left by a killed process with the same id
  make_new_dir(tmp_);
}

CheckpointWriter::~CheckpointWriter() {
  std::error_code ignored;
  if (!committed_) fs::remove_all(tmp_, ignored);
}

fs::path CheckpointWriter::path(std::string_view file) const {
  const fs::path path = tmp_ / file;
  if (!stays_inside(std::string(file)) || file == manifest_name) {
    fail(tmp_.string(), "expected a relative path for a file, got {}", in_quotes(file));
  }
  make_dirs(path.parent_path());
  return path;
}

void CheckpointWriter::add(FileDigest digest) { known_[digest.file] = std::move(digest); }

fs::path CheckpointWriter::commit() {
  const Tree tree = walk(tmp_);
  std::map<std::string, FileDigest> files;
  for (const std::string& file : tree.files) {
    fsync_file(tmp_ / file);
    const auto known = known_.find(file);
    files[file] = known == known_.end() ? digest_file(tmp_, file) : known->second;
    std::error_code error;
    const uint64_t size = fs::file_size(tmp_ / file, error);
    if (error || size != files[file].size) {
      fail((tmp_ / file).string(), "expected {} bytes, got {}", files[file].size, size);
    }
  }
  for (const auto& [file, digest] : known_) {
    if (!files.contains(file))
      fail((tmp_ / file).string(), "a file of the checkpoint was announced but not written");
  }
  Manifest manifest;
  for (auto& [file, digest] : files) manifest.files.push_back(std::move(digest));
  write_file_atomic(tmp_ / manifest_name, manifest_text(manifest));
  if (std::error_code none; fs::exists(parent_ / name_ / kept_mark, none))
    write_file_atomic(tmp_ / kept_mark, std::string_view());
  for (size_t i = tree.folders.size(); i-- > 0;) fsync_dir(tree.folders[i]);

  const fs::path final = parent_ / name_;
  take_name(tmp_, final);
  committed_ = true;
  fsync_dir(parent_);
  remove_tree(tmp_);  // holds the replaced folder, if any
  return final;
}

Manifest parse_manifest(std::string_view text, std::string_view where) {
  const json manifest = parse_json(text, where, {.max_bytes = 64 << 20, .max_depth = 8});
  if (!manifest.is_object() || !manifest.contains("version") || !manifest.contains("files") ||
      !manifest["files"].is_object()) {
    fail(where, "expected a manifest with version and files");
  }
  if (manifest["version"] != manifest_version) {
    fail(where, "expected manifest version {}, got {}", manifest_version,
         in_quotes(manifest["version"].dump(-1, ' ', true)));
  }
  Manifest m;
  for (const auto& [file, v] : manifest["files"].get_ref<const json::object_t&>()) {
    if (!stays_inside(file)) fail(where, "expected a relative path, got {}", in_quotes(file));
    if (!v.is_object() || !v.contains("size") || !v["size"].is_number_unsigned() ||
        !v.contains("sha256") || !is_sha256(v["sha256"])) {
      fail(where, "expected size and sha256 for {}", in_quotes(file));
    }
    m.files.push_back({file, v["size"].get<uint64_t>(), v["sha256"].get<std::string>()});
  }
  if (!manifest.contains("dropped")) return m;
  const json& dropped = manifest["dropped"];
  if (!dropped.is_array()) fail(where, "expected a list of dropped files");
  for (const json& file : dropped) {
    if (!file.is_string() || !stays_inside(file.get<std::string>()))
      fail(where, "expected a relative path, got {}", in_quotes(file.dump(-1, ' ', true)));
    m.dropped.push_back(file.get<std::string>());
  }
  return m;
}

std::optional<std::string> verify_checkpoint(const fs::path& dir, CheckpointFiles files) {
  try {
    std::vector<FileDigest> all = read_manifest(dir).files;
    if (files == CheckpointFiles::model)
      std::erase_if(all, [](const FileDigest& f) { return f.file.starts_with("state/"); });
    std::vector<std::optional<std::string>> problems(all.size());
    in_parallel(all.size(), [&](size_t i) { problems[i] = problem_with(all[i], dir); });
    for (auto& problem : problems)
      if (problem) return std::move(problem);
  } catch (const Error& e) { return e.what(); }
  return std::nullopt;
}

std::string step_name(int64_t step) { return fmt::format("{}{:08}", step_prefix, step); }

std::optional<int64_t> parse_step_name(std::string_view name) {
  if (!name.starts_with(step_prefix)) return std::nullopt;
  const std::string_view digits = name.substr(step_prefix.size());
  if (digits.size() < 8 || digits.size() > 18) return std::nullopt;
  int64_t step = 0;
  for (const char c : digits) {
    if (c < '0' || c > '9') return std::nullopt;
    step = step * 10 + (c - '0');
  }
  return step;
}

FoundCheckpoint find_newest_valid(const fs::path& parent, CheckpointFiles files) {
  FoundCheckpoint found;
  for (auto& [step, dir] : steps_in(parent)) {
    const bool thinned = files == CheckpointFiles::all && has_dropped_files(dir);
    auto problem = thinned ? std::optional<std::string>("some of its files were dropped")
                           : verify_checkpoint(dir, files);
    if (!problem) {
      found.dir = dir;
      break;
    }
    found.skipped.push_back({dir, std::move(*problem), thinned});
  }
  return found;
}

std::optional<fs::path> checkpoint_to_resume(const fs::path& parent,
                                             const std::function<void(const std::string&)>& warn) {
  if (!fs::exists(parent)) return {};
  FoundCheckpoint found = find_newest_valid(parent);
  size_t damaged = 0;
  for (const auto& [dir, reason, thinned] : found.skipped) {
    damaged += !thinned;
    if (warn)
      warn(
          fmt::format("checkpoint {} {}; using the previous one", dir.filename().string(),
                      thinned ? "keeps only its weights" : fmt::format("is damaged ({})", reason)));
  }
  if (found.dir || found.skipped.empty()) return std::move(found.dir);
  if (damaged == found.skipped.size())
    fail(parent.string(), "expected a valid checkpoint to resume from, got {} damaged ones",
         damaged);
  fail(parent.string(),
       "expected a valid checkpoint to resume from, got {} damaged ones and {} that keep only "
       "their weights",
       damaged, found.skipped.size() - damaged);
}

fs::path newest_checkpoint_of(const fs::path& run) {
  const FoundCheckpoint found = find_newest_valid(run / "checkpoints", CheckpointFiles::model);
  for (const auto& s : found.skipped) say("hearth: skipped {}: {}\n", s.dir.string(), s.reason);
  if (!found.dir)
    fail(run.string(), "expected a complete checkpoint in checkpoints, got {}",
         found.skipped.empty() ? "none" : "only damaged ones");
  return *found.dir;
}

fs::path model_path(const fs::path& path) {
  return fs::is_directory(path / "checkpoints") ? newest_checkpoint_of(path) : path;
}

void clean_stale(const fs::path& parent) {
  for (const fs::path& path : entries_of(parent)) {
    const std::string name = path.filename().string();
    if (name.starts_with(tmp_prefix) || name.starts_with(del_prefix)) remove_tree(path);
  }
}

bool keep_for_others(const fs::path& path) {
  std::error_code failed;
  const fs::path checkpoint = fs::canonical(path, failed);  // of a link such as `latest`
  const bool of_run = checkpoint.parent_path().filename() == "checkpoints" &&
                      parse_step_name(checkpoint.filename().string());
  if (!of_run || fs::exists(checkpoint / kept_mark, failed)) return true;
  const int fd =
      open((checkpoint / kept_mark).c_str(), O_CREAT | O_WRONLY | O_NOFOLLOW | O_CLOEXEC, 0666);
  if (fd < 0) return false;
  close(fd);
  return true;
}

std::vector<fs::path> rotate_checkpoints(const fs::path& parent, int keep_last,
                                         const std::set<std::string>& keep, int64_t newest) {
  std::vector<fs::path> spared;
  for (const auto& [step, dir] : steps_in(parent)) {
    if (step > newest || keep_last-- > 0) continue;
    if (keep.contains(dir.filename().string()) || fs::exists(dir / kept_mark))
      spared.push_back(dir);
    else
      remove_checkpoint(dir);
  }
  return spared;
}

void remove_checkpoints_after(const fs::path& parent, int64_t step) {
  for (const auto& [number, dir] : steps_in(parent))
    if (number > step) remove_checkpoint(dir);
}

void drop_files(const fs::path& checkpoint, std::string_view prefix) {
  if (fs::is_symlink(checkpoint)) return;
  Manifest m;
  try {
    m = read_manifest(checkpoint);
  } catch (const Error&) { return; }  // damaged: keep the files for a repair
  const size_t dropped_before = m.dropped.size();
  for (const FileDigest& f : m.files)
    if (f.file.starts_with(prefix)) m.dropped.push_back(f.file);
  std::erase_if(m.files, [&](const FileDigest& f) { return f.file.starts_with(prefix); });
  if (m.dropped.size() > dropped_before) {
    clean_stale(checkpoint);  // removes a manifest that a killed call did not finish
    write_file_atomic(checkpoint / manifest_name, manifest_text(m));
  }
  std::set<fs::path> changed;
  for (const std::string& file : m.dropped) {
    const fs::path path = checkpoint / file;
    if (fs::is_symlink(path.parent_path()) || !fs::exists(fs::symlink_status(path))) continue;
    if (unlink(path.c_str()) != 0) fail_errno(path, "delete the file");
    changed.insert(path.parent_path());
  }
  for (const fs::path& folder : changed) fsync_dir(folder);
}

bool has_dropped_files(const fs::path& checkpoint) {
  try {
    return !read_manifest(checkpoint).dropped.empty();
  } catch (const Error&) { return false; }  // verify_checkpoint() reports the problem
}

void set_link(const fs::path& run_dir, const std::string& link, const fs::path& target) {
  const fs::path tmp = run_dir / fmt::format("{}{}-{}", tmp_prefix, link, getpid());
  if (unlink(tmp.c_str()) != 0 && errno != ENOENT) fail_errno(tmp, "delete the old link");
  if (symlink(target.c_str(), tmp.c_str()) != 0) fail_errno(tmp, "create the link");
  if (rename(tmp.c_str(), (run_dir / link).c_str()) != 0) {
    const int error = errno;
    unlink(tmp.c_str());
    fail_errno(run_dir / link, "move the new link into place", error);
  }
  fsync_dir(run_dir);
}

}  // namespace hearth::inline formats
