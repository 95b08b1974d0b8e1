#include "served_folder.h"

#include "cpu/backend.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/files/files.h"

namespace hearth {

Tokenizer served_tokenizer(const std::vector<AddedToken>& more) {
  VocabularyParts parts{.where = "test"};
  for (int i = 0; i < 256; ++i) parts.tokens.push_back({std::string(1, char(i)), int32_t(i)});
  parts.added = {{"<|end|>", 256}, {"<|user|>", 257}, {"<|assistant|>", 258}, {"<|system|>", 259}};
  parts.added.insert(parts.added.end(), more.begin(), more.end());
  parts.eos = parts.bos = served_eos;
  return Tokenizer(make_vocabulary(std::move(parts)));
}

void write_served_folder(const std::filesystem::path& dir, bool chat_template,
                         const std::vector<AddedToken>& more) {
  ModelConfig c;
  c.vocab = 260 + int64_t(more.size()), c.context = served_context, c.layers = 1, c.dim = 32,
  c.heads = 2, c.hidden = 48;
  c.init_std = 0.3f;
  c = c.resolve();
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(11);
  make_dirs(dir);
  write_file_atomic(dir / "config.json", hf_config_json(c, DType::f32, served_eos, served_eos));
  write_file_atomic(dir / "generation_config.json",
                    hf_generation_config_json(served_eos, served_eos));
  write_safetensors_model(dir, hf_tensors(c, params, DType::f32));
  served_tokenizer(more).save(dir);
  if (chat_template) write_file_atomic(dir / "chat_template.jinja", served_template());
}

void write_refrain_folder(const std::filesystem::path& dir) {
  write_served_folder(dir);  // for the tokenizer and the template
  constexpr size_t V = 260;
  ModelConfig c;
  c.vocab = c.dim = V, c.context = refrain_context, c.layers = 1, c.heads = 10, c.kv_heads = 1;
  c.hidden = 16, c.tied = false;
  c = c.resolve();
  const auto backend = make_cpu_backend(1);
  ParamStore params(*backend, decoder_params(c), DType::f32);
  // Embeddings are one-hot, the layer adds nothing, and the head maps each token to the next one.
  for (const ParamSpec& p : params.specs())
    params.set(p.name, std::vector<float>(size_t(p.shape.numel()), p.name.ends_with("gain")));
  std::vector<float> embed(V * V), head = embed;
  for (size_t i = 0; i < V; ++i) {
    const size_t at = i < 256 ? refrain.find(char(i)) : refrain.npos;
    const size_t next = at == refrain.npos ? 0 : (at + 1) % refrain.size();
    embed[i * V + i] = 1;
    head[size_t(uint8_t(refrain[next])) * V + i] = 9;
  }
  params.set("embed.weight", embed);
  params.set("head.weight", head);
  write_file_atomic(dir / "config.json", hf_config_json(c, DType::f32, served_eos, served_eos));
  write_safetensors_model(dir, hf_tensors(c, params, DType::f32));
}

}  // namespace hearth
