#include "formats/fields.h"

#include <charconv>

namespace hearth::inline formats {

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
