#include "optim/fp8_scales.h"

#include <bit>
#include <limits>

#include "sys/error.h"

namespace hearth::inline optim {
namespace {

StateRef<Fp8Site> all_sites(const Memory& memory) { return {memory.state, "fp8.sites"}; }

}  // namespace

void expect_fp8(const Backend& backend) {
  if (const std::string why = backend.refuses_fp8(); !why.empty())
    fail_usage("--dtype", "{}; use --dtype bf16", why);
}

nlohmann::json to_json(std::span<const Fp8Site> sites) {
  nlohmann::json j = nlohmann::json::array();
  for (const Fp8Site& s : sites) {
    j.push_back(std::bit_cast<uint32_t>(s.previous));
    j.push_back(s.largest);
  }
  return j;
}

std::vector<Fp8Site> fp8_sites_of(const StateFields& saved) {
  constexpr int64_t most = std::numeric_limits<uint32_t>::max();
  const std::vector<int64_t> words =
      saved.integers("fp8_scales", size_t(2 * most_fp8_sites), 0, most);
  std::vector<Fp8Site> sites(words.size() / 2);
  for (size_t i = 0; i < sites.size(); ++i) {
    sites[i].previous = std::bit_cast<float>(uint32_t(words[2 * i]));
    sites[i].largest = uint32_t(words[2 * i + 1]);
  }
  return sites;
}

nlohmann::json saved_fp8_scales(const Memory& memory) {
  std::vector<Fp8Site> sites(static_cast<size_t>(most_fp8_sites));
  all_sites(memory).download(sites);
  while (!sites.empty() && sites.back().previous == 0 && sites.back().largest == 0)
    sites.pop_back();
  return to_json(sites);
}

void restore_fp8_scales(const Memory& memory, const StateFields& saved) {
  std::vector<Fp8Site> sites = fp8_sites_of(saved);
  sites.resize(size_t(most_fp8_sites));
  all_sites(memory).upload(sites);
}

}  // namespace hearth::inline optim
