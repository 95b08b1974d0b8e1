// RunStore: the logged numbers of one run, read once and then only what is appended. RunStores
// keeps the stores of the runs that are looked at.
#pragma once

#include <filesystem>
#include <list>
#include <memory>
#include <mutex>
#include <nlohmann/json.hpp>
#include <optional>

#include "board/columns.h"
#include "board/line_tail.h"

namespace hearth::inline board {

enum class XAxis : uint8_t { step, tokens, time };

struct SeriesQuery {
  std::vector<std::string> keys;
  XAxis x = XAxis::step;
  SeriesSpec part = {};
};

struct BestValue {
  double step, value;
  std::string key;
};

// What is known of the whole log.
struct LogFacts {
  std::vector<std::string> log_keys, perf_keys;
  int64_t lines = 0, bad_lines = 0;  // of log.jsonl
  double last_step = 0;
  std::optional<BestValue> best;  // validation loss, or reward of an evaluation
};

// Thread-safe.
class RunStore {
 public:
  explicit RunStore(std::filesystem::path run);

  // Both first read what was appended to the files. perf.jsonl is read only if it is needed.
  std::string series_json(const SeriesQuery&);
  LogFacts facts();
  // The series of one key, for charts; empty if there is no such key.
  Series series(const std::string& key, XAxis, const SeriesSpec&);
  size_t bytes() const;

 private:
  struct File {
    explicit File(const std::filesystem::path& path) : path(path), tail(path) {}
    void update();
    std::filesystem::path path;
    LineTail tail;
    std::unique_ptr<ColumnStore> columns = std::make_unique<ColumnStore>();
  };
  const Column* column(const std::string& key);
  StepAxis axis(XAxis);

  mutable std::mutex mutex_;
  File log_, perf_;
  bool wants_perf_ = false;
};

// Thread-safe. Keeps the stores used last, within limits on their number and memory.
class RunStores {
 public:
  std::shared_ptr<RunStore> open(const std::filesystem::path& run);

 private:
  std::mutex mutex_;
  std::list<std::pair<std::filesystem::path, std::shared_ptr<RunStore>>> stores_;  // newest first
};

// A JSON list; values that are not finite are null.
void append_numbers(std::string& to, const std::vector<double>&);

}  // namespace hearth::inline board
