// A product through cuBLASLt: the call, a plan to compute it, and running and timing the plan. The
// plan is chosen in gemm.cpp or gemm_invariant.cpp.
#pragma once

#include <array>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cuda/device/stream.h"
#include "cuda/gemm/cublaslt.h"
#include "cuda/gemm/gemm_choices.h"

namespace hearth::cuda {

// The arguments of one product; data may be null where a plan is only described.
struct GemmCall : GemmArgs {
  const ColumnSumArgs* sums = nullptr;  // the column sums of c are computed as well

  // Of each product of a batch.
  int64_t M() const { return c.rows() / spec.batch; }
  int64_t N() const { return spec.tb ? b.rows() / spec.batch : b.cols(); }
  int64_t K() const { return spec.tb ? b.cols() : b.rows() / spec.batch; }
  bool in_place() const { return prior && prior.data == c.data; }  // adds to its own result
  // Whether cuBLASLt has an epilogue for the product.
  bool fusible() const;
  bool plain() const { return spec.act == Act::none && !spec.act_slope && fusible(); }
  // An fp8 product whose bias and prior may have no common epilogue: our own kernel can add the
  // prior.
  bool separable() const { return is_fp8(a.dtype) && plain() && bias && prior && !in_place(); }
  // Activations times a weight matrix, as in a forward pass. Products of a backward pass in fp8
  // have this form too; no batch-invariant program has a forward pass in fp8.
  bool forward() const {
    return !spec.ta && spec.tb && !spec.act_slope && spec.single() && !is_fp8(a.dtype);
  }
  // When cuBLASLt adds to a 16-bit matrix in place, it rounds the product first and then the sum.
  bool rounds_twice() const { return plain() && in_place() && size_of(c.dtype) == 2; }
  // The name under which a choice is kept. A product that adds in place and one that adds another
  // matrix have different names: they may have different choices, and their order must not matter.
  std::string key(bool tf32) const;
};

// An owned cuBLASLt handle.
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

// A product as cuBLASLt sees it: row-major c = a b is column-major cT = bT aT.
struct LtProduct {
  LtDesc desc;
  LtLayout a, b, c;
  cublasLtMatmulAlgo_t algo{};
};

struct GemmPlan {
  bool fused = true;  // false: our own kernel runs the epilogue
  LtProduct product = {};
  // The variant of our own kernel gemm_hopper that runs the product.
  std::optional<int> own = {};
};

// A plan and its time, in the form that is stored.
GemmChoice choice_of(const GemmPlan&, float milliseconds);

class GemmProducts {
 public:
  GemmProducts(CudaStream&, bool tf32);
  ~GemmProducts();
  GemmProducts(const GemmProducts&) = delete;

  // The plan without an algorithm.
  GemmPlan describe(const GemmCall&, bool fused) const;
  // Algorithms that cuBLASLt proposes, likely fastest first. `whole`: only those without split-K.
  std::vector<cublasLtMatmulAlgo_t> proposed(const LtProduct&, bool whole = false) const;
  // A stored choice is for this library and GPU, but the file may be damaged.
  bool usable(const GemmPlan&) const;
  cublasStatus_t execute(GemmPlan&, const GemmCall&);
  // Best of a few runs, in milliseconds; `never` if the algorithm fails. Stops early if it is
  // clearly slower than `to_beat` milliseconds.
  float time(GemmPlan&, const GemmCall&, float to_beat = never);
  // The plan of a stored choice.
  GemmPlan plan_of(const GemmCall&, const GemmChoice&) const;
  // The fastest of several choices, which were timed one after another: those that are nearly as
  // fast as the first are timed again in turn, so that a change of clocks favours none of them.
  GemmChoice best_of(std::vector<GemmChoice>, const GemmCall&);

  CudaStream& stream;
  const bool tf32;
  static constexpr float never = 1e30f;

 private:
  float time_once(GemmPlan&, const GemmCall&);
  cublasStatus_t execute_lt(GemmPlan&, const GemmCall&);  // without sums
  cublasStatus_t multiply(LtProduct&, const GemmCall&, std::byte* out, std::byte* aux, float alpha,
                          bool adds);

  cublasLtHandle_t handle_ = nullptr;
  void* workspace_ = nullptr;
  std::array<cudaEvent_t, 2> timer_{};
};

// Throws unless the status is success.
void expect_lt(cublasStatus_t, const char* what);

}  // namespace hearth::cuda
