// Converts between a file tensor and a parameter: float types, and the order of rows and columns.
#pragma once

#include <span>
#include <vector>

#include "core/backend.h"
#include "core/params.h"
#include "formats/safetensors.h"
#include "formats/stored_tensor.h"
#include "model/files/hf_names.h"

namespace hearth::inline model {

// Streams `count` elements of a backend tensor from element `first` on, converted to `to`, in
// chunks of a few MiB instead of one whole copy. Thread-safe while the tensor is not written.
void stream_elements(const ByteSink&, Backend&, const Tensor&, int64_t first, int64_t count,
                     DType to);

std::vector<float> to_floats(const StoredTensor&);
std::vector<std::byte> from_floats(std::span<const float>, DType);

// The file tensor's values as rows of its parameter.
std::vector<float> to_rows(const FileTensor&, std::vector<float> file);
std::vector<float> to_rows(const FileTensor&, const StoredTensor&);
// The reverse, from all values of the parameter.
std::vector<float> from_rows(const FileTensor&, std::span<const float> param);
std::vector<std::byte> from_rows(const FileTensor&, std::span<const float> param, DType);

// The rows of a parameter that one file tensor holds, converted to `dtype`.
void stream_rows(const ByteSink&, const FileTensor&, ParamStore&, Part, DType);

}  // namespace hearth::inline model
