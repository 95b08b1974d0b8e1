#include "core/tape.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline core {
namespace {

std::string join(const std::string& scope, const std::string& name) {
  return scope.empty() ? name : scope + "." + name;
}

}  // namespace

Tape::Scope::Scope(Tape& t, const std::string& name) : tape_(t), length_(t.scope_.size()) {
  t.scope_ = join(t.scope_, name);
}

uint32_t Tape::salt(const std::string& what) const {
  uint32_t h = 0x811c9dc5u;  // FNV-1a
  for (unsigned char c : join(scope_, what)) h = (h ^ c) * 0x01000193u;
  return h;
}

Var Tape::temp(Shape s, DType d) {
  const int id = int(values.size());
  Value v;
  v.shape = s, v.dtype = d, v.storage = id;
  values.push_back(std::move(v));
  return {id};
}

Var Tape::named(Role role, const std::string& name, Shape s, DType d) {
  if (const Var v = find(name)) {
    const Value& x = (*this)[v];
    if (x.role != role || !(x.shape == s) || x.dtype != d)
      fail(name, "expected {} {}, as recorded before, got {} {}", to_string(x.dtype),
           to_string(x.shape), to_string(d), to_string(s));
    return v;
  }
  const Var v = temp(s, d);
  (*this)[v].role = role;
  (*this)[v].name = name;
  by_name_[name] = v.id;
  return v;
}

// Two buffers on the device, so that one is filled while the other is read.
Var Tape::fed_input(const std::string& name, Shape s, DType d) {
  const std::string full = program_ + "." + name;
  const Var host = named(Role::host, full + host_suffix, s, d);
  const Var arriving = named(Role::input, full + ".arriving", s, d);
  const Var own = named(Role::input, full, s, d);
  Op upload, receive;
  upload.name = "upload", receive.name = "receive";
  upload.copies = receive.copies = true;
  push(std::move(upload), {host}, {arriving});
  nodes.back().stream = StreamKind::upload;
  push(std::move(receive), {arriving}, {own});
  return own;
}

// After a feed: the next run's uploads do not wait for what follows.
void Tape::pause() {
  if (nodes.empty()) return;
  const Var last = nodes.back().out[0];
  Op op;
  op.name = "cut";
  op.pause = true;
  push(std::move(op), {last}, {last});
}

Var Tape::add_loss(LossTerm term) {
  for (const LossTerm& l : losses)
    if (l.name == term.name) fail(where(), "the tape has a loss term \"{}\" already", term.name);
  if (int64_t(losses.size()) == most_loss_terms)
    fail(where(), "expected at most {} loss terms, got {} as one more", most_loss_terms, term.name);
  term.value = rows(loss_values(), int64_t(losses.size()), 1);
  losses.push_back(std::move(term));
  return losses.back().value;
}

Var Tape::find(const std::string& name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? Var{} : Var{it->second};
}

Var Tape::constant(const std::string& name, Shape s, DType d, std::span<const std::byte> data) {
  if (int64_t(data.size()) != s.numel() * size_of(d))
    fail(name, "expected {} numbers, got {}", s.numel(), int64_t(data.size()) / size_of(d));
  const Var v = named(Role::constant, name, s, d);
  constants.try_emplace(v.id, data.begin(), data.end());
  return v;
}
Var Tape::constant(const std::string& name, Shape s, std::span<const float> data) {
  return constant(name, s, DType::f32, std::as_bytes(data));
}
Var Tape::constant(const std::string& name, Shape s, std::span<const int32_t> data) {
  return constant(name, s, DType::i32, std::as_bytes(data));
}
Var Tape::table(const std::string& name, Shape s, MakeRows make) {
  const Var v = named(Role::constant, name, s, DType::f32);
  tables.try_emplace(v.id, std::move(make));
  return v;
}

Var Tape::flat(const ParamStore& store, Part p, std::optional<Group> g) {
  const std::string name = g ? fmt::format("{} of group {}", store.name(p), int(*g))
                             : fmt::format("all {}", store.name(p));
  const Var v =
      named(Role::flat, name, {g ? store.range_size(*g, p) : store.flat_size(p)}, store.dtype(p));
  (*this)[v].part = p;
  (*this)[v].group = g;
  return v;
}

Var Tape::of_param(const ParamStore& store, Part p, const ParamSpec& s) {
  const Var v = named(Role::flat, fmt::format("{} of {}", store.name(p), s.name), store.shape(p, s),
                      store.dtype(s.wide ? Part::grad : p));
  (*this)[v].part = p;
  (*this)[v].param = s.name;
  return v;
}

Var Tape::param(const std::string& name, Shape s, Init init, Group group, bool trainable,
                std::vector<int64_t> stack, std::vector<HeadRows> heads) {
  const std::string full = join(scope_, name);
  const bool known = bool(find(full));
  const Var v = named(Role::param, full, s, dtype_);
  if (!known) {
    (*this)[v].needs_grad = trains && trainable;
    params.push_back({.name = full,
                      .shape = s,
                      .init = init,
                      .group = group,
                      .trainable = trainable,
                      .stack = std::move(stack),
                      .heads = std::move(heads)});
  }
  return v;
}

Var Tape::wide_param(const std::string& name, Shape s, Init init) {
  const std::string full = join(scope_, name);
  const bool known = bool(find(full));
  const Var v = named(Role::param, full, s, acc());
  if (!known)
    params.push_back({.name = full,
                      .shape = s,
                      .init = init,
                      .group = Group::vector,
                      .trainable = false,
                      .wide = true});
  return v;
}

Var Tape::view(Var v, Shape s) {
  if (s == shape(v)) return v;
  if (s.numel() != shape(v).numel())
    fail(where(), "expected a view of {} elements, got {}", shape(v).numel(), to_string(s));
  const Var w = temp(s, (*this)[v].dtype);
  (*this)[w].storage = (*this)[v].storage;
  (*this)[w].offset = (*this)[v].offset;
  (*this)[w].role = (*this)[v].role;
  Op op;
  op.name = "view";
  op.backward = [](Tape& t, const Node& n) {
    t.add_grad(n.in[0], t.view(t.grad(n.out[0]), t.shape(n.in[0])));
  };
  push(std::move(op), {v}, {w});
  return w;
}

Var Tape::rows(Var v, int64_t begin, int64_t count) {
  const int64_t cols = shape(v)[-1];
  const Var w = temp({count, cols}, (*this)[v].dtype);
  (*this)[w].storage = (*this)[v].storage;
  (*this)[w].offset = (*this)[v].offset + begin * cols * size_of((*this)[v].dtype);
  (*this)[w].role = (*this)[v].role;
  return w;
}

Var Tape::whole_tiles(Var v) {
  const Value& x = (*this)[v];
  const std::string name =
      x.role == Role::grad ? x.name.substr(0, x.name.rfind(grad_suffix)) : x.name;
  for (const ParamSpec& p : params)
    if (p.name == name && padded_rows(p) > p.shape[0]) return rows(v, 0, padded_rows(p));
  return v;
}

void Tape::push(Op op, std::vector<Var> in, std::vector<Var> out) {
  const bool grad =
      op.backward && std::any_of(in.begin(), in.end(), [&](Var v) { return needs_grad(v); });
  for (Var v : out) {
    if (!v) continue;
    Value& x = (*this)[v];
    x.producer = int(nodes.size());
    if (x.role == Role::temp) x.needs_grad = grad && is_float(x.dtype);
  }
  nodes.push_back(
      {std::make_shared<const Op>(std::move(op)), std::move(in), std::move(out), scope_});
}

void Tape::add_grad(Var v, Var dv) {
  if (!needs_grad(v)) return;
  if ((*this)[v].role != Role::param && !grad(v)) {
    (*this)[v].grad = dv;
    return;
  }
  const Sink s = grad_sink(v);
  Op op = kernel_op<&Kernels::add>("add_grad", [](auto* add, Stream& st, In in, Out out) {
    add(st, {.y = out[0], .a = in[0], .b = in[1], .scale = 1});
  });
  op.inplace = {{0, 0}, {0, 1}};
  push(std::move(op), {s.prior, dv}, {s.out});
}

Tape::Sink Tape::grad_sink(Var v) {
  Value& x = (*this)[v];
  if (x.role != Role::param) {
    const Var prior = x.grad, out = temp(x.shape, x.grad_dtype.value_or(x.dtype));
    (*this)[v].grad = out;  // not through x: temp() may have moved the values
    return {out, prior};
  }
  const bool first = !x.grad;
  if (first) {
    const Var g = named(Role::grad, x.name + grad_suffix, x.shape, acc());
    (*this)[v].grad = g;
  }
  const Var g = grad(v);
  return {g, first && !accumulate ? Var{} : g};
}

void Tape::host_grad(Var y, const std::string& name) {
  const Var dy = input(name, shape(y), acc());
  Op op;
  op.name = "host";
  op.pause = true;
  push(std::move(op), {y}, {dy});
  add_grad(y, dy);
}

Var Tape::saved(Var v) {
  if (!v || !(*this)[v].dropped) return v;
  if (!(*this)[v].again) {
    // Cheaper than recomputing the whole node.
    if (const Var x = (*this)[v].before; x && !(*this)[x].dropped) {
      const Act act = (*this)[v].act;
      const Var y = temp(shape(v), (*this)[v].dtype);
      (*this)[v].again = y;
      const auto launch = [act](auto* f, Stream& s, In in, Out out) {
        f(s, {.y = out[0], .x = in[0], .act = act});
      };
      push(kernel_op<&Kernels::activation>("activation", launch), {x}, {y});
      return y;
    }
    Node n = nodes[size_t((*this)[v].producer)];
    for (Var& x : n.in) x = saved(x);
    for (Var& y : n.out) {
      if (!y) continue;
      const Value old = (*this)[y];
      const Var fresh = temp(old.shape, old.dtype);
      if (old.storage != y.id) {  // a view of the recomputed base
        (*this)[fresh].storage = (*this)[n.in[0]].storage;
        (*this)[fresh].offset = old.offset;
      }
      (*this)[fresh].producer = int(nodes.size());
      (*this)[y].again = fresh;
      y = fresh;
    }
    nodes.push_back(std::move(n));
  }
  return (*this)[v].again;
}

Var Tape::checkpoint(const std::function<Var()>& body) {
  const size_t begin = values.size();
  const Var y = body();
  const int kept = (*this)[y].storage;
  for (size_t i = begin; i < values.size(); ++i)
    if (values[i].role == Role::temp && values[i].storage != kept && !values[i].kept)
      values[i].dropped = true;
  return y;
}

void differentiate(Tape& t) {
  for (size_t i = t.nodes.size(); i-- > 0;) {
    const Node n = t.nodes[i];  // a copy: backward rules append nodes
    const auto reached = [&](Var v) { return v && t.needs_grad(v) && t.grad(v); };
    if (!n.op->backward || !std::any_of(n.out.begin(), n.out.end(), reached)) continue;
    const std::string scope = n.where;
    const auto restore = t.scope(scope);
    n.op->backward(t, n);
  }
}

namespace {

// Leaves out what Op::fp8_result allows to leave out.
template <class Live>
void drop_unread(Node& n, Live live) {
  Var& y = *(n.out.end() - 3);
  Var& yt = *(n.out.end() - 2);
  Var& sums = *(n.out.end() - 1);
  if (!live(sums)) sums = {};
  if (!live(yt)) yt = {};
  if (!live(y) && !(sums && !yt)) y = {};  // sums alone are not written
  if ((y || yt) && !live(n.out[0])) n.out[0] = {};
}

}  // namespace

void prune(Tape& t) {
  std::vector<char> read(t.values.size());
  const auto live = [&](Var v) {
    if (!v) return false;
    const int root = t[v].storage;
    return t.values[size_t(root)].role != Role::temp || read[size_t(root)];
  };
  std::vector<Node> kept;
  for (size_t i = t.nodes.size(); i-- > 0;) {
    Node& n = t.nodes[i];
    if (std::none_of(n.out.begin(), n.out.end(), live)) continue;
    if (n.op->fp8_result) drop_unread(n, live);
    for (Var v : n.in)
      if (v) read[size_t(t[v].storage)] = 1;
    kept.push_back(std::move(n));
  }
  std::reverse(kept.begin(), kept.end());
  t.nodes = std::move(kept);
}

}  // namespace hearth::inline core
