#include "model/files/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "formats/fields.h"
#include "model/files/gguf_keys.h"
#include "model/files/tensor_rows.h"
#include "sys/error.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;

// --- names ---

struct NamePair {
  std::string_view hub, gguf;
};
constexpr NamePair block_names[] = {{"ln_1", "attn_norm"},
                                    {"attn.c_attn", "attn_qkv"},
                                    {"attn.c_proj", "attn_output"},
                                    {"ln_2", "ffn_norm"},
                                    {"mlp.c_fc", "ffn_up"},
                                    {"mlp.c_proj", "ffn_down"},
                                    {"input_layernorm", "attn_norm"},
                                    {"self_attn.q_proj", "attn_q"},
                                    {"self_attn.k_proj", "attn_k"},
                                    {"self_attn.v_proj", "attn_v"},
                                    {"self_attn.q_norm", "attn_q_norm"},
                                    {"self_attn.k_norm", "attn_k_norm"},
                                    {"self_attn.o_proj", "attn_output"},
                                    {"post_attention_layernorm", "ffn_norm"},
                                    {"pre_feedforward_layernorm", "ffn_norm"},
                                    {"post_feedforward_layernorm", "post_ffw_norm"},
                                    {"self_attn.qkv_proj", "attn_qkv"},
                                    {"mlp.gate_up_proj", "ffn_up"},
                                    {"mlp.gate_proj", "ffn_gate"},
                                    {"mlp.up_proj", "ffn_up"},
                                    {"mlp.down_proj", "ffn_down"}};
constexpr NamePair outer_names[] = {
    {"transformer.wte", "token_embd"},   {"transformer.wpe", "position_embd"},
    {"transformer.ln_f", "output_norm"}, {"model.embed_tokens", "token_embd"},
    {"model.norm", "output_norm"},       {"lm_head", "output"}};

std::string_view renamed(std::string_view stem, std::span<const NamePair> names) {
  const auto it = std::ranges::find(names, stem, &NamePair::hub);
  if (it == names.end()) fail("gguf", "the tensor {} has no GGUF name", stem);
  return it->gguf;
}

// model.layers.3.mlp.up_proj.weight: blk.3.ffn_up.weight
std::string gguf_name(std::string_view hub, HfType type) {
  const size_t dot = hub.rfind('.');
  const std::string_view stem = hub.substr(0, dot), kind = hub.substr(dot);
  for (const std::string_view prefix : {"transformer.h.", "model.layers."}) {
    if (!stem.starts_with(prefix)) continue;
    const std::string_view rest = stem.substr(prefix.size());
    const size_t end = rest.find('.');
    std::string_view own = renamed(rest.substr(end + 1), block_names);
    // Where the MLP has norms of its own, this one is of what attention adds.
    const bool has_own =
        type == HfType::gemma2 || type == HfType::gemma3_text || type == HfType::olmo2;
    if (has_own && rest.substr(end + 1) == "post_attention_layernorm") own = "post_attention_norm";
    return fmt::format("blk.{}.{}{}", rest.substr(0, end), own, kind);
  }
  return fmt::format("{}{}", renamed(stem, outer_names), kind);
}

// Gains have their 1, and the pairs of some architectures are neighbours.
FileLayout gguf_layout(HfType type) {
  const bool neighbours = type == HfType::llama || type == HfType::smollm3;
  return {.type = type,
          .conv1d = false,
          .pairs = neighbours ? RopePairs::interleaved : RopePairs::half,
          .gain_offset = false};
}

// --- reading ---

struct Decoded {
  GgufFile file;
  std::deque<std::vector<float>> numbers;
};

StoredTensor stored(Decoded& owner, const GgufTensor& t) {
  if (t.type == GgmlType::f32) return {DType::f32, t.shape, t.bytes};
  if (t.type == GgmlType::f16) return {DType::f16, t.shape, t.bytes};
  if (t.type == GgmlType::bf16) return {DType::bf16, t.shape, t.bytes};
  owner.numbers.push_back(from_ggml(t.bytes, t.type));
  return {DType::f32, t.shape, std::as_bytes(std::span(owner.numbers.back()))};
}

// --- writing ---

uint32_t file_type(GgmlType type) {  // llama.cpp's numbers
  switch (type) {
    case GgmlType::f16:
      return 1;
    case GgmlType::q4_0:
      return 2;
    case GgmlType::q8_0:
      return 7;
    case GgmlType::q4_k:
      return 14;
    case GgmlType::q6_k:
      return 18;
    case GgmlType::bf16:
      return 32;
    default:
      return 0;
  }
}

GgufKeys model_keys(const ModelConfig& c, HfType type, const GgufSpec& spec) {
  GgufKeys keys;
  keys.set("general.architecture", gguf_architecture(type));
  keys.set("general.type", "model");
  if (!spec.name.empty()) keys.set("general.name", spec.name);
  keys.set("general.file_type", file_type(spec.type));
  keys.set("general.quantization_version", uint32_t(2));
  keys.set("general.alignment", uint32_t(32));
  put_config(keys, c, type);
  return keys;
}

// llama.cpp gives the output head, or the embedding that is also the head, more bits than Q4_K.
GgmlType type_for(std::string_view name, const ModelConfig& c, GgmlType type) {
  const std::string_view head = c.tied ? "token_embd.weight" : "output.weight";
  return type == GgmlType::q4_k && name == head ? GgmlType::q6_k : type;
}

// The type, or the next wider one whose blocks fit rows of this length.
GgmlType fitting(GgmlType type, int64_t row) {
  for (const GgmlType t : {type, GgmlType::q8_0})
    if (row % block_elements(t) == 0) return t;
  return GgmlType::f16;
}

}  // namespace

OpenedModel open_gguf(const fs::path& path) {
  const auto owner = std::make_shared<Decoded>(Decoded{GgufFile(path), {}});
  const GgufFile& f = owner->file;
  const ModelConfig config = read_gguf_config(f);
  const HfType type = gguf_type(f);
  OpenedModel o{config, {path.string(), owner, {}, {}, gguf_layout(type)}, path, {}};
  if (config.layers > int64_t(f.tensors.size()))
    fail(f.where, "expected tensors for {} layers, got {}", config.layers, f.tensors.size());
  std::map<std::string_view, const GgufTensor*> left;
  for (const auto& [name, tensor] : f.tensors)
    if (name != rope_freqs) left.emplace(name, &tensor);
  for (const FileTensor& t : file_tensors(config, o.file.layout)) {
    const std::string name = gguf_name(t.name, type);
    const auto it = left.find(name);
    if (it == left.end()) fail(f.where, "the tensor {} is missing", name);
    o.file.tensors.emplace(t.name, stored(*owner, *it->second));
    left.erase(it);
  }
  if (!left.empty())
    fail(f.where, "expected only the tensors of its keys, but found {}",
         in_quotes(left.begin()->first));
  if (has_vocabulary(f)) o.tokenizer = path;
  return o;
}

int64_t write_gguf_model(const fs::path& path, const ModelConfig& config, ParamStore& store,
                         const GgufSpec& spec) {
  const ModelConfig c = config.resolve();
  const HfType type = exportable(c);
  GgufKeys keys = model_keys(c, type, spec);
  put_vocabulary(keys, spec.tokenizer, c.vocab);
  if (!spec.chat_template.empty()) keys.set("tokenizer.chat_template", spec.chat_template);

  const Part part = store.made(Part::master) ? Part::master : Part::weight;
  int64_t widened = 0;
  std::vector<GgufTensorToWrite> tensors;
  for (FileTensor& t : file_tensors(c, gguf_layout(type))) {
    std::string name = gguf_name(t.name, type);
    std::vector<int64_t> shape = t.shape;
    const bool matrix = shape.size() == 2 && name != "position_embd.weight";
    const GgmlType wanted = matrix ? type_for(name, c, spec.type) : GgmlType::f32;
    const GgmlType as = matrix ? fitting(wanted, shape[1]) : wanted;
    widened += as != wanted;
    tensors.push_back({std::move(name), as, std::move(shape), [t = std::move(t), &store, part] {
                         return t.param.empty() ? std::vector<float>(size_t(t.shape[0]))
                                                : from_rows(t, store.values(part, t.param));
                       }});
  }
  if (c.rope_scaling == RopeScaling::llama3 && type == HfType::llama)
    tensors.push_back({std::string(rope_freqs), GgmlType::f32, {c.head_dim / 2}, [c] {
                         return rope_factors(c);
                       }});
  write_gguf(path, keys, tensors);
  return widened;
}

}  // namespace hearth::inline model
