#include "model/files/adapter.h"

#include <algorithm>
#include <set>

#include "formats/checkpoint_dir.h"
#include "formats/fields.h"
#include "model/files/tensor_rows.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

namespace fs = std::filesystem;

constexpr const char *config_file = "adapter_config.json",
                     *weights_file = "adapter_model.safetensors",
                     *weights_index = "adapter_model.safetensors.index.json";
constexpr std::string_view peft_prefix = "base_model.model.";

// The folder itself; for a run its newest complete checkpoint.
fs::path adapter_folder(const fs::path& path) {
  const bool run = fs::is_directory(path / "checkpoints");
  const fs::path dir = run ? newest_checkpoint_of(path) : path;
  if (!fs::exists(dir / config_file))
    fail(path.string(), "this folder holds no adapter: {} has no {}",
         run ? "its newest checkpoint" : "it", config_file);
  if (!run && fs::exists(dir / "manifest.json"))
    if (const auto problem = verify_checkpoint(dir, CheckpointFiles::model))
      fail(path.string(), "expected a complete checkpoint, got a damaged one: {}", *problem);
  return dir;
}

AdapterConfig read_config(const fs::path& dir) {
  const fs::path file = dir / config_file;
  return adapter_from_json(read_json(file, {.max_bytes = 16 << 20}), file.string());
}

std::string tensor_name(const LoraModule& m, const char* which) {
  return fmt::format("{}{}.{}.weight", peft_prefix, m.path, which);
}

const StoredTensor& checked_tensor(const Safetensors& file, const std::string& where,
                                   const std::string& name, int64_t rows, int64_t cols) {
  const StoredTensor* t = file.find(name);
  if (!t) {
    if (const auto other = file.foreign().find(name); other != file.foreign().end())
      fail(where, "expected {} in a float type, got {}", name, other->second);
    fail(where, "the tensor {} ({}, {}) is missing", name, rows, cols);
  }
  if (t->shape != std::vector<int64_t>{rows, cols}) {
    std::string shape;
    for (const int64_t d : t->shape) shape += (shape.empty() ? "" : ", ") + std::to_string(d);
    fail(where, "expected {} to be ({}, {}), got ({})", name, rows, cols, shape);
  }
  if (!is_float(t->dtype))
    fail(where, "expected {} in a float type, got {}", name, to_string(t->dtype));
  return *t;
}

// Checks that exactly the tensors of the adapted modules are present.
void check_tensors(const Safetensors& file, const std::string& where, const LoraMatrices& matrices,
                   int64_t rank) {
  std::set<std::string> known;
  for (const auto& [matrix, modules] : matrices)
    for (const LoraModule& m : modules) {
      checked_tensor(file, where, *known.insert(tensor_name(m, "lora_A")).first, rank, m.in);
      checked_tensor(file, where, *known.insert(tensor_name(m, "lora_B")).first, m.out, rank);
    }
  const auto refuse_unknown = [&](const std::string& name) {
    if (!known.contains(name))
      fail(where, "expected only lora_A and lora_B of the targets, but found {}", in_quotes(name));
  };
  for (const auto& [name, tensor] : file.tensors()) refuse_unknown(name);
  for (const auto& [name, type] : file.foreign()) refuse_unknown(name);
}

std::vector<TensorToWrite> adapter_tensors(const ModelConfig& c, ParamStore& store, DType dtype) {
  std::vector<TensorToWrite> out;
  const Part part = store.made(Part::master) ? Part::master : Part::weight;
  for (const auto& [matrix, modules] : lora_matrices(c))
    for (const LoraModule& m : modules) {
      // Clang 14 captures a structured binding only if it is named.
      const auto add = [&, &matrix = matrix](const char* which, FileTensor t) {
        t.param = matrix + "." + which;
        out.push_back(
            {tensor_name(m, which), dtype, t.shape, [t, &store, dtype, part](const ByteSink& sink) {
               stream_rows(sink, t, store, part, dtype);
             }});
      };
      add("lora_A", {.name = {}, .shape = {c.lora.rank, m.in}, .param = {}, .row = m.a_row});
      add("lora_B", m.b);
    }
  return out;
}

}  // namespace

bool is_adapter_folder(const fs::path& path) { return fs::exists(path / config_file); }

std::string AdapterSource::base_of(const fs::path& path) {
  return read_config(adapter_folder(path)).base;
}

AdapterSource AdapterSource::open(const fs::path& path, const ModelConfig& base) {
  const fs::path dir = adapter_folder(path);
  AdapterSource s;
  s.config_ = read_config(dir);
  s.model_ = base.resolve();
  const fs::path index = dir / weights_index;
  const fs::path file = fs::exists(index) ? index : dir / weights_file;
  if (!fs::exists(file))
    fail(dir.string(), "expected {}, got {}", weights_file,
         fs::exists(dir / "adapter_model.bin") ? "only adapter_model.bin, which is not supported"
                                               : "none");
  s.path_ = dir;
  s.file_ = std::make_shared<const Safetensors>(file);
  const auto has_experts = [&](const std::string& module) {
    const std::string end = fmt::format(".{}.lora_A.weight", module);
    return module.find("experts") == module.npos &&
           std::ranges::any_of(s.file_->tensors(), [&](const auto& tensor) {
             return tensor.first.find(".experts.") != std::string::npos &&
                    tensor.first.ends_with(end);
           });
  };
  s.config_.lora.targets = lora_targets_of_file(s.model_, {s.config_.lora.targets, has_experts});
  s.model_.lora = s.config_.lora;
  check_tensors(*s.file_, file.string(), lora_matrices(s.model_), s.model_.lora.rank);
  return s;
}

void AdapterSource::load(ParamStore& store) const {
  for (const auto& [matrix, modules] : lora_matrices(model_)) {
    std::vector<float> a, b;
    const auto add = [&](std::vector<float>& to, const std::vector<float>& from) {
      to.insert(to.end(), from.begin(), from.end());
    };
    for (const LoraModule& m : modules) {
      add(a, to_floats(file_->at(tensor_name(m, "lora_A"))));
      add(b, to_rows(m.b, to_floats(file_->at(tensor_name(m, "lora_B")))));
    }
    store.set(matrix + ".lora_A", a);
    store.set(matrix + ".lora_B", b);
  }
}

std::vector<FileDigest> write_adapter(const fs::path& dir, const ModelConfig& config,
                                      ParamStore& store, const std::string& base, DType dtype) {
  const ModelConfig c = config.resolve();
  AdapterConfig written{c.lora, base};
  written.lora.targets = lora_file_targets(c);
  write_file_atomic(dir / config_file, adapter_config_json(written, hf_type(c) == HfType::gpt2));
  return {write_safetensors(dir, weights_file, adapter_tensors(c, store, dtype)),
          digest_file(dir, config_file)};
}

}  // namespace hearth::inline model
