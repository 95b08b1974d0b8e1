// A product through cuBLASLt: what is asked, one way to compute it, and running and timing that.
// Which way is taken is the choice of gemm.cpp, or of gemm_invariant.cpp.
#pragma once

#include <array>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/stream.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/gemm_choices.h"

namespace hearth::cuda {

// What is asked of one call; the tensors may be null where a plan is only described.
struct GemmCall : GemmArgs {
  int64_t M() const { return c.rows(); }
  int64_t N() const { return spec.tb ? b.rows() : b.cols(); }
  int64_t K() const { return spec.tb ? b.cols() : b.rows(); }
  // Whether cuBLASLt has an epilogue for all of it.
  bool fusible() const;
  bool plain() const { return spec.act == Act::none && !spec.act_slope && fusible(); }
  // Rows of activations by a matrix of weights.
  bool forward() const { return !spec.ta && spec.tb && !spec.act_slope; }
  // As cuBLASLt adds to 16 bits in place, it rounds the product before.
  bool rounds_twice() const {
    return plain() && prior && prior.data == c.data && size_of(c.dtype) == 2;
  }
  std::string key(bool tf32) const;
};

// A handle of cuBLASLt with an owner.
template <class T, auto Destroy>
struct LtOwned {
  LtOwned() = default;
  LtOwned(LtOwned&& o) noexcept : handle(std::exchange(o.handle, nullptr)) {}
  LtOwned& operator=(LtOwned&& o) noexcept {
    std::swap(handle, o.handle);
    return *this;
  }
  ~LtOwned() {
    if (handle) (cublas_lt().*Destroy)(handle);
  }
  T handle = nullptr;
};
using LtDesc = LtOwned<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy>;
using LtLayout = LtOwned<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy>;

// One way to have cuBLASLt compute a product: row-major c = a b is column-major cT = bT aT.
struct LtProduct {
  LtDesc desc;
  LtLayout a, b, c;
  cublasLtMatmulAlgo_t algo{};
};

struct GemmPlan {
  bool fused = true;  // or a kernel of ours does what follows the product
  LtProduct product;
};

// A plan and how long it takes, as the choices keep it.
GemmChoice choice_of(const GemmPlan&, float milliseconds);

class GemmProducts {
 public:
  GemmProducts(CudaStream&, bool tf32);
  ~GemmProducts();
  GemmProducts(const GemmProducts&) = delete;

  // Without an algorithm yet.
  GemmPlan describe(const GemmCall&, bool fused) const;
  // What cuBLASLt would take, the likely fastest first; `whole`: only what adds up all of K in one
  // place.
  std::vector<cublasLtMatmulAlgo_t> proposed(const LtProduct&, bool whole = false) const;
  // A choice kept on disk is for this library and card, yet may come from a damaged file.
  bool usable(const GemmPlan&) const;
  cublasStatus_t execute(GemmPlan&, const GemmCall&);
  // Best of a few runs in milliseconds; infinite where the algorithm refuses.
  // Stops early at one that takes clearly longer than `to_beat` milliseconds.
  float time(GemmPlan&, const GemmCall&, float to_beat = never);

  CudaStream& stream;
  const bool tf32;
  static constexpr float never = 1e30f;

 private:
  cublasStatus_t multiply(LtProduct&, const GemmCall&, std::byte* out, std::byte* aux, float alpha,
                          bool adds);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::array<cudaEvent_t, 2> timer_{};
};

// Throws unless the status is success.
void expect_lt(cublasStatus_t, const char* what);

}  // namespace hearth::cuda
