// Converts rows of floats to ggml's element types and back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "formats/gguf/gguf.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

constexpr int64_t half_block = ggml_block / 2;

template <class T>
void put_as(std::byte*& out, T x) {
  std::memcpy(out, &x, sizeof x);
  out += sizeof x;
}
template <class T>
T take_as(const std::byte*& in) {
  T x;
  std::memcpy(&x, in, sizeof x);
  in += sizeof x;
  return x;
}

// x = scale * q, q from -127 to 127.
void block_to_q8(std::byte*& out, const float* x) {
  float most = 0;
  for (int64_t i = 0; i < ggml_block; ++i) most = std::max(most, std::abs(x[i]));
  const float scale = most / 127, inverse = scale != 0 ? 1 / scale : 0;
  put_as(out, f16(scale));
  for (int64_t i = 0; i < ggml_block; ++i) put_as(out, int8_t(std::round(x[i] * inverse)));
}

// x = scale * (q - 8), q from 0 to 15; the value with the largest magnitude is exact. The first
// half of a block is in the low nibbles, the second half in the high nibbles.
void block_to_q4(std::byte*& out, const float* x) {
  float farthest = 0;
  for (int64_t i = 0; i < ggml_block; ++i)
    if (std::abs(x[i]) > std::abs(farthest)) farthest = x[i];
  const float scale = farthest / -8, inverse = scale != 0 ? 1 / scale : 0;
  const auto nibble = [&](float v) { return std::min(15, int(v * inverse + 8.5f)); };
  put_as(out, f16(scale));
  for (int64_t i = 0; i < half_block; ++i)
    put_as(out, uint8_t(nibble(x[i]) | nibble(x[i + half_block]) << 4));
}

}  // namespace

namespace {

// Indexed by type number; empty: removed from ggml, or never assigned.
constexpr std::string_view type_names[] = {
    "F32",      "F16",      "Q4_0",    "Q4_1",  "",       "",      "Q5_0",  "Q5_1",
    "Q8_0",     "Q8_1",     "Q2_K",    "Q3_K",  "Q4_K",   "Q5_K",  "Q6_K",  "Q8_K",
    "IQ2_XXS",  "IQ2_XS",   "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S", "IQ4_XS",
    "I8",       "I16",      "I32",     "I64",   "F64",    "IQ1_M", "BF16",  "Q4_0_4_4",
    "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0", "",       "",      "",      "MXFP4"};

}  // namespace

std::string ggml_type_name(uint32_t number) {
  if (number < std::size(type_names) && !type_names[number].empty())
    return std::string(type_names[number]);
  return fmt::format("type {}", number);
}

std::string_view to_string(GgmlType t) { return type_names[size_t(t)]; }

bool is_quantised(GgmlType t) { return t == GgmlType::q4_0 || t == GgmlType::q8_0; }

int64_t block_elements(GgmlType t) { return is_quantised(t) ? ggml_block : 1; }

int64_t block_bytes(GgmlType t) {
  switch (t) {
    case GgmlType::f32:
      return 4;
    case GgmlType::f16:
    case GgmlType::bf16:
      return 2;
    case GgmlType::q4_0:
      return 2 + half_block;
    case GgmlType::q8_0:
      return 2 + ggml_block;
  }
  return 0;
}

std::vector<std::byte> to_ggml(std::span<const float> x, GgmlType type) {
  const size_t n = x.size();
  if (is_quantised(type)) {
    if (n % ggml_block != 0)
      fail("gguf", "expected a multiple of {} values for {}, got {}", ggml_block, to_string(type),
           n);
    for (const float v : x)
      if (!std::isfinite(v))
        fail("gguf", "expected finite weights for {}, got {}", to_string(type), v);
  }
  std::vector<std::byte> bytes(n / size_t(block_elements(type)) * size_t(block_bytes(type)));
  std::byte* out = bytes.data();
  switch (type) {
    case GgmlType::f32:
      if (n) std::memcpy(out, x.data(), bytes.size());
      break;
    case GgmlType::f16:
      for (const float v : x) {
        if (std::isfinite(v) && !std::isfinite(float(f16(v))))
          fail("gguf", "expected weights within the range of F16, got {}", v);
        put_as(out, f16(v));
      }
      break;
    case GgmlType::bf16:
      for (const float v : x) put_as(out, bf16(v));
      break;
    case GgmlType::q8_0:
      for (size_t i = 0; i < n; i += ggml_block) block_to_q8(out, x.data() + i);
      break;
    case GgmlType::q4_0:
      for (size_t i = 0; i < n; i += ggml_block) block_to_q4(out, x.data() + i);
      break;
  }
  return bytes;
}

std::vector<float> from_ggml(Bytes bytes, GgmlType type) {
  std::vector<float> out;
  out.reserve(bytes.size() / size_t(block_bytes(type)) * size_t(block_elements(type)));
  const std::byte *in = bytes.data(), *end = in + bytes.size();
  switch (type) {
    case GgmlType::f32:
      out.resize(bytes.size() / 4);
      if (!out.empty()) std::memcpy(out.data(), in, out.size() * 4);
      break;
    case GgmlType::f16:
      while (in != end) out.push_back(float(take_as<f16>(in)));
      break;
    case GgmlType::bf16:
      while (in != end) out.push_back(float(take_as<bf16>(in)));
      break;
    case GgmlType::q8_0:
      while (in != end) {
        const float scale = float(take_as<f16>(in));
        for (int64_t i = 0; i < ggml_block; ++i) out.push_back(scale * float(take_as<int8_t>(in)));
      }
      break;
    case GgmlType::q4_0:
      while (in != end) {
        const float scale = float(take_as<f16>(in));
        for (const int shift : {0, 4})
          for (int64_t i = 0; i < half_block; ++i)
            out.push_back(scale * float(int(uint8_t(in[i]) >> shift & 15) - 8));
        in += half_block;
      }
      break;
  }
  return out;
}

}  // namespace hearth::inline formats
