#include "formats/llama2c.h"

#include <array>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

#include "sys/error.h"

namespace hearth::inline formats {
namespace {

Llama2cHeader parse_header(Bytes file, std::string_view where) {
  std::array<int32_t, 7> v;
  if (file.size() < sizeof v) {
    fail(where, "expected a llama2.c header of {} bytes, got {}", sizeof v, file.size());
  }
  std::memcpy(v.data(), file.data(), sizeof v);
  Llama2cHeader h{v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[5] > 0};
  if (v[5] == INT32_MIN) fail(where, "expected a vocabulary size below 2^31, got {}", v[5]);
  if (!h.tied) h.vocab = -h.vocab;
  if (h.dim <= 0 || h.hidden <= 0 || h.layers <= 0 || h.heads <= 0 || h.kv_heads <= 0 ||
      h.vocab <= 0 || h.seq <= 0) {
    fail(where,
         "expected seven positive sizes, got dim {}, hidden {}, layers {}, heads {}, kv_heads {}, "
         "vocab {}, seq {}: not a llama2.c file?",
         h.dim, h.hidden, h.layers, h.heads, h.kv_heads, h.vocab, h.seq);
  }
  if (h.dim % h.heads != 0 || h.dim / h.heads % 2 != 0 || h.heads % h.kv_heads != 0) {
    fail(where, "expected an even dim/heads and whole heads/kv_heads, got dim {}, heads {}/{}",
         h.dim, h.heads, h.kv_heads);
  }
  return h;
}

}  // namespace

Llama2cTable parse_llama2c(Bytes file, std::string_view where) {
  Llama2cTable table{parse_header(file, where), {}};
  const Llama2cHeader& h = table.header;
  const int64_t C = h.dim, L = h.layers, V = h.vocab, F = h.hidden, D = C / h.heads;
  const int64_t kv = D * h.kv_heads;
  std::vector<std::pair<std::string, std::vector<int64_t>>> layout = {
      {"tok_emb", {V, C}},
      {"rms_att", {L, C}},
      {"wq", {L, C, C}},
      {"wk", {L, kv, C}},
      {"wv", {L, kv, C}},
      {"wo", {L, C, C}},
      {"rms_ffn", {L, C}},
      {"w1", {L, F, C}},
      {"w2", {L, C, F}},
      {"w3", {L, F, C}},
      {"rms_final", {C}},
      {"freq_cis_real", {h.seq, D / 2}},
      {"freq_cis_imag", {h.seq, D / 2}}};
  if (!h.tied) layout.push_back({"wcls", {V, C}});

  Bytes rest = file.subspan(7 * sizeof(int32_t));
  for (auto& [name, shape] : layout) {
    const auto size = checked_bytes(shape, sizeof(float));
    if (!size || uint64_t(*size) > rest.size()) {
      fail(where, "expected {} bytes for {}, got {}: truncated?",
           size ? std::to_string(*size) : "more than 2^63", name, rest.size());
    }
    table.tensors[name] = {DType::f32, std::move(shape), rest.first(size_t(*size))};
    rest = rest.subspan(size_t(*size));
  }
  if (!rest.empty()) fail(where, "expected the end after the weights, got {} bytes", rest.size());
  return table;
}

Llama2cFile::Llama2cFile(const std::filesystem::path& path) : file(path) {
  static_cast<Llama2cTable&>(*this) = parse_llama2c(file.bytes(), path.string());
}

}  // namespace hearth::inline formats
