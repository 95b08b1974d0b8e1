#include "model/files/gguf_tensors.h"

#include <algorithm>
#include <charconv>
#include <map>
#include <utility>

#include "formats/json.h"
#include "model/files/gguf_keys.h"
#include "model/files/tensor_rows.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

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
                                    {"self_attn.q_a_proj", "attn_q_a"},
                                    {"self_attn.q_a_layernorm", "attn_q_a_norm"},
                                    {"self_attn.q_b_proj", "attn_q_b"},
                                    {"self_attn.kv_a_proj_with_mqa", "attn_kv_a_mqa"},
                                    {"self_attn.kv_a_layernorm", "attn_kv_a_norm"},
                                    {"self_attn.kv_b_proj", "attn_kv_b"},
                                    {"self_attn.o_proj", "attn_output"},
                                    {"post_attention_layernorm", "ffn_norm"},
                                    {"pre_feedforward_layernorm", "ffn_norm"},
                                    {"post_feedforward_layernorm", "post_ffw_norm"},
                                    {"self_attn.qkv_proj", "attn_qkv"},
                                    {"attention.query_key_value", "attn_qkv"},
                                    {"attention.dense", "attn_output"},
                                    {"mlp.dense_h_to_4h", "ffn_up"},
                                    {"mlp.dense_4h_to_h", "ffn_down"},
                                    {"mlp.gate_up_proj", "ffn_up"},
                                    {"mlp.gate_proj", "ffn_gate"},
                                    {"mlp.up_proj", "ffn_up"},
                                    {"mlp.down_proj", "ffn_down"},
                                    {"mlp.gate", "ffn_gate_inp"},
                                    {"mlp.experts.gate_proj", "ffn_gate_exps"},
                                    {"mlp.experts.up_proj", "ffn_up_exps"},
                                    {"mlp.experts.down_proj", "ffn_down_exps"},
                                    {"mlp.shared_experts.gate_proj", "ffn_gate_shexp"},
                                    {"mlp.shared_experts.up_proj", "ffn_up_shexp"},
                                    {"mlp.shared_experts.down_proj", "ffn_down_shexp"},
                                    {"block_sparse_moe.gate", "ffn_gate_inp"},
                                    {"block_sparse_moe.experts.w1", "ffn_gate_exps"},
                                    {"block_sparse_moe.experts.w3", "ffn_up_exps"},
                                    {"block_sparse_moe.experts.w2", "ffn_down_exps"}};
constexpr NamePair outer_names[] = {{"transformer.wte", "token_embd"},
                                    {"transformer.wpe", "position_embd"},
                                    {"transformer.ln_f", "output_norm"},
                                    {"model.embed_tokens", "token_embd"},
                                    {"model.norm", "output_norm"},
                                    {"lm_head", "output"},
                                    {"gpt_neox.embed_in", "token_embd"},
                                    {"gpt_neox.final_layer_norm", "output_norm"},
                                    {"embed_out", "output"}};
constexpr std::string_view kv_b_end = ".attn_kv_b.weight";

std::string_view renamed(std::string_view stem, std::span<const NamePair> names) {
  const auto it = std::ranges::find(names, stem, &NamePair::hub);
  if (it == names.end()) fail("gguf", "the tensor {} has no GGUF name", stem);
  return it->gguf;
}

// Where a tensor of a layout lies in the file.
struct Place {
  std::string name;
  int64_t expert = -1;  // which part of the tensor of all experts it is; -1: the whole tensor
};

// mlp.experts.7.up_proj: mlp.experts.up_proj and 7
std::pair<std::string, int64_t> without_expert(std::string_view own) {
  constexpr std::string_view mark = ".experts.";
  const size_t at = own.find(mark);
  if (at == own.npos) return {std::string(own), -1};
  int64_t expert = 0;
  const char* digits = own.data() + at + mark.size();
  const char* end = std::from_chars(digits, own.data() + own.size(), expert).ptr;
  return {fmt::format("{}{}", own.substr(0, at + mark.size()),
                      own.substr(size_t(end - own.data()) + 1)),
          expert};
}

// model.layers.3.mlp.up_proj.weight: blk.3.ffn_up.weight
Place place_of(std::string_view hub, HfType type) {
  const size_t dot = hub.rfind('.');
  const std::string_view stem = hub.substr(0, dot), kind = hub.substr(dot);
  for (const std::string_view prefix : {"transformer.h.", "model.layers.", "gpt_neox.layers."}) {
    if (!stem.starts_with(prefix)) continue;
    const std::string_view rest = stem.substr(prefix.size());
    const size_t end = rest.find('.');
    const std::string_view layer = rest.substr(0, end);
    if (kind == ".e_score_correction_bias") return {fmt::format("blk.{}.exp_probs_b.bias", layer)};
    const auto [own, expert] = without_expert(rest.substr(end + 1));
    std::string_view name = renamed(own, block_names);
    // Where the MLP has norms of its own, Hugging Face's post_attention_layernorm norms the output
    // of attention; elsewhere it norms the input of the MLP.
    const bool has_own =
        type == HfType::gemma2 || type == HfType::gemma3_text || type == HfType::olmo2;
    if (has_own && own == "post_attention_layernorm") name = "post_attention_norm";
    return {fmt::format("blk.{}.{}{}", layer, name, kind), expert};
  }
  return {fmt::format("{}{}", renamed(stem, outer_names), kind)};
}

// --- reading ---

using Found = std::map<std::string_view, const GgufTensor*>;

const GgufTensor& take(Found& left, const GgufTable& f, const std::string& name) {
  const auto it = left.find(name);
  if (it == left.end()) fail(f.where, "the tensor {} is missing", name);
  const GgufTensor& t = *it->second;
  left.erase(it);
  return t;
}

StoredTensor stored(const GgufTensor& t) {
  if (t.type == GgmlType::f32) return {DType::f32, t.shape, t.bytes};
  if (t.type == GgmlType::f16) return {DType::f16, t.shape, t.bytes};
  if (t.type == GgmlType::bf16) return {DType::bf16, t.shape, t.bytes};
  return {DType::f32, t.shape, t.bytes,
          [type = t.type](Bytes packed) { return from_ggml(packed, type); }};
}

void expect_shape(const GgufTable& f, std::string_view name, const GgufTensor& t,
                  const std::vector<int64_t>& want) {
  if (t.shape != want)
    fail(f.where, "expected {} to be ({}), got ({})", name, fmt::join(want, ", "),
         fmt::join(t.shape, ", "));
}

// The rows of keys and values of all heads, from the two tensors of newer files: keys, transposed,
// and values.
std::vector<float> rows_of_kv(const GgufTensor& k, const GgufTensor& v, const LatentSpec& s,
                              int64_t latent) {
  const std::vector<float> keys = from_ggml(k.bytes, k.type), values = from_ggml(v.bytes, v.type);
  std::vector<float> out;
  out.reserve(keys.size() + values.size());
  for (int64_t h = 0; h < s.heads; ++h) {
    for (int64_t d = 0; d < s.nope; ++d)
      for (int64_t i = 0; i < latent; ++i)
        out.push_back(keys[size_t((h * latent + i) * s.nope + d)]);
    const auto from = values.begin() + h * s.v * latent;
    out.insert(out.end(), from, from + s.v * latent);
  }
  return out;
}

StoredTensor joined_kv_b(Found& left, const GgufTable& f, const std::string& layer,
                         const LayerSpec& l) {
  const LatentSpec s = l.latent();
  const std::string k_name = layer + ".attn_k_b.weight", v_name = layer + ".attn_v_b.weight";
  const GgufTensor &k = take(left, f, k_name), &v = take(left, f, v_name);
  expect_shape(f, k_name, k, {s.heads, l.kv_latent, s.nope});
  expect_shape(f, v_name, v, {s.heads, s.v, l.kv_latent});
  const int64_t latent = l.kv_latent;
  return {DType::f32, {s.heads * (s.nope + s.v), latent}, k.bytes, [k, v, s, latent](Bytes) {
            return rows_of_kv(k, v, s, latent);
          }};
}

// The layer of blk.3.ffn_up.weight; -1: not a tensor of a layer.
int64_t layer_of(std::string_view name) {
  constexpr std::string_view prefix = "blk.";
  int64_t layer = -1;
  if (name.starts_with(prefix))
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), layer);
  return layer;
}

}  // namespace

// Rotated pairs of some architectures are neighbouring rows.
FileLayout gguf_layout(HfType type) {
  const bool neighbours =
      type == HfType::llama || type == HfType::smollm3 || type == HfType::mixtral;
  return {.type = type,
          .conv1d = false,
          .pairs = neighbours ? RopePairs::interleaved : RopePairs::half,
          .gain_offset = false,
          .by_head = false,
          .latent_pairs = RopePairs::interleaved};
}

void check_expert_tensors(const GgufTable& f, const ModelConfig& c) {
  for (int64_t i = 0; i < c.layers; ++i) {
    if (!is_expert_layer(c.moe, i)) continue;
    if (const std::string old = fmt::format("blk.{}.ffn_gate.0.weight", i); f.tensors.contains(old))
      fail(f.where,
           "expected one tensor for all experts of a layer, got one per expert ({}), which "
           "llama.cpp does not read either: convert the original model again",
           old);
    for (const char* part : {"ffn_gate_inp", "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps"}) {
      const std::string name = fmt::format("blk.{}.{}.weight", i, part);
      const auto it = f.tensors.find(name);
      if (it == f.tensors.end()) fail(f.where, "the tensor {} is missing", name);
      const std::vector<int64_t>& shape = it->second.shape;
      const size_t rank = name.ends_with("_inp.weight") ? 2 : 3;
      if (shape.size() != rank)
        fail(f.where, "expected {} with {} dimensions, got {}", name, rank, shape.size());
      if (shape[0] != c.moe.experts)
        fail(f.where, "expected {} for the {} experts of {}.expert_count, got {}", name,
             c.moe.experts, f.text("general.architecture"), shape[0]);
    }
  }
}

StoredTensors hub_tensors(const GgufTable& f, const ModelConfig& c, HfType type) {
  const bool latent = type == HfType::deepseek_v3, split = latent && has_split_keys(f);
  // Blocks of multi-token prediction follow the layers and are not read.
  const int64_t blocks = latent ? f.whole("deepseek2.block_count") : c.layers;
  Found left;
  for (const auto& [name, tensor] : f.tensors) {
    const int64_t layer = layer_of(name);
    const bool of_rope =
        name == rope_freqs || name == rope_short_factors || name == rope_long_factors;
    if (!of_rope && !(layer >= c.layers && layer < blocks)) left.emplace(name, &tensor);
  }
  const std::vector<LayerSpec> layers = layer_specs(c);
  StoredTensors out;
  std::map<std::string, StoredTensor, std::less<>> stacks;  // of experts, by their GGUF names
  for (const FileTensor& t : file_tensors(c, gguf_layout(type))) {
    const Place place = place_of(t.name, type);
    if (split && place.name.ends_with(kv_b_end)) {
      const int64_t i = layer_of(place.name);
      out.emplace(t.name, joined_kv_b(left, f, fmt::format("blk.{}", i), layers[size_t(i)]));
    } else if (place.expert < 0) {
      out.emplace(t.name, stored(take(left, f, place.name)));
    } else {
      auto it = stacks.find(place.name);
      if (it == stacks.end())
        it = stacks.emplace(place.name, stored(take(left, f, place.name))).first;
      out.emplace(t.name, it->second.slice(place.expert));
    }
  }
  if (!left.empty())
    fail(f.where, "expected only the tensors of its keys, but found {}",
         in_quotes(left.begin()->first));
  return out;
}

// --- writing ---

namespace {

// The two tensors of keys and values that joined_kv_b() joins.
void add_split_kv_b(std::vector<GgufTensorToWrite>& out, const FileTensor& t, std::string_view name,
                    const LayerSpec& l, ParamStore& store, Part part) {
  const LatentSpec s = l.latent();
  const int64_t L = l.kv_latent;
  const std::string layer(name.substr(0, name.size() - kv_b_end.size()));
  const auto rows = [t, &store, part] { return from_rows(t, store.values(part, t.param)); };
  out.push_back({layer + ".attn_k_b.weight", GgmlType::f32, {s.heads, L, s.nope}, [rows, s, L] {
                   const std::vector<float> all = rows();
                   std::vector<float> keys;
                   for (int64_t h = 0; h < s.heads; ++h)
                     for (int64_t i = 0; i < L; ++i)
                       for (int64_t d = 0; d < s.nope; ++d)
                         keys.push_back(all[size_t((h * (s.nope + s.v) + d) * L + i)]);
                   return keys;
                 }});
  out.push_back({layer + ".attn_v_b.weight", GgmlType::f32, {s.heads, s.v, L}, [rows, s, L] {
                   const std::vector<float> all = rows();
                   std::vector<float> values;
                   for (int64_t h = 0; h < s.heads; ++h) {
                     const auto from = all.begin() + (h * (s.nope + s.v) + s.nope) * L;
                     values.insert(values.end(), from, from + s.v * L);
                   }
                   return values;
                 }});
}

}  // namespace

std::vector<GgufTensorToWrite> gguf_tensors(const ModelConfig& c, HfType type, ParamStore& store) {
  struct Stack {
    Place place;  // of the first
    std::vector<FileTensor> parts;
  };
  std::vector<Stack> stacks;
  std::map<std::string, size_t> index;
  for (FileTensor& t : file_tensors(c, gguf_layout(type))) {
    Place place = place_of(t.name, type);
    const auto [it, fresh] = index.try_emplace(place.name, stacks.size());
    if (fresh) stacks.push_back({std::move(place), {}});
    stacks[it->second].parts.push_back(std::move(t));
  }
  const Part part = store.made(Part::master) ? Part::master : Part::weight;
  const std::vector<LayerSpec> layers = layer_specs(c);
  std::vector<GgufTensorToWrite> out;
  for (Stack& s : stacks) {
    std::string& name = s.place.name;
    if (name.ends_with(kv_b_end)) {
      add_split_kv_b(out, s.parts[0], name, layers[size_t(layer_of(name))], store, part);
      continue;
    }
    std::vector<int64_t> shape = s.parts[0].shape;
    if (s.place.expert >= 0) shape.insert(shape.begin(), int64_t(s.parts.size()));
    out.push_back({std::move(name), GgmlType::f32, std::move(shape),
                   [parts = std::move(s.parts), &store, part] {
                     const std::string& param = parts[0].param;  // of all parts
                     if (param.empty()) return std::vector<float>(size_t(parts[0].shape[0]));
                     const std::vector<float> values = store.values(part, param);
                     std::vector<float> all;
                     for (const FileTensor& t : parts) {
                       const std::vector<float> rows = from_rows(t, values);
                       all.insert(all.end(), rows.begin(), rows.end());
                     }
                     return all;
                   }});
  }
  return out;
}

}  // namespace hearth::inline model
