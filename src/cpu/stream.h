// Stream of the CPU: the threads that a kernel runs on and the memory it may use while it runs. The
// functions here are not inline, so that kernels compiled per instruction set may call them.
#pragma once

#include "core/kernels.h"
#include "cpu/gemm.h"

namespace hearth::inline cpu {

struct CpuStream : Stream {
  Threads& threads;
  Scratch& scratch;
  const GemmTable& gemm;
  Scratch& fp8_scratch;  // decoded operands, which a product packs into `scratch`
};
CpuStream& cpu_stream(Stream&);

// Throw `[cpu <op>] expected .., got ..`.
[[noreturn]] void refuse_dtype(const char* op, DType);
[[noreturn]] void refuse_dtypes(const char* op, DType, DType);

}  // namespace hearth::inline cpu
