// A part of every key, taken from the token before. Memory bound: the part is read and written
// twice, 8n bytes for n two-byte elements.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

// Element i is dim i % width of head i % size / width of row i / size.
template <class T>
struct KeyParts {
  T *y, *kept;
  const int32_t *positions, *sequences, *tables;  // tables: null without a cache
  int64_t tokens, blocks;                         // in a row of the batch; in a table
  int64_t size, width, first;
  HeadLayout k;

  explicit KeyParts(const OffsetKeysArgs& a)
      : y(as<T>(a.y)),
        kept(as<T>(a.kept)),
        positions(as<int32_t>(a.positions)),
        sequences(as<int32_t>(a.sequences)),
        tables(as<int32_t>(a.tables)),
        tokens(a.positions.cols()),
        blocks(a.tables ? a.tables.cols() : 0),
        size(a.size()),
        width(a.k.width - a.first),
        first(a.first),
        k(a.k) {}

  __device__ bool has_previous(int64_t n) const {
    return positions[n] > 0 && (tables || n % tokens > 0);
  }
  __device__ bool has_next(int64_t n) const {
    return n % tokens + 1 < tokens && positions[n + 1] > 0;
  }
  __device__ T* part(int64_t n, int64_t i) const {
    const int64_t head = i / width;
    return y + k.offset + n * k.token + head * k.head + first + (i - head * width);
  }
  // The stored parts of the token at position p of row n's sequence, which is row m.
  __device__ T* stored(int64_t n, int64_t p, int64_t m) const {
    if (!tables) return kept + m * size;
    const int64_t block = tables[sequences[n] * blocks + p / cache_block];
    return kept + (block * cache_block + p % cache_block) * size;
  }
};

template <class T>
struct StoreParts : KeyParts<T> {
  using KeyParts<T>::KeyParts;

  template <int N>
  __device__ Pack<T, N> load(int64_t i) const {
    const int64_t n = i / this->size;
    return cuda::load<N>(this->part(n, i - n * this->size));
  }
  template <int N>
  __device__ void finish(int64_t i, const Pack<T, N>& in) const {
    const int64_t n = i / this->size, p = this->positions[n];
    if (!this->tables || p >= 0) cuda::store(this->stored(n, p, n) + (i - n * this->size), in);
  }
};

template <class T>
struct TakeParts : KeyParts<T> {
  using KeyParts<T>::KeyParts;

  template <int N>
  __device__ Pack<T, N> load(int64_t i) const {
    const int64_t n = i / this->size;
    if (!this->has_previous(n)) return {};
    const T* from = this->stored(n, this->positions[n] - 1, n - 1);
    return cuda::load<N>(from + (i - n * this->size));
  }
  template <int N>
  __device__ void finish(int64_t i, const Pack<T, N>& in) const {
    const int64_t n = i / this->size;
    if (this->has_previous(n)) cuda::store(this->part(n, i - n * this->size), in);
  }
};

template <class T, int N>
struct Given {
  Pack<T, N> own, next;
};

// The gradient of what row n + 1 took, and of what row n kept.
template <class T>
struct GiveBackParts : KeyParts<T> {
  using KeyParts<T>::KeyParts;

  template <int N>
  __device__ Given<T, N> load(int64_t i) const {
    const int64_t n = i / this->size;
    Given<T, N> r{};
    if (!this->has_previous(n)) r.own = cuda::load<N>(this->kept + i);
    if (this->has_next(n)) r.next = cuda::load<N>(this->kept + i + this->size);
    return r;
  }
  template <int N>
  __device__ void finish(int64_t i, const Given<T, N>& in) const {
    const int64_t n = i / this->size;
    float total[N];
#pragma unroll
    for (int j = 0; j < N; ++j) total[j] = get(in.own, j) + get(in.next, j);
    store_rounded(this->part(n, i - n * this->size), total);
  }
};

// Whether 16 bytes of every tensor may be moved at once.
bool packs_fit_parts(const OffsetKeysArgs& a) {
  const auto fits = [&](int64_t elements) { return packs_fit(elements, a.y, a.kept); };
  return fits(a.first) && fits(a.k.width - a.first) && fits(a.k.offset) && fits(a.k.token) &&
         fits(a.k.head);
}

}  // namespace

void offset_keys(Stream& stream, const OffsetKeysArgs& args) {
  expect_dtypes("offset_keys", args.y.dtype, args.kept);
  const int64_t n = args.positions.numel() * args.size();
  CudaStream& s = on(stream);
  by_dtype("offset_keys", args.y, [&]<class T>(T*) {
    by_width<T>(packs_fit_parts(args), [&]<int N>(Number<N>) {
      for_each<N>(s, "offset_keys", StoreParts<T>(args), n);  // all of them, before any is read
      if (args.back)
        for_each<N>(s, "offset_keys_bwd", GiveBackParts<T>(args), n);
      else
        for_each<N>(s, "offset_keys", TakeParts<T>(args), n);
    });
  });
}

}  // namespace hearth::cuda
