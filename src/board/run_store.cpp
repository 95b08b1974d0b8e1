#include "board/run_store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

namespace hearth::inline board {
namespace {

constexpr uint64_t all_bytes = UINT64_MAX;
constexpr size_t max_stores = 64;
constexpr size_t max_store_bytes = size_t(1) << 30;  // of all stores together
constexpr uint64_t peeked_bytes = 256 << 10;         // at each end of perf.jsonl, for its keys

uint64_t size_of(const std::filesystem::path& path) {
  std::error_code none;
  const uintmax_t size = std::filesystem::file_size(path, none);
  return none ? 0 : uint64_t(size);
}

// The keys at both ends of a file that has not been read.
std::vector<std::string> peek_keys(const std::filesystem::path& path) {
  ColumnStore found;
  const auto add = [&](std::string_view line, uint64_t) { found.add_line(line); };
  LineTail(path).read(add, peeked_bytes);
  const uint64_t size = size_of(path);
  if (size > peeked_bytes) LineTail(path, size - peeked_bytes).read(add, peeked_bytes);
  return found.keys();
}

std::optional<BestValue> best_of(const ColumnStore& log) {
  for (const bool reward : {false, true}) {
    const std::string key = reward ? "eval_reward" : "val_loss";
    const Column* c = log.find(key);
    if (!c) continue;
    std::optional<BestValue> best;
    for (size_t i = 0; i < c->size(); ++i) {
      const Cell cell = (*c)[i];
      if (cell.count == 0) continue;
      const double value = reward ? cell.max : cell.min;
      if (!best || (reward ? value > best->value : value < best->value))
        best = BestValue{cell.step, value, key};
    }
    if (best) return best;
  }
  return {};
}

}  // namespace

void append_numbers(std::string& to, const std::vector<double>& numbers) {
  to += '[';
  for (size_t i = 0; i < numbers.size(); ++i) {
    if (i > 0) to += ',';
    if (std::isfinite(numbers[i]))
      fmt::format_to(std::back_inserter(to), "{}", numbers[i]);
    else
      to += "null";
  }
  to += ']';
}

RunStore::RunStore(std::filesystem::path run)
    : log_(run / "log.jsonl"), perf_(run / "perf.jsonl") {}

void RunStore::File::update() {
  const auto add = [&](std::string_view line, uint64_t) { columns->add_line(line); };
  // A file that is cut again and again is read at the next request.
  for (int attempt = 0; attempt < 3; ++attempt) {
    if (tail.read(add, all_bytes) != LineTail::Outcome::reset) return;
    columns = std::make_unique<ColumnStore>();
  }
}

// nullptr if the run has not logged the key.
const Column* RunStore::column(const std::string& key) {
  if (const Column* c = log_.columns->find(key)) return c;
  if (!std::exchange(wants_perf_, true)) perf_.update();
  return perf_.columns->find(key);
}

StepAxis RunStore::axis(XAxis x) {
  if (x == XAxis::step) return {};
  if (x == XAxis::tokens) {
    const Column* tokens = log_.columns->find("tokens");
    return tokens ? axis_of(*tokens) : StepAxis();
  }
  if (!std::exchange(wants_perf_, true)) perf_.update();
  return axis_of(perf_.columns->elapsed());
}

std::string RunStore::series_json(const SeriesQuery& q) {
  const std::lock_guard lock(mutex_);
  log_.update();
  if (wants_perf_) perf_.update();
  static constexpr const char* names[] = {"step", "tokens", "time"};
  const StepAxis at = axis(q.x);
  std::string json = fmt::format(R"({{"x":"{}","series":{{)", names[size_t(q.x)]);
  bool first = true;
  for (const std::string& key : q.keys) {
    const Column* c = column(key);
    const Series s = c ? series_of(*c, at, q.part) : Series();
    json += std::exchange(first, false) ? "" : ",";
    json += nlohmann::json(key).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
    json += R"(:{"x":)";
    append_numbers(json, s.x);
    if (s.decimated) {
      json += R"(,"min":)";
      append_numbers(json, s.min);
      json += R"(,"max":)";
      append_numbers(json, s.max);
    }
    json += R"(,"mean":)";
    append_numbers(json, s.mean);
    json += fmt::format(R"(,"decimated":{}}})", s.decimated);
  }
  // Where events go on. Lines are written whole, so the end of a file that was not read is the end
  // of a line.
  return json + fmt::format(R"(}},"offset":{{"log":{},"perf":{}}}}})", log_.tail.offset(),
                            wants_perf_ ? perf_.tail.offset() : size_of(perf_.path));
}

Series RunStore::series(const std::string& key, XAxis x, const SeriesSpec& spec) {
  const std::lock_guard lock(mutex_);
  log_.update();
  if (wants_perf_) perf_.update();
  const Column* c = column(key);
  return c ? series_of(*c, axis(x), spec) : Series();
}

LogFacts RunStore::facts() {
  const std::lock_guard lock(mutex_);
  log_.update();
  if (wants_perf_) perf_.update();
  const ColumnStore& log = *log_.columns;
  return {.log_keys = log.keys(),
          .perf_keys = wants_perf_ ? perf_.columns->keys() : peek_keys(perf_.path),
          .lines = log.lines(),
          .bad_lines = log.bad_lines() + log_.tail.skipped(),
          .last_step = log.last_step(),
          .best = best_of(log)};
}

size_t RunStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return log_.columns->bytes() + perf_.columns->bytes();
}

std::shared_ptr<RunStore> RunStores::open(const std::filesystem::path& run) {
  const std::lock_guard lock(mutex_);
  const auto at = std::ranges::find(stores_, run, &decltype(stores_)::value_type::first);
  if (at != stores_.end()) {
    stores_.splice(stores_.begin(), stores_, at);
  } else {
    stores_.emplace_front(run, std::make_shared<RunStore>(run));
  }
  // A store in use is busy reading, so it is neither measured nor dropped here.
  size_t total = 0, count = 0;
  std::erase_if(stores_, [&](const auto& s) {
    if (s.second.use_count() > 1) return false;
    total += s.second->bytes();
    return ++count > 1 && (count > max_stores || total > max_store_bytes);
  });
  return stores_.front().second;
}

}  // namespace hearth::inline board
