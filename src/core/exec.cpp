#include "core/exec.h"

#include <algorithm>
#include <chrono>
#include <map>

#include "core/join.h"
#include "sys/error.h"

namespace hearth::inline core {
namespace {

// Uploads a few MiB at a time, so that a large table is never held twice.
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
    arena_ = Buffer();  // release the old one first
    arena_ = Buffer(backend, reserved_, "activations");
  }
  return arena_.data();
}

Exec::Exec(Tape tape, Memory& m) : tape_(std::move(tape)), memory_(m) {
  join_norms(tape_, m.backend.kernels(), m.backend.stream());
  simplify(tape_);
  plan_ = plan(tape_);
  memory_.reserve(plan_.arena_bytes);
  if (tape_.fp8 && tape_.fp8->formats.size() > m.fp8_formats.size())
    m.fp8_formats = tape_.fp8->formats;

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
        // A parameter that is kept only quantised has no plain tensor: see bind_anew().
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
      case Role::host:
        t = memory_.state.get(v.name, v.shape, v.dtype, v.role == Role::host);
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

// The quantised form of the parameter that an input is, or is a view of, if there is one.
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
    if (n.op->launch || n.op->copies) {
      calls_.push_back({&n, tensors(n.in), tensors(n.out)});
      if (const Tensor w = quantised(n, n.op->quantisable))
        calls_.back().in[size_t(n.op->quantisable)] = w;
    }
    parts_.back().end = calls_.size();
    if (n.op->pause) parts_.push_back({.begin = calls_.size(), .end = calls_.size()});
  }
  for (Stretch& p : parts_) order_streams(p);
}

namespace {

bool overlap(const Tensor& a, const Tensor& b) {
  return a && b && a.data < b.data + b.bytes() && b.data < a.data + a.bytes();
}
bool meet(const std::vector<Tensor>& written, const std::vector<Tensor>& touched) {
  return std::ranges::any_of(written, [&](const Tensor& w) {
    return std::ranges::any_of(touched, [&](const Tensor& t) { return overlap(w, t); });
  });
}

}  // namespace

// Decides which calls of a stretch wait for another stream: those that write what a call there
// reads or writes, or read what it writes, unless an earlier wait covers it.
void Exec::order_streams(Stretch& p) {
  const auto depend = [&](const Call& a, const Call& b) {
    return meet(a.out, b.in) || meet(a.out, b.out) || meet(a.in, b.out);
  };
  // (stream waited for, waiting stream): calls before this index are already waited for.
  std::map<std::pair<StreamKind, StreamKind>, size_t> known;
  for (size_t i = p.begin; i < p.end; ++i) {
    const StreamKind stream = calls_[i].node->stream;
    if (stream != StreamKind::compute &&
        std::ranges::find(p.side_streams, stream) == p.side_streams.end())
      p.side_streams.push_back(stream);
  }
  if (p.side_streams.empty()) return;
  for (size_t i = p.begin; i < p.end; ++i) {
    Call& c = calls_[i];
    for (size_t j = i; j-- > p.begin;) {
      const StreamKind other = calls_[j].node->stream;
      size_t& upto = known.try_emplace({other, c.node->stream}, p.begin).first->second;
      if (other == c.node->stream || j < upto || !depend(calls_[j], c)) continue;
      c.waits_for.push_back(other);
      upto = i;
    }
  }
  // Their first calls must follow what has been launched so far, such as clearing memory.
  for (const StreamKind stream : p.side_streams) memory_.backend.order(StreamKind::compute, stream);
}

void Exec::run(Profile* profile) {
  bind();
  if (!profile) {
    for (size_t i = 0; i < parts_.size(); ++i) run_part(i);
    return;
  }
  using Clock = std::chrono::steady_clock;
  for (const Call& c : calls_) {
    const auto begin = Clock::now();
    launch(c);
    memory_.backend.finish(c.node->stream);
    (*profile)[c.node->op->name] += std::chrono::duration<double>(Clock::now() - begin).count();
  }
}

void Exec::run_part(size_t part) {
  bind();
  Stretch& p = parts_[part];
  // The first run goes node by node: kernels choose their algorithms and grow their scratch. A part
  // that starts on another stream is never captured: a graph starts only when everything before it
  // on StreamKind::compute has finished, and the other stream need not wait that long.
  const bool captures = p.begin < p.end && calls_[p.begin].node->stream == StreamKind::compute;
  if (++p.runs == 2 && captures)
    p.replay = memory_.backend.capture([&] {
      // A side stream takes part in the capture only after it has waited for the captured stream.
      for (const StreamKind s : p.side_streams) memory_.backend.order(StreamKind::compute, s);
      launch(p);
    });
  p.replay ? p.replay->run() : launch(p);
  // The next run's copies on the side streams may overwrite what this run reads.
  for (const StreamKind stream : p.side_streams) memory_.backend.order(StreamKind::compute, stream);
}

size_t Exec::parts() {
  bind();
  return parts_.size();
}

void Exec::launch(const Stretch& p) {
  for (size_t i = p.begin; i < p.end; ++i) launch(calls_[i]);
  for (const StreamKind stream : p.side_streams) memory_.backend.order(stream, StreamKind::compute);
}

void Exec::launch(const Call& c) {
  Backend& backend = memory_.backend;
  const StreamKind stream = c.node->stream;
  for (const StreamKind other : c.waits_for) backend.order(other, stream);
  if (c.node->op->copies)
    backend.copy_on(stream, c.out[0].data, c.in[0].data, c.in[0].bytes());
  else
    c.node->op->launch(backend.kernels(), backend.stream(), c.in, c.out);
}

size_t Exec::size() {
  bind();
  return calls_.size();
}

void Exec::run_step(size_t i) {
  launch(calls_[i]);
  memory_.backend.finish(calls_[i].node->stream);
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

}  // namespace hearth::inline core
