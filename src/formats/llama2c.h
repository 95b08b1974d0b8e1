// The llama2.c model file (version 0): seven int32 values, then fp32 weights; each kind of weight
// is stacked over the layers.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string_view>

#include "formats/stored_tensor.h"
#include "sys/files/files.h"

namespace hearth::inline formats {

struct Llama2cHeader {
  int32_t dim = 0, hidden = 0, layers = 0, heads = 0, kv_heads = 0, vocab = 0, seq = 0;
  bool tied = true;  // stored as the sign of vocab
};

// Names and shapes, with kv = kv_heads * head_dim: tok_emb (V, C); rms_att, rms_ffn (L, C);
// wq, wo (L, C, C); wk, wv (L, kv, C); w1, w3 (L, hidden, C); w2 (L, C, hidden); rms_final (C);
// freq_cis_real, freq_cis_imag (seq, head_dim / 2); wcls (V, C) if untied. Matrices are (out, in).
struct Llama2cTable {
  Llama2cHeader header;
  StoredTensors tensors;
};

Llama2cTable parse_llama2c(Bytes file, std::string_view where);

struct Llama2cFile : Llama2cTable {
  explicit Llama2cFile(const std::filesystem::path&);
  MappedFile file;
};

}  // namespace hearth::inline formats
