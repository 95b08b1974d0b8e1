#include "cuda/gemm/cublaslt.h"

#include <dlfcn.h>

#include <string>

#include "sys/error.h"

namespace hearth::cuda {
namespace {

CublasLt open_library() {
  const std::string name = "libcublasLt.so." + std::to_string(CUBLAS_VER_MAJOR);
  void* library = nullptr;
  // The loader's path comes first, for packaged libraries; then the folder of the toolkit used for
  // the build.
  for (const std::string& path : {name, std::string(HEARTH_CUDA_LIBRARIES) + "/" + name})
    if (!library) library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library)
    fail("cuda", "expected {} of CUDA {} on the library path, got: {}", name, CUBLAS_VER_MAJOR,
         dlerror());
  CublasLt lt;
#define HEARTH_LT(f)                                                      \
  lt.f = reinterpret_cast<decltype(lt.f)>(dlsym(library, "cublasLt" #f)); \
  if (!lt.f) fail("cuda", "expected cublasLt" #f " in {}, got a library without", name);
  HEARTH_LT_ALL(HEARTH_LT)
#undef HEARTH_LT
  return lt;
}

}  // namespace

const CublasLt& cublas_lt() {
  static const CublasLt lt = open_library();
  return lt;
}

}  // namespace hearth::cuda
