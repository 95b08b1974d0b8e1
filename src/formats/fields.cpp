#include "formats/fields.h"

#include <charconv>

namespace hearth::inline formats {

std::string did_you_mean(std::string_view text, std::span<const std::string_view> names) {
  std::string meant;
  for (const std::string_view n : names)
    if (text.size() > 1 && n.starts_with(text))
      meant += (meant.empty() ? "" : " or ") + std::string(n);
  if (meant.empty()) meant = near(text, names);
  return meant.empty() ? "" : fmt::format("; did you mean {}?", meant);
}

double shortest_number(float x) {
  char text[32];
  const auto written = std::to_chars(std::begin(text), std::end(text), x);
  double number = x;
  if (std::isfinite(x)) std::from_chars(text, written.ptr, number);
  return float(number) == x ? number : double(x);
}

bool same_setting(const nlohmann::json& a, const nlohmann::json& b) {
  if (!a.is_number_float() || !b.is_number_float()) return a == b;
  const auto shortened = [](double x) {
    return double(float(x)) == x ? shortest_number(float(x)) : x;
  };
  return shortened(a.get<double>()) == shortened(b.get<double>());
}

}  // namespace hearth::inline formats
