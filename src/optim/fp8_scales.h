// Training in fp8: whether a device can, and the scales that its checkpoints carry.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/exec.h"
#include "core/fp8.h"
#include "formats/state_fields.h"

namespace hearth::inline optim {

// Throws, with the reason, if the backend has no fp8 products.
void expect_fp8(const Backend&);

// Of each site two numbers, as bit patterns: max |v| of the previous step and of an unfinished one,
// which a skipped update leaves.
nlohmann::json to_json(std::span<const Fp8Site>);
std::vector<Fp8Site> fp8_sites_of(const StateFields& saved);

// The same for programs that are recorded on demand, whose memory has the sites of an UpdateProgram
// with fp8: all sites up to the last one in use.
nlohmann::json saved_fp8_scales(const Memory&);
void restore_fp8_scales(const Memory&, const StateFields& saved);

}  // namespace hearth::inline optim
