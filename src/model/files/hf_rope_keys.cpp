// The keys of rotary positions: base, scaling, and the fraction of a head that is rotated.
#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>
#include <utility>

#include "model/files/hf_keys.h"
#include "model/layer_spec.h"

namespace hearth::inline model {

using nlohmann::json;
using nlohmann::ordered_json;

namespace {

// transformers rounds the number of rotated dims down.
void set_rotary(ModelConfig& c, double factor, const std::string& where) {
  if (!(factor > 0 && factor <= 1))
    fail(where, "expected a partial_rotary_factor above 0 and of at most 1, got {}", factor);
  c.rotary = float(factor);
  const int64_t head = c.head_dim ? c.head_dim : c.heads > 0 ? c.dim / c.heads : 0;
  const int64_t turned = int64_t(double(head) * factor);
  if (std::lround(c.rotary * float(head)) != turned) c.rotary = float(turned) / float(head);
}

// Of an old key of the whole config and a new one of rope_parameters, which must agree.
double read_rotary(const Keys& k, const RopeDefaults& defaults) {
  std::optional<double> factor;
  if (k.has("partial_rotary_factor")) factor = k.get<double>("partial_rotary_factor");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!k.has(key)) continue;
    const std::string where = k.where + "." + key;
    const Keys inner{k.j.at(key), where};
    if (!inner.j.is_object() || !inner.has("partial_rotary_factor")) continue;
    const double here = inner.get<double>("partial_rotary_factor");
    if (factor && here != *factor)
      fail(where, "expected the earlier partial_rotary_factor {}, got {}", *factor, here);
    factor = here;
  }
  if (!defaults.partial && factor.value_or(1) != 1)
    fail(k.where, "expected partial_rotary_factor to be 1.0, got {}: not supported", *factor);
  return factor.value_or(defaults.rotary);
}

// A list as the config has it, in the floats that transformers computes with.
std::string read_factors(const Keys& k, const char* key) {
  if (!k.has(key)) fail(k.where, "the key {} is missing", key);
  const json& list = k.j.at(key);
  if (!list.is_array())
    fail(k.where, "expected {} to be a list, got {}", key, in_quotes(list.dump().substr(0, 40)));
  std::string text;
  for (const json& x : list) {
    if (!x.is_number() || !(x.get<float>() > 0) || !std::isfinite(x.get<float>()))
      fail(k.where, "expected numbers above 0 in {}, got {}", key, x.dump().substr(0, 40));
    text += fmt::format("{}{}", text.empty() ? "" : ",", x.get<float>());
  }
  return text;
}

// `c.rope_context` is the original length that a key of the whole config gives; 0: none does.
void read_long_rope(ModelConfig& c, const Keys& k) {
  constexpr const char* original = "original_max_position_embeddings";
  c.rope_scaling = RopeScaling::longrope;
  c.rope_short_factors = read_factors(k, "short_factor");
  c.rope_long_factors = read_factors(k, "long_factor");
  if (c.rope_context == 0 || k.has(original)) {
    const int64_t here = k.get<int64_t>(original);
    if (c.rope_context != 0 && here != c.rope_context)
      fail(k.where, "expected the earlier {} {}, got {}", original, c.rope_context, here);
    c.rope_context = here;
  }
  if (c.rope_context < 2)
    fail(k.where, "expected {} of 2 or more, got {}", original, c.rope_context);
  c.rope_factor = k.get<float>("factor", float(double(c.context) / double(c.rope_context)));
  if (!(c.rope_factor > 0)) fail(k.where, "expected a factor above 0, got {}", c.rope_factor);
  c.rope_attention_factor = k.get<float>("attention_factor", 0);
  if (k.has("attention_factor") && !(c.rope_attention_factor > 0))
    fail(k.where, "expected an attention_factor above 0, got {}", c.rope_attention_factor);
}

}  // namespace

void expect_factor_count(const ModelConfig& c, const std::string& where) {
  if (c.rope_scaling != RopeScaling::longrope) return;
  const int64_t head = c.head_dim ? c.head_dim : c.heads > 0 ? c.dim / c.heads : 0;
  const int64_t pairs = (c.mla ? c.mla.rope_dim : std::lround(c.rotary * float(head))) / 2;
  for (const auto& [key, text] : {std::pair("short_factor", &c.rope_short_factors),
                                  std::pair("long_factor", &c.rope_long_factors)}) {
    const int64_t count = text->empty() ? 0 : 1 + std::ranges::count(*text, ',');
    if (count != pairs)
      fail(where, "expected {} numbers in {}, one per pair of rotated dims, got {}", pairs, key,
           count);
  }
}

namespace {

ordered_json list_of(const std::string& factors) {
  return ordered_json::parse("[" + factors + "]");
}

ordered_json write_long_rope(const ModelConfig& c) {
  ordered_json j{{"rope_type", "longrope"},
                 {"short_factor", list_of(c.rope_short_factors)},
                 {"long_factor", list_of(c.rope_long_factors)},
                 {"original_max_position_embeddings", c.rope_context}};
  if (c.rope_factor != float(double(c.context) / double(c.rope_context)))
    j["factor"] = plain(c.rope_factor);
  if (c.rope_attention_factor > 0) j["attention_factor"] = plain(c.rope_attention_factor);
  return j;
}

}  // namespace

std::string rope_type(const json& j, const std::string& where) {
  if (!j.is_object()) fail(where, "expected an object, got {}", in_quotes(j.dump()));
  const Keys k{j, where};
  const std::string type =
      k.get<std::string>("rope_type", k.get<std::string>("type", std::string("default")));
  return type == "su" ? "longrope" : type;  // its first name
}

void read_rope_scaling(ModelConfig& c, const json& j, const std::string& where) {
  const std::string type = rope_type(j, where);
  const Keys k{j, where};
  if (type == "default") return;
  // transformers scales the scores of a deepseek_v3 by it with every type of scaling.
  if (c.mla && type != "yarn") k.only("mscale_all_dim", 0.0);
  if (type == "longrope") return read_long_rope(c, k);
  if (type == "linear") {
    c.rope_scaling = RopeScaling::linear;
  } else if (type == "llama3") {
    c.rope_scaling = RopeScaling::llama3;
    c.rope_low = k.get<float>("low_freq_factor");
    c.rope_high = k.get<float>("high_freq_factor");
  } else if (type == "yarn") {
    c.rope_scaling = RopeScaling::yarn;
    c.rope_low = k.get<float>("beta_slow", 1);
    c.rope_high = k.get<float>("beta_fast", 32);
    k.only("truncate", true);
    if (c.mla) {
      c.mla.yarn_mscale = k.get<float>("mscale", 0);
      c.mla.yarn_mscale_all = k.get<float>("mscale_all_dim", 0);
    } else {
      for (const char* key : {"mscale", "mscale_all_dim"}) k.only(key, 0.0);
    }
  } else {
    fail(where, "expected rope_type to be default, linear, llama3, yarn or longrope, got {}",
         in_quotes(type));
  }
  c.rope_factor = k.get<float>("factor");
  if (!(c.rope_factor >= 1)) fail(where, "expected a factor of 1 or more, got {}", c.rope_factor);
  if (c.rope_scaling == RopeScaling::linear) return;
  c.rope_context = c.rope_scaling == RopeScaling::llama3
                       ? k.get<int64_t>("original_max_position_embeddings")
                       : k.get<int64_t>("original_max_position_embeddings", c.context);
  if (c.rope_context < 1 || c.rope_high <= c.rope_low)
    fail(where, "expected a positive original context and increasing bounds, got {}, {} and {}",
         c.rope_context, c.rope_low, c.rope_high);
  const double magnitude = rope_magnitude(c);
  if (c.rope_scaling == RopeScaling::yarn &&
      std::abs(k.get<double>("attention_factor", magnitude) - magnitude) > 1e-6)
    fail(where, "expected attention_factor to be {}, got {}: not supported", magnitude,
         k.get<double>("attention_factor"));
}

void read_rope(ModelConfig& c, const Keys& k, const RopeDefaults& defaults) {
  std::optional<double> theta;
  if (k.has("rope_theta")) theta = k.get<double>("rope_theta");
  for (const char* key : {"rope_scaling", "rope_parameters"}) {
    if (!k.has(key)) continue;
    const std::string where = k.where + "." + key;
    ModelConfig fresh;
    fresh.context = c.context, fresh.mla.kv_latent = c.mla.kv_latent;
    if (rope_type(k.j.at(key), where) == "longrope")
      fresh.rope_context = k.get<int64_t>("original_max_position_embeddings", 0);
    read_rope_scaling(fresh, k.j.at(key), where);
    const bool again = key[5] == 'p' && k.has("rope_scaling");
    const auto scaling = [](const ModelConfig& x) {
      return std::tuple(x.rope_scaling, x.rope_factor, x.rope_low, x.rope_high, x.rope_context,
                        x.rope_short_factors, x.rope_long_factors, x.rope_attention_factor,
                        x.mla.yarn_mscale, x.mla.yarn_mscale_all);
    };
    if (again && scaling(fresh) != scaling(c))
      fail(where, "expected the same as rope_scaling, got {}", in_quotes(k.j.at(key).dump()));
    std::tie(c.rope_scaling, c.rope_factor, c.rope_low, c.rope_high, c.rope_context,
             c.rope_short_factors, c.rope_long_factors, c.rope_attention_factor, c.mla.yarn_mscale,
             c.mla.yarn_mscale_all) = scaling(fresh);
    const Keys inner{k.j.at(key), where};
    const double here = inner.get<double>("rope_theta", theta.value_or(defaults.theta));
    if (theta && here != *theta)
      fail(where, "expected the earlier rope_theta {}, got {}", *theta, here);
    if (inner.has("rope_theta")) theta = here;
  }
  c.rope_theta = theta.value_or(defaults.theta);
  if (!(c.rope_theta > 1)) fail(k.where, "expected rope_theta above 1, got {}", c.rope_theta);
  const double rotary = read_rotary(k, defaults);
  if (!defaults.partial) return;
  set_rotary(c, rotary, k.where);
}

ordered_json write_rope_scaling(const ModelConfig& c) {
  const int64_t original = c.rope_context ? c.rope_context : c.context;
  switch (c.rope_scaling) {
    case RopeScaling::none:
      return {{"rope_type", "default"}};
    case RopeScaling::linear:
      return {{"rope_type", "linear"}, {"factor", plain(c.rope_factor)}};
    case RopeScaling::llama3:
      return {{"rope_type", "llama3"},
              {"factor", plain(c.rope_factor)},
              {"low_freq_factor", plain(c.rope_low)},
              {"high_freq_factor", plain(c.rope_high)},
              {"original_max_position_embeddings", original}};
    case RopeScaling::yarn: {
      ordered_json j{{"rope_type", "yarn"},
                     {"factor", plain(c.rope_factor)},
                     {"beta_slow", plain(c.rope_low)},
                     {"beta_fast", plain(c.rope_high)},
                     {"original_max_position_embeddings", original}};
      if (c.mla.yarn_mscale > 0) j["mscale"] = plain(c.mla.yarn_mscale);
      if (c.mla.yarn_mscale_all > 0) j["mscale_all_dim"] = plain(c.mla.yarn_mscale_all);
      return j;
    }
    case RopeScaling::longrope:
      return write_long_rope(c);
  }
  return ordered_json::object({{"rope_type", "default"}});
}

void write_rope(ordered_json& j, const ModelConfig& c) {
  const ordered_json scaling = write_rope_scaling(c);
  j["rope_theta"] = c.rope_theta;
  j["rope_scaling"] = c.rope_scaling == RopeScaling::none ? ordered_json() : scaling;
  j["rope_parameters"] = scaling;
  j["rope_parameters"]["rope_theta"] = c.rope_theta;
  // Where transformers looks first.
  if (c.rope_scaling == RopeScaling::longrope)
    j["original_max_position_embeddings"] = c.rope_context;
}

}  // namespace hearth::inline model
