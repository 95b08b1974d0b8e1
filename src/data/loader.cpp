#include "data/loader.h"

#include <algorithm>
#include <cmath>
#include <condition_variable>
#include <cstdlib>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>
#include <utility>

#include "data/permutation.h"
#include "data/shards.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/parallel.h"

namespace hearth::inline data {
namespace {

constexpr int most_workers = 256, most_prefetch = 4096;

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
  ~State() {  // also for a loader that could not start all its workers
    {
      std::lock_guard lock(mutex);
      stop = true;
    }
    space.notify_all();
    workers.clear();  // joins the workers
  }

  // The files of one source.
  struct Stream {
    std::vector<TokenFile> files;
    std::vector<int64_t> first_window;  // shuffled: first window of each file, then the total
    int64_t total = 0;                  // tokens
    uint64_t seed = 0;                  // seed of its permutations
    double share = 1;                   // share in a mix
    int64_t windows() const { return first_window.back(); }
  };

  // One row of a mixed batch.
  struct MixedRow {
    size_t source;
    SourceCursor at;
  };

  LoaderSpec spec;
  std::vector<Stream> streams;  // one, or one per source of the mix

  std::mutex mutex;
  std::condition_variable space, ready;
  bool stop = false;
  int64_t planned = 0, taken = 0;  // batches assigned to workers; batches delivered
  Cursor plan;                     // position of batch `planned`
  struct Slot {
    Batch batch;
    bool full = false;
    std::exception_ptr error;
  };
  std::vector<Slot> ring;  // batch n is in slot n % prefetch
  int64_t stalls = 0;
  std::vector<std::jthread> workers;

  bool mixed() const { return !spec.mix.empty(); }
  bool sequential() const { return spec.order == LoaderSpec::Order::sequential; }
  int64_t step_tokens() const { return spec.batch * spec.seq * spec.world; }
  int64_t total() const;
  // "one batch of 8 rows", or of several devices "one step of 2 ranks x 8 rows".
  std::string rows_at_once() const {
    const std::string rows = counted(spec.batch, "row");
    return spec.world == 1 ? "one batch of " + rows
                           : fmt::format("one step of {} ranks x {}", spec.world, rows);
  }

  void check_spec() const;
  void open_files();
  Stream open_stream(const std::vector<std::filesystem::path>& paths) const;
  void check_cursor(const Cursor&) const;
  bool inside(const Stream&, int64_t epoch, int64_t shard, int64_t position) const;
  Cursor advance(Cursor& at) const;
  std::vector<MixedRow> advance_mix(Cursor& at) const;
  size_t furthest_behind(const Cursor& at) const;
  void fill(Batch&, const Cursor& at, const std::vector<MixedRow>& rows) const;
  void fill_sequential(Batch&, const Cursor& at) const;
  void fill_shuffled(Batch&, const Cursor& at) const;
  void fill_mixed(Batch&, const std::vector<MixedRow>& rows) const;
  void read_row(Batch&, int64_t row, const TokenFile&, int64_t begin) const;
  void read_window(Batch&, int64_t row, const Stream&, int64_t window) const;
  void work();
};

void Loader::State::check_spec() const {
  if (spec.files.empty() == spec.mix.empty())
    fail("loader", "expected at least one token file, got {}",
         spec.files.empty() ? "none" : "files both outside and inside a mix");
  for (const LoaderSource& s : spec.mix)
    if (s.files.empty() || !(s.weight > 0) || !std::isfinite(s.weight))
      fail("loader", "expected a positive weight and files for each source, got {} and {} of {}",
           s.weight, s.files.size(), s.name);
  if (spec.batch < 1 || spec.seq < 1)
    fail("loader", "expected a batch of at least 1 x 1, got {} x {}", spec.batch, spec.seq);
  if (spec.workers < 1 || spec.workers > most_workers)
    fail_usage("--workers", "expected 1 to {} loader threads, got {}", most_workers, spec.workers);
  if (spec.prefetch < 1 || spec.prefetch > most_prefetch)
    fail_usage("--prefetch", "expected 1 to {} batches, got {}", most_prefetch, spec.prefetch);
  if (spec.world < 1 || spec.rank < 0 || spec.rank >= spec.world)
    fail("loader", "expected 0 <= rank < world, got rank {} of {}", spec.rank, spec.world);
  if (spec.document_mask && spec.document_start < 0)
    fail("loader", "a document mask needs the id that starts a document, got {}",
         spec.document_start);
}

int64_t Loader::State::total() const {
  int64_t sum = 0;
  for (const Stream& s : streams) sum += s.total;
  return sum;
}

void Loader::State::open_files() {
  if (mixed()) {
    double weights = 0;
    for (const LoaderSource& source : spec.mix) weights += source.weight;
    for (size_t i = 0; i < spec.mix.size(); ++i) {
      streams.push_back(open_stream(spec.mix[i].files));
      streams.back().share = spec.mix[i].weight / weights;
      streams.back().seed = mix64(spec.seed + i);
    }
  } else {
    streams.push_back(open_stream(spec.files));
    streams[0].seed = spec.seed;
    if (!sequential() && streams[0].windows() < spec.batch * spec.world)
      fail("loader",
           "expected at least {} windows of {} tokens for {}, got {} in {} tokens: use a smaller "
           "batch or sequence",
           spec.batch * spec.world, spec.seq, rows_at_once(), streams[0].windows(), total());
  }
  if (spec.vocab > 0)
    for (const Stream& s : streams)
      in_parallel(s.files.size(), [&](size_t i) { s.files[i].check_tokens(spec.vocab); });
}

Loader::State::Stream Loader::State::open_stream(
    const std::vector<std::filesystem::path>& paths) const {
  Stream s;
  const bool by_step = sequential() && !mixed();
  const int64_t need = (by_step ? step_tokens() : spec.seq) + 1;
  s.first_window.push_back(0);
  for (const auto& path : paths) {
    const TokenFile& f = s.files.emplace_back(path);
    if (f.size() < need && by_step)
      fail(
          f.path().string(),
          "expected at least {} tokens for {} x {} tokens plus one, got {}: use a smaller batch or "
          "sequence, or leave the file out",
          need, rows_at_once(), spec.seq, f.size());
    if (f.size() < need)
      fail(
          f.path().string(),
          "expected at least {} tokens for one window of {} tokens plus one, got {}: use a shorter "
          "sequence, or leave the file out",
          need, spec.seq, f.size());
    s.total += f.size();
    s.first_window.push_back(s.windows() + (f.size() - 1) / spec.seq);
  }
  return s;
}

bool Loader::State::inside(const Stream& s, int64_t epoch, int64_t shard, int64_t position) const {
  if (epoch < 0 || shard < 0 || position < 0) return false;
  if (!sequential()) return shard == 0 && position < s.windows();
  return shard < int64_t(s.files.size()) && position <= s.files[size_t(shard)].size();
}

void Loader::State::check_cursor(const Cursor& c) const {
  bool fits = c.tokens >= 0 && c.sources.size() == (mixed() ? streams.size() : 0);
  if (!mixed()) fits = fits && inside(streams[0], c.epoch, c.shard, c.position);
  for (size_t i = 0; fits && i < c.sources.size(); ++i) {
    const SourceCursor& at = c.sources[i];
    fits = at.tokens >= 0 && inside(streams[i], at.epoch, at.shard, at.position);
  }
  if (!fits)
    fail("loader",
         "expected a data position within these files ({} sources, {} tokens), got epoch {}, shard "
         "{}, position {} and {} mixed sources: the data or its order has changed since the run "
         "started",
         streams.size(), total(), c.epoch, c.shard, c.position, c.sources.size());
}

// Advances `at` past the next step and returns where that step starts. Moving to the next shard
// happens only here, so a cursor has the same meaning for any world size.
Cursor Loader::State::advance(Cursor& at) const {
  const std::vector<TokenFile>& files = streams[0].files;
  const int64_t windows = streams[0].windows();
  if (sequential()) {
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
  at.epoch += at.position / windows;
  at.position %= windows;
  at.tokens += step_tokens();
  return begin;
}

size_t Loader::State::furthest_behind(const Cursor& at) const {
  size_t best = 0;
  double most = 0;
  for (size_t i = 0; i < streams.size(); ++i) {
    const double behind =
        streams[i].share * double(at.tokens + spec.seq) - double(at.sources[i].tokens);
    if (i == 0 || behind > most) best = i, most = behind;
  }
  return best;
}

// The same for a mix: rows are distributed one by one over all ranks; this rank keeps its own.
std::vector<Loader::State::MixedRow> Loader::State::advance_mix(Cursor& at) const {
  std::vector<MixedRow> rows;
  const int64_t mine = spec.rank * spec.batch;
  for (int64_t row = 0; row < spec.world * spec.batch; ++row) {
    const size_t i = furthest_behind(at);
    const Stream& s = streams[i];
    SourceCursor& c = at.sources[i];
    if (sequential() && c.position + spec.seq + 1 > s.files[size_t(c.shard)].size()) {
      c.position = 0;
      c.shard = (c.shard + 1) % int64_t(s.files.size());
      c.epoch += c.shard == 0;
    }
    if (row >= mine && row < mine + spec.batch) rows.push_back({i, c});
    c.position += sequential() ? spec.seq : 1;
    if (!sequential() && c.position == s.windows()) c.position = 0, ++c.epoch;
    c.tokens += spec.seq;
    at.tokens += spec.seq;
  }
  return rows;
}

void Loader::State::fill(Batch& b, const Cursor& at, const std::vector<MixedRow>& rows) const {
  const int64_t T = spec.seq, n = spec.batch * T;
  b.tokens.resize(size_t(n));
  b.targets.resize(size_t(n));
  b.positions.resize(size_t(n));
  b.documents.resize(spec.document_mask ? size_t(n) : 0);
  if (mixed()) {
    fill_mixed(b, rows);
  } else if (sequential()) {
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
  const TokenFile& file = streams[0].files[size_t(at.shard)];
  const int64_t begin = at.position + spec.rank * n;
  file.read(b.tokens.data(), begin, n);
  file.read(b.targets.data(), begin + 1, n);
}

void Loader::State::fill_shuffled(Batch& b, const Cursor& at) const {
  const Stream& s = streams[0];
  int64_t epoch = at.epoch, position = at.position + spec.rank * spec.batch;
  epoch += position / s.windows();
  position %= s.windows();
  Permutation order(uint64_t(s.windows()), s.seed, uint64_t(epoch));
  for (int64_t row = 0; row < spec.batch; ++row, ++position) {
    if (position == s.windows()) {
      position = 0;
      order = Permutation(uint64_t(s.windows()), s.seed, uint64_t(++epoch));
    }
    read_window(b, row, s, int64_t(order(uint64_t(position))));
  }
}

void Loader::State::fill_mixed(Batch& b, const std::vector<MixedRow>& rows) const {
  for (size_t row = 0; row < rows.size(); ++row) {
    const Stream& s = streams[rows[row].source];
    const SourceCursor& at = rows[row].at;
    if (sequential()) {
      read_row(b, int64_t(row), s.files[size_t(at.shard)], at.position);
    } else {
      const Permutation order(uint64_t(s.windows()), s.seed, uint64_t(at.epoch));
      read_window(b, int64_t(row), s, int64_t(order(uint64_t(at.position))));
    }
  }
}

void Loader::State::read_row(Batch& b, int64_t row, const TokenFile& file, int64_t begin) const {
  file.read(b.tokens.data() + row * spec.seq, begin, spec.seq);
  file.read(b.targets.data() + row * spec.seq, begin + 1, spec.seq);
}

void Loader::State::read_window(Batch& b, int64_t row, const Stream& s, int64_t window) const {
  const auto next = std::upper_bound(s.first_window.begin(), s.first_window.end(), window);
  const size_t f = size_t(next - s.first_window.begin() - 1);
  read_row(b, row, s.files[f], (window - s.first_window[f]) * spec.seq);
}

void Loader::State::work() {
  std::unique_lock lock(mutex);
  for (;;) {
    space.wait(lock, [&] { return stop || planned < taken + spec.prefetch; });
    if (stop) return;
    Slot& slot = ring[size_t(planned++ % spec.prefetch)];
    const std::vector<MixedRow> rows = mixed() ? advance_mix(plan) : std::vector<MixedRow>();
    const Cursor at = mixed() ? Cursor() : advance(plan), after = plan;
    lock.unlock();
    std::exception_ptr error;
    try {
      fill(slot.batch, at, rows);
      slot.batch.next = after;
    } catch (...) { error = std::current_exception(); }
    lock.lock();
    slot.error = error;
    slot.full = true;
    ready.notify_one();
  }
}

Cursor Cursor::next_epoch() const {
  Cursor c{epoch + 1, 0, 0, tokens, sources};
  if (!sources.empty()) c.epoch = 0;
  for (SourceCursor& s : c.sources) s = {s.epoch + 1, 0, 0, s.tokens};
  return c;
}

Loader::Loader(LoaderSpec spec, Cursor start) : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.spec = std::move(spec);
  s.check_spec();
  s.open_files();
  if (start.sources.empty() && start.tokens == 0) start.sources.resize(s.spec.mix.size());
  s.check_cursor(start);
  s.plan = std::move(start);
  s.ring.resize(size_t(s.spec.prefetch));
  try {
    for (int w = 0; w < s.spec.workers; ++w) s.workers.emplace_back([&s] { s.work(); });
  } catch (const std::system_error& e) {
    fail("loader", "expected {} workers, got {}: {}", s.spec.workers, s.workers.size(),
         e.code().message());
  }
}

Loader::~Loader() = default;

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
  lock.unlock();
  s.space.notify_one();
}

int64_t Loader::stalls() const {
  std::lock_guard lock(state_->mutex);
  return state_->stalls;
}

}  // namespace hearth::inline data
