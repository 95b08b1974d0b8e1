#include "model/auto_dtype.h"

#include <fmt/format.h>

#include "cpu/features.h"

namespace hearth::inline model {

DtypeChoice auto_dtype(Workload work, std::string_view isa, DType stored) {
  if (isa.empty()) return {DType::bf16, "which the card multiplies directly"};
  if (isa == "amx" || isa == "avx512bf16" || isa == "neonbf16")
    return {DType::bf16, fmt::format("which this CPU multiplies directly ({})", isa)};
  const std::string none =
      fmt::format("because this CPU ({}) does not multiply bf16 directly", isa);
  if (work != Workload::decoding) return {DType::f32, none};
  if (size_of(stored) != 2)
    return {DType::f32, fmt::format("{} and the weights are stored in fp32", none)};
  return {DType::bf16,
          "for weights that are stored in 16 bits, because decoding is limited by reading them"};
}

DtypeChoice auto_dtype(Workload work, const Backend& backend, DType stored) {
  return auto_dtype(work, backend.has_host_offload() ? std::string_view() : name(best_isa()),
                    stored);
}

}  // namespace hearth::inline model
