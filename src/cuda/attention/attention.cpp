// Chooses the implementation of an attention call. f32 has one. 16-bit calls use the Hopper kernels
// where they support the call, else flash_mma: the backward pass of scores with a softcap, ALiBi or
// a bias by distance always does. In batch-invariant mode the forward pass is always
// flash_mma, which adds in the same order as decoding.
#include "cuda/attention/attention.h"

#include <fmt/format.h>

#include "cuda/attention/attention_kernels.h"
#include "cuda/kernels.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

// The kernels read q, k and v from one packed tensor; other views are refused.
Tensor packed_tensor(const char* op, const HeadView& q, const HeadView& k, const HeadView& v) {
  const QkvLayout packed =
      packed_qkv(q.layout.heads, k.layout.heads, q.layout.width, v.layout.width);
  if (!(QkvLayout{q.layout, k.layout, v.layout} == packed) || k.tensor.data != q.tensor.data ||
      v.tensor.data != q.tensor.data)
    fail(op, "on a card q, k and v must lie packed in one tensor");
  return q.tensor;
}

// The part of a call that the forward and the backward pass share.
template <class Args>
AttnCall call_of(const char* op, const Args& args) {
  const AttnSpec& s = args.spec;
  const Tensor qkv = packed_tensor(op, args.q, args.k, args.v);
  AttnCall c;
  c.qkv = qkv.data, c.y = args.y.data, c.lse = args.lse.template as<float>();
  c.slopes = args.slopes.template as<const float>();
  c.bias = args.bias.template as<const float>();
  c.distances = args.bias ? int(args.bias.cols()) : 0;
  c.documents = args.documents.template as<const int32_t>();
  c.scalars = args.scalars.template as<const Scalars>();
  c.dtype = qkv.dtype;
  c.B = int(args.y.shape[0]), c.T = int(args.y.shape[1]);
  c.H = int(args.q.layout.heads), c.G = int(args.k.layout.heads);
  c.D = int(args.q.layout.width), c.V = int(args.v.layout.width), c.token = args.q.layout.token;
  c.window = int(s.window), c.scale = s.scale, c.softcap = s.softcap, c.dropout = s.dropout;
  c.salt = s.salt;
  return c;
}

void expect_dtype(const char* op, DType expected, Tensor t) {
  if (t && t.dtype != expected) refuse_dtypes(op, expected, t.dtype);
}

bool hopper(const CudaStream& s) { return s.card.hopper() && s.hopper_kernels; }

}  // namespace

std::string refused_heads(int64_t qk, int64_t v, DType dtype) {
  const bool wide = dtype == DType::f32;
  for (const int64_t size : {qk, v})
    if (size < 1 || size > 256 || (!wide && size % 8 != 0))
      return fmt::format("expected heads of up to 256{} on a card, got {}",
                         wide ? "" : ", a multiple of 8", size);
  return {};
}

void check_head_size(const char* op, DType dtype, int64_t qk, int64_t v) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) refuse_dtype(op, dtype);
  if (const std::string why = refused_heads(qk, v, dtype); !why.empty()) fail(op, "{}", why);
}

Tensor packed_qkv_of(const AttentionCachedArgs& args) {
  return packed_tensor("attention_cached", args.q, args.k, args.v);
}

void attention(Stream& stream, const AttentionArgs& args) {
  CudaStream& s = on(stream);
  const AttnCall c = call_of("attention", args);
  expect_dtype("attention", c.dtype, args.y);
  check_head_size("attention", c.dtype, c.D, c.V);
  if (c.dtype == DType::f32)
    attention_f32(c, s);
  else if (hopper(s) && !s.invariant && flash_hopper_takes(c))
    flash_hopper(c, s);
  else
    flash_mma(c, s);
}

void attention_bwd(Stream& stream, const AttentionBwdArgs& args) {
  CudaStream& s = on(stream);
  AttnCall c = call_of("attention_bwd", args);
  const Tensor dqkv = packed_tensor("attention_bwd", args.dq, args.dk, args.dv);
  const Shape& qkv_shape = args.q.tensor.shape;
  c.dy = args.dy.data, c.dqkv = dqkv.data, c.delta = args.delta.as<float>();
  c.dbias = args.dbias.as<float>(), c.dbias_prior = args.dbias_prior.as<const float>();
  for (Tensor t : {dqkv, args.dy, args.y}) expect_dtype("attention_bwd", c.dtype, t);
  check_head_size("attention_bwd", c.dtype, c.D, c.V);
  if (c.dtype == DType::f32) return attention_f32_bwd(c, s);
  const bool wgmma = hopper(s) && flash_hopper_bwd_takes(c);
  // A scale that is always measured would need this kernel twice; rounding separately is faster.
  const bool rounds =
      wgmma && args.fp8 && args.fp8.scalars && flash_hopper_bwd_takes_fp8(c, args.fp8);
  if (rounds) c.fp8 = &args.fp8;
  wgmma ? flash_hopper_bwd(c, s) : flash_mma_bwd(c, s);
  if (args.fp8 && !rounds)
    quantise_fp8(s, {.to = args.fp8, .x = {static_cast<std::byte*>(c.dqkv), qkv_shape, c.dtype}});
}

}  // namespace hearth::cuda
