// A pool of Stockfish processes over UCI. Each uses one thread and a fixed number of nodes and
// clears its hash before every position, so an answer depends only on the position. A process that
// dies, hangs or gives an invalid answer is killed, counted and replaced; failures to start are
// counted too.
#pragma once

#include <atomic>
#include <filesystem>
#include <memory>
#include <span>

#include "sys/threads.h"
#include "tasks/chess/label.h"

namespace hearth::chess {

struct StockfishSpec {
  std::filesystem::path program = {};
  int processes = 1;  // 0: one per core
  int64_t nodes = 5000;
  int candidates = 5;
  double timeout_s = 30;       // per position, and for starting
  int attempts = 3;            // per position, each after the first on a new process
  int64_t max_failures = 100;  // positions without an answer before an error; -1: no limit
};

struct StockfishCounts {
  int64_t answered = 0, failed = 0;                      // positions
  int64_t missing = 0, died = 0, hung = 0, rubbish = 0;  // number of events
  int64_t replaced = 0;                                  // processes started after the first
};

// Finds `stockfish` in PATH or in Debian's location.
std::optional<std::filesystem::path> find_stockfish();

class StockfishPool {
 public:
  explicit StockfishPool(StockfishSpec);  // throws if the program is not a UCI engine
  ~StockfishPool();

  // One label per position, in order; empty if there is no legal move or no answer.
  std::vector<Label> label(std::span<const Board>);
  // Called by another thread: stops label() early, without labels and without counting failures.
  void abandon() { abandoned_ = true; }
  StockfishCounts counts() const;

 private:
  class Engine;
  struct Slot;
  Label label_one(Slot&, const Board&);

  StockfishSpec spec_;
  Threads threads_;
  std::atomic<int64_t> failed_ = 0;
  std::atomic<bool> abandoned_ = false;
  std::vector<std::unique_ptr<Slot>> slots_;  // one per worker
};

// Opens a pool with the program at a path; "auto" uses find_stockfish(). Null if that finds
// nothing, and for "none". Other settings come from the spec.
std::unique_ptr<StockfishPool> open_stockfish(const std::string& path_or_auto_or_none,
                                              StockfishSpec);

}  // namespace hearth::chess
