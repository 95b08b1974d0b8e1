// The numbers of a file's tensor and of a parameter, each from the other: float types, and the
// order of rows and columns.
#pragma once

#include <span>
#include <vector>

#include "io/stored_tensor.h"
#include "model/hf_names.h"

namespace hearth {

std::vector<float> to_floats(const StoredTensor&);
std::vector<std::byte> from_floats(std::span<const float>, DType);

// The tensor's numbers as rows of its parameter.
std::vector<float> to_rows(const FileTensor&, std::vector<float> file);
// The reverse: from all numbers of the parameter.
std::vector<float> from_rows(const FileTensor&, std::span<const float> param);

}  // namespace hearth
