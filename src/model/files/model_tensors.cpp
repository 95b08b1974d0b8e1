#include "model/files/model_tensors.h"

#include <algorithm>
#include <map>
#include <set>

#include "formats/json.h"
#include "model/files/tensor_rows.h"
#include "model/layer_spec.h"
#include "model/lora.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

std::string shape_text(const std::vector<int64_t>& shape) {
  std::string s;
  for (const int64_t dim : shape) s += (s.empty() ? "" : ", ") + std::to_string(dim);
  return "(" + s + ")";
}

const StoredTensor& checked(const ModelFile& f, const FileTensor& want) {
  const auto it = f.tensors.find(want.name);
  if (it == f.tensors.end()) {
    if (const auto other = f.foreign.find(want.name); other != f.foreign.end())
      fail(f.where, "expected {} in a float type, got {}", want.name, other->second);
    fail(f.where, "the tensor {} {} is missing", want.name, shape_text(want.shape));
  }
  if (it->second.shape != want.shape)
    fail(f.where, "expected {} to be {}, got {}", want.name, shape_text(want.shape),
         shape_text(it->second.shape));
  if (!is_float(it->second.dtype))
    fail(f.where, "expected {} in a float type, got {}", want.name, to_string(it->second.dtype));
  return it->second;
}

// Files of a bare model omit the name prefix: add it. transformers 5 calls gpt_neox's head as it
// calls all heads.
void restore_names(ModelFile& f, const std::string& first) {
  const std::string prefix(name_prefix(f.layout.type)), head(head_name(f.layout.type));
  if (f.layout.type == HfType::gpt_neox && !f.tensors.contains(head))
    if (auto other = f.tensors.extract("lm_head.weight")) {
      other.key() = head;
      f.tensors.insert(std::move(other));
    }
  if (f.tensors.contains(first) || !f.tensors.contains(first.substr(prefix.size()))) return;
  StoredTensors renamed;
  for (auto& [name, tensor] : f.tensors)
    renamed.emplace(name == head ? name : prefix + name, tensor);
  f.tensors = std::move(renamed);
}

void refuse_surplus(const ModelFile& f, const ModelConfig& c,
                    const std::vector<FileTensor>& wanted) {
  std::set<std::string_view> known;
  for (const FileTensor& t : wanted) known.insert(t.name);
  const auto check = [&](const std::string& name) {
    if (known.contains(name) || is_buffer(f.layout.type, name)) return;
    if (c.tied && name == head_name(f.layout.type) && f.layout.type != HfType::hearth) {
      const auto head = f.tensors.find(name);
      const StoredTensor& embed = f.tensors.at(wanted.front().name);
      if (head != f.tensors.end() && head->second.shape == embed.shape &&
          to_floats(head->second) == to_floats(embed))
        return;
      fail(f.where, "expected {} to equal {}, because tie_word_embeddings is set, got other values",
           name, wanted.front().name);
    }
    fail(f.where, "expected only the tensors of its config, but found {}", in_quotes(name));
  };
  for (const auto& [name, tensor] : f.tensors) check(name);
  for (const auto& [name, type] : f.foreign) check(name);
}

bool has_modules(const ModelFile& f, int64_t layers) {
  const auto is_of_one = [layers](const auto& t) { return is_past_layers(t.first, layers); };
  return std::ranges::any_of(f.tensors, is_of_one) || std::ranges::any_of(f.foreign, is_of_one);
}

void require_equal(const ModelFile& f, const FileTensor& copy, const FileTensor& own) {
  const StoredTensor &a = checked(f, copy), &b = checked(f, own);
  const bool same_bytes =
      a.dtype == b.dtype && !a.unpack && !b.unpack && std::ranges::equal(a.bytes, b.bytes);
  if (!same_bytes && to_floats(a) != to_floats(b))
    fail(f.where, "expected {} to equal {}, of which it is a copy, got other values", copy.name,
         own.name);
}

void require_zeros(const ModelFile& f, const FileTensor& t) {
  for (const float x : to_floats(checked(f, t)))
    if (x != 0)
      fail(f.where, "expected {} to be zero, because hearth_config has no such bias, got {}",
           t.name, x);
}

// Sets the rows of a parameter that one file tensor holds. Rows with the same layout go directly
// from the mapping to the store.
void load_rows(ParamStore& store, const FileTensor& t, const StoredTensor& stored) {
  const int64_t first = t.row * (t.numel() / t.shape[0]);
  if (t.same_layout() && !stored.unpack)
    return store.set(t.param, first, stored.dtype, stored.bytes);
  const std::vector<float> rows = to_rows(t, stored);
  store.set(t.param, first, DType::f32, std::as_bytes(std::span(rows)));
}

// Quantisation needs all values of a weight at once.
void load_quantised(ParamStore& store, const ModelFile& f, const ParamSpec& p,
                    const std::vector<const FileTensor*>& tensors) {
  std::vector<float> values(size_t(p.shape.numel()));
  for (const FileTensor* t : tensors) {
    const std::vector<float> rows = to_rows(*t, checked(f, *t));
    std::ranges::copy(rows, values.begin() + t->row * p.shape[1]);
  }
  store.set(p.name, values);
}

}  // namespace

std::vector<FileTensor> checked_tensors(ModelFile& f, ModelConfig& c) {
  // Checked before the list is built: a config may claim any number of layers and experts.
  if (c.layers > int64_t(f.tensors.size()))
    fail(f.where, "expected tensors for {} layers, got {}", c.layers, f.tensors.size());
  int64_t routed = 0;
  for (int64_t i = 0; i < c.layers; ++i) routed += c.moe && is_expert_layer(c.moe, i);
  if (f.layout.type != HfType::hearth && routed * c.moe.experts > int64_t(f.tensors.size()))
    fail(f.where, "expected tensors for {} experts in {} layers, got {}", c.moe.experts, routed,
         f.tensors.size());
  if (f.layout.type == HfType::deepseek_v3 && !has_modules(f, c.layers)) c.mtp = 0;
  std::vector<FileTensor> wanted = file_tensors(c, f.layout);
  restore_names(f, wanted.front().name);
  for (const FileTensor& t : wanted) checked(f, t);
  refuse_surplus(f, c, wanted);
  return wanted;
}

void load_params(ParamStore& store, const ModelFile& f, const std::vector<FileTensor>& tensors,
                 const std::function<void()>& check) {
  std::map<std::string_view, std::vector<const FileTensor*>> parts;
  for (const FileTensor& t : tensors) {
    if (t.param.empty())
      require_zeros(f, t);
    else if (!t.copy)
      parts[t.param].push_back(&t);
  }
  for (const FileTensor& t : tensors)
    if (t.copy) require_equal(f, t, *parts.at(t.param).front());
  for (const ParamSpec& p : store.specs()) {
    if (is_adapter(p.name)) continue;  // adapters have their own files
    check();
    const auto it = parts.find(p.name);
    if (it == parts.end()) fail(f.where, "the file has no tensor for the parameter {}", p.name);
    int64_t numbers = 0;
    for (const FileTensor* t : it->second) numbers += t->numel();
    if (numbers != p.shape.numel())
      fail("params", "expected {} numbers for {} {}, got {}", p.shape.numel(), p.name,
           to_string(p.shape), numbers);
    if (p.format == WeightFormat::plain)
      for (const FileTensor* t : it->second) load_rows(store, *t, checked(f, *t));
    else
      load_quantised(store, f, p, it->second);
    parts.erase(it);
  }
  // Reference models and models with adapters are loaded without modules of multi-token prediction.
  std::erase_if(parts, [](const auto& p) { return p.first.starts_with("mtp."); });
  if (!parts.empty())
    fail(f.where, "the file has tensors for {}, which the model does not have",
         parts.begin()->first);
}

}  // namespace hearth::inline model
