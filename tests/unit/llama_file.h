// GGUF files as llama.cpp's converter lays them out, from the tensors of a folder, for tests of the
// reader. It shares no code with hearth's own writer but the container.
#pragma once

#include <fmt/format.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <string>
#include <vector>

#include "formats/gguf/gguf.h"
#include "unit/family_reference.h"

namespace hearth::test {

// A file by the rules of convert_hf_to_gguf.py, from the tensors of a folder.
class LlamaFile {
 public:
  LlamaFile(FamilyReference& reference, std::string arch, const nlohmann::json& config)
      : arch_(std::move(arch)), j_(config) {
    for (const TensorToWrite& t : reference.tensors()) {
      std::vector<float> values;
      t.produce([&](Bytes b) {
        const size_t at = values.size();
        values.resize(at + b.size() / sizeof(float));
        std::memcpy(values.data() + at, b.data(), b.size());
      });
      hub_[t.name] = {t.shape, std::move(values)};
    }
    keys_.set("general.architecture", arch_);
    const int64_t further = j_.value("num_nextn_predict_layers", 0);
    key("block_count", int64_t(j_["num_hidden_layers"]) + further);
    if (further) key("nextn_predict_layers", further);
    key("context_length", j_["max_position_embeddings"]);
    key("embedding_length", j_["hidden_size"]);
    key("feed_forward_length", j_["intermediate_size"]);
    key("attention.head_count", j_["num_attention_heads"]);
    keys_.set(arch_ + ".attention.layer_norm_rms_epsilon", j_["rms_norm_eps"].get<float>());
    keys_.set(arch_ + ".rope.freq_base", j_["rope_theta"].get<float>());
    add("token_embd.weight", "model.embed_tokens.weight");
    add("output_norm.weight", "model.norm.weight");
    add("output.weight", "lm_head.weight");
  }

  void key(const std::string& name, int64_t value) { keys_.set(arch_ + "." + name, value); }
  template <class T>
  void other_key(const std::string& name, T value) {
    keys_.set(arch_ + "." + name, value);
  }
  void add(const std::string& name, const std::string& hub, GgmlType type = GgmlType::f32) {
    put(name, hub_.at(hub).shape, hub_.at(hub).values, type);
  }
  // reshape(heads, 2, width / 2, ..).swapaxes(1, 2)
  void add_permuted(const std::string& name, const std::string& hub, int64_t heads) {
    const Tensor& t = hub_.at(hub);
    const int64_t rows = t.shape[0] / heads, cols = t.shape[1];
    std::vector<float> out;
    for (int64_t h = 0; h < heads; ++h)
      for (int64_t i = 0; i < rows / 2; ++i)
        for (int64_t half = 0; half < 2; ++half) {
          const auto from = t.values.begin() + (h * rows + half * rows / 2 + i) * cols;
          out.insert(out.end(), from, from + cols);
        }
    put(name, t.shape, out, GgmlType::f32);
  }
  // stack over the experts, whose number replaces {} in the name.
  void add_stack(const std::string& name, const std::string& before, const std::string& after,
                 int64_t experts, GgmlType type = GgmlType::f32) {
    std::vector<float> all;
    std::vector<int64_t> shape{experts};
    for (int64_t e = 0; e < experts; ++e) {
      const Tensor& t = hub_.at(before + std::to_string(e) + after);
      if (e == 0) shape.insert(shape.end(), t.shape.begin(), t.shape.end());
      all.insert(all.end(), t.values.begin(), t.values.end());
    }
    put(name, shape, all, type);
  }
  // view(heads, nope + v, latent), split, and the keys transposed.
  void add_split(int64_t layer) {
    const Tensor& t = hub_.at(fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer));
    const int64_t H = j_["num_attention_heads"], L = j_["kv_lora_rank"];
    const int64_t nope = j_["qk_nope_head_dim"], v = j_["v_head_dim"];
    std::vector<float> keys(size_t(H * L * nope)), values(size_t(H * v * L));
    for (int64_t h = 0; h < H; ++h)
      for (int64_t r = 0; r < nope + v; ++r)
        for (int64_t i = 0; i < L; ++i) {
          const float x = t.values[size_t((h * (nope + v) + r) * L + i)];
          if (r < nope)
            keys[size_t((h * L + i) * nope + r)] = x;
          else
            values[size_t((h * v + r - nope) * L + i)] = x;
        }
    put(fmt::format("blk.{}.attn_k_b.weight", layer), {H, L, nope}, keys, GgmlType::f32);
    put(fmt::format("blk.{}.attn_v_b.weight", layer), {H, v, L}, values, GgmlType::f32);
  }
  void put(const std::string& name, std::vector<int64_t> shape, const std::vector<float>& values,
           GgmlType type) {
    tensors_.push_back({name, type, std::move(shape), [values] { return values; }});
  }
  void drop(const std::string& name) {
    std::erase_if(tensors_, [&](const auto& t) { return t.name == name; });
  }
  void write(const std::filesystem::path& path) const { write_gguf(path, keys_, tensors_); }

 private:
  struct Tensor {
    std::vector<int64_t> shape;
    std::vector<float> values;
  };
  std::string arch_;
  nlohmann::json j_;
  std::map<std::string, Tensor> hub_;
  GgufKeys keys_;
  std::vector<GgufTensorToWrite> tensors_;
};

inline LlamaFile mixtral_file(FamilyReference& reference, const nlohmann::json& j) {
  LlamaFile f(reference, "llama", j);
  f.key("expert_count", j["num_local_experts"]);
  f.key("expert_used_count", j["num_experts_per_tok"]);
  f.key("attention.head_count_kv", j["num_key_value_heads"]);
  f.key("attention.key_length", j["head_dim"]);
  f.key("attention.value_length", j["head_dim"]);
  f.key("rope.dimension_count", j["head_dim"]);
  for (int64_t i = 0; i < int64_t(j["num_hidden_layers"]); ++i) {
    const std::string to = fmt::format("blk.{}.", i), from = fmt::format("model.layers.{}.", i);
    f.add(to + "attn_norm.weight", from + "input_layernorm.weight");
    f.add_permuted(to + "attn_q.weight", from + "self_attn.q_proj.weight",
                   j["num_attention_heads"]);
    f.add_permuted(to + "attn_k.weight", from + "self_attn.k_proj.weight",
                   j["num_key_value_heads"]);
    f.add(to + "attn_v.weight", from + "self_attn.v_proj.weight");
    f.add(to + "attn_output.weight", from + "self_attn.o_proj.weight");
    f.add(to + "ffn_norm.weight", from + "post_attention_layernorm.weight");
    f.add(to + "ffn_gate_inp.weight", from + "block_sparse_moe.gate.weight");
    for (const auto& [name, w] : {std::pair{"gate", "w1"}, {"down", "w2"}, {"up", "w3"}})
      f.add_stack(fmt::format("{}ffn_{}_exps.weight", to, name), from + "block_sparse_moe.experts.",
                  fmt::format(".{}.weight", w), j["num_local_experts"]);
  }
  return f;
}

inline void add_deepseek_mlp(LlamaFile& f, const nlohmann::json& j, int64_t layer) {
  const std::string to = fmt::format("blk.{}.", layer);
  const std::string mlp = fmt::format("model.layers.{}.mlp.", layer);
  const bool dense = layer < int64_t(j["first_k_dense_replace"]);
  for (const char* name : {"gate", "up", "down"}) {
    const std::string end = fmt::format("{}_proj.weight", name);
    if (dense) {
      f.add(fmt::format("{}ffn_{}.weight", to, name), mlp + end);
      continue;
    }
    f.add(fmt::format("{}ffn_{}_shexp.weight", to, name), mlp + "shared_experts." + end);
    f.add_stack(fmt::format("{}ffn_{}_exps.weight", to, name), mlp + "experts.", "." + end,
                j["n_routed_experts"]);
  }
  if (dense) return;
  f.add(to + "ffn_gate_inp.weight", mlp + "gate.weight");
  f.add(to + "exp_probs_b.bias", mlp + "gate.e_score_correction_bias");
}

// `split`: with one tensor for keys and one for values, as all but the oldest files.
inline LlamaFile deepseek_file(FamilyReference& reference, const nlohmann::json& j, bool split) {
  LlamaFile f(reference, "deepseek2", j);
  const int64_t rope = j["qk_rope_head_dim"], latent = j["kv_lora_rank"];
  const int64_t head = rope + int64_t(j["qk_nope_head_dim"]), v = j["v_head_dim"];
  f.key("attention.head_count_kv", split ? 1 : int64_t(j["num_attention_heads"]));
  f.key("attention.key_length", split ? latent + rope : head);
  f.key("attention.value_length", split ? latent : v);
  if (split) f.key("attention.key_length_mla", head), f.key("attention.value_length_mla", v);
  f.key("attention.q_lora_rank", j["q_lora_rank"]);
  f.key("attention.kv_lora_rank", latent);
  f.key("rope.dimension_count", rope);
  f.key("leading_dense_block_count", j["first_k_dense_replace"]);
  f.key("expert_count", j["n_routed_experts"]);
  f.key("expert_used_count", j["num_experts_per_tok"]);
  f.key("expert_shared_count", j["n_shared_experts"]);
  f.key("expert_feed_forward_length", j["moe_intermediate_size"]);
  f.key("expert_group_count", j["n_group"]);
  f.key("expert_group_used_count", j["topk_group"]);
  f.other_key("expert_weights_scale", j["routed_scaling_factor"].get<float>());
  f.other_key("expert_weights_norm", true);
  for (int64_t i = 0; i < int64_t(j["num_hidden_layers"]); ++i) {
    const std::string to = fmt::format("blk.{}.", i), from = fmt::format("model.layers.{}.", i);
    const std::string attn = from + "self_attn.";
    f.add(to + "attn_norm.weight", from + "input_layernorm.weight");
    f.add(to + "attn_q_a.weight", attn + "q_a_proj.weight");
    f.add(to + "attn_q_a_norm.weight", attn + "q_a_layernorm.weight");
    f.add(to + "attn_q_b.weight", attn + "q_b_proj.weight");
    f.add(to + "attn_kv_a_mqa.weight", attn + "kv_a_proj_with_mqa.weight");
    f.add(to + "attn_kv_a_norm.weight", attn + "kv_a_layernorm.weight");
    if (split)
      f.add_split(i);
    else
      f.add(to + "attn_kv_b.weight", attn + "kv_b_proj.weight");
    f.add(to + "attn_output.weight", attn + "o_proj.weight");
    f.add(to + "ffn_norm.weight", from + "post_attention_layernorm.weight");
    add_deepseek_mlp(f, j, i);
  }
  return f;
}

}  // namespace hearth::test
