// StoredTensor: a tensor as stored in a file; every model reader returns it.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "core/dtype.h"
#include "sys/files/files.h"

namespace hearth::inline formats {

struct StoredTensor {
  DType dtype = DType::f32;
  std::vector<int64_t> shape;
  Bytes bytes;  // row-major, little-endian, unaligned: copy with memcpy
  // If set, the bytes are packed blocks, and this unpacks them to floats (the dtype is f32). So a
  // quantised file is unpacked tensor by tensor while it is loaded.
  std::function<std::vector<float>(Bytes)> unpack = {};

  int64_t numel() const;
  StoredTensor slice(int64_t i) const;  // [i] along the first axis
};

using StoredTensors = std::map<std::string, StoredTensor, std::less<>>;

// Size in bytes; nothing if a dimension is negative or the size exceeds 63 bits.
std::optional<int64_t> checked_bytes(const std::vector<int64_t>& shape, int64_t element_size);

}  // namespace hearth::inline formats
