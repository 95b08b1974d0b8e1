// minGPT models (and recorded activations) as JSON: {"config": {...}, name: {"shape", "dtype":
// "torch.float32", "data": base64}}.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "formats/stored_tensor.h"

namespace hearth::inline formats {

struct MingptTensor {
  std::vector<int64_t> shape;
  std::vector<float> data;
  StoredTensor view() const { return {DType::f32, shape, std::as_bytes(std::span(data))}; }
};

struct MingptJson {
  nlohmann::json config;  // an object
  std::map<std::string, MingptTensor, std::less<>> tensors;
};

MingptJson parse_mingpt_json(std::string_view text, std::string_view where);
MingptJson read_mingpt_json(const std::filesystem::path&);

}  // namespace hearth::inline formats
