#include "emulator.h"

#include <setjmp.h>
#include <sys/mman.h>
#include <ucontext.h>

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace hearth::emulated {
namespace {

constexpr size_t stack_bytes = 128 << 10;

// Starts on a stack of its own by setcontext(); from then on the jumps, which unlike swapcontext()
// make no system call, lead to it and away from it.
struct Fiber {
  ucontext_t start;
  jmp_buf resume;
  bool started = false;
  int block, thread;
  const char* waits = "";  // for what, while it cannot run
  uint32_t exchanges = 0;  // made so far
  bool done = false;
};

// The lanes' values of two exchanges, which alternate: a lane that enters the one after the next
// has seen all lanes enter the next, so all have left this one.
struct Warp {
  std::array<LaneBytes, 32> values[2];
  const char* what[2] = {};
  int arrived[2] = {};
};
struct CountingBarrier {
  int arrivals = 0, pending = 0;
  int64_t bytes = 0;
  uint32_t phase = 0;
};
struct PendingCopy {
  void* to;
  const void* from;
  uint32_t bytes;
  uint64_t* barrier;
};

class Grid {
 public:
  Grid(const GridSpec& spec, const std::function<void(unsigned char*)>& body)
      : spec(spec), body(body), random(spec.seed) {
    const size_t count = size_t(spec.blocks * spec.threads);
    stacks_ = static_cast<char*>(mmap(nullptr, count * stack_bytes, PROT_READ | PROT_WRITE,
                                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0));
    if (stacks_ == MAP_FAILED) throw std::runtime_error("emulator: no memory for stacks");
    for (int b = 0; b < spec.blocks; ++b) {
      shared.emplace_back(size_t(spec.shared_bytes) + 128, 0xff);  // all bits: NaN
      warps.emplace_back(size_t(spec.threads / 32));
      for (int t = 0; t < spec.threads; ++t) add(b, t);
    }
  }
  ~Grid() { munmap(stacks_, fibers.size() * stack_bytes); }

  void run();
  void block_on(const void* key, const char* what) {
    current->waits = what;
    waiting[key].push_back(current);
    leave();
  }
  // From a fiber to the scheduler and, when it is chosen again, back.
  void leave() {
    if (!_setjmp(current->resume)) _longjmp(scheduler, 1);
  }
  void wake(const void* key) {
    const auto it = waiting.find(key);
    if (it == waiting.end()) return;
    runnable.insert(runnable.end(), it->second.begin(), it->second.end());
    waiting.erase(it);
  }
  void complete(uint64_t* bar, CountingBarrier& b) {
    if (b.pending || b.bytes) return;
    ++b.phase, b.pending = b.arrivals;
    wake(bar);
  }
  void land(const PendingCopy& c) {
    std::memcpy(c.to, c.from, c.bytes);
    CountingBarrier& b = barriers.at(c.barrier);
    b.bytes -= c.bytes;
    complete(c.barrier, b);
  }
  unsigned char* shared_of(int block) {
    auto* p = shared[size_t(block)].data();
    return p + (128 - reinterpret_cast<uintptr_t>(p) % 128) % 128;
  }
  [[noreturn]] static void fail(const std::string& why) {
    throw std::runtime_error("emulator: " + why);
  }

  const GridSpec& spec;
  const std::function<void(unsigned char*)>& body;
  std::mt19937_64 random;
  std::vector<std::unique_ptr<Fiber>> fibers;
  std::vector<std::vector<unsigned char>> shared;
  std::vector<std::vector<Warp>> warps;
  std::vector<Fiber*> runnable;
  std::unordered_map<const void*, std::vector<Fiber*>> waiting;
  std::map<std::pair<int, int>, int> arrived;  // at a named barrier of a block
  std::unordered_map<const uint64_t*, CountingBarrier> barriers;
  std::vector<PendingCopy> copies;
  Fiber* current = nullptr;
  jmp_buf scheduler;
  std::exception_ptr error;

 private:
  void add(int block, int thread);
  void land_some();
  size_t choose();
  void resume();
  std::string deadlock() const;
  char* stacks_;
  int slow_block_ = 0;
};

Grid* grid = nullptr;  // the one that runs: tests run one at a time

void enter() {
  Fiber& own = *grid->current;
  try {
    grid->body(grid->shared_of(own.block));
  } catch (...) {
    if (!grid->error) grid->error = std::current_exception();
  }
  own.done = true;
  grid->leave();
}

void Grid::add(int block, int thread) {
  auto f = std::make_unique<Fiber>();
  f->block = block, f->thread = thread;
  getcontext(&f->start);
  f->start.uc_stack = {
      .ss_sp = stacks_ + fibers.size() * stack_bytes, .ss_flags = 0, .ss_size = stack_bytes};
  f->start.uc_link = nullptr;
  makecontext(&f->start, enter, 0);
  runnable.push_back(f.get());
  fibers.push_back(std::move(f));
}

void Grid::land_some() {
  const bool now = runnable.empty() || random() % 64 == 0;
  if (!now || copies.empty()) return;
  const size_t i = random() % copies.size();
  const PendingCopy c = copies[i];
  copies[i] = copies.back();
  copies.pop_back();
  land(c);
}

// A thread at random, but often the one that became ready last, so that some run far ahead. One
// block, now this and now that one, falls behind the others.
size_t Grid::choose() {
  if (random() % 4096 == 0) slow_block_ = int(random() % size_t(spec.blocks));
  for (int tries = 0;; ++tries) {
    const size_t i = random() % 4 && !tries ? runnable.size() - 1 : random() % runnable.size();
    if (runnable[i]->block != slow_block_ || tries == 8) return i;
  }
}

std::string Grid::deadlock() const {
  std::map<std::string, int> waits;
  for (const auto& f : fibers)
    if (!f->done) ++waits[std::string(f->waits) + " in block " + std::to_string(f->block)];
  std::string all = "no thread can go on:";
  for (const auto& [what, count] : waits)
    all += " " + std::to_string(count) + " wait for " + what + ";";
  return all;
}

void Grid::resume() {
  if (_setjmp(scheduler)) return;
  if (std::exchange(current->started, true)) _longjmp(current->resume, 1);
  setcontext(&current->start);
}

void Grid::run() {
  size_t left = fibers.size();
  while (left && !error) {
    land_some();
    if (runnable.empty()) {
      if (copies.empty()) fail(deadlock());
      continue;
    }
    const size_t i = choose();
    current = runnable[i];
    runnable[i] = runnable.back();
    runnable.pop_back();
    resume();
    left -= current->done;
  }
  if (error) std::rethrow_exception(error);
  if (!copies.empty()) fail("a copy that nobody waited for");
}

}  // namespace

void run_grid(const GridSpec& spec, const std::function<void(unsigned char*)>& body) {
  Grid own(spec, body);
  grid = &own;
  try {
    own.run();
  } catch (...) {
    grid = nullptr;
    throw;
  }
  grid = nullptr;
}

int thread_index() { return grid->current->thread; }
int block_index() { return grid->current->block; }
int block_count() { return grid->spec.blocks; }

void sync_threads(int barrier, int threads) {
  const std::pair<int, int> at{block_index(), barrier};
  int& count = grid->arrived[at];
  if (++count < threads) return grid->block_on(&count, "a barrier of threads");
  count = 0;
  grid->wake(&count);
}

void wait_for(const void* at) { grid->block_on(at, "a packet"); }
void wake(const void* at) { grid->wake(at); }

void check_write(const uint64_t* at, uint64_t packet) {
  if (*at >> 32 == packet >> 32) Grid::fail("a packet that is written twice");
}

void barrier_init(uint64_t* bar, int arrivals) { grid->barriers[bar] = {arrivals, arrivals}; }

void barrier_arrive(uint64_t* bar, int64_t expected_bytes) {
  CountingBarrier& b = grid->barriers.at(bar);
  if (b.pending == 0) Grid::fail("an arrival too many");
  b.bytes += expected_bytes, --b.pending;
  grid->complete(bar, b);
}

void barrier_wait(uint64_t* bar, uint32_t parity) {
  while (grid->barriers.at(bar).phase % 2 == parity) grid->block_on(bar, "a barrier in memory");
}

void copy_later(void* to, const void* from, uint32_t bytes, uint64_t* barrier) {
  const auto bits = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  if (bits(to) % 16 || bits(from) % 16 || bytes % 16) Grid::fail("a bulk copy off 16 bytes");
  const PendingCopy c{to, from, bytes, barrier};
  if (grid->random() % 2)
    grid->land(c);  // as early as it could
  else
    grid->copies.push_back(c);
}

const std::array<LaneBytes, 32>& exchange_bytes(const char* what, const LaneBytes& own) {
  Fiber& f = *grid->current;
  Warp& w = grid->warps[size_t(f.block)][size_t(f.thread / 32)];
  const uint32_t turn = f.exchanges++ % 2;
  if (w.arrived[turn] == 0)
    w.what[turn] = what;
  else if (w.what[turn] != what)
    Grid::fail(std::string(what) + " where other lanes of the warp are in " + w.what[turn]);
  w.values[turn][size_t(f.thread % 32)] = own;
  if (++w.arrived[turn] < 32) {
    grid->block_on(&w.arrived[turn], what);
  } else {
    w.arrived[turn] = 0;
    grid->wake(&w.arrived[turn]);
  }
  return w.values[turn];
}

}  // namespace hearth::emulated
