#include "model/files/gguf_model.h"

#include <algorithm>
#include <cmath>
#include <deque>

#include "formats/fields.h"
#include "model/files/folder.h"
#include "model/files/tensor_rows.h"
#include "sys/error.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::string_view rope_freqs = "rope_freqs.weight";
// llama.cpp stores only the resulting factors of Llama 3's rule, not its bounds.
constexpr const char *low_key = "hearth.rope_low", *high_key = "hearth.rope_high",
                     *context_key = "hearth.rope_context";

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
std::string gguf_name(std::string_view hub) {
  const size_t dot = hub.rfind('.');
  const std::string_view stem = hub.substr(0, dot), kind = hub.substr(dot);
  for (const std::string_view prefix : {"transformer.h.", "model.layers."}) {
    if (!stem.starts_with(prefix)) continue;
    const std::string_view rest = stem.substr(prefix.size());
    const size_t end = rest.find('.');
    return fmt::format("blk.{}.{}{}", rest.substr(0, end),
                       renamed(rest.substr(end + 1), block_names), kind);
  }
  return fmt::format("{}{}", renamed(stem, outer_names), kind);
}

FileLayout gguf_layout(HfType type) {
  return {.type = type,
          .conv1d = false,
          .pairs = type == HfType::llama ? RopePairs::interleaved : RopePairs::half};
}

// --- reading ---

std::string_view architecture_of(const GgufTable& f) {
  const std::string_view name = f.text("general.architecture");
  if (name != "gpt2" && name != "llama" && name != "qwen2" && name != "qwen3")
    fail(f.where, "expected general.architecture gpt2, llama, qwen2 or qwen3, got {}",
         in_quotes(name));
  if (const std::string experts = std::string(name) + ".expert_count";
      f.has(experts) && f.whole(experts) > 0)
    fail(f.where, "GGUF files of models with experts are not supported; use their original folder");
  return name;
}

std::vector<float> rope_factors(const ModelConfig& c) {
  ModelConfig plain = c;
  plain.rope_scaling = RopeScaling::none;
  const std::vector<double> all = rope_frequencies(plain), scaled = rope_frequencies(c);
  std::vector<float> factors;
  for (size_t i = 0; i < all.size(); ++i) factors.push_back(float(all[i] / scaled[i]));
  return factors;
}

json read_rope_keys(const GgufTable& f, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.";
  json rope{
      {"rope_theta", f.has(arch + "rope.freq_base") ? f.number(arch + "rope.freq_base") : 1e4},
      {"rope_type", "default"}};
  if (const auto freqs = f.tensors.find(rope_freqs); freqs != f.tensors.end()) {
    const std::vector<float> factors = from_ggml(freqs->second.bytes, freqs->second.type);
    rope["rope_type"] = "llama3";
    rope["factor"] = *std::ranges::max_element(factors);
    rope["low_freq_factor"] = f.has(low_key) ? f.number(low_key) : 1.0;
    rope["high_freq_factor"] = f.has(high_key) ? f.number(high_key) : 4.0;
    rope["original_max_position_embeddings"] = f.has(context_key) ? f.whole(context_key) : 8192;
  } else if (f.has(scaling + "type") && f.text(scaling + "type") != "none") {
    rope["rope_type"] = f.text(scaling + "type");
    rope["factor"] = f.number(scaling + "factor");
    if (f.has(scaling + "original_context_length"))
      rope["original_max_position_embeddings"] = f.whole(scaling + "original_context_length");
    for (const char* beta : {"beta_fast", "beta_slow"})
      if (f.has(scaling + "yarn_" + beta)) rope[beta] = f.number(scaling + "yarn_" + beta);
  }
  return rope;
}

json read_gpt2_keys(const GgufTable& f, const std::string& arch) {
  return {{"n_positions", f.whole(arch + "context_length")},
          {"n_embd", f.whole(arch + "embedding_length")},
          {"n_layer", f.whole(arch + "block_count")},
          {"n_inner", f.whole(arch + "feed_forward_length")},
          {"n_head", f.whole(arch + "attention.head_count")},
          {"layer_norm_epsilon", f.number(arch + "attention.layer_norm_epsilon")},
          {"embd_pdrop", 0},
          {"attn_pdrop", 0},
          {"resid_pdrop", 0}};
}

json read_llama_keys(const GgufTable& f, const std::string& arch) {
  const std::string attention = arch + "attention.";
  json j{{"max_position_embeddings", f.whole(arch + "context_length")},
         {"hidden_size", f.whole(arch + "embedding_length")},
         {"num_hidden_layers", f.whole(arch + "block_count")},
         {"intermediate_size", f.whole(arch + "feed_forward_length")},
         {"num_attention_heads", f.whole(attention + "head_count")},
         {"rms_norm_eps", f.number(attention + "layer_norm_rms_epsilon")},
         {"attention_bias", f.tensors.contains("blk.0.attn_q.bias")},
         {"mlp_bias", f.tensors.contains("blk.0.ffn_up.bias")},
         {"rope_parameters", read_rope_keys(f, arch)}};
  j["num_key_value_heads"] =
      f.whole(attention + (f.has(attention + "head_count_kv") ? "head_count_kv" : "head_count"));
  if (f.has(attention + "key_length")) j["head_dim"] = f.whole(attention + "key_length");
  const int64_t heads = f.whole(attention + "head_count");
  const int64_t head = j.contains("head_dim") ? j["head_dim"].get<int64_t>()
                       : heads > 0            ? f.whole(arch + "embedding_length") / heads
                                              : 0;
  const std::string rotary = arch + "rope.dimension_count";
  if (f.has(rotary) && f.whole(rotary) != head)
    fail(f.where, "expected {} to be the head dimension {}, got {}", rotary, head, f.whole(rotary));
  return j;
}

// Translates the keys to Hugging Face's names, so that one reader checks both formats.
ModelConfig read_config(const GgufTable& f) {
  const std::string name(architecture_of(f)), arch = name + ".";
  json j = name == "gpt2" ? read_gpt2_keys(f, arch) : read_llama_keys(f, arch);
  const auto embed = f.tensors.find("token_embd.weight");
  if (embed == f.tensors.end() || embed->second.shape.size() != 2)
    fail(f.where, "the matrix token_embd.weight is missing");
  j["vocab_size"] = embed->second.shape[0];
  j["model_type"] = name;
  j["tie_word_embeddings"] = !f.tensors.contains("output.weight");
  return config_from_hf_json(j, f.where);
}

void check_rope_factors(const GgufTable& f, const ModelConfig& c) {
  const auto it = f.tensors.find(rope_freqs);
  if (it == f.tensors.end()) return;
  const std::vector<float> got = from_ggml(it->second.bytes, it->second.type);
  // The size comes from the tensor, not from a key, which could claim any size.
  const std::vector<float> want =
      int64_t(got.size()) == c.head_dim / 2 ? rope_factors(c) : std::vector<float>();
  for (size_t i = 0; i < std::max(got.size(), want.size()); ++i)
    if (got.size() != want.size() || !(std::abs(got[i] - want[i]) <= 1e-4f * want[i]))
      fail(f.where,
           "expected {} by Llama 3's rule (factor {}, {} to {} turns of {} tokens), got other "
           "values",
           rope_freqs, c.rope_factor, c.rope_low, c.rope_high, c.rope_context);
}

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

void put_rope(GgufKeys& keys, const ModelConfig& c, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.";
  const int64_t original = c.rope_context ? c.rope_context : c.context;
  keys.set(arch + "rope.freq_base", float(c.rope_theta));
  keys.set(arch + "rope.dimension_count", c.head_dim);
  switch (c.rope_scaling) {
    case RopeScaling::none:
      break;
    case RopeScaling::linear:
      keys.set(scaling + "type", "linear");
      keys.set(scaling + "factor", c.rope_factor);
      break;
    case RopeScaling::yarn:
      keys.set(scaling + "type", "yarn");
      keys.set(scaling + "factor", c.rope_factor);
      keys.set(scaling + "original_context_length", original);
      keys.set(scaling + "yarn_beta_fast", c.rope_high);
      keys.set(scaling + "yarn_beta_slow", c.rope_low);
      break;
    case RopeScaling::llama3:
      keys.set(low_key, c.rope_low);
      keys.set(high_key, c.rope_high);
      keys.set(context_key, original);
      break;
  }
}

GgufKeys config_keys(const ModelConfig& c, HfType type, const GgufSpec& spec) {
  const std::string name(enum_name(type)), arch = name + ".";
  const auto file_type = [&]() -> uint32_t {  // llama.cpp's file types
    switch (spec.type) {
      case GgmlType::f32:
        return 0;
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
  };
  GgufKeys keys;
  keys.set("general.architecture", name);
  keys.set("general.type", "model");
  if (!spec.name.empty()) keys.set("general.name", spec.name);
  keys.set("general.file_type", file_type());
  keys.set("general.quantization_version", uint32_t(2));
  keys.set("general.alignment", uint32_t(32));
  keys.set(arch + "vocab_size", c.vocab);
  keys.set(arch + "context_length", c.context);
  keys.set(arch + "embedding_length", c.dim);
  keys.set(arch + "block_count", c.layers);
  keys.set(arch + "feed_forward_length", c.hidden);
  keys.set(arch + "attention.head_count", c.heads);
  keys.set(arch + "attention.head_count_kv", c.kv_heads);
  if (type == HfType::gpt2) {
    keys.set(arch + "attention.layer_norm_epsilon", c.norm_eps);
  } else {
    keys.set(arch + "attention.layer_norm_rms_epsilon", c.norm_eps);
    keys.set(arch + "attention.key_length", c.head_dim);
    keys.set(arch + "attention.value_length", c.head_dim);
    put_rope(keys, c, arch);
  }
  return keys;
}

// llama.cpp has a mistral without a window as a llama, and supports less for its architectures than
// their folders can express.
HfType exportable(const ModelConfig& c) {
  HfType type = hf_type(c);
  if (type == HfType::mistral) type = HfType::llama;
  if (c.v_head_dim > 0)
    fail("gguf", "expected heads of values as wide as those of keys, got a v_head_dim of {}",
         c.v_head_dim);
  if (c.mixer_pattern != ModelConfig{}.mixer_pattern)
    fail("gguf", "expected attention in every layer, got a mixer_pattern of {}",
         in_quotes(c.mixer_pattern));
  if (type != HfType::gpt2 && type != HfType::llama && type != HfType::qwen2 &&
      type != HfType::qwen3)
    fail("gguf",
         "only models with the gpt2, llama, qwen2, qwen3 or mistral architecture can be written as "
         "GGUF, got {}",
         enum_name(type));
  const Act act = type == HfType::gpt2 ? Act::gelu_tanh : Act::swiglu;
  if (c.act != act)
    fail("gguf", "expected act {} for {}, got {}", enum_name(act), enum_name(type),
         enum_name(c.act));
  if (type == HfType::qwen3 && (c.qkv_bias || c.out_bias))
    fail("gguf", "qwen3 in GGUF cannot have attention biases");
  if (type != HfType::llama && type != HfType::gpt2 && c.rope_scaling == RopeScaling::llama3)
    fail("gguf", "{} in GGUF cannot use the rope_scaling llama3", enum_name(type));
  if (c.window > 0)
    fail("gguf", "GGUF models cannot have a sliding window, got one of {} tokens", c.window);
  return type;
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
  const ModelConfig config = read_config(f);
  check_rope_factors(f, config);
  const HfType type = enum_in_file<HfType>(architecture_of(f), f.where);
  OpenedModel o{config, {path.string(), owner, {}, {}, gguf_layout(type)}, path, {}};
  if (config.layers > int64_t(f.tensors.size()))
    fail(f.where, "expected tensors for {} layers, got {}", config.layers, f.tensors.size());
  std::map<std::string_view, const GgufTensor*> left;
  for (const auto& [name, tensor] : f.tensors)
    if (name != rope_freqs) left.emplace(name, &tensor);
  for (const FileTensor& t : file_tensors(config, o.file.layout)) {
    const std::string name = gguf_name(t.name);
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
  GgufKeys keys = config_keys(c, type, spec);
  put_vocabulary(keys, spec.tokenizer, c.vocab);
  if (!spec.chat_template.empty()) keys.set("tokenizer.chat_template", spec.chat_template);

  const Part part = store.made(Part::master) ? Part::master : Part::weight;
  int64_t widened = 0;
  std::vector<GgufTensorToWrite> tensors;
  for (FileTensor& t : file_tensors(c, gguf_layout(type))) {
    std::string name = gguf_name(t.name);
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
