#include "cpu/stream.h"

#include <string>

#include "sys/error.h"

namespace hearth::inline cpu {

void refuse_dtype(const char* op, DType got) {
  fail(std::string("cpu ") + op, "expected f32 or bf16, got {}", to_string(got));
}

void refuse_dtypes(const char* op, DType a, DType b) {
  fail(std::string("cpu ") + op, "expected tensors of one dtype, got {} and {}", to_string(a),
       to_string(b));
}

}  // namespace hearth::inline cpu
