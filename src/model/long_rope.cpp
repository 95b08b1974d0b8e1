// longrope: RoPE whose frequencies are divided by lists of factors, one list for sequences of up to
// rope_context tokens and one for longer ones. All programs of a run or an engine use the same
// list, chosen by the longest sequence that they are made for, because cached keys are rotated
// already.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <string>
#include <vector>

#include "formats/json.h"
#include "model/layer_spec.h"
#include "sys/error.h"

namespace hearth::inline model {
namespace {

std::vector<float> factors_of(const std::string& text, const char* field) {
  std::vector<float> factors;
  for (size_t begin = 0; !text.empty() && begin <= text.size();) {
    const size_t end = std::min(text.find(',', begin), text.size());
    float x = 0;
    const auto read = std::from_chars(text.data() + begin, text.data() + end, x);
    const bool whole = read.ec == std::errc() && read.ptr == text.data() + end;
    if (!whole || !(x > 0) || !std::isfinite(x))
      fail("model", "expected numbers above 0, separated by commas, in {}, got {}", field,
           in_quotes(text.substr(begin, std::min<size_t>(end - begin, 40))));
    factors.push_back(x);
    begin = end + 1;
  }
  return factors;
}

// The list in its canonical spelling, by which configs are compared.
void resolve_factors(std::string& text, const char* field, int64_t pairs) {
  const std::vector<float> factors = factors_of(text, field);
  if (int64_t(factors.size()) != pairs)
    fail("model", "expected {} numbers in {}, one per pair of rotated dims, got {}", pairs, field,
         factors.size());
  text = fmt::format("{}", fmt::join(factors, ","));
}

int64_t length_of(const ModelConfig& c) { return c.longest ? c.longest : c.context; }

}  // namespace

void resolve_long_rope(ModelConfig& c) {
  if (c.rope_scaling != RopeScaling::longrope || c.position != Position::rope) return;
  if (c.rope_context < 2)
    fail("model", "expected a rope_context of 2 or more for longrope, got {}", c.rope_context);
  if (!(c.rope_factor > 0 && std::isfinite(c.rope_factor)))
    fail("model", "expected a rope_factor above 0, got {}", c.rope_factor);
  if (!(c.rope_attention_factor >= 0 && std::isfinite(c.rope_attention_factor)))
    fail("model", "expected a rope_attention_factor of 0 or more, got {}", c.rope_attention_factor);
  const int64_t pairs = rotated_dims(c) / 2;
  resolve_factors(c.rope_short_factors, "rope_short_factors", pairs);
  resolve_factors(c.rope_long_factors, "rope_long_factors", pairs);
  ModelConfig by_rule = c;  // canonical: a factor that the rule gives is not named
  by_rule.rope_attention_factor = 0;
  if (c.rope_attention_factor == float(rope_magnitude(by_rule))) c.rope_attention_factor = 0;
}

std::vector<float> long_rope_divisors(const ModelConfig& c) {
  if (c.rope_scaling != RopeScaling::longrope) return {};
  return uses_long_factors(c) ? factors_of(c.rope_long_factors, "rope_long_factors")
                              : factors_of(c.rope_short_factors, "rope_short_factors");
}

ModelConfig for_length(ModelConfig c, int64_t tokens) {
  if (c.longest == 0) c.longest = tokens;
  return c;
}

bool uses_long_factors(const ModelConfig& c) {
  return c.rope_scaling == RopeScaling::longrope && c.position == Position::rope &&
         length_of(c) > c.rope_context;
}

std::string long_rope_note(const ModelConfig& c) {
  if (!uses_long_factors(c)) return {};
  return fmt::format(
      "RoPE uses the long factors of longrope, because sequences may have {} tokens; it uses the "
      "short ones where none has more than {}",
      length_of(c), c.rope_context);
}

}  // namespace hearth::inline model
