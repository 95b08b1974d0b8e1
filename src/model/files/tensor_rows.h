// The numbers of a file's tensor and of a parameter, each from the other: float types, and the
// order of rows and columns.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"
#include "formats/safetensors.h"
#include "formats/stored_tensor.h"
#include "model/files/hf_names.h"

namespace hearth {

// Gives `count` elements of a tensor of the backend from element `first` on, as `to`, in pieces of
// a few MiB: no copy of the whole exists. Several threads may call it at once while nothing writes
// the tensor.
void stream_elements(const ByteSink&, Backend&, const Tensor&, int64_t first, int64_t count,
                     DType to);

std::vector<float> to_floats(const StoredTensor&);
std::vector<std::byte> from_floats(std::span<const float>, DType);

// The tensor's numbers as rows of its parameter.
std::vector<float> to_rows(const FileTensor&, std::vector<float> file);
// The reverse: from all numbers of the parameter.
std::vector<float> from_rows(const FileTensor&, std::span<const float> param);

}  // namespace hearth
