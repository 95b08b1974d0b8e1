// Converts rows of floats to ggml's element types and back.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "core/dtype.h"
#include "formats/gguf/ggml_blocks.h"
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

// --- blocks of 32 ---

// x = scale * q, q from -127 to 127.
void floats_to_q8(std::byte* out, const float* x) {
  float most = 0;
  for (int64_t i = 0; i < ggml_block; ++i) most = std::max(most, std::abs(x[i]));
  const float scale = most / 127, inverse = scale != 0 ? 1 / scale : 0;
  put_as(out, f16(scale));
  for (int64_t i = 0; i < ggml_block; ++i) put_as(out, int8_t(std::round(x[i] * inverse)));
}

void q8_to_floats(const std::byte* in, float* x) {
  const float scale = float(take_as<f16>(in));
  for (int64_t i = 0; i < ggml_block; ++i) x[i] = scale * float(take_as<int8_t>(in));
}

// x = scale * (q - 8), q from 0 to 15; the value with the largest magnitude is exact. The first
// half of a block is in the low nibbles, the second half in the high nibbles.
void floats_to_q4(std::byte* out, const float* x) {
  float farthest = 0;
  for (int64_t i = 0; i < ggml_block; ++i)
    if (std::abs(x[i]) > std::abs(farthest)) farthest = x[i];
  const float scale = farthest / -8, inverse = scale != 0 ? 1 / scale : 0;
  const auto nibble = [&](float v) { return std::min(15, int(v * inverse + 8.5f)); };
  put_as(out, f16(scale));
  for (int64_t i = 0; i < half_block; ++i)
    put_as(out, uint8_t(nibble(x[i]) | nibble(x[i + half_block]) << 4));
}

// Q4_0, Q4_1, Q5_0 and Q5_1: a scale, a minimum (or a fixed offset below zero), a fifth bit of each
// value, and nibbles.
template <bool has_min, bool fifth>
void nibbles_to_floats(const std::byte* in, float* x) {
  const float scale = float(take_as<f16>(in));
  const float min = has_min ? float(take_as<f16>(in)) : 0;
  const uint32_t high = fifth ? take_as<uint32_t>(in) : 0;
  constexpr int below = has_min ? 0 : fifth ? 16 : 8;
  for (int64_t i = 0; i < ggml_block; ++i) {
    const int low = int(uint8_t(in[i % half_block])) >> (i < half_block ? 0 : 4) & 15;
    const int q = (low | int(high >> i & 1) << 4) - below;
    x[i] = has_min ? scale * float(q) + min : scale * float(q);
  }
}

constexpr GgmlBlock known_blocks[] = {
    {GgmlType::f32, 1, 4},
    {GgmlType::f16, 1, 2},
    {GgmlType::bf16, 1, 2},
    {GgmlType::q4_0, ggml_block, 18, nibbles_to_floats<false, false>, floats_to_q4},
    {GgmlType::q4_1, ggml_block, 20, nibbles_to_floats<true, false>},
    {GgmlType::q5_0, ggml_block, 22, nibbles_to_floats<false, true>},
    {GgmlType::q5_1, ggml_block, 24, nibbles_to_floats<true, true>},
    {GgmlType::q8_0, ggml_block, 34, q8_to_floats, floats_to_q8},
    {GgmlType::q2_k, k_block, 84, q2k_to_floats},
    {GgmlType::q3_k, k_block, 110, q3k_to_floats},
    {GgmlType::q4_k, k_block, 144, q4k_to_floats, floats_to_q4k},
    {GgmlType::q5_k, k_block, 176, q5k_to_floats},
    {GgmlType::q6_k, k_block, 210, q6k_to_floats, floats_to_q6k},
    {GgmlType::q8_k, k_block, 292, q8k_to_floats},
};

const GgmlBlock& block_of(GgmlType t) {
  return *std::ranges::find(known_blocks, t, &GgmlBlock::type);
}

// --- names ---

// Indexed by type number; empty: removed from ggml, or never assigned.
constexpr std::string_view type_names[] = {
    "F32",     "F16",   "Q4_0",   "Q4_1",  "",         "",         "Q5_0",     "Q5_1",    "Q8_0",
    "Q8_1",    "Q2_K",  "Q3_K",   "Q4_K",  "Q5_K",     "Q6_K",     "Q8_K",     "IQ2_XXS", "IQ2_XS",
    "IQ3_XXS", "IQ1_S", "IQ4_NL", "IQ3_S", "IQ2_S",    "IQ4_XS",   "I8",       "I16",     "I32",
    "I64",     "F64",   "IQ1_M",  "BF16",  "Q4_0_4_4", "Q4_0_4_8", "Q4_0_8_8", "TQ1_0",   "TQ2_0",
    "",        "",      "",       "MXFP4", "NVFP4",    "Q1_0",     "Q2_0"};

template <class T>
void put_all(std::byte* out, std::span<const float> x, GgmlType type) {
  for (const float v : x) {
    if (std::isfinite(v) && !std::isfinite(float(T(v))))
      fail("gguf", "expected weights within the range of {}, got {}", to_string(type), v);
    put_as(out, T(v));
  }
}

template <class T>
void take_all(std::vector<float>& out, const std::byte* in) {
  for (float& x : out) x = float(take_as<T>(in));
}

}  // namespace

std::span<const GgmlBlock> ggml_blocks() { return known_blocks; }

std::string ggml_type_name(uint32_t number) {
  if (number < std::size(type_names) && !type_names[number].empty())
    return std::string(type_names[number]);
  return fmt::format("type {}", number);
}

std::string_view to_string(GgmlType t) { return type_names[size_t(t)]; }

bool is_quantised(GgmlType t) { return block_of(t).to_floats != nullptr; }
int64_t block_elements(GgmlType t) { return block_of(t).elements; }
int64_t block_bytes(GgmlType t) { return block_of(t).bytes; }

std::vector<std::byte> to_ggml(std::span<const float> x, GgmlType type) {
  const GgmlBlock& block = block_of(type);
  const size_t n = x.size(), each = size_t(block.elements);
  std::vector<std::byte> bytes(n / each * size_t(block.bytes));
  std::byte* out = bytes.data();
  if (type == GgmlType::f32 && n) std::memcpy(out, x.data(), bytes.size());
  if (type == GgmlType::f16) put_all<f16>(out, x, type);
  if (type == GgmlType::bf16) put_all<bf16>(out, x, type);
  if (!block.to_floats) return bytes;
  if (!block.from_floats) fail("gguf", "{} can be read, but not written", to_string(type));
  if (n % each != 0)
    fail("gguf", "expected a multiple of {} values for {}, got {}", each, to_string(type), n);
  for (const float v : x)  // scales are f16
    if (!(std::abs(v) <= 65504))
      fail("gguf", "expected finite weights of at most 65504 for {}, got {}", to_string(type), v);
  for (size_t i = 0; i < n; i += each, out += block.bytes) block.from_floats(out, x.data() + i);
  return bytes;
}

std::vector<float> from_ggml(Bytes bytes, GgmlType type) {
  const GgmlBlock& block = block_of(type);
  std::vector<float> out(bytes.size() / size_t(block.bytes) * size_t(block.elements));
  const std::byte* in = bytes.data();
  if (type == GgmlType::f32 && !out.empty()) std::memcpy(out.data(), in, out.size() * 4);
  if (type == GgmlType::f16) take_all<f16>(out, in);
  if (type == GgmlType::bf16) take_all<bf16>(out, in);
  if (block.to_floats)
    for (size_t i = 0; i < out.size(); i += size_t(block.elements), in += block.bytes)
      block.to_floats(in, out.data() + i);
  return out;
}

}  // namespace hearth::inline formats
