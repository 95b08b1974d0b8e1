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

template <class T>
__global__ void fill_rows(T* to, int64_t count, int width, uint32_t seed, float scale, float sign,
                          bool twice) {
  const int64_t at = int64_t(blockIdx.x) * blockDim.x + threadIdx.x;
  if (at >= count) return;
  const int half = width / 2, column = int(at % width);
  const bool second = twice && column >= half, odd = twice && column >= 2 * half;
  const float x = random_number(seed, at - (second ? half : 0));
  const float out[1] = {odd ? 0 : second ? sign * x : scale * x};
  store_rounded(to + at, out);
}

void fill(CudaStream& s, const Tensor& t, uint32_t seed, float scale, float sign, bool twice) {
  by_dtype("fill", t, [&]<class T>(T*) {
    fill_rows<T><<<unsigned(ceil_div(t.numel(), 256)), 256, 0, s.handle>>>(
        as<T>(t), t.numel(), int(t.cols()), seed, scale, sign, twice);
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
  fill(s, t, seed, scale, 1, false);
}

void fill_cancelling(CudaStream& s, Tensor t, uint32_t seed, float sign) {
  fill(s, t, seed, 1, sign, true);
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
