#include "core/exec.h"

#include <algorithm>
#include <chrono>

#include "sys/error.h"

namespace hearth {
namespace {

// A few MiB at a time, so that a large table is never held twice.
void fill_table(Backend& backend, const Tensor& t, const Tape::MakeRows& make) {
  const int64_t rows = t.shape[0], row = t.bytes() / std::max<int64_t>(rows, 1);
  const int64_t most = std::max<int64_t>(1, (int64_t(4) << 20) / std::max<int64_t>(row, 1));
  for (int64_t first = 0; first < rows; first += most) {
    const int64_t count = std::min(most, rows - first);
    const std::vector<float> made = make(first, count);
    if (int64_t(made.size() * sizeof(float)) != count * row)
      fail("table", "expected {} bytes of rows, got {}", count * row, made.size() * sizeof(float));
    backend.upload(t.data + first * row, made.data(), count * row);
  }
}

}  // namespace

std::byte* Memory::arena() {
  if (arena_.bytes() < reserved_) {
    arena_ = Buffer();  // give the old one back first
    arena_ = Buffer(backend, reserved_, "activations");
  }
  return arena_.data();
}

Exec::Exec(Tape tape, Memory& m) : tape_(std::move(tape)), memory_(m) {
  join_norms(tape_, m.backend.kernels(), m.backend.stream());
  prune(tape_);
  alias(tape_);
  plan_ = plan(tape_);
  memory_.reserve(plan_.arena_bytes);

  const Kernels& kernels = memory_.backend.kernels();
  for (const Node& n : tape_.nodes) {
    if (n.op->available && !n.op->available(kernels))
      fail(n.where, "expected a backend with {}, got {}, which has none", n.op->name, kernels.name);
    check_weights(n);
  }

  tensors_.resize(tape_.values.size());
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Value& v = tape_.values[i];
    Tensor& t = tensors_[i];
    t = {nullptr, v.shape, v.dtype};
    if (v.storage != int(i)) continue;
    switch (v.role) {
      case Role::temp:
        break;
      case Role::param:
        // What is kept quantised alone has no memory of its own: see bind().
        if (memory_.params->plain(v.name)) t = memory_.params->get(Part::weight, v.name);
        break;
      case Role::grad:
        t = memory_.params->get(Part::grad, v.name.substr(0, v.name.rfind(grad_suffix)));
        break;
      case Role::flat:
        t = v.group           ? memory_.params->range(v.part, *v.group)
            : v.param.empty() ? memory_.params->flat(v.part)
                              : memory_.params->get(v.part, v.param);
        break;
      case Role::input:
      case Role::state:
        t = memory_.state.get(v.name, v.shape, v.dtype);
        break;
      case Role::constant:
        if (!memory_.state.has(v.name)) {
          t = memory_.state.get(v.name, v.shape, v.dtype);
          if (const auto made = tape_.tables.find(int(i)); made != tape_.tables.end())
            fill_table(memory_.backend, t, made->second);
          else
            memory_.backend.upload(t.data, tape_.constants.at(int(i)).data(), t.bytes());
        }
        t = memory_.state.get(v.name, v.shape, v.dtype);
        break;
    }
    if (!(t.shape == v.shape) || t.dtype != v.dtype)
      fail(v.name, "expected {} {} as recorded, got {} {} in the store", to_string(v.dtype),
           to_string(v.shape), to_string(t.dtype), to_string(t.shape));
  }
}

// The quantised form of the parameter that an input is or is a view of, if there is one.
Tensor Exec::quantised(const Node& n, int input) const {
  if (input < 0 || !n.in[size_t(input)]) return {};
  const Value& v = tape_.values[size_t(tape_[n.in[size_t(input)]].storage)];
  return v.role == Role::param ? memory_.params->quantised(v.name) : Tensor{};
}

void Exec::check_weights(const Node& n) const {
  const Kernels& kernels = memory_.backend.kernels();
  for (int i = 0; i < int(n.in.size()); ++i) {
    if (!quantised(n, i)) continue;
    const Value& v = tape_.values[size_t(tape_[n.in[size_t(i)]].storage)];
    if (i != n.op->quantisable && !memory_.params->plain(v.name))
      fail(n.where, "expected plain weights for {}, got {} quantised", n.op->name, v.name);
    if (i == n.op->quantisable && !kernels.gemm_quantised)
      fail(n.where, "expected a backend that multiplies quantised weights, got {}", kernels.name);
  }
}

void Exec::bind() {
  if (parts_.empty() || arena_ != memory_.arena()) bind_anew();
}

void Exec::bind_anew() {
  arena_ = memory_.arena();
  for (size_t i = 0; i < tensors_.size(); ++i)
    if (plan_.offset[i] >= 0) tensors_[i].data = arena_ + plan_.offset[i];
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const Value& v = tape_.values[i];
    if (v.storage == int(i)) continue;
    std::byte* base = tensors_[size_t(v.storage)].data;
    tensors_[i].data = base ? base + v.offset : nullptr;
  }
  calls_.clear();
  parts_.clear();
  parts_.emplace_back();
  const auto tensors = [&](const std::vector<Var>& vars) {
    std::vector<Tensor> r;
    for (Var v : vars) r.push_back(v ? tensors_[size_t(v.id)] : Tensor{});
    return r;
  };
  for (const Node& n : tape_.nodes) {
    if (n.op->launch) {
      calls_.push_back({&n, tensors(n.in), tensors(n.out)});
      if (const Tensor w = quantised(n, n.op->quantisable))
        calls_.back().in[size_t(n.op->quantisable)] = w;
    }
    parts_.back().end = calls_.size();
    if (n.op->pause) parts_.push_back({.begin = calls_.size(), .end = calls_.size()});
  }
}

void Exec::run(Profile* profile) {
  bind();
  if (!profile) {
    for (size_t i = 0; i < parts_.size(); ++i) run_part(i);
    return;
  }
  const Kernels& kernels = memory_.backend.kernels();
  Stream& stream = memory_.backend.stream();
  using Clock = std::chrono::steady_clock;
  for (const Call& c : calls_) {
    const auto begin = Clock::now();
    c.node->op->launch(kernels, stream, c.in, c.out);
    memory_.backend.synchronize();
    (*profile)[c.node->op->name] += std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

void Exec::run_part(size_t part) {
  bind();
  Stretch& p = parts_[part];
  // The first run goes node by node: kernels choose their algorithms and grow their scratch.
  if (++p.runs == 2) p.replay = memory_.backend.capture([&] { launch(p); });
  p.replay ? p.replay->run() : launch(p);
}

size_t Exec::parts() {
  bind();
  return parts_.size();
}

void Exec::launch(const Stretch& p) {
  for (size_t i = p.begin; i < p.end; ++i) {
    const Call& c = calls_[i];
    c.node->op->launch(memory_.backend.kernels(), memory_.backend.stream(), c.in, c.out);
  }
}

size_t Exec::size() {
  bind();
  return calls_.size();
}

void Exec::run_step(size_t i) {
  const Call& c = calls_[i];
  c.node->op->launch(memory_.backend.kernels(), memory_.backend.stream(), c.in, c.out);
  memory_.backend.synchronize();
}

void Exec::run(const Observer& observe) {
  for (size_t i = 0, n = size(); i < n; ++i) {
    run_step(i);
    observe(*calls_[i].node, calls_[i].out);
  }
}

Tensor Exec::operator[](Var v) {
  bind();
  return tensors_[size_t(v.id)];
}

}  // namespace hearth
