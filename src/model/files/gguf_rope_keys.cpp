// The keys and tensors of RoPE in GGUF files: base, scaling, and the factors of Llama 3's rule and
// of longrope.
#include <algorithm>
#include <cmath>

#include "formats/fields.h"
#include "model/files/gguf_keys.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {

using nlohmann::json;

// llama.cpp knows longrope by its tensors, not by the type that newer files name.
bool has_long_rope(const GgufTable& f, const std::string& arch) {
  const std::string type = arch + "rope.scaling.type";
  return f.tensors.contains(rope_short_factors) || f.tensors.contains(rope_long_factors) ||
         (f.has(type) && f.text(type) == "longrope");
}

namespace {

// llama.cpp stores only the resulting factors of Llama 3's rule, not its bounds.
constexpr const char *low_key = "hearth.rope_low", *high_key = "hearth.rope_high",
                     *context_key = "hearth.rope_context";
constexpr float yarn_slow = 1, yarn_fast = 32;  // of all these architectures, whatever a file says

// --- reading ---

std::vector<float> read_factor_tensor(const GgufTable& f, std::string_view name) {
  const auto it = f.tensors.find(name);
  if (it == f.tensors.end()) fail(f.where, "the tensor {} is missing", name);
  std::vector<float> factors = from_ggml(it->second.bytes, it->second.type);
  for (const float x : factors)
    if (!(x > 0) || !std::isfinite(x))
      fail(f.where, "expected numbers above 0 in {}, got {}", name, x);
  return factors;
}

json read_long_rope_keys(const GgufTable& f, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.", factor = scaling + "attn_factor";
  for (const std::string& key : {scaling + "factor", arch + "rope.scale_linear"})
    if (f.has(key) && f.number(key) != 0 && f.number(key) != 1)
      fail(f.where, "expected {} to be 1 beside {}, got {}", key, rope_long_factors, f.number(key));
  return {{"rope_type", "longrope"},
          {"short_factor", read_factor_tensor(f, rope_short_factors)},
          {"long_factor", read_factor_tensor(f, rope_long_factors)},
          {"original_max_position_embeddings", f.whole(scaling + "original_context_length")},
          {"attention_factor", f.has(factor) ? f.number(factor) : 1.0}};
}

}  // namespace

void expect_factor_tensors(const GgufTable& f, const std::string& arch, int64_t rotated) {
  if (!has_long_rope(f, arch)) return;
  for (const std::string_view name : {rope_short_factors, rope_long_factors})
    if (const size_t count = read_factor_tensor(f, name).size(); int64_t(count) != rotated / 2)
      fail(f.where, "expected {} numbers in {}, one per pair of rotated dims, got {}", rotated / 2,
           name, count);
}

json read_rope_keys(const GgufTable& f, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.", type = scaling + "type";
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
  } else if (has_long_rope(f, arch)) {
    if (f.has(type) && f.text(type) == "yarn")
      fail(f.where, "expected {} to be longrope beside {}, got yarn", type, rope_long_factors);
    rope.update(read_long_rope_keys(f, arch));
  } else if (!f.has(type)) {
    // A file that names no type scales linearly if it has a factor; older files have another key.
    for (const std::string& key : {arch + "rope.scale_linear", scaling + "factor"})
      if (f.has(key) && f.number(key) != 0 && f.number(key) != 1)
        rope["rope_type"] = "linear", rope["factor"] = f.number(key);
  } else if (f.text(type) != "none") {
    rope["rope_type"] = f.text(type);
    rope["factor"] = f.number(scaling + "factor");
    if (f.has(scaling + "original_context_length"))
      rope["original_max_position_embeddings"] = f.whole(scaling + "original_context_length");
    for (const char* beta : {"beta_fast", "beta_slow"})
      if (f.has(scaling + "yarn_" + beta)) rope[beta] = f.number(scaling + "yarn_" + beta);
  }
  return rope;
}

namespace {

// Of Llama 3's rule.
std::vector<float> rope_factors(const ModelConfig& c) {
  ModelConfig plain = c;
  plain.rope_scaling = RopeScaling::none;
  const std::vector<double> all = rope_frequencies(plain), scaled = rope_frequencies(c);
  std::vector<float> factors;
  for (size_t i = 0; i < all.size(); ++i) factors.push_back(float(all[i] / scaled[i]));
  return factors;
}

}  // namespace

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

// --- writing ---

namespace {

// llama.cpp reads the tensor rope_freqs, or the two of longrope, for these.
bool takes_rope_freqs(HfType type) { return type == HfType::llama || type == HfType::mixtral; }
bool takes_long_rope(HfType type) { return takes_rope_freqs(type) || type == HfType::phi3; }

}  // namespace

std::vector<std::pair<std::string_view, std::vector<float>>> rope_tensors(const ModelConfig& c,
                                                                          HfType type) {
  if (c.rope_scaling == RopeScaling::llama3 && takes_rope_freqs(type))
    return {{rope_freqs, rope_factors(c)}};
  if (c.rope_scaling != RopeScaling::longrope) return {};
  ModelConfig brief = c, wide = c;
  brief.longest = 1, wide.longest = c.rope_context + 1;
  return {{rope_long_factors, long_rope_divisors(wide)},
          {rope_short_factors, long_rope_divisors(brief)}};
}

void put_rope(GgufKeys& keys, const ModelConfig& c, const std::string& arch) {
  const std::string scaling = arch + "rope.scaling.";
  const int64_t original = c.rope_context ? c.rope_context : c.context;
  keys.set(arch + "rope.freq_base", float(c.rope_theta));
  keys.set(arch + "rope.dimension_count", rotated_dims(c));
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
    case RopeScaling::longrope:
      keys.set(scaling + "type", "longrope");
      keys.set(scaling + "original_context_length", original);
      keys.set(scaling + "attn_factor", float(rope_magnitude(c)));
      break;
    case RopeScaling::llama3:
      keys.set(low_key, c.rope_low);
      keys.set(high_key, c.rope_high);
      keys.set(context_key, original);
      break;
  }
}

void check_rope(const ModelConfig& c, HfType type, std::string_view name) {
  if (type == HfType::gpt2) return;
  if (c.rope_scaling == RopeScaling::llama3 && !takes_rope_freqs(type))
    fail("gguf", "{} in GGUF cannot use the rope_scaling llama3", name);
  if (c.rope_scaling == RopeScaling::longrope && !takes_long_rope(type))
    fail("gguf", "{} in GGUF cannot use the rope_scaling longrope", name);
  if (c.rope_scaling == RopeScaling::yarn && (c.rope_low != yarn_slow || c.rope_high != yarn_fast))
    fail("gguf", "expected a rope_low of {} and a rope_high of {} for yarn in GGUF, got {} and {}",
         yarn_slow, yarn_fast, c.rope_low, c.rope_high);
}

}  // namespace hearth::inline model
