#include "diag/lockstep.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <random>
#include <set>

#include "core/fp8.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline diag {
namespace {

// Tolerance of an output in a program of dtype `program`. An f32 sum in a 16-bit program is between
// the two: it adds products of inputs that both sides rounded alike.
double tolerance_of(DType output, DType program) {
  if (output == DType::bf16) return 2e-2;
  if (output == DType::f16) return 4e-3;
  // One step between the largest numbers of a tensor, where the values differ in their last bits.
  if (output == DType::e4m3) return 8e-2;
  if (output == DType::e5m2) return 0.21;
  return program == DType::f32 ? 2e-4 : 2e-3;
}

float number_at(const std::byte* data, DType d, int64_t i) {
  if (d == DType::bf16) return float(reinterpret_cast<const bf16*>(data)[i]);
  if (d == DType::f16) return float(reinterpret_cast<const f16*>(data)[i]);
  if (d == DType::e4m3) return float(reinterpret_cast<const e4m3*>(data)[i]);
  if (d == DType::e5m2) return float(reinterpret_cast<const e5m2*>(data)[i]);
  // Also for u8: the update's state is kept as bytes.
  return reinterpret_cast<const float*>(data)[i];
}

// Reads device memory in pieces, into one buffer that is allocated once: models of a billion
// parameters pass through here several times.
class Reading {
 public:
  static constexpr int64_t piece_bytes = int64_t(64) << 20;

  // Bytes [from, from + size) of a tensor.
  const std::byte* read(Backend& b, const Tensor& t, int64_t from, int64_t size) {
    if (!b.has_host_offload()) return t.data + from;
    if (buffer_.empty()) buffer_.resize(size_t(piece_bytes));
    b.download(buffer_.data(), t.data + from, size);
    return buffer_.data();
  }

 private:
  std::vector<std::byte> buffer_;
};

// The scale of the codes that a node writes, if it chooses one: the first float of its site.
float scale_of(Backend& b, const Exec::Step& s) {
  float scale = 1;
  if (s.node.op->fp8_result)
    if (const Tensor& site = s.in[s.in.size() - 2])
      b.download(&scale, site.data, int64_t(sizeof scale));
  return scale;
}

// The largest difference, divided by the largest expected magnitude.
class Comparison {
 public:
  // What was got is multiplied by `factor`.
  double error(Backend& a, const Tensor& got, Backend& b, const Tensor& want, double factor) {
    const int64_t each = want.dtype == DType::u8 ? 4 : size_of(want.dtype);
    double top = 0, worst = 0;
    for (int64_t at = 0; at < want.bytes(); at += Reading::piece_bytes) {
      const int64_t size = std::min(Reading::piece_bytes, want.bytes() - at);
      const auto [t, w] = of_piece(a_.read(a, got, at, size), b_.read(b, want, at, size),
                                   want.dtype, size / each, factor);
      top = std::max(top, t), worst = std::max(worst, w);
    }
    return top < 1e-12 ? worst : worst / top;
  }

 private:
  struct Found {
    double top = 0, worst = 0;
  };
  Found of_piece(const std::byte* got, const std::byte* want, DType d, int64_t count,
                 double factor) {
    constexpr int64_t grain = int64_t(1) << 18;
    std::vector<Found> found(size_t((count + grain - 1) / grain));
    threads_.ranges(count, grain, [&](int64_t begin, int64_t end) {
      Found f;
      for (int64_t i = begin; i < end; ++i) {
        const double w = number_at(want, d, i),
                     e = std::abs(factor * double(number_at(got, d, i)) - w);
        f.top = std::max(f.top, std::abs(w));
        f.worst = std::max(f.worst, std::isnan(e) ? std::numeric_limits<double>::infinity() : e);
      }
      found[size_t(begin / grain)] = f;
    });
    Found all;
    for (const Found& f : found) all = {std::max(all.top, f.top), std::max(all.worst, f.worst)};
    return all;
  }

  Threads threads_;
  Reading a_, b_;
};

// One side of the comparison: the weights of a model and its programs on a backend.
struct Side {
  Side(const ProgramSpec& s, Backend& b, uint64_t seed)
      : backend(b), store(b, decoder_params(s.model), s.dtype), memory(b, &store) {
    store.initialise(seed);
    make_training_buffers(store, s.update);
    programs = std::make_unique<Programs>(s, memory);
    programs->update().set_state({});
  }
  Backend& backend;
  ParamStore store;
  Memory memory;
  std::unique_ptr<Programs> programs;
};

void copy(Side& from, Side& to, std::span<const Tensor> a, std::span<const Tensor> b,
          Reading& reading) {
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i] && !to.backend.has_host_offload())
      from.backend.download(b[i].data, a[i].data, a[i].bytes());
    for (int64_t at = 0; a[i] && to.backend.has_host_offload() && at < a[i].bytes();
         at += Reading::piece_bytes) {
      const int64_t size = std::min(Reading::piece_bytes, a[i].bytes() - at);
      to.backend.upload(b[i].data + at, reading.read(from.backend, a[i], at, size), size);
    }
  }
}

// Values that some node reads or that outlast the program; all others are scratch of a kernel.
std::set<int> values_that_matter(const Tape& t) {
  std::set<int> r;
  for (const Node& n : t.nodes)
    for (Var v : n.in)
      if (v) r.insert(t[v].storage);
  for (size_t i = 0; i < t.values.size(); ++i)
    if (t.values[i].role != Role::temp) r.insert(int(i));
  return r;
}

void compare(Exec& tried, Exec& trusted, Side& a, Side& b, LockstepResult& r) {
  Comparison comparison;
  Reading reading;
  const std::set<int> matters = values_that_matter(tried.tape());
  if (tried.size() != trusted.size())
    fail("lockstep", "expected the same nodes on both, got {} and {}", tried.size(),
         trusted.size());
  for (size_t i = 0, n = tried.size(); i < n; ++i) {
    const Exec::Step x = tried.step(i), y = trusted.step(i);
    copy(a, b, x.in, y.in, reading);
    copy(a, b, x.out, y.out, reading);  // for outputs that a node adds to or leaves unchanged
    tried.run_step(i);
    trusted.run_step(i);
    ++r.nodes;
    // Where the largest values are on two sides of a power of two, so are the scales.
    const double scales = double(scale_of(a.backend, x)) / scale_of(b.backend, y);
    for (size_t k = 0; k < x.out.size(); ++k) {
      const Var v = x.node.out[k];
      const DType type = x.out[k].dtype;
      const bool numbers =
          is_float(type) || is_fp8(type) || x.out[k].bytes() == sizeof(UpdateState);
      if (!v || !numbers || !matters.contains(tried.tape()[v].storage)) continue;
      const std::string& name = tried.tape()[v].name;
      // Column sums of a bf16 result that each side computed, and rounded, by itself.
      const Op& op = *x.node.op;
      const bool sums = (op.fp8_result && k + 1 == x.out.size()) || int(k) == op.sums.out;
      LockstepNode found{.op = x.node.op->name,
                         .where = x.node.where,
                         .output = name.empty() ? std::to_string(k) : name,
                         .shape = x.out[k].shape,
                         .error = comparison.error(a.backend, x.out[k], b.backend, y.out[k],
                                                   is_fp8(type) ? scales : 1),
                         .tolerance = tolerance_of(sums ? DType::bf16 : type, a.store.dtype())};
      ++r.outputs;
      if (found.differs() && !r.first) r.first = found;
      LockstepNode& worst = r.worst[found.op];
      if (worst.op.empty() || !(found.error <= worst.error)) worst = found;
    }
  }
}

}  // namespace

Batch random_batch(const ProgramSpec& s, uint64_t seed) {
  std::mt19937 random{uint32_t(seed)};
  Batch b;
  b.count = s.B * s.T;
  for (int64_t i = 0; i < b.count; ++i) {
    b.tokens.push_back(int32_t(random() % uint32_t(s.model.vocab)));
    b.targets.push_back(int32_t(random() % uint32_t(s.model.vocab)));
    const int64_t t = i % s.T, start = t < s.T / 3 ? 0 : s.T / 3;
    b.positions.push_back(int32_t(s.documents ? t - start : t));
    b.documents.push_back(int32_t(start > 0));
  }
  return b;
}

LockstepResult lockstep(const ProgramSpec& spec, Backend& tried, Backend& trusted, uint64_t seed) {
  Side a(spec, tried, seed), b(spec, trusted, seed);
  const Batch batch = random_batch(spec, seed);
  Scalars s;
  s.lr = 1e-3f, s.clip = 1, s.inv_targets = 1 / float(batch.count);
  s.seed_lo = uint32_t(seed), s.step = 1;
  // As in a training run, so that gradients fit fp16.
  if (spec.dtype == DType::f16) s.loss_scale = 1024;
  LockstepResult r;
  for (Side* side : {&a, &b}) side->programs->feed(batch, s);
  compare(a.programs->first_program(), b.programs->first_program(), a, b, r);
  if (spec.accumulates) compare(a.programs->next_program(), b.programs->next_program(), a, b, r);
  compare(a.programs->update().exec(), b.programs->update().exec(), a, b, r);
  return r;
}

}  // namespace hearth::inline diag
