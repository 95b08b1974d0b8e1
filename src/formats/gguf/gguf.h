// GGUF version 3, the model file of llama.cpp: keys and values, a table of tensors, then their
// data. Parsing works on a span and points into it; writing streams.
#pragma once

#include <filesystem>
#include <functional>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth {

// Element types of tensors, by ggml's numbers; those of other numbers are not read.
enum class GgmlType : uint32_t { f32 = 0, f16 = 1, q4_0 = 2, q8_0 = 8, bf16 = 30 };
std::string_view to_string(GgmlType);  // "F32", "Q8_0", ...
// Of any number that llama.cpp gives a meaning, read here or not: "Q3_K"; else "type 99".
std::string ggml_type_name(uint32_t number);

// Rows of floats to the type and back. Quantised rows are cut into blocks of 32 with an f16 scale,
// rounded as ggml's reference does; a row is a multiple of 32 long.
constexpr int64_t ggml_block = 32;
bool is_quantised(GgmlType);
int64_t block_elements(GgmlType);  // 1 where there are no blocks
int64_t block_bytes(GgmlType);
std::vector<std::byte> to_ggml(std::span<const float>, GgmlType);
std::vector<float> from_ggml(Bytes, GgmlType);

constexpr std::string_view gguf_magic = "GGUF";
constexpr uint32_t gguf_version = 3;

enum class GgufKind : uint32_t { u8, i8, u16, i16, u32, i32, f32, flag, text, list, u64, i64, f64 };

struct GgufValue {
  GgufKind kind = GgufKind::u8;  // of a list: of its elements
  bool list = false;
  uint64_t count = 1;
  Bytes bytes;  // the elements as the file has them
};

struct GgufTensor {
  GgmlType type = GgmlType::f32;
  std::vector<int64_t> shape;  // rows first, as everywhere here; the file has it the other way
  Bytes bytes;
};

struct GgufTable {
  std::string where;  // for errors
  std::map<std::string, GgufValue, std::less<>> values;
  std::map<std::string, GgufTensor, std::less<>> tensors;

  bool has(std::string_view key) const { return values.contains(key); }
  // An absent key, or a value of another kind or out of range, is an error that names it.
  int64_t whole(std::string_view key) const;
  double number(std::string_view key) const;
  bool flag(std::string_view key) const;
  std::string_view text(std::string_view key) const;
  std::vector<std::string_view> texts(std::string_view key) const;
  std::vector<float> numbers(std::string_view key) const;
  std::vector<int32_t> wholes(std::string_view key) const;
};

// Checks everything but the tensors' values; the table's bytes point into `file`.
GgufTable parse_gguf(Bytes file, std::string_view where);

class GgufFile : public GgufTable {
 public:
  explicit GgufFile(const std::filesystem::path&);

 private:
  MappedFile file_;
};

// Keys and values in the order set, encoded.
class GgufKeys {
 public:
  void set(std::string_view key, std::string_view);
  void set(std::string_view key, const char* text) { set(key, std::string_view(text)); }
  void set(std::string_view key, uint32_t);
  void set(std::string_view key, int64_t);  // as u32, which it must fit
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

// The file appears whole or not at all. Data is aligned to 32 bytes.
void write_gguf(const std::filesystem::path&, const GgufKeys&,
                const std::vector<GgufTensorToWrite>&);

}  // namespace hearth
