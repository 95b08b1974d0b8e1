#include "board/run_list.h"

#include <dirent.h>
#include <sys/stat.h>

#include <algorithm>
#include <cmath>
#include <ctime>
#include <deque>
#include <memory>

#include "board/line_tail.h"
#include "formats/checkpoint_dir.h"
#include "sys/utf8.h"

namespace hearth::inline board {
namespace fs = std::filesystem;
using nlohmann::ordered_json;

namespace {

bool is_plain_file(const fs::path& path) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 && S_ISREG(s.st_mode);
}

bool is_plain_folder(const fs::path& path) {
  struct stat s {};
  return lstat(path.c_str(), &s) == 0 && S_ISDIR(s.st_mode);
}

bool is_run(const fs::path& dir) {
  return is_plain_file(dir / "config.toml") || is_plain_file(dir / "log.jsonl");
}

std::string own_name(const fs::path& root) {
  std::error_code none;
  const fs::path whole = fs::weakly_canonical(fs::absolute(root, none), none);
  return whole.has_filename() ? whole.filename().string() : "runs";
}

struct Folder {
  std::string id;
  fs::path path;
  int depth;
};

// The folders in a folder, by name. `left` is the number of folders that may still be listed.
std::vector<std::string> folders_in(const fs::path& dir, size_t& left) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> open(opendir(dir.c_str()), closedir);
  while (open && left > 0) {
    const dirent* entry = readdir(open.get());
    if (!entry) break;
    const std::string name = entry->d_name;
    if (name.starts_with('.')) continue;
    const bool known = entry->d_type != DT_UNKNOWN;
    if (known ? entry->d_type == DT_DIR : is_plain_folder(dir / name))
      names.push_back(name), --left;
  }
  std::ranges::sort(names);
  return names;
}

}  // namespace

FoundRuns find_runs(const fs::path& root, const RunLimits& limits) {
  FoundRuns found;
  if (is_run(root)) {
    found.runs.push_back({own_name(root), root});
    return found;
  }
  size_t left = limits.folders;
  std::deque<Folder> todo{{"", root, 0}};
  while (!todo.empty()) {
    const Folder at = std::move(todo.front());
    todo.pop_front();
    for (const std::string& name : folders_in(at.path, left)) {
      Folder next{at.id.empty() ? name : at.id + "/" + name, at.path / name, at.depth + 1};
      if (is_run(next.path)) {
        if (!is_utf8(next.id))
          ++found.unnamed;
        else if (found.runs.size() < limits.runs)
          found.runs.push_back({std::move(next.id), std::move(next.path)});
        else
          found.truncated = true;
      } else if (next.depth < limits.depth) {
        todo.push_back(std::move(next));
      }
    }
    if (left == 0) {
      found.truncated = true;
      break;
    }
  }
  std::ranges::sort(found.runs, {}, &FoundRun::id);
  return found;
}

std::optional<fs::path> run_path(const fs::path& root, std::string_view id) {
  if (id.empty() || id.ends_with('/') || id.find('\0') != id.npos || !is_utf8(id)) return {};
  if (is_run(root)) return id == own_name(root) ? std::optional(root) : std::nullopt;
  fs::path at = root;
  int depth = 0;
  while (!id.empty()) {
    const size_t end = std::min(id.find('/'), id.size());
    const std::string_view part = id.substr(0, end);
    if (part.empty() || part.starts_with('.') || ++depth > RunLimits().depth) return {};
    at /= part;
    if (!is_plain_folder(at)) return {};
    id.remove_prefix(std::min(end + 1, id.size()));
  }
  return is_run(at) ? std::optional(at) : std::nullopt;
}

// --- parts of a run folder ---

namespace {

int64_t folder_bytes(const fs::path& dir, int depth, int64_t& files) {
  int64_t sum = 0;
  std::error_code none;
  for (const auto& entry : fs::directory_iterator(dir, none)) {
    if (++files > 10000) break;
    struct stat s {};
    if (lstat(entry.path().c_str(), &s) != 0) continue;
    if (S_ISREG(s.st_mode)) sum += int64_t(s.st_size);
    if (S_ISDIR(s.st_mode) && depth > 0) sum += folder_bytes(entry.path(), depth - 1, files);
  }
  return sum;
}

int64_t step_of_link(const fs::path& link) {
  std::error_code none;
  return parse_step_name(fs::read_symlink(link, none).filename().string()).value_or(-1);
}

}  // namespace

ordered_json checkpoints_of(const fs::path& run) {
  constexpr size_t most = 10000;
  std::vector<std::pair<int64_t, fs::path>> found;
  std::error_code none;
  if (is_plain_folder(run / "checkpoints"))
    for (const auto& entry : fs::directory_iterator(run / "checkpoints", none)) {
      const auto step = parse_step_name(entry.path().filename().string());
      if (step && found.size() < most && is_plain_folder(entry.path()))
        found.emplace_back(*step, entry.path());
    }
  std::ranges::sort(found);
  const int64_t latest = step_of_link(run / "latest"), best = step_of_link(run / "best");
  ordered_json list = ordered_json::array();
  for (const auto& [step, path] : found) {
    int64_t files = 0;
    list.push_back({{"step", step},
                    {"bytes", folder_bytes(path, 2, files)},
                    {"latest", step == latest},
                    {"best", step == best}});
  }
  return list;
}

std::vector<std::string> last_lines(const fs::path& path, size_t count, uint64_t bytes) {
  std::deque<std::string> lines;
  std::error_code none;
  const uintmax_t size = fs::file_size(path, none);
  if (none) return {};
  LineTail tail(path, size > bytes ? size - bytes : 0);
  tail.read(
      [&](std::string_view line, uint64_t) {
        lines.emplace_back(line);
        if (lines.size() > count) lines.pop_front();
      },
      bytes);
  std::erase_if(lines, [](const std::string& s) { return !nlohmann::json::accept(s); });
  return {std::make_move_iterator(lines.begin()), std::make_move_iterator(lines.end())};
}

std::string rfc3339(int64_t seconds) {
  const std::time_t t = std::time_t(seconds);
  std::tm utc{};
  char text[32] = {};
  gmtime_r(&t, &utc);
  std::strftime(text, sizeof text, "%Y-%m-%dT%H:%M:%SZ", &utc);
  return text;
}

}  // namespace hearth::inline board
