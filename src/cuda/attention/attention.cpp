// Attention entries of the table: which implementation runs a call. f32 has one; of the 16-bit
// ones the Hopper kernels are preferred where they have code for the call. Where rows are to have
// the bits of decoding, the forward pass is flash_mma's, which adds up in the same order.
#include "cuda/attention/attention.h"

#include <fmt/format.h>

#include "cuda/attention/attention_kernels.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

// What the forward and the backward pass have in common.
template <class Args>
AttnCall call_of(const Args& args) {
  const AttnSpec& s = args.spec;
  AttnCall c;
  c.qkv = args.qkv.data, c.y = args.y.data, c.lse = args.lse.template as<float>();
  c.slopes = args.slopes.template as<const float>();
  c.documents = args.documents.template as<const int32_t>();
  c.scalars = args.scalars.template as<const Scalars>();
  c.dtype = args.qkv.dtype;
  c.B = int(args.qkv.shape[0]), c.T = int(args.qkv.shape[1]);
  c.H = int(s.heads), c.G = int(s.kv_heads), c.D = int(s.head_dim);
  c.window = int(s.window), c.scale = s.scale, c.softcap = s.softcap, c.dropout = s.dropout;
  c.salt = s.salt;
  return c;
}

void expect_dtype(const char* op, DType expected, Tensor t) {
  if (t && t.dtype != expected) refuse_dtypes(op, expected, t.dtype);
}

bool hopper(const CudaStream& s) { return s.card.hopper() && s.hopper_kernels; }

}  // namespace

std::string refused_heads(int64_t size, DType dtype) {
  const bool wide = dtype == DType::f32;
  if (size >= 1 && size <= 256 && (wide || size % 8 == 0)) return {};
  return fmt::format("expected heads of up to 256{} on a card, got {}",
                     wide ? "" : ", a multiple of 8", size);
}

void check_head_size(const char* op, DType dtype, const AttnSpec& spec) {
  if (dtype != DType::f32 && dtype != DType::bf16 && dtype != DType::f16) refuse_dtype(op, dtype);
  if (const std::string why = refused_heads(spec.head_dim, dtype); !why.empty())
    fail(op, "{}", why);
}

void attention(Stream& stream, const AttentionArgs& args) {
  CudaStream& s = on(stream);
  const AttnCall c = call_of(args);
  expect_dtype("attention", c.dtype, args.y);
  check_head_size("attention", c.dtype, args.spec);
  if (c.dtype == DType::f32)
    attention_f32(c, s);
  else if (hopper(s) && !s.invariant && flash_hopper_takes(c))
    flash_hopper(c, s);
  else
    flash_mma(c, s);
}

void attention_bwd(Stream& stream, const AttentionBwdArgs& args) {
  CudaStream& s = on(stream);
  AttnCall c = call_of(args);
  c.dy = args.dy.data, c.dqkv = args.dqkv.data, c.delta = args.delta.as<float>();
  for (Tensor t : {args.dqkv, args.dy, args.y}) expect_dtype("attention_bwd", c.dtype, t);
  check_head_size("attention_bwd", c.dtype, args.spec);
  if (c.dtype == DType::f32)
    attention_f32_bwd(c, s);
  else if (hopper(s) && flash_hopper_bwd_takes(c))
    flash_hopper_bwd(c, s);
  else
    flash_mma_bwd(c, s);
}

}  // namespace hearth::cuda
