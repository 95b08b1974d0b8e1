// What --dtype auto means: one rule for every command.
#pragma once

#include <string>
#include <string_view>

#include "core/backend.h"

namespace hearth::inline train {

// What a command mostly does: training is bound by products, decoding by reading the weights, and
// scoring whole texts by products again.
enum class Workload : uint8_t { training, decoding, scoring };

struct DtypeChoice {
  DType dtype;
  std::string why;  // goes on after the type: "which this CPU multiplies directly (neonbf16)"
};

// The rule, for a card (an empty `isa`) or for a CPU whose kernels are those of `isa`:
//
// | device                                   | training | decoding                 | scoring |
// |------------------------------------------|----------|--------------------------|---------|
// | a card                                   | bf16     | bf16                     | bf16    |
// | a CPU with AMX, AVX512-BF16 or BFMMLA    | bf16     | bf16                     | bf16    |
// | any other CPU, weights stored in 16 bits | fp32     | bf16: half the bytes     | fp32    |
// | any other CPU, weights stored in fp32    | fp32     | fp32                     | fp32    |
//
// Without such instructions products widen bf16 to fp32: that costs time where products are the
// limit, and saves it where memory is.
DtypeChoice auto_dtype(Workload, std::string_view isa, DType stored);
// The same for a backend; on a CPU the instruction set in use, which HEARTH_ISA can force.
DtypeChoice auto_dtype(Workload, const Backend&, DType stored);

}  // namespace hearth::inline train
