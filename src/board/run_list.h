// Finds the runs under a folder and tells of each what it is, how far it is and what state it is
// in. The folders may be written meanwhile, damaged, or hold anything; nothing in them is changed.
#pragma once

#include <filesystem>
#include <map>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline board {

struct FoundRun {
  std::string id;  // path below the root, or the root's own name if it is a run itself
  std::filesystem::path path;
};
struct FoundRuns {
  std::vector<FoundRun> runs;  // by id
  bool truncated = false;      // there are more folders or runs than the limits allow
  int64_t unnamed = 0;         // runs whose names are not valid UTF-8
};

struct RunLimits {
  size_t runs = 10000, folders = 100000;
  int depth = 6;
};
// A folder with a config.toml or a log.jsonl is a run; runs are not searched for further runs.
// Links to folders are not followed, and folders whose names begin with a dot are skipped.
FoundRuns find_runs(const std::filesystem::path& root, const RunLimits& = {});

// The folder of a run; nothing if there is none with this id, or if the id leads out of the root.
std::optional<std::filesystem::path> run_path(const std::filesystem::path& root,
                                              std::string_view id);

// Settings by name, in the order of config.toml, with values as JSON.
struct RunConfigText {
  std::string text;
  nlohmann::ordered_json settings = nlohmann::ordered_json::object();
  std::string trouble;  // why the file cannot be read; empty: it can
};
RunConfigText read_run_config(const std::filesystem::path& run);

// The answer of /api/runs for one run (docs/board.md).
struct RunSummary {
  std::string id, name;
  std::string task = "unknown";   // or pretrain, sft, dpo, grpo
  std::string state = "stopped";  // or running, finished, damaged
  int64_t step = 0;
  std::optional<int64_t> steps = {}, params = {};
  std::optional<double> loss = {}, val_loss = {}, reward = {}, tokens_per_s = {}, mfu = {};
  std::string model = {}, trouble = {};  // empty: null
  int64_t updated = 0, started = 0;      // seconds since 1970; 0: unknown

  nlohmann::ordered_json json() const;
};

// Summaries are read again only if the files of a run have changed. Thread-safe.
class RunSummaries {
 public:
  RunSummary of(const FoundRun&);

 private:
  using Stamp = std::vector<int64_t>;  // sizes, times and inodes of the files that are read
  struct Known {
    Stamp stamp;
    RunSummary summary;
  };
  std::mutex mutex_;
  std::map<std::filesystem::path, Known> known_;
};

nlohmann::ordered_json checkpoints_of(const std::filesystem::path& run);
// The last lines of a JSONL file that are valid JSON, oldest first. Reads at most the last `bytes`.
std::vector<std::string> last_lines(const std::filesystem::path&, size_t count, uint64_t bytes);

std::string rfc3339(int64_t seconds);

}  // namespace hearth::inline board
