#include "sys/threads.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <vector>

#include "sys/cores.h"
#include "sys/error.h"

namespace hearth::inline sys {
namespace {

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  asm volatile("yield");
#endif
}

// A step is hundreds of short kernels, so workers spin this long for the next one before they
// sleep: longer than a decoding step leaves them idle while a token is drawn and reported.
constexpr std::chrono::microseconds spin_time{500};

// Spins until done() or for spin_time; returns done().
template <class Done>
bool spin(Done&& done) {
  const auto end = std::chrono::steady_clock::now() + spin_time;
  do {
    for (int i = 0; i < 64; ++i) {
      if (done()) return true;
      relax();
    }
  } while (std::chrono::steady_clock::now() < end);
  return done();
}

}  // namespace

struct Threads::Pool {
  ~Pool() {  // also for a pool that could not start all its workers
    {
      std::lock_guard lock(mutex);
      stop = true;
      ticket.store(UINT64_MAX, std::memory_order_release);
    }
    wake.notify_all();
    workers.clear();  // joins the workers while the members they wait on exist
  }

  std::vector<std::jthread> workers;
  std::mutex mutex;
  std::condition_variable wake;
  std::atomic<uint64_t> ticket{0};  // one per run(); UINT64_MAX stops the workers
  bool stop = false;

  // The job of the current ticket.
  const std::function<void(int64_t, int)>* body = nullptr;
  int64_t pieces = 0;
  std::atomic<int64_t> next{0};
  std::atomic<int> busy{0};
  std::exception_ptr error;

  void work(int worker) {
    for (int64_t i; (i = next.fetch_add(1, std::memory_order_relaxed)) < pieces;) {
      try {
        (*body)(i, worker);
      } catch (...) {
        std::lock_guard lock(mutex);
        if (!error) error = std::current_exception();
        next.store(pieces, std::memory_order_relaxed);
      }
    }
  }

  void loop(int worker) {
    uint64_t seen = 0;
    for (;;) {
      if (!spin([&] { return ticket.load(std::memory_order_acquire) != seen; })) {
        std::unique_lock lock(mutex);
        wake.wait(lock, [&] { return stop || ticket.load(std::memory_order_acquire) != seen; });
        if (stop) return;
      }
      seen = ticket.load(std::memory_order_acquire);
      if (seen == UINT64_MAX) return;
      work(worker);
      busy.fetch_sub(1, std::memory_order_release);
    }
  }
};

Threads::Threads(int count) : pool_(std::make_unique<Pool>()) {
  const int n = count > 0 ? count : usable_threads();
  try {
    for (int w = 1; w < n; ++w) pool_->workers.emplace_back([p = pool_.get(), w] { p->loop(w); });
  } catch (const std::system_error& e) {
    fail("threads", "expected {} threads, got {}: {}; pass a smaller --threads", n, this->count(),
         e.code().message());
  }
}

Threads::~Threads() = default;

int Threads::count() const { return int(pool_->workers.size()) + 1; }

void Threads::run(int64_t pieces, const std::function<void(int64_t, int)>& body) {
  Pool& p = *pool_;
  if (pieces <= 0) return;
  if (pieces == 1 || p.workers.empty()) {
    for (int64_t i = 0; i < pieces; ++i) body(i, 0);
    return;
  }
  p.body = &body;
  p.pieces = pieces;
  p.error = nullptr;
  p.next.store(0, std::memory_order_relaxed);
  p.busy.store(int(p.workers.size()), std::memory_order_relaxed);
  {
    std::lock_guard lock(p.mutex);  // a worker about to sleep must not miss this
    p.ticket.fetch_add(1, std::memory_order_release);
  }
  p.wake.notify_all();
  p.work(0);
  const auto done = [&] { return p.busy.load(std::memory_order_acquire) == 0; };
  if (!spin(done))
    while (!done()) std::this_thread::yield();
  if (p.error) std::rethrow_exception(p.error);
}

void Threads::run_adjacent(int64_t pieces, const std::function<void(int64_t, int)>& body) {
  const int64_t threads = count(), turns = (pieces + threads - 1) / threads;
  if (pieces <= 1 || threads == 1) return run(pieces, body);
  run(threads * turns, [&](int64_t i, int worker) {
    const int64_t piece = i % threads * turns + i / threads;
    if (piece < pieces) body(piece, worker);
  });
}

void Threads::ranges(int64_t n, int64_t grain, const std::function<void(int64_t, int64_t)>& body) {
  run((n + grain - 1) / grain,
      [&](int64_t i, int) { body(i * grain, std::min(n, (i + 1) * grain)); });
}

}  // namespace hearth::inline sys
