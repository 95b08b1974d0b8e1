// Threads: a pool that lives as long as its owner. Work is cut into pieces by the problem's size
// alone, never by the number of threads, so results are the same bits at any thread count.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

namespace hearth {

class Threads {
 public:
  // count 0 takes one thread per core this process may use. The calling thread is one of them.
  explicit Threads(int count = 0);
  ~Threads();
  Threads(const Threads&) = delete;
  Threads& operator=(const Threads&) = delete;

  int count() const;

  // Runs body(piece, worker) for piece in [0, pieces); worker is in [0, count()) and no two pieces
  // run on one worker at a time. Returns when all are done; rethrows the first exception. One call
  // at a time.
  void run(int64_t pieces, const std::function<void(int64_t piece, int worker)>& body);

  // Cuts [0, n) into pieces of `grain` (the last may be shorter): body(begin, end).
  void ranges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body);

 private:
  struct Pool;
  std::unique_ptr<Pool> pool_;
};

}  // namespace hearth
