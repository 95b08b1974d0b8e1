// What --dtype auto means: one rule for every command.
#pragma once

#include <string>
#include <string_view>

#include "core/backend.h"

namespace hearth::inline model {

// The kind of work that dominates a command. Training and scoring are bound by matrix products,
// decoding by memory bandwidth, since it reads all weights for every token.
enum class Workload : uint8_t { training, decoding, scoring };

struct DtypeChoice {
  DType dtype;
  std::string why;  // follows the dtype: "which this CPU multiplies directly (neonbf16)"
};

// The rule, for a GPU (`isa` is empty) or for a CPU whose kernels use the instruction set `isa`:
//
// | device                                   | training | decoding                 | scoring |
// |------------------------------------------|----------|--------------------------|---------|
// | a GPU                                    | bf16     | bf16                     | bf16    |
// | a CPU with AMX, AVX512-BF16 or BFMMLA    | bf16     | bf16                     | bf16    |
// | any other CPU, weights stored in 16 bits | fp32     | bf16: half the bytes     | fp32    |
// | any other CPU, weights stored in fp32    | fp32     | fp32                     | fp32    |
//
// A CPU without bf16 instructions widens bf16 to fp32 for every product. This costs time where
// products are the bottleneck and saves time where memory bandwidth is.
DtypeChoice auto_dtype(Workload, std::string_view isa, DType stored);
// The same for a backend. For a CPU it takes the instruction set in use, which HEARTH_ISA can
// force.
DtypeChoice auto_dtype(Workload, const Backend&, DType stored);

}  // namespace hearth::inline model
