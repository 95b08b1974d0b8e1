// Partial key offset: a part of every key is taken from the token before.
#include "ops/ops.h"
#include "sys/error.h"

namespace hearth::inline ops {
namespace {

// An op that computes y in the memory of its first input, or in a copy of it.
Op offset_op(const char* name, const HeadLayout& k, int64_t first, bool back) {
  Op op;
  op.name = name;
  op.available = [](const Kernels& k) { return k.offset_keys && k.copy; };
  op.launch = [=](const Kernels& kernels, Stream& s, In in, Out out) {
    if (out[0].data != in[0].data) kernels.copy(s, {.y = out[0], .x = in[0]});
    kernels.offset_keys(s, {.y = out[0],
                            .kept = out[1],
                            .positions = in[1],
                            .sequences = in[2],
                            .tables = in[3],
                            .k = k,
                            .first = first,
                            .back = back});
  };
  op.inplace = {{0, 0}};
  return op;
}

// Elements of a token that the token after it takes.
int64_t checked_size(Tape& t, Var qkv, const HeadLayout& k, int64_t first) {
  const Shape s = t.shape(qkv);
  if (s.rank < 3 || s.numel() != s[0] * s[1] * k.token)
    fail(t.where(), "expected qkv (B, T, {}), got {}", k.token, to_string(s));
  if (first < 0 || first >= k.width)
    fail(t.where(), "expected keys offset from a dim below {} on, got {}", k.width, first);
  return k.heads * (k.width - first);
}

}  // namespace

Var offset_keys(Tape& t, Var qkv, Var positions, const HeadLayout& k, int64_t first) {
  const Shape s = t.shape(qkv), kept{s[0] * s[1], checked_size(t, qkv, k, first)};
  Op op = offset_op("offset_keys", k, first, false);
  op.backward = [=](Tape& t, const Node& n) {
    const Var dx = t.temp(t.shape(n.in[0]));
    t.push(offset_op("offset_keys_bwd", k, first, true), {t.grad(n.out[0]), n.in[1], {}, {}},
           {dx, t.temp(kept)});
    t.add_grad(n.in[0], dx);
  };
  const Var y = t.temp(s);
  t.push(std::move(op), {qkv, positions, {}, {}}, {y, t.temp(kept)});
  return y;
}

Var offset_keys_cached(Tape& t, Var cache, Var qkv, const Paged& paged, const HeadLayout& k,
                       int64_t first) {
  const int64_t block = cache_block * checked_size(t, qkv, k, first);
  const Shape s = t.shape(qkv), c = t.shape(cache);
  if (s[0] != 1 || c.numel() != c[0] * block)
    fail(t.where(), "expected rows (1, N, ..) and blocks of {} elements, got {} and {}", block,
         to_string(s), to_string(c));
  const Var y = t.temp(s);
  t.push(offset_op("offset_keys", k, first, false),
         {qkv, paged.positions, paged.sequences, paged.tables, cache}, {y, cache});
  return y;
}

}  // namespace hearth::inline ops
