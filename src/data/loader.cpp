#include "data/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <utility>

#include "core/error.h"
#include "data/permutation.h"
#include "data/shards.h"

namespace hearth {
namespace {

// Runs body(i) for i in [0, n) on a few threads; the files are checked before the workers exist.
template <class F>
void for_each_file(size_t n, int threads, F body) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(n);
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < n;) {
      try {
        body(i);
      } catch (...) { errors[i] = std::current_exception(); }
    }
  };
  {
    std::vector<std::jthread> pool;
    for (int t = 1; t < std::min<int>(threads, int(n)); ++t) pool.emplace_back(work);
    work();
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);  // the first file's, whoever found it first
}

// Document numbers and positions of one row.
void mark_documents(int32_t* positions, int32_t* documents, const int32_t* tokens, int64_t T,
                    int32_t start) {
  int32_t position = 0, document = 0;
  for (int64_t t = 0; t < T; ++t) {
    if (t > 0 && tokens[t] == start) {
      ++document;
      position = 0;
    }
    positions[t] = position++;
    documents[t] = document;
  }
}

}  // namespace

struct Loader::State {
  LoaderSpec spec;
  std::vector<TokenFile> files;
  std::vector<int64_t> first_window;  // shuffled: of each file, and the total at the end
  int64_t total = 0;

  std::mutex mutex;
  std::condition_variable space, ready;
  bool stop = false;
  int64_t planned = 0, taken = 0;  // batches handed to workers; delivered
  Cursor plan, delivered;          // of the batch `planned`; of the batch `taken`
  struct Slot {
    Batch batch;
    bool full = false;
    std::exception_ptr error;
  };
  std::vector<Slot> ring;  // batch n lies in slot n % prefetch
  int64_t stalls = 0;
  std::vector<std::jthread> workers;

  int64_t windows() const { return first_window.back(); }
  int64_t step_tokens() const { return spec.batch * spec.seq * spec.world; }

  void check_spec() const;
  void open_files();
  void check_cursor() const;
  Cursor advance(Cursor& at) const;
  void fill(Batch&, const Cursor& at) const;
  void fill_sequential(Batch&, const Cursor& at) const;
  void fill_shuffled(Batch&, const Cursor& at) const;
  void work();
};

void Loader::State::check_spec() const {
  if (spec.files.empty()) fail("loader", "expected at least one token file, got none");
  if (spec.batch < 1 || spec.seq < 1)
    fail("loader", "expected a batch of at least 1 x 1, got {} x {}", spec.batch, spec.seq);
  if (spec.workers < 1 || spec.prefetch < 1)
    fail("loader", "expected workers >= 1 and prefetch >= 1, got {} and {}", spec.workers,
         spec.prefetch);
  if (spec.world < 1 || spec.rank < 0 || spec.rank >= spec.world)
    fail("loader", "expected 0 <= rank < world, got rank {} of {}", spec.rank, spec.world);
  if (spec.document_mask && spec.document_start < 0)
    fail("loader", "expected the id that opens a document for a document mask, got {}",
         spec.document_start);
}

void Loader::State::open_files() {
  for (const auto& path : spec.files) files.emplace_back(path);
  const bool sequential = spec.order == LoaderSpec::Order::sequential;
  const int64_t need = (sequential ? step_tokens() : spec.seq) + 1;
  first_window.push_back(0);
  for (const TokenFile& f : files) {
    if (f.size() < need && sequential)
      fail(f.path().string(),
           "expected at least {} tokens for one step of {} ranks x {} rows x {} tokens and one "
           "more, got {}: take a smaller batch or sequence, or leave the file out",
           need, spec.world, spec.batch, spec.seq, f.size());
    if (f.size() < need)
      fail(f.path().string(),
           "expected at least {} tokens for one window of {} tokens and one more, got {}: take a "
           "shorter sequence, or leave the file out",
           need, spec.seq, f.size());
    total += f.size();
    first_window.push_back(windows() + (f.size() - 1) / spec.seq);
  }
  if (!sequential && windows() < spec.batch * spec.world)
    fail("loader",
         "expected at least {} windows of {} tokens for one step of {} ranks x {} rows, got {} in "
         "{} tokens: take a smaller batch or sequence",
         spec.batch * spec.world, spec.seq, spec.world, spec.batch, windows(), total);
  if (spec.vocab > 0)
    for_each_file(files.size(), spec.workers, [&](size_t i) { files[i].check_tokens(spec.vocab); });
}

void Loader::State::check_cursor() const {
  const Cursor& c = delivered;
  const bool sequential = spec.order == LoaderSpec::Order::sequential;
  const bool inside = sequential
                          ? c.shard >= 0 && c.shard < int64_t(files.size()) && c.position >= 0 &&
                                c.position <= files[size_t(c.shard)].size()
                          : c.shard == 0 && c.position >= 0 && c.position < windows();
  if (!inside || c.epoch < 0 || c.tokens < 0)
    fail("loader",
         "expected a cursor within these {} files ({} tokens), got epoch {}, shard {}, position "
         "{}: the data or the order changed",
         files.size(), total, c.epoch, c.shard, c.position);
}

// Moves `at` behind the next step and returns where that step begins. A shard is left only here, so
// that a cursor means the same for another world size.
Cursor Loader::State::advance(Cursor& at) const {
  if (spec.order == LoaderSpec::Order::sequential) {
    if (at.position + step_tokens() + 1 > files[size_t(at.shard)].size()) {
      at.position = 0;
      if (++at.shard == int64_t(files.size())) {
        at.shard = 0;
        ++at.epoch;
      }
    }
    const Cursor begin = at;
    at.position += step_tokens();
    at.tokens += step_tokens();
    return begin;
  }
  const Cursor begin = at;
  at.position += spec.batch * spec.world;
  at.epoch += at.position / windows();
  at.position %= windows();
  at.tokens += step_tokens();
  return begin;
}

void Loader::State::fill(Batch& b, const Cursor& at) const {
  const int64_t T = spec.seq, n = spec.batch * T;
  b.tokens.resize(size_t(n));
  b.targets.resize(size_t(n));
  b.positions.resize(size_t(n));
  b.documents.resize(spec.document_mask ? size_t(n) : 0);
  if (spec.order == LoaderSpec::Order::sequential) {
    fill_sequential(b, at);
  } else {
    fill_shuffled(b, at);
  }
  for (int64_t row = 0; row < n; row += T) {
    int32_t* positions = b.positions.data() + row;
    if (spec.document_mask)
      mark_documents(positions, b.documents.data() + row, b.tokens.data() + row, T,
                     spec.document_start);
    else
      for (int64_t t = 0; t < T; ++t) positions[t] = int32_t(t);
  }
  b.count = n;
}

void Loader::State::fill_sequential(Batch& b, const Cursor& at) const {
  const int64_t n = spec.batch * spec.seq;
  const TokenFile& file = files[size_t(at.shard)];
  const int64_t begin = at.position + spec.rank * n;
  file.read(b.tokens.data(), begin, n);
  file.read(b.targets.data(), begin + 1, n);
}

void Loader::State::fill_shuffled(Batch& b, const Cursor& at) const {
  const int64_t T = spec.seq;
  int64_t epoch = at.epoch, position = at.position + spec.rank * spec.batch;
  epoch += position / windows();
  position %= windows();
  Permutation order(uint64_t(windows()), spec.seed, uint64_t(epoch));
  for (int64_t row = 0; row < spec.batch; ++row, ++position) {
    if (position == windows()) {
      position = 0;
      order = Permutation(uint64_t(windows()), spec.seed, uint64_t(++epoch));
    }
    const int64_t w = int64_t(order(uint64_t(position)));
    const size_t f = size_t(std::upper_bound(first_window.begin(), first_window.end(), w) -
                            first_window.begin() - 1);
    const int64_t begin = (w - first_window[f]) * T;
    files[f].read(b.tokens.data() + row * T, begin, T);
    files[f].read(b.targets.data() + row * T, begin + 1, T);
  }
}

void Loader::State::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    space.wait(lock, [&] { return stop || planned < taken + spec.prefetch; });
    if (stop) return;
    Slot& slot = ring[size_t(planned++ % spec.prefetch)];
    const Cursor at = advance(plan), after = plan;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(slot.batch, at);
      slot.batch.next = after;
    } catch (...) { error = std::current_exception(); }
    lock.lock();
    slot.error = error;
    slot.full = true;
    ready.notify_one();
  }
}

Loader::Loader(LoaderSpec spec, Cursor start) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.spec = std::move(spec);
  s.check_spec();
  s.open_files();
  s.plan = s.delivered = start;
  s.check_cursor();
  s.ring.resize(size_t(s.spec.prefetch));
  for (int w = 0; w < s.spec.workers; ++w) s.workers.emplace_back([&s] { s.work(); });
}

Loader::~Loader() {
  {
    std::lock_guard lock(state_->mutex);
    state_->stop = true;
  }
  state_->space.notify_all();
  state_->workers.clear();  // joins
}

Batch Loader::next() {
  Batch b;
  next(b);
  return b;
}

void Loader::next(Batch& out) {
  State& s = *state_;
  std::unique_lock lock(s.mutex);
  State::Slot& slot = s.ring[size_t(s.taken % s.spec.prefetch)];
  if (!slot.full) {
    ++s.stalls;
    s.ready.wait(lock, [&] { return slot.full; });
  }
  if (slot.error) std::rethrow_exception(slot.error);
  std::swap(out, slot.batch);
  slot.full = false;
  ++s.taken;
  s.delivered = out.next;
  lock.unlock();
  s.space.notify_one();
}

Cursor Loader::cursor() const {
  std::lock_guard lock(state_->mutex);
  return state_->delivered;
}

int64_t Loader::total_tokens() const { return state_->total; }

int64_t Loader::stalls() const {
  std::lock_guard lock(state_->mutex);
  return state_->stalls;
}

LoaderRate bench_loader(const LoaderSpec& spec, double seconds) {
  using clock = std::chrono::steady_clock;
  Loader loader(spec);
  Batch b;
  for (int i = 0; i < spec.prefetch; ++i) loader.next(b);
  const int64_t stalls = loader.stalls();
  LoaderRate rate;
  const auto begin = clock::now();
  double elapsed = 0;
  do {
    loader.next(b);
    ++rate.batches;
    elapsed = std::chrono::duration<double>(clock::now() - begin).count();
  } while (elapsed < seconds);
  rate.tokens_per_s = double(rate.batches * spec.batch * spec.seq) / elapsed;
  rate.stalls = loader.stalls() - stalls;
  return rate;
}

}  // namespace hearth
