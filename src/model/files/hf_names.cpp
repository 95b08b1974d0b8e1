#include "model/files/hf_names.h"

#include "model/decoder.h"
#include "model/layer_spec.h"

namespace hearth::inline model {
namespace {

struct Names {
  const ModelConfig& c;
  const FileLayout& layout;
  std::vector<LayerSpec> layers;
  std::vector<FileTensor> list = {};

  void vector(std::string name, std::string param, int64_t n) {
    list.push_back({.name = std::move(name), .shape = {n}, .param = std::move(param)});
  }
  void matrix(std::string name, std::string param, int64_t out, int64_t in) {
    list.push_back({.name = std::move(name), .shape = {out, in}, .param = std::move(param)});
  }
  void conv1d(std::string name, std::string param, int64_t out, int64_t in) {
    matrix(std::move(name), std::move(param), out, in);
    if (!layout.conv1d) return;
    list.back().shape = {in, out};
    list.back().transposed = true;
  }

  void gpt2_block(const std::string& file, const std::string& ours, const LayerSpec& l) {
    const int64_t C = c.dim;
    vector(file + "ln_1.weight", ours + "attn.norm.gain", C);
    vector(file + "ln_1.bias", ours + "attn.norm.bias", C);
    conv1d(file + "attn.c_attn.weight", ours + "attn.qkv.weight", l.qkv_size(), C);
    vector(file + "attn.c_attn.bias", ours + "attn.qkv.bias", l.qkv_size());
    conv1d(file + "attn.c_proj.weight", ours + "attn.out.weight", C, l.y_size());
    vector(file + "attn.c_proj.bias", ours + "attn.out.bias", C);
    vector(file + "ln_2.weight", ours + "mlp.norm.gain", C);
    vector(file + "ln_2.bias", ours + "mlp.norm.bias", C);
    conv1d(file + "mlp.c_fc.weight", ours + "mlp.up.weight", l.hidden, C);
    vector(file + "mlp.c_fc.bias", ours + "mlp.up.bias", l.hidden);
    conv1d(file + "mlp.c_proj.weight", ours + "mlp.down.weight", C, l.hidden);
    vector(file + "mlp.c_proj.bias", ours + "mlp.down.bias", C);
  }

  void gpt2() {
    matrix("transformer.wte.weight", "embed.weight", c.vocab, c.dim);
    matrix("transformer.wpe.weight", "positions.weight", c.context, c.dim);
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string n = std::to_string(i) + ".";
      gpt2_block("transformer.h." + n, "blocks." + n, layers[i]);
    }
    vector("transformer.ln_f.weight", "final_norm.gain", c.dim);
    vector("transformer.ln_f.bias", "final_norm.bias", c.dim);
  }

  // q, k and v of one packed parameter, weight or bias.
  void qkv(const std::string& file, const std::string& param, std::string_view kind,
           const LayerSpec& l) {
    const int64_t rows[3] = {l.q_size(), l.k_size(), l.v_size()};
    const char* names[3] = {"q_proj.", "k_proj.", "v_proj."};
    int64_t row = 0;
    for (int i = 0; i < 3; ++i) {
      FileTensor t{.name = file + names[i] + std::string(kind), .shape = {rows[i]}, .param = param};
      if (kind == "weight") t.shape.push_back(c.dim);
      t.row = row;
      if (i < 2) regroup(t, l);
      list.push_back(std::move(t));
      row += rows[i];
    }
  }
  void regroup(FileTensor& t, const LayerSpec& l) const {
    if (!layout.pairs || *layout.pairs == c.rope_pairs) return;
    t.head_dim = l.qk_dim;
    t.interleaved = *layout.pairs == RopePairs::interleaved;
  }
  void gate_up(const std::string& file, const std::string& param, std::string_view kind,
               const LayerSpec& l) {
    for (const char* name : {"gate_proj.", "up_proj."}) {
      FileTensor t{.name = file + name + std::string(kind), .shape = {l.hidden}, .param = param};
      if (kind == "weight") t.shape.push_back(c.dim);
      if (name[0] == 'u') t.row = l.hidden;
      list.push_back(std::move(t));
    }
  }

  void llama_block(const std::string& file, const std::string& ours, const LayerSpec& l) {
    const std::string attn = file + "self_attn.", mlp = file + "mlp.";
    const bool attention_bias =
        c.qkv_bias || c.out_bias;  // one setting for all four in that layout
    vector(file + "input_layernorm.weight", ours + "attn.norm.gain", c.dim);
    qkv(attn, ours + "attn.qkv.weight", "weight", l);
    if (attention_bias) qkv(attn, c.qkv_bias ? ours + "attn.qkv.bias" : "", "bias", l);
    if (layout.type == HfType::qwen3) {
      for (const char* which : {"q_norm.", "k_norm."}) {
        vector(attn + which + "weight", ours + "attn." + which + "gain", l.qk_dim);
        regroup(list.back(), l);
      }
    }
    matrix(attn + "o_proj.weight", ours + "attn.out.weight", c.dim, l.y_size());
    if (attention_bias)
      vector(attn + "o_proj.bias", c.out_bias ? ours + "attn.out.bias" : "", c.dim);
    vector(file + "post_attention_layernorm.weight", ours + "mlp.norm.gain", c.dim);
    gate_up(mlp, ours + "mlp.up.weight", "weight", l);
    if (c.mlp_bias) gate_up(mlp, ours + "mlp.up.bias", "bias", l);
    matrix(mlp + "down_proj.weight", ours + "mlp.down.weight", c.dim, l.hidden);
    if (c.mlp_bias) vector(mlp + "down_proj.bias", ours + "mlp.down.bias", c.dim);
  }

  void llama() {
    matrix("model.embed_tokens.weight", "embed.weight", c.vocab, c.dim);
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string n = std::to_string(i) + ".";
      llama_block("model.layers." + n, "blocks." + n, layers[i]);
    }
    vector("model.norm.weight", "final_norm.gain", c.dim);
  }

  void hearth() {
    ModelConfig base = c;
    base.lora = {};
    for (const ParamSpec& p : decoder_params(base))
      list.push_back({.name = p.name,
                      .shape = {p.shape.dim.begin(), p.shape.dim.begin() + p.shape.rank},
                      .param = p.name});
  }
};

}  // namespace

std::vector<FileTensor> file_tensors(const ModelConfig& config, const FileLayout& layout) {
  Names names{config, layout, layer_specs(config)};
  switch (layout.type) {
    case HfType::gpt2:
      names.gpt2();
      break;
    case HfType::llama:
    case HfType::qwen3:
      names.llama();
      break;
    case HfType::hearth:
      names.hearth();
      return std::move(names.list);
  }
  if (!config.tied) names.matrix("lm_head.weight", "head.weight", config.vocab, config.dim);
  return std::move(names.list);
}

bool is_buffer(HfType type, std::string_view name) {
  switch (type) {
    case HfType::gpt2:
      return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias");
    case HfType::llama:
    case HfType::qwen3:
      return name.ends_with("rotary_emb.inv_freq");
    case HfType::hearth:
      return false;
  }
  return false;
}

std::string_view name_prefix(HfType type) {
  switch (type) {
    case HfType::gpt2:
      return "transformer.";
    case HfType::llama:
    case HfType::qwen3:
      return "model.";
    case HfType::hearth:
      return "";
  }
  return "";
}

}  // namespace hearth::inline model
