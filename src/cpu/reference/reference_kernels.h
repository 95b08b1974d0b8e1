// What the reference kernels share: tensors as vectors of double, and the kernels' declarations.
// Each kernel loads all inputs before it stores anything, so an output may be any input's memory.
#pragma once

#include <cstdint>
#include <vector>

#include "core/kernels.h"
#include "cpu/fp8.h"

namespace hearth::reference {

using Doubles = std::vector<double>;

Doubles load(Tensor);                // empty if the tensor is absent
void store(Tensor, const Doubles&);  // rounds to the tensor's dtype; does nothing if it is absent
double as_stored(double, Tensor);    // rounded to the tensor's dtype, if there is a tensor
std::vector<int32_t> load_ints(Tensor);  // empty if the tensor is absent
Scalars load_scalars(Tensor);            // all defaults if the tensor is absent

// The initial value of an output: its old contents if it adds to them, else zeros.
inline Doubles start_from(Tensor t, bool add) {
  return t && add ? load(t) : Doubles(t ? size_t(t.numel()) : 0);
}

inline double value_or(const Doubles& x, int64_t i, double otherwise) {
  return x.empty() ? otherwise : x[size_t(i)];
}

// The rows of `a` as products with packed weights see them: whole multiples of their largest
// element / 127. The packed weights of `rows` rows.
Doubles rounded_rows(const Tensor& a);
Doubles unpacked(const Tensor& w, int64_t rows, int64_t K);

// 1 / (1 - p) if dropout keeps element i, else 0.
double keep_factor(const Scalars&, float p, uint32_t salt, int64_t i);

HEARTH_KERNELS(HEARTH_DECLARE_KERNEL)

void gemm_quantised(Stream&, const GemmQuantisedArgs&);
void quantise_fp8(Stream&, const QuantiseFp8Args&);

constexpr Fp8Parts fp8_parts{gemm,     activation,       activation_bwd, norm,
                             norm_bwd, qk_norm_rope_bwd, attention_bwd,  cross_entropy};

}  // namespace hearth::reference
