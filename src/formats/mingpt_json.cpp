#include "formats/mingpt_json.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "formats/json.h"
#include "sys/digits.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

using nlohmann::json;

MingptTensor parse_tensor(const std::string& name, const json& v, std::string_view where) {
  const auto is_count = [](const json& n) {
    return n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t(INT64_MAX);
  };
  if (!v.is_object() || !v.contains("shape") || !v.contains("dtype") || !v.contains("data") ||
      !v["shape"].is_array() || !v["data"].is_string() ||
      !std::all_of(v["shape"].begin(), v["shape"].end(), is_count)) {
    fail(where, "expected shape, dtype and data for {}", in_quotes(name));
  }
  if (v["dtype"] != "torch.float32") {
    fail(where, "expected {} to be torch.float32, got {}", in_quotes(name),
         in_quotes(v["dtype"].dump(-1, ' ', true)));
  }
  MingptTensor t{v["shape"].get<std::vector<int64_t>>(), {}};
  const auto& data = v["data"].get_ref<const std::string&>();
  const auto size = checked_bytes(t.shape, sizeof(float));
  // Checked before the allocation: the text length bounds the size.
  if (!size || uint64_t(*size) > data.size()) {
    fail(where, "expected {} to have the data of its shape, got {} base64 digits", in_quotes(name),
         data.size());
  }
  t.data.resize(size_t(*size) / sizeof(float));
  if (!decode_base64(std::as_writable_bytes(std::span(t.data)), data)) {
    fail(where, "expected {} to be the base64 of {} bytes, got {} characters that are not",
         in_quotes(name), *size, data.size());
  }
  return t;
}

}  // namespace

MingptJson parse_mingpt_json(std::string_view text, std::string_view where) {
  const json file = parse_json(text, where, {.max_depth = 8});
  if (!file.is_object() || !file.contains("config") || !file["config"].is_object()) {
    fail(where, "expected an object with config");
  }
  MingptJson result{file["config"], {}};
  for (const auto& [name, value] : file.get_ref<const json::object_t&>()) {
    if (name != "config") result.tensors.emplace(name, parse_tensor(name, value, where));
  }
  return result;
}

MingptJson read_mingpt_json(const std::filesystem::path& path) {
  return parse_mingpt_json(read_file(path, JsonLimits{}.max_bytes), path.string());
}

}  // namespace hearth::inline formats
