#include "model/files/gguf_model.h"

#include <algorithm>
#include <cmath>

#include "formats/fields.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_tensors.h"
#include "sys/error.h"
#include "text/chat/gguf_chat_template.h"
#include "text/tokenizer/gguf_vocabulary.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;

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

struct ModelKeys {
  GgufKeys keys = {};
  bool more_spaces = false;
};

ModelKeys model_keys(const ModelConfig& c, HfType type, const GgufSpec& spec) {
  ModelKeys m;
  GgufKeys& keys = m.keys;
  keys.set("general.architecture", gguf_architecture(type));
  keys.set("general.type", "model");
  if (!spec.name.empty()) keys.set("general.name", spec.name);
  keys.set("general.file_type", file_type(spec.type));
  keys.set("general.quantization_version", uint32_t(2));
  keys.set("general.alignment", uint32_t(32));
  put_config(keys, c, type);
  m.more_spaces = put_vocabulary(keys, spec.tokenizer, c.vocab);
  put_text_ends(keys, spec.ends);
  put_gguf_chat_template(keys, spec.chat_template);
  return m;
}

// Vectors, learned positions and routers stay f32.
bool is_coarse(const GgufTensorToWrite& t) {
  return t.shape.size() >= 2 && t.name != "position_embd.weight" &&
         !t.name.ends_with(".ffn_gate_inp.weight");
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

// llama.cpp has no modules of multi-token prediction.
ModelConfig without_modules(const ModelConfig& config) {
  ModelConfig c = config.resolve();
  c.mtp = 0;
  return c;
}

}  // namespace

OpenedModel open_gguf(const fs::path& path) {
  const auto owner = std::make_shared<const GgufFile>(path);
  const GgufFile& f = *owner;
  const ModelConfig config = read_gguf_config(f);
  const HfType type = gguf_type(f);
  OpenedModel o{config, {path.string(), owner, {}, {}, gguf_layout(type)}, path, {}};
  if (config.layers > int64_t(f.tensors.size()))
    fail(f.where, "expected tensors for {} layers, got {}", config.layers, f.tensors.size());
  check_expert_tensors(f, config);
  o.file.tensors = hub_tensors(f, config, type);
  if (has_vocabulary(f)) o.tokenizer = path;
  return o;
}

void expect_gguf(const ModelConfig& config, const GgufSpec& spec) {
  const ModelConfig c = without_modules(config);
  model_keys(c, exportable(c), spec);
}

GgufWritten write_gguf_model(const fs::path& path, const ModelConfig& config, ParamStore& store,
                             const GgufSpec& spec, const std::function<void()>& check) {
  const ModelConfig c = without_modules(config);
  const HfType type = exportable(c);
  const auto [keys, more_spaces] = model_keys(c, type, spec);

  GgufWritten written{.more_spaces = more_spaces};
  std::vector<GgufTensorToWrite> tensors = gguf_tensors(c, type, store);
  for (GgufTensorToWrite& t : tensors) {
    t.values = [values = std::move(t.values), &check] { return check(), values(); };
    if (!is_coarse(t)) continue;
    const GgmlType wanted = type_for(t.name, c, spec.type);
    t.type = fitting(wanted, t.shape.back());
    written.widened += t.type != wanted;
    ++written.matrices[t.type];
  }
  for (const auto& [name, factors] : rope_tensors(c, type))
    tensors.push_back(
        {std::string(name), GgmlType::f32, {int64_t(factors.size())}, [values = factors] {
           return values;
         }});
  write_gguf(path, keys, tensors);
  return written;
}

}  // namespace hearth::inline model
