#include "cuda/device/same_bits.h"

#include "cuda/device/device.cuh"

namespace hearth::cuda {
namespace {

__device__ float random_number(uint32_t seed, int64_t at) {
  uint64_t x = (uint64_t(seed) << 56) + uint64_t(at) + 0x9e3779b97f4a7c15ull;
  x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ x >> 27) * 0x94d049bb133111ebull;
  x ^= x >> 31;
  return float(int32_t(uint32_t(x))) * 0x1p-31f;
}

// The number at a place of a matrix, by its row, its column and the width of the matrix.
struct Random {
  uint32_t seed;
  float scale;
  __device__ float operator()(int64_t row, int column, int width) const {
    return scale * random_number(seed, row * width + column);
  }
};

struct Cancelling {
  uint32_t seed;
  float sign;
  __device__ float operator()(int64_t row, int column, int width) const {
    const int half = width / 2;
    if (column >= 2 * half) return 0;
    const bool second = column >= half;
    return (second ? sign : 1) * random_number(seed, row * width + column - (second ? half : 0));
  }
};

struct FirstColumn {
  uint32_t seed;
  float scale;
  __device__ float operator()(int64_t row, int column, int) const {
    return column ? 0 : seed ? scale * random_number(seed, row) : scale;
  }
};

struct Columns {
  uint32_t seed;
  float scale;
  __device__ float operator()(int64_t, int column, int) const {
    return scale * random_number(seed, column);
  }
};

template <class T, class F>
__global__ void fill_rows(T* to, int64_t count, int width, F number) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const float out[1] = {number(at / width, int(at % width), width)};
  store_rounded(to + at, out);
}

template <class F>
void fill(CudaStream& s, const Tensor& t, F number) {
  by_dtype("fill", t, [&]<class T>(T*) {
    fill_rows<T><<<unsigned(ceil_div(t.numel(), 256)), 256, 0, s.handle>>>(as<T>(t), t.numel(),
                                                                           int(t.cols()), number);
  });
  check_launch("fill");
}

__global__ void find_differences(uint32_t* found, const uint16_t* a, const uint16_t* b,
                                 int64_t count) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at < count && a[at] != b[at]) *found = 1;
}

}  // namespace

void fill_random(CudaStream& s, Tensor t, uint32_t seed, float scale) {
  fill(s, t, Random{seed, scale});
}

void fill_cancelling(CudaStream& s, Tensor t, uint32_t seed, float sign) {
  fill(s, t, Cancelling{seed, sign});
}

void fill_first_column(CudaStream& s, Tensor t, uint32_t seed, float scale) {
  fill(s, t, FirstColumn{seed, scale});
}

void fill_columns(CudaStream& s, Tensor t, uint32_t seed, float scale) {
  fill(s, t, Columns{seed, scale});
}

// The sizes suit bf16 and fp16.
void fill_addends(CudaStream& s, Addends which, const AddendTensors& to) {
  if (which == Addends::first) {
    // prior = -bias, 2^15 times u. Added to one of them, a product of at most 2^-4 is rounded to a
    // few bits.
    fill_first_column(s, to.a, 1, 0x1p-2f);
    fill_first_column(s, to.b, 2, 0x1p-2f);
    fill_columns(s, to.bias, 3, 0x1p15f);
    fill_columns(s, to.prior, 3, -0x1p15f);
  } else {
    // product = -bias, 2^8 times u. Added to one of them, a prior of at most 2^-12 is rounded to a
    // few bits.
    fill_first_column(s, to.a, 0, 1);
    fill_first_column(s, to.b, 3, 0x1p8f);
    fill_columns(s, to.bias, 3, -0x1p8f);
    fill_random(s, to.prior, 4, 0x1p-12f);
  }
}

Differences::Differences(CudaStream& s)
    : stream_(s), found_(static_cast<uint32_t*>(s.memory.allocate(4, "a comparison"))) {
  check(cudaMemsetAsync(found_, 0, 4, s.handle), "clearing a comparison");
}

Differences::~Differences() {
  cudaStreamSynchronize(stream_.handle);
  stream_.memory.release(found_, 4);
}

void Differences::add(const Tensor& a, const Tensor& b) {
  const int64_t count = b.bytes() / 2;
  find_differences<<<unsigned(ceil_div(count, 256)), 256, 0, stream_.handle>>>(
      found_, as<uint16_t>(a), as<uint16_t>(b), count);
  check_launch("find_differences");
}

bool Differences::any() {
  uint32_t found = 0;
  check(cudaMemcpyAsync(&found, found_, 4, cudaMemcpyDefault, stream_.handle), "a comparison");
  check(cudaStreamSynchronize(stream_.handle), "a comparison");
  return found != 0;
}

}  // namespace hearth::cuda
