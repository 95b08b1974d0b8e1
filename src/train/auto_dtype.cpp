#include "train/auto_dtype.h"

#include <fmt/format.h>

#include "cpu/features.h"

namespace hearth {

DtypeChoice auto_dtype(Workload work, std::string_view isa, DType stored) {
  if (isa.empty()) return {DType::bf16, "a card's matrix units take it"};
  if (isa == "amx" || isa == "avx512bf16" || isa == "neonbf16")
    return {DType::bf16, fmt::format("{} has instructions for its products", isa)};
  const std::string none = fmt::format("{} has no instructions for bf16 products", isa);
  if (work != Workload::decoding) return {DType::f32, none};
  if (size_of(stored) != 2)
    return {DType::f32, fmt::format("{}, and the weights are stored in fp32", none)};
  return {DType::bf16, "the weights are stored in 16 bits, and decoding is bound by reading them"};
}

DtypeChoice auto_dtype(Workload work, const Backend& backend, DType stored) {
  return auto_dtype(work, backend.has_far_memory() ? std::string_view() : name(best_isa()), stored);
}

}  // namespace hearth
