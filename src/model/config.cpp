#include "model/config.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <numbers>

#include "core/math.h"
#include "formats/fields.h"
#include "model/files/hf_names.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

constexpr std::string_view where = "model";
constexpr int64_t most_layers =
    10'000;  // limits the size of the program that a bad config could cause

// Choices of a block that exclude each other.
void check_blocks(const ModelConfig& c) {
  if (!(c.embed_scale > 0 && std::isfinite(c.embed_scale)))
    fail(where, "expected an embed_scale above 0, got {}", c.embed_scale);
  if (c.embed_scale != 1 && c.position == Position::learned)
    fail(where, "embed_scale is for token embeddings and does not work with learned positions");
  if (c.parallel_residual && c.norm_place == NormPlace::post)
    fail(where, "parallel_residual does not work with norm_place post: use pre, sandwich or after");
  if (c.qk_norm_whole && c.qk_norm != QkNorm::before_rope)
    fail(where, "expected qk_norm before_rope with qk_norm_whole, got {}", enum_name(c.qk_norm));
  // CUDA kernels that sum the gradient of the bias keep one number per distance in shared memory.
  constexpr int64_t most_distance = 4096;
  if (c.relative_buckets < 2 || c.relative_buckets % 2)
    fail(where, "expected an even number of relative_buckets, at least 2, got {}",
         c.relative_buckets);
  if (c.relative_distance <= c.relative_buckets / 2 || c.relative_distance > most_distance)
    fail(where,
         "expected a relative_distance above {} (half of relative_buckets) and at most {}, got {}",
         c.relative_buckets / 2, most_distance, c.relative_distance);
  if (!c.layout.empty() && !find_enum<HfType>(c.layout))
    fail(where, "expected a layout among {}, got {}", fmt::join(names_of(HfType{}), ", "),
         in_quotes(c.layout));
}

void check_dropouts_and_caps(const ModelConfig& c) {
  for (const auto& [name, p] : {std::pair("dropout_embed", c.dropout_embed),
                                {"dropout_attention", c.dropout_attention},
                                {"dropout_residual", c.dropout_residual},
                                {"dropout_mlp", c.dropout_mlp}})
    if (!(p >= 0 && p < 1)) fail(where, "expected a {} in [0, 1), got {}", name, p);
  for (const auto& [name, cap] :
       {std::pair("attention_softcap", c.attention_softcap), {"logit_softcap", c.logit_softcap}})
    if (cap < 0) fail(where, "expected a {} of 0 or more, got {}", name, cap);
}

}  // namespace

bool ModelConfig::operator==(const ModelConfig& o) const { return fields_equal(*this, o); }

float LoraSpec::scale() const {
  return rank ? alpha / (rslora ? std::sqrt(float(rank)) : float(rank)) : 0;
}

ModelConfig ModelConfig::resolve() const {
  ModelConfig c = *this;
  const auto positive = [](const char* name, int64_t x) {
    if (x < 1 || x > (int64_t(1) << 31))
      fail(where, "expected {} between 1 and 2^31, got {}", name, x);
  };
  positive("vocab", c.vocab), positive("context", c.context), positive("layers", c.layers);
  positive("dim", c.dim), positive("heads", c.heads);
  resolve_latents(c);
  if (c.kv_heads == 0) c.kv_heads = c.heads;
  if (c.head_dim == 0) {
    if (c.dim % c.heads) fail(where, "expected heads to divide dim {}, got {}", c.dim, c.heads);
    c.head_dim = c.dim / c.heads;
  }
  if (c.hidden == 0) c.hidden = is_glu(c.act) ? round_up((8 * c.dim + 2) / 3, 256) : 4 * c.dim;
  positive("kv_heads", c.kv_heads), positive("head_dim", c.head_dim), positive("hidden", c.hidden);
  if (c.head_dim > (int64_t(1) << 31) / c.heads)
    fail(where, "expected heads * head_dim of at most 2^31, got {} * {}", c.heads, c.head_dim);
  if (c.layers > most_layers)
    fail(where, "expected at most {} layers, got {}", most_layers, c.layers);
  if (c.heads % c.kv_heads)
    fail(where, "expected kv_heads to divide {} heads, got {}", c.heads, c.kv_heads);
  if (c.act == Act::none) fail(where, "expected an activation for the MLP, got none");
  if (c.rotary < 0 || c.rotary > 1) fail(where, "expected rotary in [0, 1], got {}", c.rotary);
  const int64_t turned = rotated_dims(c);
  if (c.position == Position::rope && (turned % 2 || (turned == 0 && c.rotary > 0)))
    fail(where,
         "expected rotary * head_dim to be even and, unless rotary is 0, at least 2, got {} * {}",
         c.rotary, c.head_dim);
  if (c.norm_eps <= 0) fail(where, "expected norm_eps above 0, got {}", c.norm_eps);
  if (!(c.score_scale >= 0 && std::isfinite(c.score_scale)))
    fail(where, "expected a score_scale of 0 or more, got {}", c.score_scale);
  if (!(c.logit_scale > 0 && std::isfinite(c.logit_scale)))
    fail(where, "expected a logit_scale above 0, got {}", c.logit_scale);
  if (!(c.embed_std >= 0 && std::isfinite(c.embed_std)))
    fail(where, "expected an embed_std of 0 or more, got {}", c.embed_std);
  if (c.zero_head && c.tied)
    fail(where, "zero_head needs an untied head: a tied one is the embedding; set tied to false");
  if (c.gate_inputs < 0 || c.gate_inputs > c.dim)
    fail(where, "expected gate_inputs from 0 to dim {}, got {}", c.dim, c.gate_inputs);
  if (c.gate_inputs == c.dim) c.gate_inputs = 0;  // canonical: one config per model
  if (c.smear && c.position == Position::learned)
    fail(where, "smear mixes token embeddings and does not work with learned positions");
  if (c.bigram_embeds < 0 || c.bigram_embeds == 1 || c.bigram_embeds > (int64_t(1) << 31) - 1)
    fail(where, "expected bigram_embeds of 0, or between 2 and 2^31 - 1, got {}", c.bigram_embeds);
  if ((c.smear || c.bigram_embeds) && (c.window == 1 || c.long_window == 1))
    fail(where, "smear and bigram_embeds need windows of at least 2 tokens, got 1");
  check_blocks(c);
  if (c.mtp < 0 || c.mtp > most_mtp)
    fail(where, "expected mtp between 0 and {}, got {}", most_mtp, c.mtp);
  resolve_long_rope(c);
  resolve_layers(c);
  resolve_experts(c);
  check_dropouts_and_caps(c);
  return c;
}

int64_t matmul_params(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  int64_t columns = c.vocab;  // of matrices with `dim` rows, or rows of those with `dim` columns
  int64_t attention = 0;
  for (const LayerSpec& l : layer_specs(c)) {
    attention += l.attention_params(c.dim);
    columns += l.mlp_size();
    if (c.gate_inputs > 0) continue;  // a small gate is no matrix of the optimizer's
    if (c.output_gate == OutputGate::elementwise) columns += l.y_size();
    if (c.output_gate == OutputGate::per_head) columns += l.heads;
  }
  return attention + columns * c.dim;
}

double mean_keys(int64_t T, int64_t window) {
  const double w = double(window > 0 ? std::min(window, T) : T);
  return w - w * w / (2 * double(T));  // the first w queries see w / 2 keys on average, others w
}

double train_flops_per_token(const ModelConfig& config, int64_t T) {
  const ModelConfig c = config.resolve();
  const double passes = c.lora ? 4 : 6;  // frozen matrices have no weight gradient
  double pairs = 0;                      // multiply-adds of scores and weighted values per token
  for (const LayerSpec& l : layer_specs(c))
    if (l.attends()) pairs += mean_keys(T, l.window) * double(l.heads * (l.qk_dim + l.v_dim));
  double params = double(matmul_params(c));
  if (c.mtp && !c.lora) {  // their heads are products too
    const LayerSpec l = mtp_layer(c);
    const int64_t own = l.attention_params(c.dim) + c.dim * (l.mlp_size() + 2 * c.dim + c.vocab);
    params += double(c.mtp * own);
    pairs += double(c.mtp) * mean_keys(T, l.window) * double(l.heads * (l.qk_dim + l.v_dim));
  }
  return passes * params + 6.0 * pairs;
}

std::vector<double> rope_frequencies(const ModelConfig& config) {
  const ModelConfig c = config.resolve();
  const int64_t half = rotated_dims(c) / 2;
  const double base = double(c.rope_context ? c.rope_context : c.context);
  const std::vector<float> divisors = long_rope_divisors(c);
  std::vector<double> freq(static_cast<size_t>(half));
  for (int64_t i = 0; i < half; ++i) {
    double f = std::pow(c.rope_theta, -double(i) / double(half));
    const double turns = base * f / (2 * std::numbers::pi);  // over the original context
    switch (c.rope_scaling) {
      case RopeScaling::none:
        break;
      case RopeScaling::linear:
        f /= c.rope_factor;
        break;
      case RopeScaling::llama3: {
        const double smooth = (turns - c.rope_low) / double(c.rope_high - c.rope_low);
        const double keep = std::clamp(smooth, 0.0, 1.0);
        f = f * keep + f / c.rope_factor * (1 - keep);
        break;
      }
      case RopeScaling::yarn: {
        const auto dim_of = [&](double rotations) {  // the dim that makes this many rotations
          return double(half) * std::log(base / (rotations * 2 * std::numbers::pi)) /
                 std::log(c.rope_theta);
        };
        const double low = std::max(0.0, std::floor(dim_of(c.rope_high)));
        const double high = std::min(2.0 * double(half) - 1, std::ceil(dim_of(c.rope_low)));
        const double ramp = std::clamp((double(i) - low) / std::max(0.001, high - low), 0.0, 1.0);
        f = f / c.rope_factor * ramp + f * (1 - ramp);
        break;
      }
      case RopeScaling::longrope:
        f /= double(divisors[size_t(i)]);
        break;
    }
    freq[size_t(i)] = f;
  }
  return freq;
}

std::vector<float> rope_table(const ModelConfig& config, int64_t first, int64_t count) {
  const std::vector<double> freq = rope_frequencies(config);
  const int64_t half = int64_t(freq.size());
  const double magnitude = rope_magnitude(config);
  std::vector<float> table(size_t(count * half * 2));
  for (int64_t p = 0; p < count; ++p)
    for (int64_t i = 0; i < half; ++i) {
      const double angle = double(first + p) * freq[size_t(i)];
      table[size_t((p * half + i) * 2)] = float(magnitude * std::cos(angle));
      table[size_t((p * half + i) * 2 + 1)] = float(magnitude * std::sin(angle));
    }
  return table;
}

int64_t rope_rows(const ModelConfig& config, int64_t positions) {
  return std::min(config.context, int64_t(std::bit_ceil(uint64_t(positions))));
}

// For n heads, a power of two, the slopes are 2^(-8 i / n). Further heads take the odd steps for 2n
// heads.
std::vector<float> alibi_slopes(int64_t heads) {
  int64_t n = 1;
  while (n * 2 <= heads) n *= 2;
  std::vector<float> slopes;
  for (int64_t i = 1; i <= n; ++i) slopes.push_back(float(std::exp2(-8.0 * double(i) / double(n))));
  for (int64_t i = 1; int64_t(slopes.size()) < heads; i += 2)
    slopes.push_back(float(std::exp2(-4.0 * double(i) / double(n))));
  return slopes;
}

std::vector<int32_t> relative_buckets(int64_t buckets, int64_t distance) {
  const int64_t exact = buckets / 2;  // distances with a bucket of their own
  std::vector<int32_t> all;
  for (int64_t d = 0; d <= distance; ++d) {
    const double share = std::log(double(std::max(d, exact)) / double(exact)) /
                         std::log(double(distance) / double(exact));
    // A share that is a whole number of buckets may be rounded down by the logarithms.
    const auto further = int64_t(share * double(buckets - exact) + 1e-9);
    all.push_back(int32_t(d < exact ? d : std::min(exact + further, buckets - 1)));
  }
  return all;
}

}  // namespace hearth::inline model
