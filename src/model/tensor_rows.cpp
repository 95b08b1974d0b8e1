#include "model/tensor_rows.h"

#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/error.h"

namespace hearth {
namespace {

template <class T>
void widen(std::span<float> out, const std::byte* in) {
  for (size_t i = 0; i < out.size(); ++i) {
    T x;
    std::memcpy(&x, in + i * sizeof x, sizeof x);
    out[i] = float(x);
  }
}

template <class T>
std::vector<std::byte> narrow(std::span<const float> in) {
  std::vector<std::byte> out(in.size() * sizeof(T));
  for (size_t i = 0; i < in.size(); ++i) {
    const T x = T(in[i]);
    if (std::isfinite(in[i]) && !std::isfinite(float(x)))
      fail("weights", "expected numbers that the dtype asked for can hold, got {}", in[i]);
    std::memcpy(out.data() + i * sizeof x, &x, sizeof x);
  }
  return out;
}

// (rows, cols) to (cols, rows), by tiles that stay in the cache.
std::vector<float> transpose(std::span<const float> in, int64_t rows, int64_t cols) {
  constexpr int64_t tile = 32;
  std::vector<float> out(in.size());
  for (int64_t r0 = 0; r0 < rows; r0 += tile)
    for (int64_t c0 = 0; c0 < cols; c0 += tile)
      for (int64_t r = r0; r < std::min(rows, r0 + tile); ++r)
        for (int64_t c = c0; c < std::min(cols, c0 + tile); ++c)
          out[size_t(c * rows + r)] = in[size_t(r * cols + c)];
  return out;
}

// Where row i of a half-split head lies when its pairs are interleaved: i and i + D/2 are
// neighbours.
int64_t interleaved_row(int64_t i, int64_t head_dim) {
  const int64_t half = head_dim / 2, d = i % head_dim;
  return i - d + (d < half ? 2 * d : 2 * (d - half) + 1);
}

// Calls copy(row in the file, row here) for each row of a tensor whose heads are regrouped.
template <class F>
void each_row(const FileTensor& t, int64_t rows, F copy) {
  for (int64_t i = 0; i < rows; ++i) {
    const int64_t moved = interleaved_row(i, t.head_dim);
    t.interleaved ? copy(moved, i) : copy(i, moved);
  }
}

}  // namespace

std::vector<float> to_floats(const StoredTensor& t) {
  std::vector<float> out(size_t(t.numel()));
  switch (t.dtype) {
    case DType::f32:
      widen<float>(out, t.bytes.data());
      break;
    case DType::f64:
      widen<double>(out, t.bytes.data());
      break;
    case DType::bf16:
      widen<bf16>(out, t.bytes.data());
      break;
    case DType::f16:
      widen<f16>(out, t.bytes.data());
      break;
    default:
      fail("weights", "expected a float type, got {}", to_string(t.dtype));
  }
  return out;
}

std::vector<std::byte> from_floats(std::span<const float> in, DType d) {
  switch (d) {
    case DType::f32:
      return narrow<float>(in);
    case DType::f64:
      return narrow<double>(in);
    case DType::bf16:
      return narrow<bf16>(in);
    case DType::f16:
      return narrow<f16>(in);
    default:
      fail("weights", "expected a float type, got {}", to_string(d));
  }
}

std::vector<float> to_rows(const FileTensor& t, std::vector<float> file) {
  if (t.transposed) return transpose(file, t.shape[0], t.shape[1]);
  if (!t.head_dim) return file;
  const int64_t rows = t.shape[0], cols = int64_t(file.size()) / rows;
  std::vector<float> out(file.size());
  each_row(t, rows, [&](int64_t there, int64_t here) {
    std::copy_n(file.begin() + there * cols, cols, out.begin() + here * cols);
  });
  return out;
}

std::vector<float> from_rows(const FileTensor& t, std::span<const float> param) {
  int64_t n = 1;
  for (const int64_t dim : t.shape) n *= dim;
  if (t.transposed) return transpose(param, t.shape[1], t.shape[0]);
  const int64_t rows = t.shape[0], cols = n / rows;
  param = param.subspan(size_t(t.row * cols), size_t(n));
  std::vector<float> out(param.begin(), param.end());
  if (t.head_dim)
    each_row(t, rows, [&](int64_t there, int64_t here) {
      std::copy_n(param.begin() + here * cols, cols, out.begin() + there * cols);
    });
  return out;
}

}  // namespace hearth
