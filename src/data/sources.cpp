// Parses `--data`: patterns with or without weights.
#include <algorithm>
#include <charconv>
#include <cmath>
#include <optional>

#include "data/loader.h"
#include "data/prepare.h"
#include "data/shards.h"
#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/hash/hash.h"

namespace hearth::inline data {
namespace {

// Splits at commas outside of braces.
std::vector<std::string> cut_at_commas(const std::string& text) {
  std::vector<std::string> parts(1);
  int depth = 0;
  for (const char c : text) {
    depth += c == '{' ? 1 : c == '}' ? -1 : 0;
    if (c == ',' && depth == 0)
      parts.emplace_back();
    else
      parts.back() += c;
  }
  return parts;
}

// The pattern and its weight, if the text ends with a colon and a number.
std::optional<std::pair<std::string, double>> weighted(const std::string& text) {
  const size_t colon = text.rfind(':');
  if (colon == text.npos || colon + 1 == text.size()) return {};
  double weight = 0;
  const char *begin = text.data() + colon + 1, *end = text.data() + text.size();
  const auto [stopped, error] = std::from_chars(begin, end, weight);
  if (error != std::errc() || stopped != end) return {};
  return std::pair{text.substr(0, colon), weight};
}

}  // namespace

std::vector<LoaderSource> parse_sources(std::span<const std::string> patterns) {
  std::vector<LoaderSource> mix;
  LoaderSource plain;
  std::string bare;  // the first pattern without a weight
  for (const std::string& argument : patterns) {
    bool any = false;
    std::vector<std::string> parts = cut_at_commas(argument);
    if (!std::filesystem::exists(argument))  // a file name may contain anything
      for (const std::string& part : parts) any |= weighted(part).has_value();
    if (!any) parts = {argument};
    for (const std::string& part : parts) {
      const auto found = any ? weighted(part) : std::nullopt;
      if (!found) {
        if (bare.empty()) bare = part;
        for (auto& path : expand_glob(part)) plain.files.push_back(std::move(path));
        continue;
      }
      if (!(found->second > 0) || !std::isfinite(found->second))
        fail_usage("--data", "expected a weight above 0, got {}", in_quotes(part));
      mix.push_back({found->first, found->second, expand_glob(found->first)});
    }
  }
  if (!mix.empty() && !bare.empty())
    fail_usage("--data", "expected a weight for every source or for none, got {} without one",
               in_quotes(bare));
  if (mix.empty()) mix.push_back(std::move(plain));
  for (const LoaderSource& source : mix) {
    refuse_folders(source.files, "train_*.bin");
    for (const std::filesystem::path& folder : unfinished_folders(source.files))
      fail(folder.string(), "this folder is not finished: run data prepare again");
  }
  return mix;
}

std::string fingerprint_of(std::span<const LoaderSource> sources) {
  constexpr size_t looked_at = 64 << 10;  // bytes to hash at each end of a file
  Sha256 hash;
  const auto add = [&](const auto& value) { hash.update(std::as_bytes(std::span(&value, 1))); };
  for (const LoaderSource& s : sources) {
    add(s.weight), add(uint64_t(s.files.size()));
    for (const std::filesystem::path& path : s.files) {
      const MappedFile file(path);
      const Bytes all = file.bytes();
      const size_t n = std::min(all.size(), looked_at);
      add(uint64_t(all.size()));
      hash.update(all.first(n));
      hash.update(all.last(n));
    }
  }
  return hash.hex();
}

}  // namespace hearth::inline data
