#include "train/dpo/reference_sums.h"

#include <cmath>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline train {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

double next_sum(std::span<const float>& logprobs, const Example& e) {
  const size_t n = size_t(learned_tokens(e));
  double sum = 0;
  for (const float x : logprobs.first(n)) sum += double(x);
  logprobs = logprobs.subspan(n);
  return sum;
}

}  // namespace

std::vector<PairSums> sums_of(std::span<const Preference* const> pairs,
                              std::span<const float> logprobs) {
  std::vector<PairSums> all;
  for (const Preference* p : pairs) {
    const double chosen = next_sum(logprobs, p->chosen);
    all.push_back({chosen, next_sum(logprobs, p->rejected)});
  }
  return all;
}

std::string reference_key(const std::string& model, std::span<const Preference> data, DType dtype) {
  Sha256 hash;
  hash.update(to_bytes(to_string(dtype)));
  hash.update(to_bytes(model));
  for (const Preference& p : data) add_to(hash, p.chosen), add_to(hash, p.rejected);
  return hash.hex();
}

ReferenceFile::ReferenceFile(fs::path path, std::string for_key)
    : path_(std::move(path)), key_(std::move(for_key)) {
  if (!fs::exists(path_)) return;
  const json j = read_json(path_, {});  // up to 1 GiB: two values per pair
  if (!j.is_object() || !j.contains("key") || j["key"] != key_ || !j.contains("sums")) return;
  for (const json& p : j["sums"]) {
    if (!p.is_array() || p.size() != 2 || !p[0].is_number() || !p[1].is_number() ||
        !std::isfinite(p[0].get<double>()) || !std::isfinite(p[1].get<double>()))
      fail(path_.string(), "expected sums[{}] to be two finite numbers, got {}", sums.size(),
           in_quotes(p.dump(-1, ' ', true)));
    sums.push_back({p[0].get<double>(), p[1].get<double>()});
  }
}

void ReferenceFile::save() const {
  json j{{"key", key_}};
  for (const PairSums& p : sums) j["sums"].push_back({p.chosen, p.rejected});
  write_file_atomic(path_, j.dump());
}

}  // namespace hearth::inline train
