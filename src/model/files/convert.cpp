#include "model/files/convert.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <functional>
#include <optional>

#include "formats/fields.h"
#include "formats/json.h"
#include "model/decoder.h"
#include "model/files/adapter.h"
#include "model/files/answer_ends.h"
#include "model/files/folder.h"
#include "model/files/gguf_keys.h"
#include "model/files/gguf_model.h"
#include "sys/error.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

struct NamedType {
  std::string_view name;
  GgmlType ggml;
  DType dtype;
};
constexpr NamedType named_types[] = {
    {"fp32", GgmlType::f32, DType::f32},  {"bf16", GgmlType::bf16, DType::bf16},
    {"fp16", GgmlType::f16, DType::f16},  {"q8_0", GgmlType::q8_0, DType::f32},
    {"q6_k", GgmlType::q6_k, DType::f32}, {"q4_k", GgmlType::q4_k, DType::f32},
    {"q4_0", GgmlType::q4_0, DType::f32}};

NamedType type_of(const ConvertSpec& spec, DType source) {
  std::string name = spec.dtype;
  if (name.empty()) name = source == DType::bf16 ? "bf16" : source == DType::f16 ? "fp16" : "fp32";
  const auto it = std::ranges::find(named_types, name, &NamedType::name);
  if (it == std::end(named_types))
    fail_usage("--dtype", "expected fp32, bf16, fp16, q8_0, q6_k, q4_k or q4_0, got {}",
               in_quotes(name));
  if (is_quantised(it->ggml) && !spec.to.empty())
    fail_usage("--dtype", "expected fp32, bf16 or fp16 for a folder, got {}", name);
  return *it;
}

// Absolute and without links, "..", and a trailing slash.
fs::path resolved(const fs::path& path) {
  const fs::path whole = fs::weakly_canonical(fs::absolute(path));
  return whole.has_filename() ? whole : whole.parent_path();
}

// The missing folders above a file: removed again unless something is written below them.
class NewParents {
 public:
  explicit NewParents(const fs::path& folder) : missing_(missing_dirs(folder)) {}
  ~NewParents() {
    for (const fs::path& dir : missing_) rmdir(dir.c_str());  // keeps one that is not empty
  }
  NewParents(const NewParents&) = delete;
  NewParents& operator=(const NewParents&) = delete;

 private:
  std::vector<fs::path> missing_;
};

bool has_files(const fs::path& folder) {
  for (const auto& entry : fs::directory_iterator(folder))
    if (entry.path().filename() != "lost+found") return true;  // a new file system has that one
  return false;
}

// A new folder appears under its name only when complete. An existing empty one may be a mount
// point, which no rename can replace: its files appear in it when all are complete.
class NewFolder {
 public:
  explicit NewFolder(const fs::path& path) : path_(path), exists_(fs::is_directory(path)) {
    if (!exists_ && fs::exists(fs::symlink_status(path_)))
      fail(path_.string(), "expected a new or empty folder, got a file or a broken link");
    const std::string prefix = fmt::format(".tmp-{}-", path_.filename().string());
    for (const fs::path& place : {path_.parent_path(), path_}) remove_leftovers(place, prefix);
    if (exists_ && has_files(path_))
      fail(path_.string(), "expected a new or empty folder, got one with files");
    dir_ = (exists_ ? path_ : path_.parent_path()) / fmt::format("{}{}", prefix, getpid());
    make_new_dir(dir_);
  }
  ~NewFolder() {
    std::error_code ignored;
    fs::remove_all(dir_, ignored);
  }
  const fs::path& dir() const { return dir_; }  // holds the files until they are committed
  void commit() {
    fsync_dir(dir_);
    if (!exists_) {
      fs::rename(dir_, path_);
      return fsync_dir(path_.parent_path());
    }
    const std::vector<fs::directory_entry> entries(fs::directory_iterator(dir_), {});
    const auto move_up = [&](bool config) {
      for (const fs::path& from : entries)
        if ((from.filename() == "config.json") == config) fs::rename(from, path_ / from.filename());
    };
    move_up(false), move_up(true);  // without its config.json the folder is not a model
    fsync_dir(path_);
  }

 private:
  fs::path path_, dir_;
  bool exists_;
};

// Whether a resolved path is the folder or lies below it.
bool is_within(const fs::path& path, const fs::path& folder) {
  const fs::path rest = path.lexically_relative(folder);
  return !rest.empty() && *rest.begin() != "..";
}

// The path of the GGUF file inside the folder `to`; empty if it lies elsewhere.
fs::path path_inside(const fs::path& to, const fs::path& gguf) {
  const fs::path file = resolved(gguf);
  if (is_within(to, file))
    fail_usage("--gguf", "expected a file, got the folder of --to or one that holds it");
  if (!is_within(file, to)) return {};
  if (file.extension() != ".gguf")
    fail_usage("--gguf", "expected a name that ends in .gguf inside the folder of --to, got {}",
               in_quotes(file.filename().string()));
  return file.lexically_relative(to);
}

bool is_carried(const std::string& name) {
  static constexpr std::array<std::string_view, 11> names{"tokenizer.json",
                                                          "tokenizer_config.json",
                                                          "special_tokens_map.json",
                                                          "added_tokens.json",
                                                          "vocab.json",
                                                          "merges.txt",
                                                          "vocab.bpe",
                                                          "tokenizer.model",
                                                          "chat_template.jinja",
                                                          "chat_template.json",
                                                          "generation_config.json"};
  return std::ranges::find(names, name) != names.end() || name.ends_with(".tiktoken") ||
         (name.starts_with("tok") && name.ends_with(".bin"));
}

void copy_whole(const fs::path& from, const fs::path& to) {
  write_file_atomic(to, MappedFile(from).bytes());
}

// The GGUF file, or the folder of the tokenizer, that may hold a chat template; empty: neither.
fs::path template_place(const ModelSource& source) {
  const fs::path& path = fs::is_directory(source.tokenizer()) ? source.tokenizer() : source.path();
  return path.extension() == ".gguf" || fs::is_directory(path) ? path : fs::path();
}

// The chat template, unchanged; null: none.
ordered_json chat_template_of(const ModelSource& source) {
  const fs::path place = template_place(source);
  return place.empty() ? ordered_json() : written_chat_template(place);
}

void write_tokenizer(const fs::path& dir, const ModelSource& source) {
  const fs::path& tokenizer = source.tokenizer();
  const auto carry = [&](const fs::path& from) {
    for (const auto& entry : fs::directory_iterator(from))
      if (entry.is_regular_file() && is_carried(entry.path().filename()))
        copy_whole(entry.path(), dir / entry.path().filename());
  };
  const bool adapters_own = fs::is_directory(tokenizer) && tokenizer != source.path();
  if (fs::is_directory(source.path()) || adapters_own) {
    if (fs::is_directory(source.path())) carry(source.path());
    if (adapters_own) carry(tokenizer);
  } else if (tokenizer.extension() == ".gguf") {
    save_gguf_vocabulary(GgufFile(tokenizer), dir);
  } else if (!tokenizer.empty()) {
    copy_whole(tokenizer, dir / tokenizer.filename());
  }
  const ordered_json chat = chat_template_of(source);
  if (fs::exists(dir / "chat_template.jinja")) return;
  if (chat.is_string())
    write_file_atomic(dir / "chat_template.jinja", chat.get<std::string>());
  else if (!ChatTemplate::exists(dir))
    write_chat_template(dir, chat);
}

// The special token ids of the source's config.json (eos may be a list), else those of the
// tokenizer.
std::string config_text(const ModelSource& source, const ModelConfig& config, DType dtype,
                        int32_t bos, int32_t eos) {
  std::string text = hf_config_json(config, dtype, bos, eos);
  const fs::path own = source.path() / "config.json";
  if (!fs::is_directory(source.path())) return text;
  ordered_json j = ordered_json::parse(text);
  const json from = read_json(own, {.max_bytes = 16 << 20});
  for (const char* key : {"bos_token_id", "eos_token_id", "pad_token_id"})
    if (from.contains(key)) j[key] = from.at(key);
  return j.dump(2) + "\n";
}

// What is written: the model of a source, after adapters were merged or experts made.
struct ModelToWrite {
  ModelConfig config;
  ParamStore& params;
};

// The token that closes a turn of the source's chat template; -1: none, also for a template that
// hearth cannot run, which is only copied.
int32_t turn_end_of(const ModelSource& source, const Tokenizer& tokenizer) try {
  const fs::path place = template_place(source);
  if (place.empty() || !ChatTemplate::exists(place)) return -1;
  return turn_end(ChatTemplate::load(place), tokenizer);
} catch (const Error&) { return -1; }

TextEnds ends_of(const ModelSource& source) {
  if (source.tokenizer().empty()) return {};
  const Tokenizer tokenizer = Tokenizer::load(source.tokenizer());
  TextEnds ends{.more = answer_ends_of(source, nullptr, tokenizer),
                .turn = turn_end_of(source, tokenizer)};
  std::erase(ends.more, tokenizer.eos());
  return ends;
}

void write_folder(const fs::path& dir, const ModelSource& source, const ModelToWrite& result,
                  DType dtype, const ConvertSpec& spec) {
  int32_t bos = -1, eos = -1;
  if (!source.tokenizer().empty()) {
    const Tokenizer tokenizer = Tokenizer::load(source.tokenizer());
    bos = tokenizer.bos(), eos = tokenizer.eos();
  }
  write_tokenizer(dir, source);
  write_file_atomic(dir / "config.json", config_text(source, result.config, dtype, bos, eos));
  if (!fs::exists(dir / "generation_config.json"))
    write_file_atomic(dir / "generation_config.json",
                      hf_generation_config_json(bos, eos, ends_of(source).more));
  std::vector<TensorToWrite> tensors = hf_tensors(result.config, result.params, dtype);
  for (TensorToWrite& t : tensors)
    t.produce = [produce = std::move(t.produce), &spec](const ByteSink& sink) {
      produce([&](Bytes bytes) { spec.check(), sink(bytes); });
    };
  write_safetensors_model(dir, tensors, spec.shard_bytes);
}

// The types of a GGUF file's matrices, the most frequent one first: "q6_k and q8_0".
std::string types_of(const GgufWritten& written) {
  std::vector<std::pair<int64_t, std::string_view>> counts;
  for (const NamedType& t : named_types)
    if (const auto it = written.matrices.find(t.ggml); it != written.matrices.end())
      counts.emplace_back(it->second, t.name);
  std::ranges::sort(counts, std::greater());
  std::string names;
  for (const auto& [count, name] : counts)
    names += (names.empty() ? "" : " and ") + std::string(name);
  return names;
}

// Adds what a GGUF file holds of the model. Without a folder beside it, `done` describes the file.
void add_gguf(Converted& done, const GgufWritten& written, ModelConfig model, bool has_folder) {
  done.widened = written.widened;
  done.more_spaces = written.more_spaces;
  if (const std::string types = types_of(written); !types.empty()) done.dtype = types;
  done.left_out = model.mtp;
  model.mtp = 0;  // as in the file
  done.other_gelu = computes_other_gelu(model, hf_type(model));
  if (has_folder) return;
  done.model_type = std::string(enum_name(hf_type(model)));
  done.params = count_params(model);
}

fs::path base_of(const ConvertSpec& spec) {
  if (!spec.from.empty()) return spec.from;
  if (spec.adapter.empty()) fail_usage("convert", "convert needs --from MODEL or --adapter");
  return find_base(spec.adapter);
}

}  // namespace

Converted convert_model(const ConvertSpec& spec, Backend& backend) {
  if (spec.to.empty() && spec.gguf.empty())
    fail_usage("convert", "expected --to DIR or --gguf FILE, got neither");
  if (spec.shard_bytes < 1)
    fail_usage("--shard-bytes", "expected 1 or more, got {}", spec.shard_bytes);
  const fs::path from = base_of(spec);
  const ModelSource source = ModelSource::open(from, spec.adapter);
  const NamedType type = type_of(spec, source.dtype());
  ModelConfig dense = source.config();
  dense.lora = {};
  const ModelConfig merged = spec.upcycle ? upcycled_config(dense, spec.upcycle) : dense;
  // Everything that can fail without the weights fails before they are loaded.
  const GgufSpec gguf_spec{.type = type.ggml,
                           .name = source.path().stem().string(),
                           .tokenizer = source.tokenizer(),
                           .chat_template = chat_template_of(source),
                           .ends = ends_of(source)};
  const fs::path to = spec.to.empty() ? fs::path() : resolved(spec.to);
  fs::path gguf, inside;
  if (!spec.gguf.empty()) {
    expect_gguf(merged, gguf_spec);
    gguf = fs::absolute(spec.gguf).lexically_normal();
    if (!to.empty()) inside = path_inside(to, gguf);
  }
  const NewParents above_to(to.parent_path()), above_gguf(gguf.parent_path());
  std::optional<NewFolder> folder;
  if (!to.empty()) folder.emplace(to);
  if (!inside.empty()) gguf = folder->dir() / inside;
  make_dirs(gguf.parent_path());
  ParamStore params(backend, decoder_params(source.config()), DType::f32);
  source.load(params, spec.check);
  if (source.config().lora) merge_adapters(source.config(), params);
  spec.check();
  std::optional<ParamStore> experts;
  if (spec.upcycle) {
    experts.emplace(backend, decoder_params(merged), DType::f32);
    upcycle(*experts, params, dense, spec.upcycle);
  }
  const ModelToWrite result{merged, experts ? *experts : params};
  Converted done{.from = from.string(),
                 .model_type = std::string(enum_name(hf_type(merged))),
                 .dtype = std::string(type.name),
                 .params = count_params(merged),
                 .tokenizer = !source.tokenizer().empty()};
  if (folder) write_folder(folder->dir(), source, result, type.dtype, spec);
  if (spec.gguf.empty()) {
    spec.check();
    folder->commit();
    return done;
  }
  const GgufWritten written =
      write_gguf_model(gguf, result.config, result.params, gguf_spec, spec.check);
  if (folder) folder->commit();
  add_gguf(done, written, merged, !spec.to.empty());
  return done;
}

}  // namespace hearth::inline model
