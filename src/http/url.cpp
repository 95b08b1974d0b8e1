#include "http/url.h"

#include <charconv>
#include <cstdint>

#include "formats/json.h"
#include "http/http.h"
#include "sys/digits.h"

namespace hearth::inline http {
std::optional<std::string> percent_decoded(std::string_view s) {
  std::string out;
  for (size_t i = 0; i < s.size(); ++i) {
    if (s[i] != '%') {
      out += s[i];
      continue;
    }
    if (s.size() - i < 3) return {};
    const int high = hex_digit(s[i + 1]), low = hex_digit(s[i + 2]);
    if (high < 0 || low < 0 || high + low == 0) return {};
    out += char(high * 16 + low);
    i += 2;
  }
  return out;
}

std::optional<std::string> query_value(std::string_view query, std::string_view name) {
  while (!query.empty()) {
    const std::string_view pair = query.substr(0, query.find('&'));
    query.remove_prefix(std::min(pair.size() + 1, query.size()));
    const size_t equals = std::min(pair.find('='), pair.size());
    if (pair.substr(0, equals) != name) continue;
    std::string raw(pair.substr(std::min(equals + 1, pair.size())));
    for (char& c : raw)
      if (c == '+') c = ' ';
    auto value = percent_decoded(raw);
    if (!value) refuse(std::string(name), "expected percent-encoded text, got {}", in_quotes(raw));
    return value;
  }
  return {};
}

double query_number(std::string_view query, std::string_view name, double otherwise, double low,
                    double high) {
  const auto text = query_value(query, name);
  if (!text || text->empty()) return otherwise;
  double x = 0;
  const char* end = text->data() + text->size();
  const auto [at, error] = std::from_chars(text->data(), end, x);
  if (error != std::errc{} || at != end || !(x >= low && x <= high))
    refuse(std::string(name), "expected a number from {} to {}, got {}", low, high,
           in_quotes(*text));
  return x;
}

}  // namespace hearth::inline http
