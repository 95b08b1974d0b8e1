// A pool of Stockfish processes over UCI. One thread and a fixed number of nodes each, hash cleared
// before every position: an answer depends on the position alone. A process that dies, hangs or
// says what is no answer is killed, counted and replaced; so is the failure to start another.
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
  double timeout_s = 30;       // for one position, and for starting
  int attempts = 3;            // at one position, each but the first on a new process
  int64_t max_failures = 100;  // positions that may be left without an answer before an error;
                               // -1: any number
};

struct StockfishCounts {
  int64_t answered = 0, failed = 0;                      // positions
  int64_t missing = 0, died = 0, hung = 0, rubbish = 0;  // times
  int64_t replaced = 0;                                  // processes started after the first
};

// `stockfish` in PATH or where Debian puts it.
std::optional<std::filesystem::path> find_stockfish();

class StockfishPool {
 public:
  explicit StockfishPool(StockfishSpec);  // an error where the program is no UCI engine
  ~StockfishPool();

  // One label a position, in order; empty where there is no legal move or no answer was had.
  std::vector<Label> label(std::span<const Board>);
  // By another thread: nobody waits for labels any more, so none are given and nothing is counted.
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
  std::vector<std::unique_ptr<Slot>> slots_;  // one a worker
};

// A pool of the program at a path; with "auto" of what find_stockfish finds; null where that is
// nothing, and with "none". The rest is as in the spec.
std::unique_ptr<StockfishPool> open_stockfish(const std::string& path_or_auto_or_none,
                                              StockfishSpec);

}  // namespace hearth::chess
