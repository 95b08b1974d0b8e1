#include "formats/stored_tensor.h"

#include "sys/error.h"

namespace hearth::inline formats {

int64_t StoredTensor::numel() const {
  if (!unpack) return int64_t(bytes.size()) / size_of(dtype);
  int64_t n = 1;
  for (const int64_t dim : shape) n *= dim;
  return n;
}

StoredTensor StoredTensor::slice(int64_t i) const {
  if (shape.empty() || i < 0 || i >= shape[0]) {
    fail("slice", "expected an index below {}, got {}", shape.empty() ? 0 : shape[0], i);
  }
  const size_t n = bytes.size() / size_t(shape[0]);
  return {dtype, {shape.begin() + 1, shape.end()}, bytes.subspan(size_t(i) * n, n), unpack};
}

std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, int64_t element_size) {
  int64_t n = element_size;
  for (const int64_t dim : shape) {
    if (dim < 0 || __builtin_mul_overflow(n, dim, &n)) return std::nullopt;
  }
  return n;
}

}  // namespace hearth::inline formats
