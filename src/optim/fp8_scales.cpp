#include "optim/fp8_scales.h"

#include <algorithm>
#include <bit>
#include <limits>

#include "sys/error.h"

namespace hearth::inline optim {

void expect_fp8(const Backend& backend) {
  if (const std::string why = backend.refuses_fp8(); !why.empty())
    fail_usage("--dtype", "{}; use --dtype bf16", why);
}

void save_fp8_scales(nlohmann::json& task, const UpdateProgram& update) {
  if (!update.fp8_sites()) return;
  std::vector<Fp8Site> sites(static_cast<size_t>(most_fp8_sites));
  update.fp8_sites().download(sites);
  while (!sites.empty() && sites.back().previous == 0 && sites.back().largest == 0)
    sites.pop_back();
  nlohmann::json j = nlohmann::json::array();
  for (const Fp8Site& s : sites) {
    j.push_back(std::bit_cast<uint32_t>(s.previous));
    j.push_back(s.largest);
  }
  task["fp8_scales"] = std::move(j);
}

void restore_fp8_scales(const UpdateProgram& update, const StateFields& task) {
  if (!update.fp8_sites()) return;
  constexpr int64_t most = std::numeric_limits<uint32_t>::max();
  const std::vector<int64_t> words =
      task.integers("fp8_scales", size_t(2 * most_fp8_sites), 0, most);
  std::vector<Fp8Site> sites(static_cast<size_t>(most_fp8_sites));
  for (size_t i = 0; i < words.size() / 2; ++i) {
    sites[i].previous = std::bit_cast<float>(uint32_t(words[2 * i]));
    sites[i].largest = uint32_t(words[2 * i + 1]);
  }
  update.fp8_sites().upload(sites);
}

nlohmann::ordered_json fp8_summary(std::span<const Fp8Site> sites, std::span<const DType> formats) {
  constexpr float largest_e4m3 = 448, largest_e5m2 = 57344;
  float low = std::numeric_limits<float>::infinity(), high = 0;
  int64_t saturated = 0;
  for (size_t i = 0; i < std::min(sites.size(), formats.size()); ++i) {
    const Fp8Site& s = sites[i];
    const float largest = s.largest ? std::bit_cast<float>(s.largest) : s.previous;
    if (largest == 0 || s.scale == 0) continue;  // not rounded yet, or not measured
    low = std::min(low, s.scale), high = std::max(high, s.scale);
    saturated += largest > s.scale * (formats[i] == DType::e5m2 ? largest_e5m2 : largest_e4m3);
  }
  if (high == 0) return nlohmann::ordered_json::object();
  return {{"fp8_scale_min", low}, {"fp8_scale_max", high}, {"fp8_saturated", saturated}};
}

void Fp8Summaries::send(const UpdateProgram& update) {
  if (!update.fp8_sites()) return;
  formats_.assign(update.fp8_formats().begin(), update.fp8_formats().end());
  sent_.send(update.fp8_sites().tensor(), int64_t(formats_.size() * sizeof(Fp8Site)));
}

void Fp8Summaries::take(nlohmann::ordered_json& log) {
  if (sent_.size() > 0) log.update(fp8_summary(sent_.take_as<Fp8Site>(), formats_));
}

}  // namespace hearth::inline optim
