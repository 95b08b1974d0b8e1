// GGUF version 3, the model format of llama.cpp: keys and values, a table of tensors, then their
// data. The parser works on a span and points into it; the writer streams.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth::inline formats {

// Tensor element types with ggml's numbers; other types are not supported.
enum class GgmlType : uint32_t {
  f32 = 0,
  f16 = 1,
  q4_0 = 2,
  q4_1 = 3,
  q5_0 = 6,
  q5_1 = 7,
  q8_0 = 8,
  q2_k = 10,
  q3_k = 11,
  q4_k = 12,
  q5_k = 13,
  q6_k = 14,
  q8_k = 15,
  bf16 = 30
};
std::string_view to_string(GgmlType);  // "F32", "Q8_0", ...
// The name of any type number that llama.cpp defines, supported or not: "IQ2_XS"; else "type 99".
std::string ggml_type_name(uint32_t number);

// Converts rows of floats to the type and back. Quantised rows consist of blocks of 32 values, or
// of 256 in the types with a K; the row length is a multiple of that. All types are read; F32, F16,
// BF16, Q4_0, Q8_0, Q4_K and Q6_K are written.
constexpr int64_t ggml_block = 32;
bool is_quantised(GgmlType);
int64_t block_elements(GgmlType);  // 1 for types without blocks
int64_t block_bytes(GgmlType);
std::vector<std::byte> to_ggml(std::span<const float>, GgmlType);
std::vector<float> from_ggml(Bytes, GgmlType);

constexpr std::string_view gguf_magic = "GGUF";
constexpr uint32_t gguf_version = 3;

enum class GgufKind : uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };

struct GgufValue {
  GgufKind kind = GgufKind::u8;  // for a list: type of its elements
  bool list = false;
  uint64_t count = 1;
  Bytes bytes;  // the elements as stored
};

struct GgufTensor {
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> shape;  // slowest dimension first; the file has the reverse order
  Bytes bytes;
};

struct GgufTable {
  std::string where;  // for errors
  std::map<std::string, GgufValue, std::less<>> values;
  std::map<std::string, GgufTensor, std::less<>> tensors;

  bool has(std::string_view key) const { return values.contains(key); }
  // A missing key, or a value of another type or out of range, throws an error that names the key.
  int64_t whole(std::string_view key) const;
  double number(std::string_view key) const;
  bool flag(std::string_view key) const;
  std::string_view text(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;
  std::vector<int32_t> wholes(std::string_view key) const;
};

// Checks everything except the tensors' values; the table's bytes point into `file`.
GgufTable parse_gguf(Bytes file, std::string_view where);

class GgufFile : public GgufTable {
 public:
  explicit GgufFile(const std::filesystem::path&);

 private:
  MappedFile file_;
};

// Encoded keys and values, in the order they were set.
class GgufKeys {
 public:
  void set(std::string_view key, std::string_view);
  void set(std::string_view key, const char* text) { set(key, std::string_view(text)); }
  void set(std::string_view key, uint32_t);
  void set(std::string_view key, int64_t);  // stored as u32; must fit
  void set(std::string_view key, float);
  void set(std::string_view key, bool);
  void set(std::string_view key, std::span<const std::string>);
  void set(std::string_view key, std::span<const float>);
  void set(std::string_view key, std::span<const int32_t>);

  uint64_t count() const { return count_; }
  const std::string& bytes() const { return bytes_; }

 private:
  void key(std::string_view, GgufKind);
  uint64_t count_ = 0;
  std::string bytes_;
};

struct GgufTensorToWrite {
  std::string name;
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> shape;
  std::function<std::vector<float>()> values;
};

// The file is written atomically. Data is aligned to 32 bytes.
void write_gguf(const std::filesystem::path&, const GgufKeys&,
                const std::vector<GgufTensorToWrite>&);

}  // namespace hearth::inline formats
