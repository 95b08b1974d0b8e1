#include "cuda/gemm.h"

#include <algorithm>
#include <array>
#include <unordered_map>
#include <vector>

#include "core/error.h"
#include "cuda/cublaslt.h"
#include "cuda/gemm_choices.h"
#include "cuda/gemm_few.h"
#include "cuda/gemm_some.h"

namespace hearth::cuda {
namespace {

constexpr int64_t workspace_bytes = int64_t(64) << 20;
constexpr int proposals = 12;  // algorithms timed for a new shape
constexpr int repeats = 4;     // of each; the best counts

void expect(cublasStatus_t s, const char* what) {
  if (s != CUBLAS_STATUS_SUCCESS)
    fail("cuda gemm", "expected {} to work, got {}", what, cublas_lt().GetStatusString(s));
}

cudaDataType_t type_of(DType d) {
  switch (d) {
    case DType::f32:
      return CUDA_R_32F;
    case DType::bf16:
      return CUDA_R_16BF;
    case DType::f16:
      return CUDA_R_16F;
    default:
      refuse_dtype("gemm", d);
  }
}

// A handle of cuBLASLt with an owner.
template <class T, auto Destroy>
struct Owned {
  Owned() = default;
  Owned(Owned&& o) noexcept : handle(std::exchange(o.handle, nullptr)) {}
  Owned& operator=(Owned&& o) noexcept {
    std::swap(handle, o.handle);
    return *this;
  }
  ~Owned() {
    if (handle) (cublas_lt().*Destroy)(handle);
  }
  T handle = nullptr;
};
using Desc = Owned<cublasLtMatmulDesc_t, &CublasLt::MatmulDescDestroy>;
using Layout = Owned<cublasLtMatrixLayout_t, &CublasLt::MatrixLayoutDestroy>;
using Preference = Owned<cublasLtMatmulPreference_t, &CublasLt::MatmulPreferenceDestroy>;

template <class T>
void set(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t what, const T& value) {
  expect(cublas_lt().MatmulDescSetAttribute(d, what, &value, sizeof value), "describing a product");
}

Layout make_layout(DType d, int64_t rows, int64_t cols, int64_t stride) {
  Layout l;
  expect(
      cublas_lt().MatrixLayoutCreate(&l.handle, type_of(d), uint64_t(rows), uint64_t(cols), stride),
      "describing a matrix");
  return l;
}

// What is asked of one call; the tensors may be null where a plan is only described.
struct Call {
  Tensor c, aux, a, b, bias, prior;
  GemmSpec spec;

  int64_t M() const { return c.rows(); }
  int64_t N() const { return spec.tb ? b.rows() : b.cols(); }
  int64_t K() const { return spec.tb ? b.cols() : b.rows(); }
  // Whether cuBLASLt has an epilogue for all of it.
  bool fusible() const {
    if (spec.act == Act::none && !spec.act_slope) return !bias || spec.alpha == 1;
    if (spec.act != Act::gelu_tanh || prior || c.dtype == DType::f32) return false;
    return spec.act_slope || spec.alpha == 1;
  }
  bool plain() const { return spec.act == Act::none && !spec.act_slope && fusible(); }

  std::string key(bool tf32) const {
    return fmt::format("{}x{}x{}/{}/{}/{}{}{}:{}>{}{}{}{}{}:{}{}{}", M(), N(), K(), a.cols(),
                       b.cols(), c.cols(), spec.ta ? 't' : 'n', spec.tb ? 't' : 'n',
                       to_string(a.dtype), to_string(c.dtype), tf32 ? "tf32" : "",
                       bias ? "+bias" : "", prior ? "+prior" : "", spec.alpha == 1 ? "" : "*alpha",
                       int(spec.act), spec.act_slope ? "'" : "", aux ? "+aux" : "");
  }
};

cublasLtEpilogue_t fused_epilogue(const Call& c) {
  if (c.spec.act_slope) return CUBLASLT_EPILOGUE_DGELU;
  if (c.spec.act == Act::none) return c.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
  if (c.aux) return c.bias ? CUBLASLT_EPILOGUE_GELU_AUX_BIAS : CUBLASLT_EPILOGUE_GELU_AUX;
  return c.bias ? CUBLASLT_EPILOGUE_GELU_BIAS : CUBLASLT_EPILOGUE_GELU;
}

// One way to have cuBLASLt compute a product: row-major c = a b is column-major cT = bT aT.
struct Product {
  Desc desc;
  Layout a, b, c;
  cublasLtMatmulAlgo_t algo{};
};

Product describe(const Call& c, cublasLtEpilogue_t epilogue, bool tf32) {
  Product p;
  const bool fast = tf32 && c.a.dtype == DType::f32;
  expect(cublas_lt().MatmulDescCreate(
             &p.desc.handle, fast ? CUBLAS_COMPUTE_32F_FAST_TF32 : CUBLAS_COMPUTE_32F, CUDA_R_32F),
         "describing a product");
  const cublasLtMatmulDesc_t d = p.desc.handle;
  set(d, CUBLASLT_MATMUL_DESC_TRANSA, c.spec.tb ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(d, CUBLASLT_MATMUL_DESC_TRANSB, c.spec.ta ? CUBLAS_OP_T : CUBLAS_OP_N);
  set(d, CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
  if (c.bias) set(d, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, type_of(c.bias.dtype));
  if (c.aux && epilogue != CUBLASLT_EPILOGUE_BIAS && epilogue != CUBLASLT_EPILOGUE_DEFAULT) {
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_LD, int64_t(c.c.cols()));
    set(d, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_DATA_TYPE, type_of(c.aux.dtype));
  }
  const int64_t M = c.M(), N = c.N(), K = c.K();
  p.a = make_layout(c.b.dtype, c.spec.tb ? K : N, c.spec.tb ? N : K, c.b.cols());
  p.b = make_layout(c.a.dtype, c.spec.ta ? M : K, c.spec.ta ? K : M, c.a.cols());
  p.c = make_layout(c.c.dtype, N, M, c.c.cols());
  return p;
}

struct Plan {
  bool fused = true;
  Product product;
};

}  // namespace

struct Gemms::State {
  State(CudaStream& s, const GemmsSpec& spec)
      : stream(s),
        tf32(spec.tf32),
        choices(GemmChoices::of(choices_file(spec.card, cublas_lt().GetVersion()))) {
    expect(cublas_lt().Create(&handle), "starting cuBLASLt");
    workspace = s.memory.allocate(workspace_bytes, "workspace of matrix products");
    for (cudaEvent_t& e : timer) check(cudaEventCreate(&e), "making a timer");
  }
  ~State() {
    plans.clear();
    for (cudaEvent_t e : timer) cudaEventDestroy(e);
    stream.memory.release(workspace, workspace_bytes);
    cublas_lt().Destroy(handle);
  }
  State(const State&) = delete;

  // The product alone, into `out`; with the epilogue the plan was described with.
  cublasStatus_t multiply(Product& p, const Call& c, std::byte* out, std::byte* aux, float alpha,
                          bool adds) {
    const float beta = adds ? 1 : 0;
    if (c.bias) set(p.desc.handle, CUBLASLT_MATMUL_DESC_BIAS_POINTER, c.bias.data);
    if (aux) set(p.desc.handle, CUBLASLT_MATMUL_DESC_EPILOGUE_AUX_POINTER, aux);
    return cublas_lt().Matmul(handle, p.desc.handle, &alpha, c.b.data, p.a.handle, c.a.data,
                              p.b.handle, &beta, adds ? c.prior.data : out, p.c.handle, out,
                              p.c.handle, &p.algo, workspace, size_t(workspace_bytes),
                              stream.handle);
  }

  cublasStatus_t execute(Plan& p, const Call& c) {
    if (c.plain()) return multiply(p.product, c, c.c.data, nullptr, c.spec.alpha, bool(c.prior));
    if (p.fused) return multiply(p.product, c, c.c.data, c.aux.data, c.spec.alpha, false);
    // The argument of act goes where it is kept; without such a place, to c, or aside when what c
    // holds is still to be added.
    std::byte* place = c.spec.act_slope || !c.aux ? c.c.data : c.aux.data;
    if (c.prior && c.prior.data == place)
      place = static_cast<std::byte*>(stream.scratch(c.c.bytes()));
    const cublasStatus_t s = multiply(p.product, c, place, nullptr, 1, false);
    if (s != CUBLAS_STATUS_SUCCESS) return s;
    gemm_epilogue(stream, c.c, {place, c.c.shape, c.c.dtype}, c.spec.act_slope ? c.aux : Tensor{},
                  c.prior, c.spec.alpha, c.spec.act, c.spec.act_slope);
    return s;
  }

  Plan describe_plan(const Call& c, bool fused) const {
    const cublasLtEpilogue_t plain = c.bias ? CUBLASLT_EPILOGUE_BIAS : CUBLASLT_EPILOGUE_DEFAULT;
    return {fused, describe(c, fused ? fused_epilogue(c) : plain, tf32)};
  }

  std::vector<cublasLtMatmulAlgo_t> proposed(const Product& p) const {
    Preference preference;
    expect(cublas_lt().MatmulPreferenceCreate(&preference.handle), "asking for algorithms");
    expect(cublas_lt().MatmulPreferenceSetAttribute(preference.handle,
                                                    CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES,
                                                    &workspace_bytes, sizeof workspace_bytes),
           "asking for algorithms");
    std::array<cublasLtMatmulHeuristicResult_t, proposals> found;
    int n = 0;
    const cublasStatus_t s = cublas_lt().MatmulAlgoGetHeuristic(
        handle, p.desc.handle, p.a.handle, p.b.handle, p.c.handle, p.c.handle, preference.handle,
        proposals, found.data(), &n);
    std::vector<cublasLtMatmulAlgo_t> r;
    for (int i = 0; s == CUBLAS_STATUS_SUCCESS && i < n; ++i)
      if (found[size_t(i)].state == CUBLAS_STATUS_SUCCESS) r.push_back(found[size_t(i)].algo);
    return r;
  }

  // Best of a few runs in milliseconds; infinite where the algorithm refuses.
  float time(Plan& p, const Call& c) {
    float best = 1e30f;
    for (int i = 0; i <= repeats; ++i) {
      check(cudaEventRecord(timer[0], stream.handle), "timing a product");
      if (execute(p, c) != CUBLAS_STATUS_SUCCESS) return 1e30f;
      check(cudaEventRecord(timer[1], stream.handle), "timing a product");
      check(cudaEventSynchronize(timer[1]), "timing a product");
      float ms = 0;
      check(cudaEventElapsedTime(&ms, timer[0], timer[1]), "timing a product");
      if (i > 0) best = std::min(best, ms);  // the first run loads code
    }
    return best;
  }

  // Times the proposals on the product's own outputs, which the real run then writes. What it adds
  // to is still needed: a product that adds in place is tried elsewhere.
  Plan tune(const Call& c, const std::string& key) {
    Call trial = c;
    const int64_t bytes = c.prior && c.prior.data == c.c.data ? c.c.bytes() : 0;
    void* place = bytes ? stream.memory.allocate(bytes, "tuning of matrix products") : nullptr;
    if (place) trial.c.data = static_cast<std::byte*>(place);
    float best = 1e30f;
    GemmChoice choice;
    for (const bool fused : {true, false}) {
      if (fused ? !c.fusible() : c.plain()) continue;
      Plan p = describe_plan(c, fused);
      for (const cublasLtMatmulAlgo_t& algo : proposed(p.product)) {
        p.product.algo = algo;
        const float ms = time(p, trial);
        if (ms >= best) continue;
        best = ms;
        choice.fused = fused;
        static_assert(sizeof choice.algo == sizeof algo);
        std::memcpy(choice.algo.data(), &algo, sizeof algo);
      }
    }
    check(cudaStreamSynchronize(stream.handle), "tuning of matrix products");
    if (place) stream.memory.release(place, bytes);
    if (best >= 1e30f)
      fail("cuda gemm", "expected an algorithm for {}, got none from cuBLASLt", key);
    choice.microseconds = 1e3f * best;
    const GemmChoice agreed = choices.put(key, choice);
    Plan p = chosen(c, agreed);
    return usable(p) ? std::move(p) : chosen(c, choice);
  }

  Plan chosen(const Call& c, const GemmChoice& choice) const {
    Plan p = describe_plan(c, choice.fused);
    std::memcpy(&p.product.algo, choice.algo.data(), sizeof p.product.algo);
    return p;
  }

  // A choice kept on disk is for this library and card, yet may come from a damaged file.
  bool usable(const Plan& p) const {
    cublasLtMatmulHeuristicResult_t r;
    return cublas_lt().MatmulAlgoCheck(handle, p.product.desc.handle, p.product.a.handle,
                                       p.product.b.handle, p.product.c.handle, p.product.c.handle,
                                       &p.product.algo, &r) == CUBLAS_STATUS_SUCCESS &&
           r.workspaceSize <= size_t(workspace_bytes);
  }

  Plan& plan_for(const Call& c) {
    std::string key = c.key(tf32);
    if (const auto it = plans.find(key); it != plans.end()) return it->second;
    if (const std::optional<GemmChoice> known = choices.find(key);
        known && (known->fused ? c.fusible() : !c.plain())) {
      Plan p = chosen(c, *known);
      if (usable(p)) return plans.emplace(std::move(key), std::move(p)).first->second;
    }
    Plan p = tune(c, key);
    return plans.emplace(std::move(key), std::move(p)).first->second;
  }

  CudaStream& stream;
  const bool tf32;
  GemmChoices& choices;
  cublasLtHandle_t handle = nullptr;
  void* workspace = nullptr;
  std::array<cudaEvent_t, 2> timer{};
  std::unordered_map<std::string, Plan> plans;
};

Gemms::Gemms(CudaStream& s, const GemmsSpec& spec) : state_(std::make_unique<State>(s, spec)) {}
Gemms::~Gemms() = default;

void Gemms::run(Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
                const GemmSpec& spec) {
  const Call call{c, aux, a, b, bias, prior, spec};
  expect(state_->execute(state_->plan_for(call), call), "a matrix product");
}

void gemm(Stream& s, Tensor c, Tensor aux, Tensor a, Tensor b, Tensor bias, Tensor prior,
          const GemmSpec& spec) {
  if (gemm_few_takes(c, a, b, spec)) return gemm_few(on(s), c, aux, a, b, bias, prior, spec);
  if (gemm_some_takes(on(s), c, a, b, spec))
    return gemm_some(on(s), c, aux, a, b, bias, prior, spec);
  on(s).gemms->run(c, aux, a, b, bias, prior, spec);
}

// What some rows take, few rows at a time take too: weights may be packed.
bool norm_gemm_takes(Stream& s, int64_t rows, int64_t width, int64_t columns, DType dtype) {
  return norm_gemm_few_takes(std::min<int64_t>(rows, 16), width, columns, dtype) &&
         (rows <= 16 || norm_gemm_some_takes(on(s), rows, width, columns, dtype));
}

void norm_gemm(Stream& s, Tensor c, Tensor x, Tensor gain, Tensor shift, Tensor b, Tensor bias,
               Tensor prior, const NormSpec& norm, const GemmSpec& spec) {
  const bool packed = is_panels(b.dtype);
  for (const Tensor& t : {gain, shift, packed ? Tensor{} : b, bias})
    if (t && t.dtype != x.dtype) refuse_dtypes("norm_gemm", t.dtype, x.dtype);
  const FewNormed normed{gain, shift, norm};
  if (packed)
    gemm_few_packed(on(s), c, x, b, bias, prior, spec, &normed);
  else if (x.rows() <= 16)
    norm_gemm_few(on(s), c, x, b, bias, prior, spec, normed);
  else
    norm_gemm_some(on(s), c, x, gain, shift, b, bias, prior, norm, spec);
}

}  // namespace hearth::cuda
