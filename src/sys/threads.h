// A thread pool that lives as long as its owner. Work is split by problem size alone, never by the
// number of threads, so results are bit-identical at any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hearth::inline sys {

class Threads {
 public:
  // count 0: one thread per usable core. The calling thread is one of them.
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const;

  // Runs body(piece, worker) for piece in [0, pieces); worker is in [0, count()), and a worker runs
  // one piece at a time. Returns when all are done; rethrows the first exception. Calls must not
  // overlap.
  void run(int64_t pieces, const std::function<void(int64_t piece, int worker)>& body);

  // Like run(), but as long as the threads keep in step, the pieces of one thread follow each
  // other: for pieces that lie one after another in memory, so that a thread reads on where it
  // prefetched.
  void run_adjacent(int64_t pieces, const std::function<void(int64_t piece, int worker)>& body);

  // Splits [0, n) into pieces of `grain` (the last may be shorter) and calls body(begin, end).
  void ranges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace hearth::inline sys
