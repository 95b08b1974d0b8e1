// Dropout, addition and conversion: one pass over memory. For n two-byte elements dropout moves 4n
// bytes and an addition 6n.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

template <class T>
struct Drop {
  T* y;
  const T* x;
  const Scalars* scalars;
  uint32_t limit, salt;  // an element whose random word is below `limit` is dropped
  float kept;

  template <int N>
  __device__ Pack<T, N> load(int64_t i) const {
    return cuda::load<N>(x + i);
  }
  template <int N>
  __device__ void finish(int64_t i, const Pack<T, N>& in) const {
    float out[N];
    if constexpr (N == 1) {
      out[0] = random_word(*scalars, salt, uint64_t(i)) < limit ? 0.0f : get(in, 0) * kept;
    } else {
      static_assert(N % 4 == 0);  // one counter yields four words
#pragma unroll
      for (int k = 0; k < N; k += 4) {
        const uint64_t block = uint64_t(i + k) / 4;
        const Words r = philox({{uint32_t(block), salt, scalars->step,
                                 scalars->micro ^ (uint32_t(block >> 32) << 16)}},
                               scalars->seed_lo, scalars->seed_hi);
#pragma unroll
        for (int j = 0; j < 4; ++j) out[k + j] = r.w[j] < limit ? 0.0f : get(in, k + j) * kept;
      }
    }
    store_rounded(y + i, out);
  }
};

template <class T, int N>
struct Operands {
  Pack<T, N> a, b;
};

template <class T>
struct Sum {
  T* y;
  const T *a, *b;  // a may be null
  float scale;

  template <int N>
  __device__ Operands<T, N> load(int64_t i) const {
    Operands<T, N> r{};
    if (a) r.a = cuda::load<N>(a + i);
    r.b = cuda::load<N>(b + i);
    return r;
  }
  template <int N>
  __device__ void finish(int64_t i, const Operands<T, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) {
      const float v = get(in.b, k) * scale;
      out[k] = a ? get(in.a, k) + v : v;
    }
    store_rounded(y + i, out);
  }
};

template <class To, class From>
struct Convert {
  To* y;
  const From* x;

  template <int N>
  __device__ Pack<From, N> load(int64_t i) const {
    return cuda::load<N>(x + i);
  }
  template <int N>
  __device__ void finish(int64_t i, const Pack<From, N>& in) const {
    float out[N];
#pragma unroll
    for (int k = 0; k < N; ++k) out[k] = get(in, k);
    store_rounded(y + i, out);
  }
};

}  // namespace

void dropout(Stream& stream, const DropoutArgs& args) {
  expect_dtypes("dropout", args.x.dtype, args.y);
  by_dtype("dropout", args.x, [&]<class T>(T*) {
    const Drop<T> f{as<T>(args.y),          as<T>(args.x), as<Scalars>(args.scalars),
                    drop_threshold(args.p), args.salt,     1 / (1 - args.p)};
    by_width<T>(packs_fit(8, args.y, args.x),
                [&]<int N>(Number<N>) { for_each<N>(on(stream), "dropout", f, args.x.numel()); });
  });
}

void add(Stream& stream, const AddArgs& args) {
  expect_dtypes("add", args.b.dtype, args.y, args.a);
  by_dtype("add", args.b, [&]<class T>(T*) {
    const Sum<T> f{as<T>(args.y), as<T>(args.a), as<T>(args.b), args.scale};
    by_width<T>(packs_fit(8, args.y, args.a, args.b),
                [&]<int N>(Number<N>) { for_each<N>(on(stream), "add", f, args.y.numel()); });
  });
}

void copy(Stream& stream, const CopyArgs& args) {
  by_dtype("copy", args.y, [&]<class To>(To*) {
    by_dtype("copy", args.x, [&]<class From>(From*) {
      const Convert<To, From> f{as<To>(args.y), as<From>(args.x)};
      // As many elements as fill 16 bytes of the narrower type.
      using Narrow = std::conditional_t<sizeof(To) < sizeof(From), To, From>;
      by_width<Narrow>(packs_fit(8, args.y, args.x), [&]<int N>(Number<N>) {
        for_each<N>(on(stream), "copy", f, args.y.numel());
      });
    });
  });
}

}  // namespace hearth::cuda
