// Tensor: a non-owning view of contiguous memory. The only type of data that kernels see.
#pragma once

#include <algorithm>
#include <array>
#include <cassert>
#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>

#include "core/dtype.h"

namespace hearth::inline core {

struct Shape {
  std::array<int64_t, 4> dim{};
  int rank = 0;

  Shape() = default;
  Shape(std::initializer_list<int64_t> d) : rank(int(d.size())) {
    assert(d.size() <= dim.size());
    std::copy(d.begin(), d.end(), dim.begin());
  }
  int64_t operator[](int i) const { return dim[size_t(i < 0 ? rank + i : i)]; }
  int64_t numel() const {
    int64_t n = 1;
    for (int i = 0; i < rank; ++i) n *= dim[size_t(i)];
    return n;
  }
  bool operator==(const Shape&) const = default;
};

std::string to_string(const Shape&);  // "(4, 64, 768)"

struct Tensor {
  std::byte* data = nullptr;
  Shape shape;
  DType dtype = DType::f32;

  template <class T = float>
  T* as() const {
    return reinterpret_cast<T*>(data);
  }
  explicit operator bool() const { return data != nullptr; }
  int64_t numel() const { return shape.numel(); }
  int64_t bytes() const { return numel() * size_of(dtype); }
  int64_t cols() const { return shape[-1]; }
  int64_t rows() const { return cols() ? numel() / cols() : 0; }
};

}  // namespace hearth::inline core
