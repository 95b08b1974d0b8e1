#include "formats/mingpt_json.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

using nlohmann::json;

constexpr std::array<int8_t, 256> base64_values() {
  std::array<int8_t, 256> values{};
  values.fill(-1);
  const std::string_view digits =
      "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  for (size_t i = 0; i < digits.size(); ++i) values[uint8_t(digits[i])] = int8_t(i);
  return values;
}

// Fills `out` exactly; false if `text` is not the padded base64 of that many bytes.
bool decode_base64(std::span<std::byte> out, std::string_view text) {
  static constexpr auto values = base64_values();
  if (text.size() != (out.size() + 2) / 3 * 4) return false;
  const size_t padding = (3 - out.size() % 3) % 3;
  for (size_t i = text.size() - padding; i < text.size(); ++i) {
    if (text[i] != '=') return false;
  }
  text.remove_suffix(padding);
  size_t at = 0;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const int8_t v = values[uint8_t(text[i])];
    if (v < 0) return false;
    bits = bits << 6 | uint32_t(v);
    // Of every four digits, each of the last three completes a byte.
    if (i % 4 != 0) out[at++] = std::byte(bits >> (6 - 2 * (i % 4)));
  }
  return true;
}

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
