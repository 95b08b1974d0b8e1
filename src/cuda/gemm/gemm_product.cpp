#include "cuda/gemm/gemm_product.h"

#include <algorithm>
#include <cstring>

#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_hopper.h"
#include "cuda/kernels.h"
#include "sys/error.h"

namespace hearth::cuda {
namespace {

constexpr int64_t workspace_bytes = int64_t(64) << 20;
constexpr int proposals = 12;  // algorithms considered for a shape
constexpr int repeats = 4;     // of each timed algorithm; the best counts

using LtPreference = LtOwned<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy>;

cudaDataType_t type_of(DType d) {
  switch (d) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    case DType::e4m3:
      return CUDA_R_8F_E4M3;
    case DType::e5m2:
      return CUDA_R_8F_E5M2;
    default:
      refuse_dtype("gemm", d);
  }
}

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const T& value) {
  expect_lt(cublas_lt().MatmulDescSetAttribute(d, what, &value, sizeof value),
            "describing a product");
}

// The factors by which fp8 operands are multiplied, read on the device. cuBLASLt's a is our b.
void set_scales(cublasLtMatmulDesc_t d, const GemmCall& c) {
  if (!is_fp8(c.a.dtype)) return;
  set(d, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, static_cast<const void*>(c.b_scale.data));
  set(d, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, static_cast<const void*>(c.a_scale.data));
}

// A matrix, or `batch` of them one after another.
LtLayout make_layout(DType d, int64_t rows, int64_t cols, int64_t stride, int64_t batch) {
  LtLayout l;
  expect_lt(
      cublas_lt().MatrixLayoutCreate(&l.handle, type_of(d), uint64_t(rows), uint64_t(cols), stride),
      "describing a matrix");
  if (batch == 1) return l;
  const auto count = int32_t(batch);
  const int64_t next = cols * stride;
  expect_lt(cublas_lt().MatrixLayoutSetAttribute(l.handle, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT,
                                                 &count, sizeof count),
            "describing a batch of matrices");
  expect_lt(cublas_lt().MatrixLayoutSetAttribute(
                l.handle, CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, &next, sizeof next),
            "describing a batch of matrices");
  return l;
}

cublasLtEpilogue_t fused_epilogue(const GemmCall& c) {
  if (c.spec.act_slope) return CUBLASLT_EPILOGUE_DGELU;
  if (c.spec.act == Act::none) return c.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (c.aux) return c.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return c.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

LtProduct describe_product(const GemmCall& c, cublasLtEpilogue_t epilogue, bool tf32) {
  LtProduct p;
  const bool fast = tf32 && c.a.dtype == DType::f32;
  expect_lt(
      cublas_lt().MatmulDescCreate(
          &p.desc.handle, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
      "describing a product");
  const cublasLtMatmulDesc_t d = p.desc.handle;
  set(d, CUBLASLT_MATMUL_DESC_TRANSA, c.spec.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(d, CUBLASLT_MATMUL_DESC_TRANSB, c.spec.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (is_fp8(c.a.dtype)) set(d, CUBLASLT_MATMUL_DESC_FAST_ACCUM, int8_t(c.spec.fast_sums));
  set_scales(d, c);
  if (c.bias) set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(c.bias.dtype));
  if (c.aux && epilogue != CUBLASLT_EPILOGUE_BIAS && epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(c.c.cols()));
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(c.aux.dtype));
  }
  const int64_t M = c.M(), N = c.N(), K = c.K(), batch = c.spec.batch;
  p.a = make_layout(c.b.dtype, c.spec.tb ? K : N, c.spec.tb ? N : K, c.b.cols(), batch);
  p.b = make_layout(c.a.dtype, c.spec.ta ? M : K, c.spec.ta ? K : M, c.a.cols(), batch);
  p.c = make_layout(c.c.dtype, N, M, c.c.cols(), batch);
  return p;
}

}  // namespace

GemmChoice choice_of(const GemmPlan& p, float milliseconds) {
  GemmChoice r{.fused = p.fused, .microseconds = 1e3f * milliseconds};
  static_assert(sizeof r.algo == sizeof p.product.algo);
  if (p.own)
    r.algo.back() = uint64_t(*p.own);
  else
    std::memcpy(r.algo.data(), &p.product.algo, sizeof r.algo);
  return r;
}

void expect_lt(cublasStatus_t s, const char* what) {
  if (s != CUBLAS_STATUS_SUCCESS)
    fail("cuda gemm", "expected {} to work, got {}", what, cublas_lt().GetStatusString(s));
}

bool GemmCall::fusible() const {
  if (spec.act == Act::none && !spec.act_slope) return !bias || spec.alpha == 1;
  if (spec.act != Act::gelu_tanh || prior || c.dtype == DType::f32) return false;
  return spec.act_slope || spec.alpha == 1;
}

std::string GemmCall::key(bool tf32) const {
  // Factors other than 1 share a choice: they do not change how long a product takes.
  const std::string batch = spec.batch == 1 ? "" : fmt::format("{}*", spec.batch);
  const std::string fp8 =
      is_fp8(a.dtype) ? fmt::format("x{}{}", to_string(b.dtype), spec.fast_sums ? "+fast" : "")
                      : "";
  return fmt::format("{}{}x{}x{}/{}/{}/{}{}{}:{}{}>{}{}{}{}{}:{}{}{}{}", batch, M(), N(), K(),
                     a.cols(), b.cols(), c.cols(), spec.ta ? 't' : 'n', spec.tb ? 't' : 'n',
                     to_string(a.dtype), fp8, to_string(c.dtype), tf32 ? "tf32" : "",
                     bias ? "+bias" : "", prior ? in_place() ? "+=" : "+prior" : "",
                     spec.alpha == 1 ? "" : "*alpha", int(spec.act), spec.act_slope ? "'" : "",
                     aux ? "+aux" : "", spec.symmetric ? "+symmetric" : "") +
         (sums ? "+sums" : "");
}

GemmProducts::GemmProducts(CudaStream& s, bool tf32) : stream(s), tf32(tf32) {
  expect_lt(cublas_lt().Create(&handle_), "starting cuBLASLt");
  workspace_ = s.memory.allocate(workspace_bytes, "workspace of matrix products");
  for (cudaEvent_t& e : timer_) check(cudaEventCreate(&e), "making a timer");
}

GemmProducts::~GemmProducts() {
  for (cudaEvent_t e : timer_) cudaEventDestroy(e);
  stream.memory.release(workspace_, workspace_bytes);
  cublas_lt().Destroy(handle_);
}

// The product alone, into `out`, with the epilogue of the plan.
cublasStatus_t GemmProducts::multiply(LtProduct& p, const GemmCall& c, std::byte* out,
                                      std::byte* aux, float alpha, bool adds) {
  const float beta = adds ? c.spec.beta : 0;
  if (c.bias) set(p.desc.handle, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias.data);
  set_scales(p.desc.handle, c);
  if (aux) set(p.desc.handle, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
  return cublas_lt().Matmul(handle_, p.desc.handle, &alpha, c.b.data, p.a.handle, c.a.data,
                            p.b.handle, &beta, adds ? c.prior.data : out, p.c.handle, out,
                            p.c.handle, &p.algo, workspace_, size_t(workspace_bytes),
                            stream.handle);
}

cublasStatus_t GemmProducts::execute(GemmPlan& p, const GemmCall& c) {
  if (p.own) {
    gemm_hopper(stream, c, *p.own, c.sums);
    return CUBLAS_STATUS_SUCCESS;
  }
  const cublasStatus_t s = execute_lt(p, c);
  if (c.sums && s == CUBLAS_STATUS_SUCCESS) column_sum(stream, *c.sums);
  return s;
}

cublasStatus_t GemmProducts::execute_lt(GemmPlan& p, const GemmCall& c) {
  if (c.plain() && p.fused)
    return multiply(p.product, c, c.c.data, nullptr, c.spec.alpha, bool(c.prior));
  if (p.fused) return multiply(p.product, c, c.c.data, c.aux.data, c.spec.alpha, false);
  // The argument of act goes to aux if it is kept; else to c, or to scratch if c holds the prior.
  std::byte* place = c.spec.act_slope || !c.aux ? c.c.data : c.aux.data;
  if (c.prior && c.prior.data == place)
    place = static_cast<std::byte*>(stream.scratch(c.c.bytes()));
  const cublasStatus_t s = multiply(p.product, c, place, nullptr, 1, false);
  if (s != CUBLAS_STATUS_SUCCESS) return s;
  gemm_epilogue(stream, c, {place, c.c.shape, c.c.dtype});
  return s;
}

GemmPlan GemmProducts::describe(const GemmCall& c, bool fused) const {
  const cublasLtEpilogue_t plain = c.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  return {fused, describe_product(c, fused ? fused_epilogue(c) : plain, tf32)};
}

std::vector<cublasLtMatmulAlgo_t> GemmProducts::proposed(const LtProduct& p, bool whole) const {
  LtPreference preference;
  expect_lt(cublas_lt().MatmulPreferenceCreate(&preference.handle), "asking for algorithms");
  const auto prefer = [&](cublasLtMatmulPreferenceAttributes_t what, const auto& value) {
    expect_lt(
        cublas_lt().MatmulPreferenceSetAttribute(preference.handle, what, &value, sizeof value),
        "asking for algorithms");
  };
  prefer(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace_bytes);
  if (whole)
    prefer(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, uint32_t(CUBLASLT_REDUCTION_SCHEME_NONE));
  std::array<cublasLtMatmulHeuristicResult_t, proposals> found;
  int n = 0;
  const cublasStatus_t s = cublas_lt().MatmulAlgoGetHeuristic(
      handle_, p.desc.handle, p.a.handle, p.b.handle, p.c.handle, p.c.handle, preference.handle,
      proposals, found.data(), &n);
  std::vector<cublasLtMatmulAlgo_t> r;
  for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; ++i)
    if (found[size_t(i)].state == CUBLAS_STATUS_SUCCESS) r.push_back(found[size_t(i)].algo);
  return r;
}

float GemmProducts::time_once(GemmPlan& p, const GemmCall& c) {
  check(cudaEventRecord(timer_[0], stream.handle), "timing a product");
  if (execute(p, c) != CUBLAS_STATUS_SUCCESS) return never;
  check(cudaEventRecord(timer_[1], stream.handle), "timing a product");
  check(cudaEventSynchronize(timer_[1]), "timing a product");
  float ms = 0;
  check(cudaEventElapsedTime(&ms, timer_[0], timer_[1]), "timing a product");
  return ms;
}

float GemmProducts::time(GemmPlan& p, const GemmCall& c, float to_beat) {
  constexpr float hopeless = 1.25;  // times the best so far: further runs will not make up for it
  float best = never;
  for (int i = 0; i <= repeats; ++i) {
    const float ms = time_once(p, c);
    if (ms == never) return never;
    if (i > 0) best = std::min(best, ms);  // the first run loads code
    if (best < never && best > hopeless * to_beat) break;
  }
  return best;
}

GemmPlan GemmProducts::plan_of(const GemmCall& c, const GemmChoice& choice) const {
  if (choice.own()) return {.own = choice.variant()};
  GemmPlan p = describe(c, choice.fused);
  std::memcpy(&p.product.algo, choice.algo.data(), sizeof p.product.algo);
  return p;
}

GemmChoice GemmProducts::best_of(std::vector<GemmChoice> choices, const GemmCall& c) {
  constexpr size_t most = 4;    // finalists
  constexpr float near = 1.05;  // times the fastest
  constexpr int rounds = 10;
  if (choices.empty()) return {.microseconds = 1e3f * never};
  std::stable_sort(choices.begin(), choices.end(), [](const GemmChoice& a, const GemmChoice& b) {
    return a.microseconds < b.microseconds;
  });
  const float limit = near * choices[0].microseconds;
  std::erase_if(choices, [&](const GemmChoice& o) { return o.microseconds > limit; });
  choices.resize(std::min(choices.size(), most));
  if (choices.size() == 1) return choices[0];
  std::vector<GemmPlan> plans;
  for (GemmChoice& o : choices) {
    plans.push_back(plan_of(c, o));
    o.microseconds = 0;
  }
  for (int round = 0; round < rounds; ++round)
    for (size_t i = 0; i < choices.size(); ++i)
      choices[i].microseconds += 1e3f * time_once(plans[i], c) / rounds;
  return *std::min_element(
      choices.begin(), choices.end(),
      [](const GemmChoice& a, const GemmChoice& b) { return a.microseconds < b.microseconds; });
}

bool GemmProducts::usable(const GemmPlan& p) const {
  cublasLtMatmulHeuristicResult_t r;
  return cublas_lt().MatmulAlgoCheck(handle_, p.product.desc.handle, p.product.a.handle,
                                     p.product.b.handle, p.product.c.handle, p.product.c.handle,
                                     &p.product.algo, &r) == CUBLAS_STATUS_SUCCESS &&
         r.workspaceSize <= size_t(workspace_bytes);
}

}  // namespace hearth::cuda
