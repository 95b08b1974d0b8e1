#include "core/join.h"

#include <algorithm>

namespace hearth::inline core {
namespace {

// c = act(norm(x) wᵀ + bias) + prior as one node, from the product and the norm it reads.
Node normed_product(const Node& product, const Node& norm) {
  const auto launch = [norm_spec = *norm.op->norm, gemm_spec = *product.op->gemm](
                          auto* f, Stream& s, In in, Out out) {
    f(s, {.c = out[0],
          .x = in[0],
          .gain = in[1],
          .shift = in[2],
          .b = in[3],
          .bias = in[4],
          .prior = in[5],
          .norm = norm_spec,
          .gemm = gemm_spec});
  };
  Op op = kernel_op<&Kernels::norm_gemm>("norm_linear", launch);
  op.quantisable = product.op->quantisable < 0 ? -1 : 3;
  const std::vector<Var>& p = product.in;
  return {std::make_shared<const Op>(std::move(op)),
          {norm.in[0], norm.in[2], norm.in[3], p[1], p[2], p[3]},
          {product.out[0]},
          product.where};
}

// pre = x wᵀ and y = act(gate) * up as one node. `keeps`: another node reads pre.
Node gated_product(const Node& product, const Node& glu, bool keeps) {
  Op op;
  op.name = "linear_glu";
  op.available = [](const Kernels& k) { return k.gemm && k.activation; };
  op.launch = [act = *glu.op->glu, spec = *product.op->gemm, keeps](const Kernels& k, Stream& s,
                                                                    In in, Out out) {
    const bool packed = is_panels(in[1].dtype);
    const Tensor pre = keeps ? out[0] : Tensor{};
    if (!packed && k.gemm_glu &&
        k.gemm_glu(s, {.c = out[1], .pre = pre, .a = in[0], .b = in[1], .act = act}))
      return;
    if (packed)
      k.gemm_quantised(s, {.c = out[0], .a = in[0], .w = in[1], .spec = spec});
    else
      k.gemm(s, {.c = out[0], .a = in[0], .b = in[1], .spec = spec});
    k.activation(s, {.y = out[1], .x = out[0], .act = act});
  };
  op.quantisable = product.op->quantisable;
  return {std::make_shared<const Op>(std::move(op)),
          {product.in[0], product.in[1]},
          {product.out[0], glu.out[0]},
          glu.where};
}

// The gradient of (gate, up) from that of y, which is computed by the first of the nodes.
Node gated_gradient(const Node& product, const Node& slope) {
  Op op;
  op.name = "linear_glu_bwd";
  op.available = [](const Kernels& k) { return k.gemm && k.activation_bwd; };
  op.launch = [act = *slope.op->glu_slope, spec = *product.op->input_gradient](
                  const Kernels& k, Stream& s, In in, Out out) {
    if (k.gemm_glu && k.gemm_glu(s, {.c = out[0],
                                     .pre = in[2],
                                     .a = in[0],
                                     .b = in[1],
                                     .act = act,
                                     .slope = true,
                                     .alpha = spec.alpha}))
      return;
    k.gemm(s, {.c = out[1], .a = in[0], .b = in[1], .spec = spec});
    k.activation_bwd(s, {.dx = out[0], .dy = out[1], .x = in[2], .act = act});
  };
  return {std::make_shared<const Op>(std::move(op)),
          {product.in[0], product.in[1], slope.in[1]},
          {slope.out[0], product.out[0]},
          slope.where};
}

}  // namespace

void join_gates(Tape& t) {
  const auto root = [&](Var v) { return size_t(t[v].storage); };
  const auto value = [&](Var v) -> const Value& { return t.values[root(v)]; };
  std::vector<int> readers(t.values.size());
  for (const Node& n : t.nodes)
    if (n.op->launch)
      for (Var v : n.in)
        if (v) ++readers[root(v)];
  // The product that computes a value, until something else does.
  std::vector<int> product_of(t.values.size(), -1);
  std::vector<Node> joined;
  // The product whose whole result, in rows of the same width, this node reads first.
  const auto product_before = [&](const Node& n) -> Node* {
    if (!n.op->glu && !n.op->glu_slope) return nullptr;
    const int at = product_of[root(n.in[0])];
    if (at < 0 || t.shape(n.in[0]).numel() != value(n.in[0]).shape.numel()) return nullptr;
    Node& p = joined[size_t(at)];
    const Shape all = t.shape(p.out[0]), read = t.shape(n.in[0]);
    return read.numel() == all.numel() && read[-1] == all[-1] ? &p : nullptr;
  };
  const auto remember = [&](const Node& n) {
    for (Var v : n.out)
      if (v) product_of[root(v)] = -1;
    const std::optional<GemmSpec>& spec = n.op->gemm ? n.op->gemm : n.op->input_gradient;
    if (!spec || spec->act != Act::none || n.in[2] || n.in[3]) return;  // bias, prior
    if (n.op->gemm && spec->alpha != 1) return;
    if (value(n.out[0]).role == Role::temp) product_of[root(n.out[0])] = int(joined.size()) - 1;
  };
  for (Node& n : t.nodes) {
    Node* const p = product_before(n);
    if (p && n.op->glu && p->op->gemm) {
      product_of[root(n.in[0])] = -1;
      *p = gated_product(*p, n, readers[root(n.in[0])] > 1);
      continue;
    }
    if (p && n.op->glu_slope && p->op->input_gradient && readers[root(n.in[0])] == 1) {
      Node both = gated_gradient(*p, n);
      *p = {};
      joined.push_back(std::move(both));
    } else {
      joined.push_back(std::move(n));
    }
    remember(joined.back());
  }
  std::erase_if(joined, [](const Node& n) { return !n.op; });
  t.nodes = std::move(joined);
}

void join_sums(Tape& t) {
  const auto root = [&](Var v) { return size_t(t[v].storage); };
  // Per value in memory: the last node that wrote it, and the last that read or wrote it.
  std::vector<int> written(t.values.size(), -1), used(t.values.size(), -1);
  std::vector<Node> joined;
  // The node that computes what `n` sums, all of it and in rows of the same width.
  const auto source_of = [&](const Node& n) -> Node* {
    if (!n.op->sums_columns) return nullptr;
    const Var x = n.in[0], prior = n.in[1], sums = n.out[0];
    const int at = written[root(x)];
    if (at < 0 || used[root(sums)] >= at || (prior && used[root(prior)] >= at)) return nullptr;
    Node& from = joined[size_t(at)];
    if (from.op->sums.out < 0 || from.out[size_t(from.op->sums.out)]) return nullptr;
    const auto& out = from.out;
    if (from.op->fp8_result && std::any_of(out.end() - 3, out.end(), [](Var v) { return bool(v); }))
      return nullptr;  // its first output may be left out
    const Var y = out[0];
    if (!y || root(y) != root(x) || t[y].offset != t[x].offset || t[y].dtype != t[x].dtype)
      return nullptr;
    const Shape all = t.shape(y), read = t.shape(x);
    return read.numel() == all.numel() && read[-1] == all[-1] ? &from : nullptr;
  };
  for (Node& n : t.nodes) {
    if (Node* const from = source_of(n)) {
      const auto out = size_t(from->op->sums.out), in = size_t(from->op->sums.in);
      from->out[out] = n.out[0], from->out[out + 1] = n.out[1], from->in[in] = n.in[1];
      written[root(n.out[0])] = used[root(n.out[0])] = written[root(n.in[0])];
      continue;
    }
    joined.push_back(std::move(n));
    const Node& last = joined.back();
    if (!last.op->launch && !last.op->copies) continue;  // a view
    const int at = int(joined.size()) - 1;
    for (Var v : last.in)
      if (v) used[root(v)] = at;
    for (Var v : last.out)
      if (v) written[root(v)] = used[root(v)] = at;
  }
  t.nodes = std::move(joined);
}

void join_norms(Tape& t, const Kernels& k, Stream& stream) {
  // Training programs keep their norms separate: the same ops on every backend, step by step.
  if (!k.norm_gemm || t.trains) return;
  // Per value in memory: how many nodes read it, and how many of those are products with it.
  std::vector<int> readers(t.values.size()), products(t.values.size());
  std::vector<int64_t> widest(t.values.size());  // of those products
  const auto root = [&](Var v) { return size_t(t[v].storage); };
  for (const Node& n : t.nodes) {
    if (!n.op->launch) continue;  // a view: its readers count instead
    for (Var v : n.in)
      if (v) ++readers[root(v)];
    if (!n.op->gemm || n.out[1] || (n.in[3] && root(n.in[3]) == root(n.in[0]))) continue;
    const size_t x = root(n.in[0]);
    if (t.shape(n.in[0]).numel() != t.values[x].shape.numel()) continue;
    ++products[x];
    widest[x] = std::max(widest[x], t.shape(n.in[1])[0]);
  }
  std::vector<const Node*> norm_of(t.values.size());
  for (const Node& n : t.nodes) {
    if (!n.op->norm || n.in[1]) continue;
    const Var x = n.in[0], y = n.out[0];
    const Shape s = t.shape(x);
    if (readers[root(y)] && readers[root(y)] == products[root(y)] &&
        k.norm_gemm_takes(stream, s.numel() / s[-1], s[-1], widest[root(y)], t[x].dtype))
      norm_of[root(y)] = &n;
  }
  std::vector<Node> joined;
  for (const Node& n : t.nodes) {
    const Node* norm = n.op->gemm && n.in[0] ? norm_of[root(n.in[0])] : nullptr;
    joined.push_back(norm ? normed_product(n, *norm) : n);
  }
  t.nodes = std::move(joined);
}

}  // namespace hearth::inline core
