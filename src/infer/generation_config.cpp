#include "infer/generation_config.h"

#include <algorithm>
#include <cmath>
#include <limits>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline infer {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr const char* generation_file = "generation_config.json";
constexpr size_t most_generation_bytes = 1 << 20;

struct GenerationKeys {
  const json& j;
  std::string where;

  const json* find(const char* key) const {
    const auto it = j.find(key);
    return it == j.end() || it->is_null() ? nullptr : &*it;
  }
  std::optional<float> number(const char* key, double low, double high) const {
    const json* v = find(key);
    if (!v) return {};
    const double x = v->is_number() ? v->get<double>() : std::nan("");
    if (!(x >= low && x <= high))
      fail(where, "expected {} to be a number from {} to {}, got {}", key, low, high,
           in_quotes(v->dump()));
    return float(x);
  }
  std::optional<int64_t> whole(const char* key, int64_t low, int64_t high) const {
    const json* v = find(key);
    if (!v) return {};
    const double x = v->is_number_integer() ? v->get<double>() : std::nan("");
    if (!(x >= double(low) && x <= double(high)))
      fail(where, "expected {} to be a whole number from {} to {}, got {}", key, low, high,
           in_quotes(v->dump()));
    return v->get<int64_t>();
  }
  std::optional<bool> boolean(const char* key) const {
    const json* v = find(key);
    if (!v) return {};
    if (!v->is_boolean())
      fail(where, "expected {} to be true or false, got {}", key, in_quotes(v->dump()));
    return v->get<bool>();
  }
};

}  // namespace

GenerationDefaults GenerationDefaults::from_json(const json& j, const fs::path& file) {
  if (!j.is_object()) fail(file.string(), "expected an object, got {}", j.type_name());
  const GenerationKeys k{j, file.string()};
  constexpr int64_t many = std::numeric_limits<int32_t>::max();
  GenerationDefaults d{.file = file};
  d.temperature = k.number("temperature", 0, 100);
  d.top_p = k.number("top_p", 0, 1);
  d.min_p = k.number("min_p", 0, 1);
  d.repetition_penalty = k.number("repetition_penalty", 0.01, 100);
  d.top_k = k.whole("top_k", -1, many);
  if (d.top_k) d.top_k = std::max<int64_t>(*d.top_k, 0);  // -1 means all in other programs
  d.max_new_tokens = k.whole("max_new_tokens", 1, many);
  // do_sample false means greedy, whatever the other fields say. If the field is missing, sample:
  // Transformers would be greedy, but servers sample.
  if (!k.boolean("do_sample").value_or(true)) d.temperature = 0;
  return d;
}

GenerationDefaults GenerationDefaults::read(const ModelSource& source) {
  const fs::path dir = generation_folder(source);
  if (dir.empty()) return {};
  return from_json(read_generation_config(dir), dir / generation_file);
}

std::string GenerationDefaults::apply(SamplingSpec& s, const std::set<std::string>& given) const {
  std::string said;
  const auto put = [&](const char* name, auto& field, const auto& value) {
    if (!value || given.contains(name)) return;
    field = *value;
    said += fmt::format("{}{} {}", said.empty() ? "" : ", ", name, *value);
  };
  put("temperature", s.temperature, temperature);
  put("top_k", s.top_k, top_k);
  put("top_p", s.top_p, top_p);
  put("min_p", s.min_p, min_p);
  put("repetition_penalty", s.repetition_penalty, repetition_penalty);
  put("max_tokens", s.max_tokens, max_new_tokens);
  return said;
}

fs::path generation_folder(const ModelSource& source) {
  for (const fs::path& dir : {source.tokenizer(), source.path()})
    if (fs::is_directory(dir) && fs::exists(dir / generation_file)) return dir;
  return {};
}

nlohmann::ordered_json read_generation_config(const fs::path& dir) {
  const fs::path file = dir / generation_file;
  if (!fs::exists(file)) return {};
  return parse_ordered_json(read_file(file, most_generation_bytes), file.string());
}

void check_generation_config(const ModelSource& source) {
  for (const fs::path& dir : {source.path(), source.tokenizer()}) read_generation_config(dir);
}

}  // namespace hearth::inline infer
