// Packed weights (core/quantised.h) for gemm_rows16.cuh; a block handles one panel. Each lane reads
// the words of two adjacent rows (8 bytes), so that a warp reads 256 or 512 contiguous bytes. It
// widens them in registers to 16-bit floats, which hold them exactly. The scales of rows are
// applied to the complete sums; the group factors of int4 every 32 of K.
#pragma once

#include "core/quantised.h"
#include "cuda/gemm/gemm_quantised.h"
#include "cuda/gemm/gemm_rows16.cuh"

namespace hearth::cuda {

static_assert(few::tile == quant_panel && few::stretch == quant_group);

template <class T>
__device__ __forceinline__ uint32_t minus(uint32_t x, uint32_t y, T) {
  const Two<T> d =
      __hsub2(*reinterpret_cast<const Two<T>*>(&x), *reinterpret_cast<const Two<T>*>(&y));
  return *reinterpret_cast<const uint32_t*>(&d);
}
// Bytes 0 and 1 (Pair 0) or 2 and 3 of a word as the lower bytes of two halves, `high` above them.
template <int Pair>
__device__ __forceinline__ uint32_t bytes_apart(uint32_t word, uint32_t high) {
  return __byte_perm(word, high, Pair == 0 ? 0x4140 : 0x4342);
}

// Convert the four bytes of a word to two pairs of 16-bit floats. An integer is placed in the
// mantissa of a float whose last bit is worth 1 (128 in bf16, 1024 in f16), which is then
// subtracted.
struct Int8Code {
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __nv_bfloat16 t) {
    // 7 bits fit below 128; the sign bit turns the 128 that is subtracted into 256.
    const uint32_t both = bytes_apart<Pair>(word, 0x43434343u);
    return minus(both & 0xff7fff7fu, both & 0xff80ff80u, t);
  }
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __half t) {
    return minus(bytes_apart<Pair>(word ^ 0x80808080u, 0x64646464u), 0x64806480u, t);  // 1024 + 128
  }
};

// The bits of a code, placed in a wider float, give its value up to a power of two.
struct Fp8Code {
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __nv_bfloat16 t) {
    const uint32_t both = upper<Pair>(word);
    return times((both & 0x80008000u) | ((both & 0x7f007f00u) >> 4), 0x7b807b80u, t);  // 2^120
  }
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __half t) {
    const uint32_t both = upper<Pair>(word);
    return times((both & 0x80008000u) | ((both & 0x7f007f00u) >> 1), 0x5c005c00u, t);  // 2^8
  }
  // The two bytes as the upper bytes of two halves.
  template <int Pair>
  __device__ static uint32_t upper(uint32_t word) {
    return __byte_perm(word, 0, Pair == 0 ? 0x1404 : 0x3424);
  }
};

// Four bits, offset by 8, each in its own byte.
struct Int4Code {
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __nv_bfloat16 t) {
    return minus(bytes_apart<Pair>(word, 0x43434343u), 0x43084308u, t);  // 128 + 8
  }
  template <int Pair>
  __device__ static uint32_t pair(uint32_t word, __half t) {
    return minus(bytes_apart<Pair>(word, 0x64646464u), 0x64086408u, t);  // 1024 + 8
  }
};

// Adds the products of four k: two rows of w, one word each, times `gain` if Scaled, with the rows
// of a.
template <class Code, bool Scaled, class T, int Columns>
__device__ __forceinline__ void few_words(float (&sum)[Columns][4], uint32_t row0, uint32_t row1,
                                          const uint2 (&x)[Columns], const uint2& gain, T t) {
  uint32_t w[4] = {Code::template pair<0>(row0, t), Code::template pair<0>(row1, t),
                   Code::template pair<1>(row0, t), Code::template pair<1>(row1, t)};
  if constexpr (Scaled)
#pragma unroll
    for (int i = 0; i < 4; ++i) w[i] = times(w[i], i < 2 ? gain.x : gain.y, t);
#pragma unroll
  for (int c = 0; c < Columns; ++c) multiply(sum[c], w, x[c].x, x[c].y, t);
}

// The first or second four of a lane's eight elements of a.
template <int Half, int Columns>
__device__ __forceinline__ void few_half(uint2 (&to)[Columns], const uint4 (&x)[Columns]) {
#pragma unroll
  for (int c = 0; c < Columns; ++c)
    to[c] = Half == 0 ? make_uint2(x[c].x, x[c].y) : make_uint2(x[c].z, x[c].w);
}

// What all packed formats share.
template <class T>
struct FewPacked {
  using Element = T;
  static constexpr bool packed = true;
  static constexpr int rows = few::tile, ahead = few::ahead;

  __device__ static int row(int group, int half) { return 2 * group + half; }
  // The gain is multiplied into widened weights, as they are multiplied.
  __device__ __forceinline__ void fold(int, const uint4&) {}
  __device__ static int lane() { return int(threadIdx.x) % 32; }
  template <class Args>
  __device__ static const unsigned char* panel(const Args& p) {
    return static_cast<const unsigned char*>(p.w) + int64_t(blockIdx.x) * p.panel_bytes;
  }
};

// One byte per weight: a quad of k takes 64 bytes, 4 per row. A lane has two adjacent quads.
template <class T, class Code>
struct FewBytes : FewPacked<T> {
  using Base = FewPacked<T>;
  static constexpr int parts = 1;
  uint2 w[few::ahead][2];  // [quad]: rows 2 group, 2 group + 1

  __device__ static int column(int) { return 8 * (Base::lane() % 4); }

  template <int Step, class Args>
  __device__ __forceinline__ void load(const Args& p, int k) {
    const unsigned char* own = Base::panel(p) + 8 * (Base::lane() / 4);
#pragma unroll
    for (int i = 0; i < few::ahead; ++i)
#pragma unroll
      for (int quad = 0; quad < 2; ++quad) {
        const int at = k + i * Step;
        w[i][quad] =
            at < p.K
                ? *reinterpret_cast<const uint2*>(own + int64_t((at + column(0)) / 4 + quad) * 64)
                : make_uint2(0, 0);
      }
  }
  template <int Columns, bool Scaled>
  __device__ __forceinline__ void multiply_by(float (&sum)[Columns][4], int i,
                                              const uint4 (&x)[Columns], const uint4& gain) const {
    uint2 four[Columns];
    few_half<0>(four, x);
    few_words<Code, Scaled>(sum, w[i][0].x, w[i][0].y, four, {gain.x, gain.y}, T());
    few_half<1>(four, x);
    few_words<Code, Scaled>(sum, w[i][1].x, w[i][1].y, four, {gain.z, gain.w}, T());
  }
};

// Half a byte per weight: a group of 32 k takes 256 bytes, of which a lane has 4 for each of its
// rows: 4 k from 4 (lane % 4) on in the low nibbles, the 4 that are 16 further in the high ones.
template <class T>
struct FewHalfBytes : FewPacked<T> {
  using Base = FewPacked<T>;
  static constexpr int parts = 2;
  static constexpr uint32_t zeros = 0x88888888u;
  uint2 w[few::ahead];
  uint32_t factors[few::ahead];  // of rows 2 group and 2 group + 1, one byte each

  __device__ static int column(int part) { return 4 * (Base::lane() % 4) + 16 * part; }

  template <int Step, class Args>
  __device__ __forceinline__ void load(const Args& p, int k) {
    const unsigned char* all = Base::panel(p);
    const int group = Base::lane() / 4;
    const unsigned char* own = all + p.factor_bytes + 64 * (Base::lane() % 4) + 8 * group;
#pragma unroll
    for (int i = 0; i < few::ahead; ++i) {
      const int at = (k + i * Step) / int(quant_group);  // k is a multiple of the group size
      const bool inside = k + i * Step < p.K;
      w[i] = inside ? *reinterpret_cast<const uint2*>(own + int64_t(at) * 256)
                    : make_uint2(zeros, zeros);
      factors[i] =
          inside ? *reinterpret_cast<const uint16_t*>(all + at * int(quant_panel) + 2 * group) : 0;
    }
  }
  template <int Columns, bool Scaled>
  __device__ __forceinline__ void multiply_by(float (&sum)[Columns][4], int i,
                                              const uint4 (&x)[Columns], const uint4& gain) const {
    float part[Columns][4] = {};
    uint2 four[Columns];
    few_half<0>(four, x);
    few_words<Int4Code, Scaled>(part, w[i].x & 0x0f0f0f0fu, w[i].y & 0x0f0f0f0fu, four,
                                {gain.x, gain.y}, T());
    few_half<1>(four, x);
    few_words<Int4Code, Scaled>(part, (w[i].x >> 4) & 0x0f0f0f0fu, (w[i].y >> 4) & 0x0f0f0f0fu,
                                four, {gain.z, gain.w}, T());
    const float factor[2] = {float(int8_t(factors[i] & 0xff)), float(int8_t(factors[i] >> 8))};
#pragma unroll
    for (int c = 0; c < Columns; ++c)
#pragma unroll
      for (int e = 0; e < 4; ++e) sum[c][e] = fmaf(factor[e / 2], part[c][e], sum[c][e]);
  }
};

// The arguments of a product with packed weights.
template <class T>
FewArgs<T, T> few_packed_args(const GemmQuantisedArgs& args) {
  const QuantLayout l = packed_layout(args.w, args.c.cols(), args.a.cols());
  FewArgs<T, T> few = few_args<T, T>({.c = args.c,
                                      .a = args.a,
                                      .b = args.w,
                                      .bias = args.bias,
                                      .prior = args.prior,
                                      .spec = args.spec});
  few.w = args.w.data + l.first_panel();
  few.scales = reinterpret_cast<const float*>(args.w.data + l.scales());
  few.panel_bytes = int(l.panel_bytes()), few.factor_bytes = int(l.factor_bytes());
  few.wide = args.c.dtype == DType::f32;
  return few;
}

// The launcher of each format's file; W<T> is the format. One kernel serves both types of c.
template <template <class> class W>
void few_packed_launch(CudaStream& s, const GemmQuantisedArgs& args, const FewNormed* normed) {
  by_dtype("gemm_quantised", args.a, [&]<class T>(T*) {
    if constexpr (sizeof(T) == 2) {
      FewArgs<T, T> few = few_packed_args<T>(args);
      if (!normed) return few_launch<W<T>, false, T>(s, few);
      if constexpr (few_norms<T>) {
        few_norm(few, *normed);
        few_launch<W<T>, true, T>(s, few);
      }
    }
  });
  check_launch("gemm_quantised");
}

}  // namespace hearth::cuda
