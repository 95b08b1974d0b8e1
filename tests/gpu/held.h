// Tensors on a backend for tests that call single kernels, written and read as floats.
#pragma once

#include <random>

#include "cuda_case.h"

namespace hearth::test {

template <class T>
inline void put_as(std::vector<std::byte>& to, const std::vector<float>& x) {
  to.resize(x.size() * sizeof(T));
  for (size_t i = 0; i < x.size(); ++i) reinterpret_cast<T*>(to.data())[i] = T(x[i]);
}

// A tensor on a backend, written and read as floats.
struct Held {
  Held(Backend& b, Shape s, DType d) : backend(b), memory(b, s.numel() * size_of(d), "a tensor") {
    t = {memory.data(), s, d};
  }
  void fill(const std::vector<float>& x) {
    std::vector<std::byte> bytes;
    if (t.dtype == DType::bf16) put_as<bf16>(bytes, x);
    if (t.dtype == DType::f16) put_as<f16>(bytes, x);
    if (t.dtype == DType::f32) put_as<float>(bytes, x);
    backend.upload(t.data, bytes.data(), t.bytes());
  }
  std::vector<float> read() {
    std::vector<std::byte> bytes(size_t(t.bytes()));
    backend.download(bytes.data(), t.data, t.bytes());
    std::vector<float> x(size_t(t.numel()));
    const Tensor host{bytes.data(), t.shape, t.dtype};
    for (size_t i = 0; i < x.size(); ++i)
      x[i] = t.dtype == DType::bf16  ? float(host.as<bf16>()[i])
             : t.dtype == DType::f16 ? float(host.as<f16>()[i])
                                     : host.as<float>()[i];
    return x;
  }
  Backend& backend;
  Buffer memory;
  Tensor t;
};

// Integers on a backend.
struct HeldInts {
  HeldInts(Backend& b, const std::vector<int>& x)
      : backend(b), memory(b, std::max<int64_t>(int64_t(x.size()), 1) * 4, "integers") {
    t = {memory.data(), {int64_t(x.size())}, DType::i32};
    fill(x);
  }
  void fill(const std::vector<int>& x) {
    if (!x.empty()) backend.upload(t.data, x.data(), int64_t(x.size()) * 4);
  }
  Backend& backend;
  Buffer memory;
  Tensor t;
};

// L2 norm of the difference, relative to that of `want`.
inline double distance(const std::vector<float>& got, const std::vector<float>& want) {
  double difference = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    difference += std::pow(double(got[i]) - double(want[i]), 2);
    size += std::pow(double(want[i]), 2);
  }
  return std::sqrt(difference / size);
}

// Random values that are exact in the dtype.
inline std::vector<float> rounded(size_t n, DType d, std::mt19937& random) {
  std::normal_distribution<float> normal(0, 1);
  std::vector<float> x(n);
  for (float& v : x)
    v = d == DType::bf16 ? float(bf16(normal(random))) : float(f16(normal(random)));
  return x;
}

}  // namespace hearth::test
