#include "model/lora.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <set>

#include "formats/json.h"
#include "ops/ops.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

constexpr std::string_view lora_where = "lora", all_linear = "all-linear", experts = "experts";

bool of_experts(const LoraModule& m) { return m.matrix.find(".experts.") != m.matrix.npos; }

// A path without the number of an expert: "model.layers.0.mlp.experts.gate_proj".
std::string without_expert(const std::string& path) {
  const size_t dot = path.rfind('.'), before = path.rfind('.', dot - 1);
  return path.substr(0, before) + path.substr(dot);
}
std::string named_path(const LoraModule& m) {
  return of_experts(m) ? without_expert(m.path) : m.path;
}

// The number of the expert in "experts.3.gate_proj"; empty: the name has none.
std::string expert_of(const std::string& name) {
  const size_t dot = name.rfind('.'), before = dot == name.npos ? dot : name.rfind('.', dot - 1);
  if (before == name.npos || dot == 0 || !name.substr(0, before).ends_with(experts)) return {};
  const std::string number = name.substr(before + 1, dot - before - 1);
  const bool digits =
      !number.empty() && std::ranges::all_of(number, [](char x) { return x >= '0' && x <= '9'; });
  return digits ? number : std::string();
}

// The last components of a path that tell the module from others: "q_proj", "experts.gate_proj".
std::string short_name(const LoraModule& m) {
  const std::string last = m.path.substr(m.path.rfind('.') + 1);
  return of_experts(m) ? fmt::format("{}.{}", experts, last) : last;
}
// A target of experts with the number of one of them, as PEFT names modules.
std::string with_expert(const std::string& target, const LoraModule& m) {
  const std::string name = target == experts ? short_name(m) : target;
  const size_t dot = name.rfind('.');
  return fmt::format("{}.{}{}", name.substr(0, dot), expert_of(m.path), name.substr(dot));
}

// Like PEFT, a target matches the whole path of a module or its last components. Modules of experts
// are named with "experts", since there are many, and always of all experts together.
bool names(std::string_view target, const LoraModule& m) {
  if (of_experts(m) && target.find(experts) == target.npos) return false;
  if (of_experts(m) && target == experts) return true;
  const std::string path = named_path(m);
  return target == path || path.ends_with(fmt::format(".{}", target));
}

bool is_named(std::string_view target, const LoraModule& m) {
  return target == all_linear ? !of_experts(m) : names(target, m);
}

// A file of ours has the matrices of all experts in one tensor: a module for each of them.
std::vector<LoraModule> by_expert(const LoraModule& all, int64_t count) {
  const size_t dot = all.path.rfind('.');
  std::vector<LoraModule> out;
  for (int64_t e = 0; e < count; ++e) {
    LoraModule m = all;
    m.path = fmt::format("{}.{}{}", all.path.substr(0, dot), e, all.path.substr(dot));
    m.out = all.out / count, m.row = e * m.out;
    out.push_back(std::move(m));
  }
  return out;
}

// Every matrix of the blocks that may have adapters, as modules of the file layout.
std::vector<LoraModule> all_modules(const ModelConfig& config) {
  constexpr std::string_view suffix = ".weight";
  ModelConfig c = config.resolve();
  c.lora = {};
  c.mtp = 0;  // modules have no adapters, and must not change the names of the blocks' matrices
  std::vector<LoraModule> out;
  for (const FileTensor& t : file_tensors(c, {.type = hf_type(c)})) {
    if (t.shape.size() != 2 || !t.param.starts_with("blocks.") || !t.param.ends_with(suffix))
      continue;
    if (t.param.find(".router.") != t.param.npos) continue;
    LoraModule m;
    m.path = t.name.substr(0, t.name.size() - suffix.size());
    m.matrix = t.param.substr(0, t.param.size() - suffix.size());
    m.row = t.row;
    m.out = t.shape[t.transposed ? 1 : 0], m.in = t.shape[t.transposed ? 0 : 1];
    m.b.order = t.order;
    if (of_experts(m) && m.path.ends_with(m.matrix.substr(m.matrix.rfind(".experts.") + 1)))
      std::ranges::move(by_expert(m, c.moe.experts), std::back_inserter(out));
    else
      out.push_back(std::move(m));
  }
  return out;
}

std::string joined_names(std::span<const std::string> list) {
  std::string s;
  for (const std::string& name : list) s += (s.empty() ? "" : ", ") + name;
  return s;
}

// For each row of the matrix and each of the k modules of its part: the row of lora_B that applies;
// -1: none.
std::vector<int32_t> places(std::span<const LoraModule> modules, int64_t rows, size_t k) {
  std::vector<int32_t> from(size_t(rows) * k, -1);
  for (size_t j = 0; j < modules.size(); ++j)
    for (int64_t i = 0; i < modules[j].out; ++i)
      from[size_t(modules[j].row + i) * k + j % k] = int32_t(modules[j].b_row + i);
  return from;
}

void add_once(std::vector<std::string>& list, std::string name) {
  if (std::ranges::find(list, name) == list.end()) list.push_back(std::move(name));
}

}  // namespace

bool is_adapter(std::string_view param) {
  return param.ends_with(".lora_A") || param.ends_with(".lora_B");
}

std::vector<std::string> lora_target_names(const ModelConfig& c) {
  std::vector<std::string> out;
  for (const LoraModule& m : all_modules(c)) add_once(out, short_name(m));
  return out;
}

std::vector<std::string> lora_file_targets(const ModelConfig& c) {
  const std::vector<LoraModule> modules = all_modules(c);
  std::vector<std::string> out;
  for (const std::string& t : c.lora.targets)
    for (const LoraModule& m : modules)
      if (is_named(t, m))
        add_once(out, t == all_linear ? short_name(m) : of_experts(m) ? with_expert(t, m) : t);
  return out;
}

std::vector<std::string> lora_targets_of_file(const ModelConfig& c, const LoraTargetsInFile& f) {
  std::vector<std::string> listed;
  std::map<std::string, std::set<std::string>> numbers;  // of the experts that have a target
  for (const std::string& t : f.targets) {
    const std::string number = expert_of(t);
    const std::string name = number.empty() ? t : without_expert(t);
    if (!number.empty()) numbers[name].insert(number);
    add_once(listed, name);
  }
  std::vector<std::string> out;
  for (const std::string& name : listed) {
    // In PEFT the name of a module that experts have means those of the experts too. We name those
    // by their numbers.
    const bool numbered =
        std::ranges::any_of(numbers, [&](const auto& n) { return n.first.ends_with("." + name); });
    if (!numbered && f.has_experts(name)) add_once(out, fmt::format("{}.{}", experts, name));
    if (!is_lora_target(c, name)) continue;
    const auto found = numbers.find(name);
    if (found != numbers.end() && int64_t(found->second.size()) != c.moe.experts)
      fail(lora_where, "expected {} of all {} experts among the targets, got those of {}", name,
           c.moe.experts, found->second.size());
    add_once(out, name);
  }
  return out.empty() ? f.targets : out;
}

bool is_lora_target(const ModelConfig& c, std::string_view target) {
  return target == all_linear ||
         std::ranges::any_of(all_modules(c), [&](const LoraModule& m) { return names(target, m); });
}

namespace {

[[noreturn]] void refuse_target(const ModelConfig& c, const std::string& target) {
  const bool mixture = bool(c.resolve().moe);
  const std::string of_all = fmt::format("{}.{}", experts, target);
  std::string hint;
  if (!mixture && target.find(experts) != target.npos) hint = "; this model has no experts";
  if (is_lora_target(c, of_all))
    hint = fmt::format("; {} adapts that matrix of all experts", of_all);
  fail(lora_where, "expected targets among {}{} or {}, got {}{}",
       joined_names(lora_target_names(c)), mixture ? ", experts" : "", all_linear,
       in_quotes(target), hint);
}

}  // namespace

LoraMatrices lora_matrices(const ModelConfig& c) {
  check_lora(c.lora, lora_where);
  LoraMatrices out;
  std::set<std::string_view> used;
  for (LoraModule& m : all_modules(c)) {
    bool wanted = false;
    for (const std::string& target : c.lora.targets)
      if (is_named(target, m)) wanted = true, used.insert(target);
    if (!wanted) continue;
    std::vector<LoraModule>& list = out[m.matrix];
    if (!list.empty()) {
      m.a_row = list.back().a_row + c.lora.rank;
      m.b_row = list.back().b_row + list.back().out;
    }
    m.b.shape = {m.out, c.lora.rank};
    m.b.row = m.b_row;
    list.push_back(std::move(m));
  }
  for (const std::string& target : c.lora.targets)
    if (!used.contains(target)) refuse_target(c, target);
  return out;
}

AdapterParams adapter_params(Tape& t, int64_t out, int64_t in, std::span<const LoraModule> modules,
                             int64_t rank, int64_t parts) {
  const int64_t n = int64_t(modules.size()), k = n / parts;
  const int64_t rows = modules.back().b_row + modules.back().out;
  std::vector<int64_t> a_stack(size_t(n), rank), b_stack;
  for (const LoraModule& m : modules) b_stack.push_back(m.out);
  AdapterParams p;
  p.a = t.param("lora_A", {n * rank, in}, Init::uniform(float(1 / std::sqrt(double(in)))),
                Group::matrix, true, std::move(a_stack));
  p.b = t.param("lora_B", {rows, rank}, Init::zeros(), Group::matrix, true, std::move(b_stack));
  if (k > 1 ||
      rows != out) {  // separate columns for each module's B, so that one product computes all
    std::string name = fmt::format("lora.rows.{}", out);
    for (const LoraModule& m : modules) name += fmt::format(".{}+{}", m.row, m.out);
    p.b = spread_rows(t, p.b, {out, k * rank}, name, places(modules, out, size_t(k)));
  }
  return p;
}

Var adapted(Tape& t, Var y, Var x, std::span<const LoraModule> modules, const AdapterScale& s) {
  const auto [a, b] = adapter_params(t, t.shape(y)[-1], t.shape(x)[-1], modules, s.rank);
  const Var h = linear(t, x, a, {.fp8 = false});  // few columns
  return linear(t, h, b, {.residual = y, .scale = s.scale, .fp8 = false});
}

void start_adapters(ParamStore& store, uint64_t seed) {
  for (const ParamSpec& p : store.specs())
    if (is_adapter(p.name)) store.initialise(p.name, seed);
}

void merge_adapters(const ModelConfig& config, ParamStore& store) {
  const double scale = config.lora.scale();
  const int64_t r = config.lora.rank;
  for (const auto& [matrix, modules] : lora_matrices(config)) {
    const std::vector<float> a = store.values(Part::weight, matrix + ".lora_A");
    const std::vector<float> b = store.values(Part::weight, matrix + ".lora_B");
    std::vector<float> w = store.values(Part::weight, matrix + ".weight");
    for (const LoraModule& m : modules)
      for (int64_t i = 0; i < m.out; ++i) {
        std::vector<double> row(size_t(m.in), 0.0);
        for (int64_t k = 0; k < r; ++k) {
          const double factor = scale * b[size_t((m.b_row + i) * r + k)];
          const float* ak = &a[size_t((m.a_row + k) * m.in)];
          for (int64_t j = 0; j < m.in; ++j) row[size_t(j)] += factor * ak[j];
        }
        float* wi = &w[size_t((m.row + i) * m.in)];
        for (int64_t j = 0; j < m.in; ++j) wi[j] = float(wi[j] + row[size_t(j)]);
      }
    store.set(matrix + ".weight", w);
  }
}

LoraSpec LoraConfig::spec() const {
  LoraSpec s;
  if (lora.empty()) {
    if (lora_targets != LoraConfig{}.lora_targets)
      fail_usage("--lora-targets", "expected --lora with it, got none");
    return s;
  }
  const auto bad = [&] {
    fail_usage("--lora", "expected rank[,alpha[,dropout]], got {}", in_quotes(lora));
  };
  const char *at = lora.data(), *end = at + lora.size();
  const auto number = [&](auto& x) {
    const auto [next, error] = std::from_chars(at, end, x);
    if (error != std::errc() || (next != end && (*next != ',' || next + 1 == end))) bad();
    at = next == end ? end : next + 1;
  };
  number(s.rank);
  s.alpha = 2 * float(s.rank);
  if (at != end) number(s.alpha);
  if (at != end) number(s.dropout);
  if (at != end) bad();
  s.targets.clear();
  for (const std::string& list : lora_targets)
    for (size_t i = 0; i <= list.size();) {
      const size_t comma = std::min(list.find(',', i), list.size());
      if (comma > i) s.targets.push_back(list.substr(i, comma - i));
      i = comma + 1;
    }
  check_lora(s, "--lora");
  return s;
}

void LoraConfig::expect_no_dropout(std::string_view method) const {
  if (const float dropout = spec().dropout; dropout > 0)
    fail_usage("--lora", "expected no dropout with {}, whose passes have none, got {}", method,
               dropout);
}

}  // namespace hearth::inline model
