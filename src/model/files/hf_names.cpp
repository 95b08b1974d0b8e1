#include "model/files/hf_names.h"

#include <fmt/format.h>

#include <charconv>
#include <cmath>

#include "model/decoder.h"
#include "model/layer_spec.h"

namespace hearth::inline model {
namespace {

bool is_gemma(HfType type) {
  return type == HfType::gemma || type == HfType::gemma2 || type == HfType::gemma3_text;
}

struct Names {
  const ModelConfig& c;
  const FileLayout& layout;
  std::vector<LayerSpec> layers;
  std::vector<FileTensor> list = {};

  // An empty parameter is a bias that the model lacks.
  void vector(std::string name, std::string param, int64_t n) {
    list.push_back({.name = std::move(name), .shape = {n}, .param = std::move(param)});
  }
  void gain(std::string name, std::string param, int64_t n) {
    vector(std::move(name), std::move(param), n);
    if (is_gemma(layout.type) && layout.gain_offset) list.back().offset = 1;
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

  // --- the order of rows ---

  bool regroups() const { return layout.pairs && *layout.pairs != c.rope_pairs; }

  // The place here of row d of 2 * half rotated rows in a file of the other order. Pairs are
  // neighbours in one order and half of the rows apart in the other.
  static int64_t place_in_pairs(int64_t d, int64_t half, RopePairs file) {
    if (file == RopePairs::half) return d < half ? 2 * d : 2 * (d - half) + 1;
    return d % 2 ? half + d / 2 : d / 2;
  }
  // The place here of row d of a head of q or k in the file, whose first dims are rotated.
  int64_t place_in_head(int64_t d, const LayerSpec& l) const {
    const int64_t half = std::lround(c.rotary * float(l.qk_dim)) / 2;
    return regroups() && d < 2 * half ? place_in_pairs(d, half, *layout.pairs) : d;
  }
  // Of `count` heads of q or k.
  std::vector<int64_t> heads_order(int64_t count, const LayerSpec& l) const {
    std::vector<int64_t> order;
    if (!regroups()) return order;
    for (int64_t h = 0; h < count; ++h)
      for (int64_t d = 0; d < l.qk_dim; ++d) order.push_back(h * l.qk_dim + place_in_head(d, l));
    return order;
  }
  // Of packed q | k | v in one tensor.
  std::vector<int64_t> packed_order(const LayerSpec& l) const {
    std::vector<int64_t> order = heads_order(l.heads + l.kv_heads, l);
    if (order.empty()) return order;
    for (int64_t i = int64_t(order.size()); i < l.qkv_size(); ++i) order.push_back(i);
    return order;
  }
  // Of q, k and v of one head after another.
  std::vector<int64_t> by_head_order(const LayerSpec& l) const {
    if (!layout.by_head) return packed_order(l);
    std::vector<int64_t> order;
    for (int64_t h = 0; h < l.heads; ++h)
      for (int64_t part = 0; part < 3; ++part)
        for (int64_t d = 0; d < l.qk_dim; ++d)
          order.push_back((part * l.heads + h) * l.qk_dim + (part < 2 ? place_in_head(d, l) : d));
    return order;
  }

  // --- llama and its relatives ---

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
      if (i < 2) t.order = heads_order(rows[i] / l.qk_dim, l);
      list.push_back(std::move(t));
      row += rows[i];
    }
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
  void qk_norms(const std::string& attn, const std::string& ours, const LayerSpec& l) {
    if (c.qk_norm == QkNorm::none) return;
    for (const char* which : {"q_norm.", "k_norm."}) {
      const int64_t heads = !c.qk_norm_whole ? 1 : which[0] == 'q' ? l.heads : l.kv_heads;
      gain(attn + which + "weight", ours + which + "gain", heads * l.qk_dim);
      list.back().order = heads_order(heads, l);
    }
  }

  // Of `count` groups of rows, of which the last l.rope_dim are rotated: heads of latent attention,
  // or the latent and its key.
  std::vector<int64_t> latent_order(int64_t count, int64_t plain, const LayerSpec& l) const {
    std::vector<int64_t> order;
    if (!layout.latent_pairs || *layout.latent_pairs == c.rope_pairs) return order;
    for (int64_t g = 0; g < count; ++g) {
      const int64_t first = g * (plain + l.rope_dim);
      for (int64_t d = 0; d < plain; ++d) order.push_back(first + d);
      for (int64_t d = 0; d < l.rope_dim; ++d)
        order.push_back(first + plain + place_in_pairs(d, l.rope_dim / 2, *layout.latent_pairs));
    }
    return order;
  }

  // q, keys and values by latents.
  void latents(const std::string& attn, const std::string& ours, bool biases, const LayerSpec& l) {
    const auto bias = [&](const char* name, const char* param, int64_t n) {
      if (biases) vector(attn + name, c.qkv_bias ? ours + param : "", n);
    };
    if (l.q_latent) {
      matrix(attn + "q_a_proj.weight", ours + "q_a.weight", l.q_latent, c.dim);
      bias("q_a_proj.bias", "q_a.bias", l.q_latent);
      gain(attn + "q_a_layernorm.weight", ours + "q_a_norm.gain", l.q_latent);
      matrix(attn + "q_b_proj.weight", ours + "q_b.weight", l.q_size(), l.q_latent);
    } else {
      matrix(attn + "q_proj.weight", ours + "q.weight", l.q_size(), c.dim);
    }
    list.back().order = latent_order(l.heads, l.qk_dim - l.rope_dim, l);
    const int64_t rows = l.kv_latent + l.rope_dim;
    matrix(attn + "kv_a_proj_with_mqa.weight", ours + "kv_a.weight", rows, c.dim);
    list.back().order = latent_order(1, l.kv_latent, l);
    bias("kv_a_proj_with_mqa.bias", "kv_a.bias", rows);
    gain(attn + "kv_a_layernorm.weight", ours + "kv_a_norm.gain", l.kv_latent);
    matrix(attn + "kv_b_proj.weight", ours + "kv_b.weight", l.latent().kv_size(), l.kv_latent);
  }

  // The router, and gate, up and down of every expert. Our parameters stack all experts.
  void experts(const std::string& file, const std::string& ours, const LayerSpec& l) {
    const bool mixtral = layout.type == HfType::mixtral;
    const std::string at = file + (mixtral ? "block_sparse_moe." : "mlp.");
    const char* names[3] = {mixtral ? "w1" : "gate_proj", mixtral ? "w3" : "up_proj",
                            mixtral ? "w2" : "down_proj"};
    const auto add = [&](int64_t expert, int which, const char* param, int64_t out, int64_t in) {
      matrix(fmt::format("{}experts.{}.{}.weight", at, expert, names[which]), ours + param, out,
             in);
      list.back().row = which == 1 ? (2 * expert + 1) * out : (which == 0 ? 2 : 1) * expert * out;
    };
    matrix(at + "gate.weight", ours + "mlp.router.weight", l.experts, c.dim);
    if (c.moe.router_bias)
      vector(at + "gate.e_score_correction_bias", ours + "mlp.router.bias", l.experts);
    for (int64_t e = 0; e < l.experts; ++e)
      for (const int which : {0, 1}) add(e, which, "mlp.experts.up.weight", l.hidden, c.dim);
    for (int64_t e = 0; e < l.experts; ++e) add(e, 2, "mlp.experts.down.weight", c.dim, l.hidden);
    if (!l.shared_hidden) return;
    LayerSpec shared = l;
    shared.hidden = l.shared_hidden;
    gate_up(at + "shared_experts.", ours + "mlp.shared.up.weight", "weight", shared);
    matrix(at + "shared_experts.down_proj.weight", ours + "mlp.shared.down.weight", c.dim,
           l.shared_hidden);
  }

  // The norms of one half of a block. Their names depend on where the norms are.
  void norm_gains(const std::string& file, const std::string& ours, bool mlp) {
    const std::string own = ours + (mlp ? "mlp." : "attn.");
    const char* before = mlp ? "post_attention_layernorm" : "input_layernorm";
    const char* after = mlp ? "post_feedforward_layernorm" : "post_attention_layernorm";
    const bool sandwich = c.norm_place == NormPlace::sandwich;
    if (sandwich && mlp) before = "pre_feedforward_layernorm";
    const char* norm = c.norm_place == NormPlace::after ? after : before;
    gain(file + norm + ".weight", own + "norm.gain", c.dim);
    if (sandwich) gain(file + after + ".weight", own + "post_norm.gain", c.dim);
  }

  void llama_block(const std::string& file, const std::string& ours, const LayerSpec& l) {
    const std::string attn = file + "self_attn.", mlp = file + "mlp.";
    const bool fused = layout.type == HfType::phi3;
    const bool qkv_bias = c.qkv_bias || c.out_bias;  // one setting for all four in most layouts
    const bool out_bias = qkv_bias && layout.type != HfType::qwen2;
    norm_gains(file, ours, false);
    if (fused) {
      matrix(attn + "qkv_proj.weight", ours + "attn.qkv.weight", l.qkv_size(), c.dim);
      list.back().order = packed_order(l);
    } else if (l.kv_latent) {
      latents(attn, ours + "attn.", qkv_bias, l);
    } else {
      qkv(attn, ours + "attn.qkv.weight", "weight", l);
    }
    if (qkv_bias && !l.kv_latent) qkv(attn, c.qkv_bias ? ours + "attn.qkv.bias" : "", "bias", l);
    qk_norms(attn, ours + "attn.", l);
    matrix(attn + "o_proj.weight", ours + "attn.out.weight", c.dim, l.y_size());
    if (out_bias) vector(attn + "o_proj.bias", c.out_bias ? ours + "attn.out.bias" : "", c.dim);
    norm_gains(file, ours, true);
    if (l.experts) return experts(file, ours, l);
    if (fused)
      matrix(mlp + "gate_up_proj.weight", ours + "mlp.up.weight", l.up_size(), c.dim);
    else
      gate_up(mlp, ours + "mlp.up.weight", "weight", l);
    if (c.mlp_bias) gate_up(mlp, ours + "mlp.up.bias", "bias", l);
    matrix(mlp + "down_proj.weight", ours + "mlp.down.weight", c.dim, l.hidden);
    if (c.mlp_bias) vector(mlp + "down_proj.bias", ours + "mlp.down.bias", c.dim);
  }

  // A tensor that repeats a parameter of the model.
  void copy(std::string name, std::string param) {
    matrix(std::move(name), std::move(param), c.vocab, c.dim);
    list.back().copy = true;
  }
  // deepseek_v3: modules of multi-token prediction are further layers, each with copies of the
  // embedding and of the head.
  void modules() {
    const LayerSpec l = mtp_layer(c);
    for (int64_t k = 0; k < c.mtp; ++k) {
      const std::string file = fmt::format("model.layers.{}.", c.layers + k);
      const std::string ours = fmt::format("mtp.{}.", k);
      copy(file + "embed_tokens.weight", "embed.weight");
      gain(file + "enorm.weight", ours + "enorm.gain", c.dim);
      gain(file + "hnorm.weight", ours + "hnorm.gain", c.dim);
      matrix(file + "eh_proj.weight", ours + "proj.weight", c.dim, 2 * c.dim);
      llama_block(file, ours + "block.", l);
      gain(file + "shared_head.norm.weight", ours + "norm.gain", c.dim);
      copy(file + "shared_head.head.weight", c.tied ? "embed.weight" : "head.weight");
    }
  }

  void llama() {
    matrix("model.embed_tokens.weight", "embed.weight", c.vocab, c.dim);
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string n = std::to_string(i) + ".";
      llama_block("model.layers." + n, "blocks." + n, layers[i]);
    }
    if (layout.type == HfType::deepseek_v3) modules();
    gain("model.norm.weight", "final_norm.gain", c.dim);
  }

  // --- gpt_neox ---

  void neox_block(const std::string& file, const std::string& ours, const LayerSpec& l) {
    const int64_t C = c.dim;
    const std::string attn = file + "attention.", mlp = file + "mlp.";
    const auto bias_of = [&](bool present, const char* param) {
      return present ? ours + param : std::string();
    };
    const bool biases = c.qkv_bias || c.out_bias;
    vector(file + "input_layernorm.weight", ours + "attn.norm.gain", C);
    vector(file + "input_layernorm.bias", ours + "attn.norm.bias", C);
    matrix(attn + "query_key_value.weight", ours + "attn.qkv.weight", l.qkv_size(), C);
    list.back().order = by_head_order(l);
    if (biases) {
      vector(attn + "query_key_value.bias", bias_of(c.qkv_bias, "attn.qkv.bias"), l.qkv_size());
      list.back().order = by_head_order(l);
    }
    matrix(attn + "dense.weight", ours + "attn.out.weight", C, l.y_size());
    if (biases) vector(attn + "dense.bias", bias_of(c.out_bias, "attn.out.bias"), C);
    vector(file + "post_attention_layernorm.weight", ours + "mlp.norm.gain", C);
    vector(file + "post_attention_layernorm.bias", ours + "mlp.norm.bias", C);
    matrix(mlp + "dense_h_to_4h.weight", ours + "mlp.up.weight", l.hidden, C);
    vector(mlp + "dense_h_to_4h.bias", ours + "mlp.up.bias", l.hidden);
    matrix(mlp + "dense_4h_to_h.weight", ours + "mlp.down.weight", C, l.hidden);
    vector(mlp + "dense_4h_to_h.bias", ours + "mlp.down.bias", C);
  }

  void neox() {
    matrix("gpt_neox.embed_in.weight", "embed.weight", c.vocab, c.dim);
    for (size_t i = 0; i < layers.size(); ++i) {
      const std::string n = std::to_string(i) + ".";
      neox_block("gpt_neox.layers." + n, "blocks." + n, layers[i]);
    }
    vector("gpt_neox.final_layer_norm.weight", "final_norm.gain", c.dim);
    vector("gpt_neox.final_layer_norm.bias", "final_norm.bias", c.dim);
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
    case HfType::gpt_neox:
      names.neox();
      break;
    case HfType::hearth:
      names.hearth();
      return std::move(names.list);
    default:
      names.llama();
      break;
  }
  if (!config.tied)
    names.matrix(std::string(head_name(layout.type)), "head.weight", config.vocab, config.dim);
  return std::move(names.list);
}

bool is_buffer(HfType type, std::string_view name) {
  const auto ends = [&](std::string_view suffix) { return name.ends_with(suffix); };
  switch (type) {
    case HfType::gpt2:
      return ends(".attn.bias") || ends(".attn.masked_bias");
    case HfType::gpt_neox:
      return ends(".attention.bias") || ends(".attention.masked_bias") ||
             ends("rotary_emb.inv_freq");
    case HfType::hearth:
      return false;
    default:
      return ends("rotary_emb.inv_freq");
  }
}

bool is_past_layers(std::string_view name, int64_t layers) {
  if (name.starts_with("model.")) name.remove_prefix(std::string_view("model.").size());
  constexpr std::string_view prefix = "layers.";
  if (!name.starts_with(prefix)) return false;
  int64_t layer = -1;
  const char* from = name.data() + prefix.size();
  std::from_chars(from, name.data() + name.size(), layer);
  return layer >= layers;
}

std::string_view name_prefix(HfType type) {
  switch (type) {
    case HfType::gpt2:
      return "transformer.";
    case HfType::gpt_neox:
      return "gpt_neox.";
    case HfType::hearth:
      return "";
    default:
      return "model.";
  }
}

std::string_view head_name(HfType type) {
  return type == HfType::gpt_neox ? "embed_out.weight" : "lm_head.weight";
}

}  // namespace hearth::inline model
