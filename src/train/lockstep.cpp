#include "train/lockstep.h"

#include <cmath>
#include <cstring>
#include <limits>
#include <random>
#include <set>

#include "core/error.h"

namespace hearth {
namespace {

// Of an output in a program over `program`: sums kept in f32 are of products that rounded alike.
double tolerance_of(DType output, DType program) {
  if (output == DType::bf16) return 2e-2;
  if (output == DType::f16) return 4e-3;
  return program == DType::f32 ? 2e-4 : 2e-3;
}

std::vector<std::byte> bytes_of(Backend& b, const Tensor& t) {
  std::vector<std::byte> host(size_t(t.bytes()));
  b.download(host.data(), t.data, t.bytes());
  return host;
}

std::vector<float> floats_of(Backend& b, const Tensor& t) {
  const std::vector<std::byte> host = bytes_of(b, t);
  if (t.dtype == DType::u8) {  // the update's state: floats by another name
    std::vector<float> x(host.size() / sizeof(float));
    std::memcpy(x.data(), host.data(), host.size());
    return x;
  }
  const Tensor h{const_cast<std::byte*>(host.data()), t.shape, t.dtype};
  std::vector<float> x(size_t(t.numel()));
  for (size_t i = 0; i < x.size(); ++i)
    x[i] = t.dtype == DType::bf16  ? float(h.as<bf16>()[i])
           : t.dtype == DType::f16 ? float(h.as<f16>()[i])
                                   : h.as<float>()[i];
  return x;
}

double error_of(const std::vector<float>& got, const std::vector<float>& want) {
  double top = 0, worst = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    top = std::max(top, double(std::abs(want[i])));
    const double e = std::abs(double(got[i]) - double(want[i]));
    worst = std::max(worst, std::isnan(e) ? std::numeric_limits<double>::infinity() : e);
  }
  return top < 1e-12 ? worst : worst / top;
}

// One side: the weights of a model and its programs on a backend.
struct Side {
  Side(const ProgramSpec& s, Backend& b, uint64_t seed)
      : backend(b), store(b, decoder_params(s.model), s.dtype), memory(b, &store) {
    store.initialise(seed);
    for (Part p : {Part::grad, Part::moment1, Part::moment2}) store.flat(p);
    programs = std::make_unique<Programs>(s, memory);
    programs->set_update_state({});
  }
  Backend& backend;
  ParamStore store;
  Memory memory;
  std::unique_ptr<Programs> programs;
};

void copy(Side& from, Side& to, std::span<const Tensor> a, std::span<const Tensor> b) {
  for (size_t i = 0; i < a.size(); ++i)
    if (a[i]) to.backend.upload(b[i].data, bytes_of(from.backend, a[i]).data(), a[i].bytes());
}

// Values some node reads, or that outlast the program: what is neither is a kernel's own scratch.
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
  const std::set<int> matters = values_that_matter(tried.tape());
  if (tried.size() != trusted.size())
    fail("lockstep", "expected the same nodes on both, got {} and {}", tried.size(),
         trusted.size());
  for (size_t i = 0, n = tried.size(); i < n; ++i) {
    const Exec::Step x = tried.step(i), y = trusted.step(i);
    copy(a, b, x.in, y.in);
    copy(a, b, x.out, y.out);  // what a node adds to, or does not touch
    tried.run_step(i);
    trusted.run_step(i);
    ++r.nodes;
    for (size_t k = 0; k < x.out.size(); ++k) {
      const Var v = x.node.out[k];
      const bool numbers = is_float(x.out[k].dtype) || x.out[k].bytes() == sizeof(UpdateState);
      if (!v || !numbers || !matters.contains(tried.tape()[v].storage)) continue;
      const std::string& name = tried.tape()[v].name;
      LockstepNode found{
          .op = x.node.op->name,
          .where = x.node.where,
          .output = name.empty() ? std::to_string(k) : name,
          .shape = x.out[k].shape,
          .error = error_of(floats_of(a.backend, x.out[k]), floats_of(b.backend, y.out[k])),
          .tolerance = tolerance_of(x.out[k].dtype, a.store.dtype())};
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
  if (spec.dtype == DType::f16) s.loss_scale = 1024;  // as a run would: gradients it can hold
  LockstepResult r;
  for (Side* side : {&a, &b}) side->programs->feed(batch, s);
  compare(a.programs->first_program(), b.programs->first_program(), a, b, r);
  if (Exec* next = a.programs->next_program()) compare(*next, *b.programs->next_program(), a, b, r);
  compare(a.programs->update_program(), b.programs->update_program(), a, b, r);
  return r;
}

}  // namespace hearth
