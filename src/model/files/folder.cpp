#include "model/files/folder.h"

#include <algorithm>
#include <span>

#include "cpu/backend.h"
#include "data/catalogue.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "formats/llama2c.h"
#include "formats/mingpt_json.h"
#include "model/decoder.h"
#include "model/files/adapter.h"
#include "model/files/gguf_model.h"
#include "model/files/hf_names.h"
#include "model/files/model_file.h"
#include "model/files/model_tensors.h"
#include "model/files/tensor_rows.h"
#include "model/layer_spec.h"
#include "sys/error.h"
#include "sys/hash/hash.h"
#include "sys/terminal.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;
using Check = std::function<void()>;

// --- kinds of files ---

bool has_tokenizer(const fs::path& dir) {
  for (const char* name : {"tokenizer.json", "vocab.json", "vocab.bpe"})
    if (fs::exists(dir / name)) return true;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (entry.path().extension() == ".tiktoken") return true;
    if (name.starts_with("tok") && name.ends_with(".bin")) return true;
  }
  return false;
}

std::vector<fs::path> files_of_model(const fs::path& path) {
  if (!fs::is_directory(path)) return {path};
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const fs::path name = entry.path().filename();
    if (name.extension() == ".safetensors" || name == "config.json" ||
        name == "adapter_config.json")
      files.push_back(entry.path());
  }
  std::ranges::sort(files);
  return files;
}

std::string digest_of(std::span<const fs::path> files) {
  Sha256 hash;
  for (const fs::path& file : files)
    hash.update(to_bytes(digest_file(file.parent_path(), file.filename().string()).sha256));
  return hash.hex();
}

OpenedModel open_hf(const fs::path& dir) {
  const std::string where = (dir / "config.json").string();
  const nlohmann::json json = read_json(dir / "config.json", {.max_bytes = 16 << 20});
  OpenedModel o{config_from_hf_json(json, where), {}, dir, has_tokenizer(dir) ? dir : fs::path()};
  const auto weights = std::make_shared<const Safetensors>(dir);
  o.file = {dir.string(),
            weights,
            weights->tensors(),
            weights->foreign(),
            {.type = hf_type_from_json(json, where)}};
  return o;
}

OpenedModel open_checkpoint(const fs::path& dir) {
  if (const auto problem = verify_checkpoint(dir, CheckpointFiles::model))
    fail(dir.string(), "expected a complete checkpoint, got a damaged one: {}", *problem);
  return open_hf(dir);
}

// The file's stacked tensors, split into layers with llama's names.
StoredTensors named_as_llama(const Llama2cTable& table) {
  static constexpr std::pair<const char*, const char*> layer_names[] = {
      {"rms_att", "input_layernorm"}, {"wq", "self_attn.q_proj"},
      {"wk", "self_attn.k_proj"},     {"wv", "self_attn.v_proj"},
      {"wo", "self_attn.o_proj"},     {"rms_ffn", "post_attention_layernorm"},
      {"w1", "mlp.gate_proj"},        {"w2", "mlp.down_proj"},
      {"w3", "mlp.up_proj"}};
  StoredTensors out;
  for (int64_t i = 0; i < table.header.layers; ++i)
    for (const auto& [stack, name] : layer_names)
      out[fmt::format("model.layers.{}.{}.weight", i, name)] = table.tensors.at(stack).slice(i);
  out["model.embed_tokens.weight"] = table.tensors.at("tok_emb");
  out["model.norm.weight"] = table.tensors.at("rms_final");
  if (!table.header.tied) out["lm_head.weight"] = table.tensors.at("wcls");
  return out;
}

// tok<vocab>.bin beside the model, else the only tok*.bin.
fs::path llama2c_tokenizer(const fs::path& model, int64_t vocab) {
  const fs::path dir = model.has_parent_path() ? model.parent_path() : fs::path(".");
  if (const fs::path own = dir / fmt::format("tok{}.bin", vocab); fs::exists(own)) return own;
  std::vector<fs::path> all;
  for (const auto& entry : fs::directory_iterator(dir)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("tok") && name.ends_with(".bin") && entry.path() != model)
      all.push_back(entry.path());
  }
  return all.size() == 1 ? all[0] : fs::path();
}

OpenedModel open_llama2c(const fs::path& path) {
  const auto file = std::make_shared<const Llama2cFile>(path);
  const Llama2cHeader& h = file->header;
  ModelConfig c;
  c.vocab = h.vocab, c.context = h.seq, c.layers = h.layers, c.dim = h.dim;
  c.heads = h.heads, c.kv_heads = h.kv_heads, c.hidden = h.hidden;
  c.rope_pairs = RopePairs::interleaved;
  c.norm_eps = 1e-5f;
  c.tied = h.tied;
  return {c.resolve(),
          {path.string(),
           file,
           named_as_llama(*file),
           {},
           {.type = HfType::llama, .pairs = std::nullopt}},
          path,
          llama2c_tokenizer(path, h.vocab)};
}

// GPT-2's names and shapes, but with (out, in) matrices and a separate head.
OpenedModel open_mingpt(const fs::path& path) {
  const auto file = std::make_shared<const MingptJson>(read_mingpt_json(path));
  nlohmann::json keys = file->config;
  if (!keys.contains("block_size")) fail(path.string(), "the key block_size is missing in config");
  keys["n_positions"] = keys["block_size"];
  keys["model_type"] = "gpt2";
  keys["tie_word_embeddings"] = false;
  const ModelConfig config = config_from_hf_json(keys, path.string() + ": config");
  StoredTensors tensors;
  for (const auto& [name, t] : file->tensors) tensors[name] = t.view();
  return {config,
          {path.string(), file, std::move(tensors), {}, {.type = HfType::gpt2, .conv1d = false}},
          path,
          {}};
}

bool is_adapter_alone(const fs::path& path) {
  return is_adapter_folder(path) && !fs::exists(path / "config.json");
}

// Whether a file belongs to a Hugging Face folder. A minGPT file may have the name of one.
bool is_part_of_folder(const fs::path& path) {
  constexpr int64_t longest = 16 << 20;
  if (!fs::is_regular_file(path)) return false;
  const std::string name = path.filename().string();
  if (name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json")) return true;
  return (name == "config.json" || name == "adapter_config.json") &&
         fs::file_size(path) <= longest &&
         !read_json(path, {.max_bytes = longest}).contains("config");
}

// How to get a model of this name that does not exist; empty: the catalogue has none.
std::string how_to_get(const fs::path& path) {
  const fs::path name = path.has_filename() ? path.filename() : path.parent_path().filename();
  for (const CatalogueSet& set : built_in_catalogue())
    if (set.name == name.string() &&
        std::ranges::find(set.files, "model.safetensors", &CatalogueFile::name) != set.files.end())
      return fmt::format("; hearth data get {} --out {} downloads it", set.name, path.string());
  return {};
}

// The folder of the checkpoints of which `model` names one that changes while its run goes on: the
// run itself, or its link `latest` or `best`. Empty: it names none.
fs::path moving_checkpoints(const fs::path& model) {
  std::error_code none;
  if (fs::is_directory(model / "checkpoints", none)) return fs::canonical(model / "checkpoints");
  const fs::path link = model.has_filename() ? model : model.parent_path();
  const fs::path to = fs::is_symlink(link, none) ? fs::canonical(link, none) : fs::path();
  return to.parent_path().filename() == "checkpoints" ? to.parent_path() : fs::path();
}

OpenedModel open_any(const fs::path& path) {
  if (fs::is_directory(path)) {
    if (is_adapter_alone(path))
      fail(path.string(), "expected a base model, got an adapter: merge it with hearth convert");
    if (fs::exists(path / "manifest.json") && !fs::exists(path / "adapter_config.json"))
      return open_checkpoint(path);
    if (fs::exists(path / "config.json")) return open_hf(path);
    fail(path.string(),
         "expected a run folder with checkpoints or a model folder with config.json");
  }
  if (is_part_of_folder(path))
    fail(path.string(), "expected a model, got one file of it: pass its folder, {}",
         path.has_parent_path() ? path.parent_path().string() : ".");
  if (path.extension() == ".bin") return open_llama2c(path);
  if (path.extension() == ".json") return open_mingpt(path);
  if (path.extension() == ".gguf") return open_gguf(path);
  fail(path.string(), "expected a folder, a llama2.c .bin, a minGPT .json or a .gguf, got {}",
       fs::exists(path) ? "a file of another kind"
                        : "a path that does not exist" + how_to_get(path));
}

}  // namespace

ModelSource ModelSource::open(const fs::path& path, const fs::path& adapter) {
  const fs::path model = model_path(path);
  if (is_adapter_alone(model)) {
    if (!adapter.empty())
      fail(path.string(), "expected a base model for the adapter {}, got another adapter",
           adapter.string());
    return open(find_base(model), model);
  }
  OpenedModel o = open_any(model);
  ModelSource source;
  const auto tensors = checked_tensors(o.file, o.config);
  source.config_ = o.config;
  source.path_ = o.path;
  source.tokenizer_ = o.tokenizer;
  source.dtype_ = o.file.tensors.at(tensors.front().name).dtype;
  source.load_ = [file = std::make_shared<const ModelFile>(std::move(o.file)), tensors](
                     ParamStore& store, const Check& check) {
    load_params(store, *file, tensors, check);
  };
  if (adapter.empty()) return source;
  const AdapterSource own = AdapterSource::open(adapter, source.config_);
  source.config_.lora = own.spec();
  source.adapter_ = own.path();
  if (has_tokenizer(own.path())) source.tokenizer_ = own.path();
  source.load_ = [base = std::move(source.load_), own](ParamStore& store, const Check& check) {
    base(store, check);
    own.load(store);
  };
  return source;
}

// Merges on the host in fp32, like `convert --merge`, so the bits are equal on every device.
ModelSource ModelSource::merged() const {
  ModelSource whole = *this;
  if (!config_.lora) return whole;
  whole.config_.lora = {};
  whole.load_ = [load = load_, config = config_](ParamStore& store, const Check& check) {
    const auto host = make_cpu_backend(0);
    ParamStore both(*host, decoder_params(config), DType::f32);
    load(both, check);
    merge_adapters(config, both);
    for (const ParamSpec& p : store.specs())
      if (!is_adapter(p.name)) store.set(p.name, both.values(Part::weight, p.name));
  };
  return whole;
}

void ModelSource::load(ParamStore& store, const Check& check) const { load_(store, check); }

ModelSource open_base(const fs::path& model, const LoraConfig& lora) {
  ModelSource source = ModelSource::open(model);
  if (source.config().lora && lora.spec())
    fail_usage("--lora",
               "{} is itself an adapter: merge it first (hearth convert --from {} --to DIR), or "
               "train all weights without --lora",
               model.string(), model.string());
  return source.merged();
}

std::string model_digest(const ModelSource& source) {
  std::vector<fs::path> files = files_of_model(source.path());
  if (!source.adapter().empty())
    for (const fs::path& file : files_of_model(source.adapter())) files.push_back(file);
  return digest_of(files);
}

HeldModel hold_model(const ModelSource& source) {
  // An adapter finds its base, which its own run has marked.
  const fs::path& path = source.adapter().empty() ? source.path() : source.adapter();
  if (!keep_for_others(path))
    say("hearth: {} cannot be marked as kept, because it cannot be written to: continuing its run "
        "may delete it (--keep), and this run needs it\n",
        path.string());
  return {model_digest(source), path};
}

fs::path base_in_run(const fs::path& run, const fs::path& model) {
  const fs::path file = run / "latest" / "state" / "trainer.json";
  const fs::path checkpoints = moving_checkpoints(model);
  if (checkpoints.empty() || !fs::exists(file)) return model;
  nlohmann::json noted;
  try {
    noted = read_json(file);
  } catch (const Error&) { return model; }  // damaged: the run goes on from an earlier checkpoint
  if (!noted.is_object() || !noted.contains("base_path") || !noted["base_path"].is_string())
    return model;
  std::error_code none;
  const fs::path place = fs::weakly_canonical(run / noted["base_path"].get<std::string>(), none);
  return place.parent_path() == checkpoints && fs::exists(place) ? place : model;
}

fs::path find_base(const fs::path& adapter) {
  const std::string name = AdapterSource::base_of(adapter);
  const fs::path dir = fs::canonical(model_path(adapter));
  const fs::path run = dir.parent_path().parent_path();  // the run of run/checkpoints/step-N
  const fs::path state_file = dir / "state" / "trainer.json";
  const nlohmann::json noted =
      fs::exists(state_file) ? read_json(state_file) : nlohmann::json::object();
  const auto note = [&](const char* key) {
    return noted.is_object() && noted.contains(key) && noted.at(key).is_string()
               ? noted.at(key).get<std::string>()
               : std::string();
  };
  std::vector<fs::path> places;
  if (!name.empty()) places = {name, dir / name, run / name};
  if (const std::string path = note("base_path"); !path.empty()) places.push_back(run / path);
  std::erase_if(places, [](const fs::path& p) { return !fs::exists(p); });
  if (places.empty())
    fail(adapter.string(),
         "the base model of this adapter, {}, was not found: pass its path with --model (convert: "
         "--from) and this folder with --adapter",
         in_quotes(name));
  const std::string digest = note("base");
  for (const fs::path& p : places) {
    if (digest.empty()) return p;
    const std::vector<fs::path> files = files_of_model(model_path(p));
    uintmax_t bytes = 0;
    for (const fs::path& file : files) bytes += fs::file_size(file);
    if (bytes > 1 << 30) say("hearth: checking the base model {}\n", p.string());  // takes seconds
    if (digest_of(files) == digest) return p;
  }
  fail(adapter.string(),
       "the base model at {} is not the one this adapter was trained on (its files have another "
       "SHA-256): pass the right one with --model (convert: --from) and this folder with --adapter",
       places.front().string());
}

namespace {

// The type of a tensor in a file of `dtype`.
DType type_in_file(const FileTensor& t, ParamStore& store, Part part, DType dtype) {
  if (t.param.empty()) return dtype;
  if (store.wide(t.param)) return DType::f32;
  if (t.offset == 0 || dtype != DType::f32) return dtype;
  const auto is_lost = [&](float x) { return (x - t.offset) + t.offset != x; };
  return std::ranges::any_of(store.values(part, t.param), is_lost) ? DType::f64 : dtype;
}

}  // namespace

std::vector<TensorToWrite> hf_tensors(const ModelConfig& config, ParamStore& store, DType dtype) {
  if (!is_float(dtype)) fail("weights", "expected a float type, got {}", to_string(dtype));
  const ModelConfig c = config.resolve();
  // If training keeps master weights, they are the model. bf16 weights are already the rounded
  // masters. For fp16 the masters are converted, so that a value too large for fp16 is an error.
  const bool rounded = store.made(Part::weight) && dtype == DType::bf16 && dtype == store.dtype();
  // A gain that is stored without its 1 has more digits there than the rounded gain has.
  const auto part_of = [&store, rounded](const FileTensor& t) {
    const bool finer = !t.param.empty() && store.made(Part::master) && store.trainable(t.param) &&
                       (!rounded || t.offset != 0);
    return finer ? Part::master : Part::weight;
  };
  std::vector<TensorToWrite> out;
  for (FileTensor& t : file_tensors(c, {.type = hf_type(c)})) {
    std::string name = t.name;
    std::vector<int64_t> shape = t.shape;
    const DType type = type_in_file(t, store, part_of(t), dtype);
    out.push_back({std::move(name), type, std::move(shape),
                   [t = std::move(t), &store, type, part_of](const ByteSink& sink) {
                     if (t.param.empty())
                       return sink(from_floats(std::vector<float>(size_t(t.shape[0])), type));
                     stream_rows(sink, t, store, part_of(t), type);
                   }});
  }
  return out;
}

}  // namespace hearth::inline model
