// Divides a product into packed blocks and tasks. The operand on the longer side of c is packed by
// the task that uses it, the other one once for all; neither choice changes the order of any sum.
#include "cpu/gemm.h"

#include <algorithm>
#include <cstring>
#include <functional>
#include <new>

#include "core/math.h"
#include "cpu/isa/gemm_table.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth {

#define HEARTH_DECLARE(isa)          \
  namespace isa {                    \
  extern const GemmTable gemm_table; \
  }
HEARTH_FOR_EACH_ISA(HEARTH_DECLARE)
#undef HEARTH_DECLARE

}  // namespace hearth

namespace hearth::inline cpu {

const GemmTable& gemm_table(Isa isa) {
  switch (isa) {
#define HEARTH_CASE(isa) \
  case Isa::isa:         \
    return isa::gemm_table;
    HEARTH_FOR_EACH_ISA(HEARTH_CASE)
#undef HEARTH_CASE
  }
  fail("gemm", "expected an instruction set built in, got number {}", int(isa));
}

namespace {

constexpr std::align_val_t scratch_align{64};

}  // namespace

Scratch::~Scratch() { ::operator delete(data_, scratch_align); }

std::byte* Scratch::get(int64_t bytes) {
  if (bytes > bytes_) {
    ::operator delete(data_, scratch_align);
    data_ = nullptr;
    bytes_ = 0;
    data_ = static_cast<std::byte*>(::operator new(size_t(bytes), scratch_align));
    bytes_ = bytes;
  }
  return data_;
}

namespace {

// Bytes of the shared operand packed at a time: as much as L2 holds if the sums of c fit there too,
// so that several rounds cost little; else enough that a second round is seldom needed.
constexpr int64_t shared_limit_small_c = 1 << 20, shared_limit = 24 << 20, small_c = 1 << 20;
constexpr int64_t short_tile_limit = 1024;  // extent of the shorter side of c per task, at most
constexpr int64_t tasks_per_thread = 4;
constexpr int64_t symmetric_strips = 16;    // of a symmetric c: n compute (n + 1) / 2n of it
constexpr int64_t batch_memory = 64 << 20;  // of threads that compute whole products, at most

// to[i * ld + j] = from[j * ld + i] for a block of 4 by 4.
template <class T>
void transpose4(T* to, const T* from, int64_t ld) {
  using Four [[gnu::vector_size(4 * sizeof(T))]] = T;
  Four a[4];
  for (int j = 0; j < 4; ++j) std::memcpy(&a[j], from + j * ld, sizeof a[j]);
  const Four low01 = __builtin_shufflevector(a[0], a[1], 0, 4, 1, 5);
  const Four high01 = __builtin_shufflevector(a[0], a[1], 2, 6, 3, 7);
  const Four low23 = __builtin_shufflevector(a[2], a[3], 0, 4, 1, 5);
  const Four high23 = __builtin_shufflevector(a[2], a[3], 2, 6, 3, 7);
  const Four rows[4] = {__builtin_shufflevector(low01, low23, 0, 1, 4, 5),
                        __builtin_shufflevector(low01, low23, 2, 3, 6, 7),
                        __builtin_shufflevector(high01, high23, 0, 1, 4, 5),
                        __builtin_shufflevector(high01, high23, 2, 3, 6, 7)};
  for (int i = 0; i < 4; ++i) std::memcpy(to + i * ld, &rows[i], sizeof rows[i]);
}

// Copies what lies below the diagonal in rows [begin, end) and columns [col, col_end) to above it.
template <class T>
void mirror(T* c, int64_t ld, int64_t begin, int64_t end, int64_t col, int64_t col_end) {
  for (int64_t j = begin; j < end; j += 4)
    for (int64_t i = col; i < std::min(col_end, j + 4); i += 4) {
      if (j + 4 <= end && i + 4 <= std::min(col_end, j)) {
        transpose4(c + i * ld + j, c + j * ld + i, ld);
        continue;
      }
      for (int64_t y = j; y < std::min(j + 4, end); ++y)
        for (int64_t x = i; x < std::min({i + 4, col_end, y}); ++x) c[x * ld + y] = c[y * ld + x];
    }
}

// One side of c: its operand, its extent and how tasks divide it.
struct Side {
  GemmOperand operand;
  GemmPack pack = nullptr;
  int64_t extent = 0, panel = 0;
  int64_t tile = 0;  // a multiple of panel
  int64_t tiles() const { return ceil_div(extent, tile); }
  int64_t padded() const { return round_up(extent, panel); }
};

struct Job {
  GemmProblem g;
  const GemmTable& table;
  const GemmKernel& kernel;
  Side along, across;  // the longer and the shorter side of c
  bool along_n = false;
  int64_t super_k = 0;  // k packed per round, a multiple of k_block
  std::byte* shared = nullptr;
  std::byte* workers = nullptr;  // one private block per worker
  float* sums = nullptr;         // accumulators of all tasks, if k takes several rounds
  int64_t shared_bytes = 0, worker_bytes = 0, strip_bytes = 0;
  int worker_count = 1;

  int64_t tasks() const { return along.tiles() * across.tiles(); }
  // The padding avoids rows a power of two apart, which would share few cache sets.
  int64_t acc_ld() const { return (along_n ? along.tile : across.tile) + 16; }
  int64_t tile_elements() const { return (along_n ? across.tile : along.tile) * acc_ld(); }
  bool one_round() const { return super_k >= g.k; }
  int64_t padded_k(int64_t k) const { return round_up(k, kernel.k_unit); }
  int64_t packed_bytes(int64_t count, int64_t k) const {
    return count * padded_k(k) * kernel.element_bytes;
  }

  GemmOperand part(const Side& side, int64_t at, int64_t k) const {
    GemmOperand o = side.operand;
    const int64_t offset = o.k_major ? k * o.ld + at : at * o.ld + k;
    o.data = static_cast<const std::byte*>(o.data) + offset * size_of(g.ab_type);
    return o;
  }

  // The packed shared operand: blocks of k, each with all panels.
  std::byte* shared_block(int64_t block, int64_t at, int64_t k) const {
    return shared + block * packed_bytes(across.padded(), kernel.k_block) + packed_bytes(at, k);
  }

  // Without threads, the caller is the only worker.
  template <class Body>
  static void each(Threads* threads, int64_t pieces, Body body) {
    if (threads) return threads->run(pieces, std::ref(body));
    for (int64_t i = 0; i < pieces; ++i) body(i, 0);
  }

  void pack_shared(Threads* threads, int64_t k0, int64_t k1) const {
    const int64_t blocks = std::max<int64_t>(1, ceil_div(k1 - k0, kernel.k_block));
    const int64_t group = round_up(128, across.panel), groups = ceil_div(across.extent, group);
    auto pack = [&](int64_t piece, int) {
      const int64_t block = piece / groups, at = piece % groups * group;
      const int64_t k = k0 + block * kernel.k_block;
      const int64_t length = std::min<int64_t>(kernel.k_block, k1 - k);
      across.pack(shared_block(block, at, length), part(across, at, k),
                  std::min(group, across.extent - at), length);
    };
    each(threads, blocks * groups, pack);
  }

  // The tile of a symmetric c that begins at (row, col), of which acc has rows from the diagonal
  // on: writes what is not above the diagonal, and its mirror image. So every element has one
  // writer.
  void finish_symmetric(float* acc, int64_t ld, int64_t row, int64_t col, int64_t rows,
                        int64_t cols) const {
    const int64_t corner = std::clamp<int64_t>(col + cols - row, 0, rows);
    for (int64_t i = 0; i < corner; ++i)
      table.finish(g, acc + i * ld, ld, row + i, col, 1, row + i - col + 1);
    table.finish(g, acc + corner * ld, ld, row + corner, col, rows - corner, cols);
    if (g.c_type == DType::bf16)
      mirror(static_cast<uint16_t*>(g.c), g.ldc, row, row + rows, col, col + cols);
    else
      mirror(static_cast<uint32_t*>(g.c), g.ldc, row, row + rows, col, col + cols);
  }

  void task(int64_t task, int worker, int64_t k0, int64_t k1) const {
    const int64_t s = task % across.tiles() * across.tile, l = task / across.tiles() * along.tile;
    const int64_t s_count = std::min(across.tile, across.extent - s);
    const int64_t l_count = std::min(along.tile, along.extent - l);
    // Rows above the diagonal block of a symmetric c, whose rows are `across`; whole panels of them
    // are left out.
    const int64_t above = g.symmetric ? std::clamp<int64_t>(l - s, 0, s_count) : 0;
    if (above == s_count) return;
    const int64_t from = above / kernel.mr * kernel.mr;
    std::byte* strip = workers + worker * worker_bytes;
    float* acc =
        one_round() ? reinterpret_cast<float*>(strip + strip_bytes) : sums + task * tile_elements();
    const int64_t ld = acc_ld();
    const int64_t rows = along_n ? s_count : l_count, cols = along_n ? l_count : s_count;
    for (int64_t k = k0, block = 0; k < k1 || (block == 0 && k0 == 0);
         k += kernel.k_block, ++block) {
      const int64_t length = std::min<int64_t>(kernel.k_block, k1 - k);
      along.pack(strip, part(along, l, k), l_count, length);
      const std::byte* other = shared_block(block, s + from, length);
      kernel.multiply(acc + from * ld, ld, along_n ? other : strip, along_n ? strip : other,
                      rows - from, cols, length, k == 0);
    }
    if (k1 != g.k) return;
    const int64_t row = along_n ? s : l, col = along_n ? l : s;
    if (g.symmetric)
      finish_symmetric(acc + above * ld, ld, row + above, col, rows - above, cols);
    else
      table.finish(g, acc, ld, row, col, rows, cols);
  }

  void choose_tiles(int threads) {
    const int64_t cuts = ceil_div(across.extent, short_tile_limit);
    across.tile = round_up(ceil_div(across.extent, cuts), across.panel);
    const int64_t fit = std::min<int64_t>(
        kernel.tile / across.tile,
        kernel.strip / packed_bytes(1, std::clamp<int64_t>(g.k, 1, kernel.k_block)));
    int64_t strips = ceil_div(along.extent, std::max(along.panel, fit));
    if (threads > 1) {  // enough tasks for all threads, and equally many for each
      strips = std::max(strips, ceil_div(tasks_per_thread * threads, cuts));
      strips = round_up(strips, threads);
    }
    if (g.symmetric) strips = std::max(strips, symmetric_strips);
    along.tile = round_up(ceil_div(along.extent, strips), along.panel);
    const int64_t limit = g.m * g.n * 4 <= small_c ? shared_limit_small_c : shared_limit;
    const int64_t shared_k = limit / (across.padded() * kernel.element_bytes);
    super_k = std::max<int64_t>(1, shared_k / kernel.k_block) * kernel.k_block;
  }

  // Divides the work for these many threads; returns the bytes of memory that run() needs.
  int64_t divide(int threads) {
    choose_tiles(threads);
    worker_count = threads;
    const int64_t round_k = std::min(super_k, round_up(g.k, kernel.k_block));
    shared_bytes = round_up(packed_bytes(across.padded(), round_k), 64);
    const int64_t acc_bytes = round_up(tile_elements() * 4, 64);
    strip_bytes = round_up(packed_bytes(along.tile, std::min<int64_t>(g.k, kernel.k_block)), 64);
    worker_bytes = strip_bytes + (one_round() ? acc_bytes : 0);
    const int64_t sums_bytes = one_round() ? 0 : tasks() * tile_elements() * 4;
    return shared_bytes + threads * worker_bytes + round_up(sums_bytes, 64);
  }

  // threads: as many as divide() was told, or null for one.
  void run(Threads* threads, std::byte* memory) {
    shared = memory;
    workers = shared + shared_bytes;
    sums = reinterpret_cast<float*>(workers + worker_count * worker_bytes);
    int64_t k0 = 0;
    do {
      const int64_t k1 = std::min(g.k, k0 + super_k);
      pack_shared(threads, k0, k1);
      each(threads, tasks(), [&](int64_t piece, int worker) { task(piece, worker, k0, k1); });
      k0 = k1;
    } while (k0 < g.k);
  }
};

Job job_of(const GemmTable& table, const GemmProblem& g) {
  const GemmKernel& kernel = g.ab_type == DType::bf16 ? table.bf16 : table.f32;
  // A symmetric a is also its transpose, which takes no shuffles to pack.
  const bool k_major = g.ta || (g.symmetric && !g.tb);
  const Side m_side{
      .operand = {g.a, g.lda, k_major}, .pack = kernel.pack_a, .extent = g.m, .panel = kernel.mr};
  const Side n_side{
      .operand = {g.b, g.ldb, !g.tb}, .pack = kernel.pack_b, .extent = g.n, .panel = kernel.nr};
  const bool along_n = g.n >= g.m;
  return {.g = g,
          .table = table,
          .kernel = kernel,
          .along = along_n ? n_side : m_side,
          .across = along_n ? m_side : n_side,
          .along_n = along_n};
}

// The i-th product of a batch.
GemmProblem product_of(GemmProblem g, int64_t i) {
  const int64_t c = i * g.m * g.ldc * size_of(g.c_type);
  g.a = static_cast<const std::byte*>(g.a) + i * (g.ta ? g.k : g.m) * g.lda * size_of(g.ab_type);
  g.b = static_cast<const std::byte*>(g.b) + i * (g.tb ? g.n : g.k) * g.ldb * size_of(g.ab_type);
  g.c = static_cast<std::byte*>(g.c) + c;
  if (g.residual) g.residual = static_cast<const std::byte*>(g.residual) + c;
  return g;
}

// Few rows, and b as (n, k): b is read unpacked. A task is a range of its rows, so that a core
// reads memory in order; it is multiplied strip by strip, so that the sums stay in the cache.
constexpr int64_t few_strip = 64;

// Rows of b in a task: so few that no thread waits long for the last task, and enough to keep
// prefetching worth it. Tasks next to each other go to one thread (run_adjacent).
constexpr int64_t few_bytes = 128 << 10;
int64_t few_stretch(int64_t n, int64_t row_bytes, int64_t threads) {
  const int64_t share = ceil_div(ceil_div(n, few_tile), threads);
  if (row_bytes == 0) return share * few_tile;
  return std::clamp<int64_t>(few_bytes / (row_bytes * few_tile), 1, share) * few_tile;
}

void run_few(Threads& threads, Scratch& scratch, const GemmTable& table, const GemmFew& few,
             const GemmProblem& g) {
  const int64_t ld = few_strip + 16, acc_floats = round_up(g.m, few_tile) * ld;
  const int64_t packed = round_up(few.packed_bytes(g.m, g.k), 64);
  const int64_t stretch = few_stretch(g.n, g.k * size_of(g.ab_type), threads.count());
  std::byte* a = scratch.get(packed + threads.count() * acc_floats * 4);
  float* accs = reinterpret_cast<float*>(a + packed);
  few.pack(a, {g.a, g.lda, false}, g.m, g.k);
  auto task = [&](int64_t piece, int worker) {
    float* acc = accs + worker * acc_floats;
    const int64_t end = std::min(g.n, (piece + 1) * stretch);
    for (int64_t col = piece * stretch; col < end; col += few_strip) {
      const int64_t cols = std::min(few_strip, end - col);
      const void* b = static_cast<const std::byte*>(g.b) + col * g.ldb * size_of(g.ab_type);
      few.multiply(acc, ld, a, {b, g.ldb, false}, g.m, cols, g.k);
      table.finish(g, acc, ld, 0, col, g.m, cols);
    }
  };
  threads.run_adjacent(ceil_div(g.n, stretch), std::ref(task));
}

void check(const GemmProblem& g) {
  const auto fits = [](DType d) { return d == DType::f32 || d == DType::bf16; };
  if (!fits(g.c_type) || !fits(g.ab_type))
    fail("gemm", "expected f32 or bf16, got {} = {} x {}", to_string(g.c_type),
         to_string(g.ab_type), to_string(g.ab_type));
  if (g.m < 0 || g.n < 0 || g.k < 0 || g.lda < (g.ta ? g.m : g.k) || g.ldb < (g.tb ? g.k : g.n) ||
      g.ldc < g.n)
    fail("gemm", "expected leading dimensions that hold m {} n {} k {}, got lda {} ldb {} ldc {}",
         g.m, g.n, g.k, g.lda, g.ldb, g.ldc);
  if (g.symmetric && (g.m != g.n || g.bias || g.hook))
    fail("gemm", "expected a symmetric product that is square and has no bias and no hook");
}

// The kernel for products with few rows; null where it does not apply.
const GemmFew* few_of(const GemmTable& table, const GemmProblem& g) {
  const GemmFew& few = (g.ab_type == DType::bf16 ? table.bf16 : table.f32).few;
  return !g.ta && g.tb && g.m <= few.rows ? &few : nullptr;
}

}  // namespace

void gemm(Threads& threads, Scratch& scratch, const GemmTable& table, const GemmProblem& g) {
  check(g);
  if (g.m == 0 || g.n == 0) return;
  if (const GemmFew* few = few_of(table, g)) return run_few(threads, scratch, table, *few, g);
  Job job = job_of(table, g);
  job.run(&threads, scratch.get(job.divide(threads.count())));
}

void gemm_batch(Threads& threads, Scratch& scratch, const GemmTable& table, const GemmProblem& g,
                int64_t batch) {
  check(g);
  if (g.m == 0 || g.n == 0) return;
  const int64_t workers = threads.count(), bytes = job_of(table, g).divide(1);
  // As many as the threads can share equally, if that is worth the memory.
  const bool fits = !few_of(table, g) && workers * bytes <= batch_memory;
  const int64_t whole = fits ? batch / workers * workers : 0;
  if (whole) {
    std::byte* const memory = scratch.get(workers * bytes);
    const auto multiply = [&](int64_t i, int worker) {
      Job job = job_of(table, product_of(g, i));
      job.divide(1);
      job.run(nullptr, memory + worker * bytes);
    };
    threads.run(whole, std::ref(multiply));
  }
  for (int64_t i = whole; i < batch; ++i) gemm(threads, scratch, table, product_of(g, i));
}

void gemm(Threads& threads, Scratch& scratch, const GemmProblem& g) {
  gemm(threads, scratch, gemm_table(best_isa()), g);
}

}  // namespace hearth::inline cpu
