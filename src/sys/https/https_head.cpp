// Parses the HTTP response headers that a download depends on.
#include <algorithm>
#include <cctype>
#include <charconv>
#include <optional>

#include "sys/https/https.h"
#include "sys/trimmed.h"

namespace hearth::inline sys {
namespace {

std::optional<int64_t> number_at(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n < 0) return {};
  return n;
}

}  // namespace

bool is_etag(std::string_view tag) {
  std::string_view quoted = tag;
  if (quoted.starts_with("W/")) quoted.remove_prefix(2);
  return tag.size() < 200 && quoted.size() >= 2 && quoted.front() == '"' && quoted.back() == '"' &&
         std::all_of(tag.begin(), tag.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

void read_header(HttpsHead& head, std::string_view line) {
  if (line.starts_with("HTTP/")) {  // a new response replaces the redirect
    head = {};
    if (const size_t space = line.find(' '); space != line.npos)
      head.status = int(number_at(line.substr(space + 1)).value_or(0));
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  std::string key(line.substr(0, colon));
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (key == "etag" && is_etag(value)) head.etag = value;
  if (key == "content-length" && head.status == 200) head.total = number_at(value).value_or(-1);
  if (key == "content-range" && value.starts_with("bytes ")) {
    head.from = number_at(value.substr(6)).value_or(-1);
    if (const size_t slash = value.find('/'); slash != value.npos)
      head.total = number_at(value.substr(slash + 1)).value_or(-1);
  }
}

}  // namespace hearth::inline sys
