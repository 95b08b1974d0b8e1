#include "cuda/backend.h"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <mutex>

#include "cuda/attention/attention_kernels.h"
#include "cuda/device/copies.h"
#include "cuda/device/downloads.h"
#include "cuda/device/graph.h"
#include "cuda/device/host_offload.h"
#include "cuda/device/nvml.h"
#include "cuda/device/owned_stream.h"
#include "cuda/device/pinned_memory.h"
#include "cuda/device/pinned_transfer.h"
#include "cuda/device/probe.h"
#include "cuda/device/staging.h"
#include "cuda/device/stream.h"
#include "cuda/gemm/gemm.h"
#include "cuda/gemm/gemm_hopper.h"
#include "cuda/gemm/gemm_quantised.h"
#include "cuda/kernels.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth {
namespace {

using namespace cuda;

constexpr int64_t mib = 1 << 20;

const Kernels& cuda_kernels() {
#define HEARTH_CUDA_KERNEL(name, Args) .name = cuda::name,
  static const Kernels table{.name = "cuda",
                             .gemm_quantised = cuda::gemm_quantised,
                             .norm_gemm = cuda::norm_gemm,
                             .norm_gemm_takes = cuda::norm_gemm_takes,
                             .gemm_sums = cuda::gemm_sums,
                             .norm_bwd_sums = cuda::norm_bwd_sums,
                             .gemm_glu = cuda::gemm_glu,
                             .quantise_fp8 = cuda::quantise_fp8,
                             .advance_fp8 = cuda::advance_fp8,
                             .draw = cuda::draw,
                             .sample = cuda::sample,
                             HEARTH_KERNELS(HEARTH_CUDA_KERNEL)};
#undef HEARTH_CUDA_KERNEL
  return table;
}

bool turned_off(const char* variable) {
  const char* v = std::getenv(variable);
  return v && std::strcmp(v, "0") == 0;
}

class CudaBackend final : public Backend {
 public:
  CudaBackend(const CudaSpec& spec, const CudaCard& card)
      : spec_(spec),
        name_(card.name),
        memory_(spec.memory_limit),
        pinned_(spec.card),
        staging_(owned_.handle, 16 * mib),
        ahead_(uploads_.handle, mib),
        large_(owned_.handle),
        stream_(memory_),
        nvml_(card.index) {
    stream_.handle = owned_.handle;
    stream_.card = card_properties(card.index);
    if (spec.shared_limit)
      stream_.card.shared_bytes = std::min(stream_.card.shared_bytes, spec.shared_limit);
    stream_.hopper_kernels = spec.hopper_kernels && !turned_off("HEARTH_HOPPER");
    stream_.own_products = spec.own_products;
    stream_.invariant = spec.batch_invariant;
    stream_.dependent_launch = !turned_off("HEARTH_DEPENDENT_LAUNCH");
    const char* racecheck = std::getenv("HEARTH_RACECHECK");
    stream_.racecheck = racecheck && std::strcmp(racecheck, "1") == 0;
    stream_.some_rows = spec.some_rows && !turned_off("HEARTH_SOME") && stream_.card.hopper();
    graphs_ = spec.graphs && !turned_off("HEARTH_GRAPH");
    gemms_ = std::make_unique<Gemms>(stream_, GemmsSpec{.tf32 = spec.tf32, .card = card.name});
    stream_.gemms = gemms_.get();
    device_bytes_ = spec.memory_limit ? spec.memory_limit : card.memory_bytes;
  }
  ~CudaBackend() override {
    for (const OwnedStream* s : {&uploads_, &owned_, &downloads_}) cudaStreamSynchronize(s->handle);
  }

  const Kernels& kernels() const override { return cuda_kernels(); }
  Stream& stream() override { return stream_; }
  std::string describe() const override {
    return fmt::format("cuda:{} {}{}", stream_.card.index, name_,
                       spec_.batch_invariant ? ", batch-invariant" : "");
  }
  void enter_thread() override { check(cudaSetDevice(spec_.card), "choosing the card"); }

  std::byte* allocate(int64_t bytes, const std::string& what) override {
    void* p = memory_.allocate(bytes, what);
    check(cudaMemsetAsync(p, 0, size_t(bytes), owned_.handle), "zeroing memory");
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, int64_t bytes) override {
    cudaStreamSynchronize(owned_.handle);  // the memory may still be in use
    memory_.release(p, bytes);
  }
  bool has_host_offload() const override { return true; }
  std::byte* allocate_offloaded(int64_t bytes, const std::string& what) override {
    return pinned_.allocate(bytes, what);  // unified addressing: the GPU uses the same pointer
  }
  void release_offloaded(std::byte* p, int64_t bytes) override {
    cudaStreamSynchronize(owned_.handle);
    pinned_.release(p, bytes);
  }
  void upload(std::byte* device, const void* host, int64_t bytes) override {
    staging_.upload(device, host, bytes);
  }
  void upload_ahead(std::byte* device, const void* host, int64_t bytes) override {
    ahead_.upload(device, host, bytes);
    uploaded_.set(uploads_.handle);
    uploaded_.hold(owned_.handle);
  }
  void download(void* host, const std::byte* device, int64_t bytes) override {
    if (bytes >= Downloads::worth_it && !is_offloaded(host)) return large_.run(host, device, bytes);
    check(cudaMemcpyAsync(host, device, size_t(bytes), cudaMemcpyDefault, owned_.handle),
          "a download");
    synchronize();
  }
  std::unique_ptr<Transfer> make_transfer(int64_t bytes, StreamKind stream) override {
    return std::make_unique<PinnedTransfer>(owned_.handle, handle_of(stream), bytes);
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDeviceToDevice, owned_.handle),
          "a copy on the card");
  }
  void copy_all(std::span<const Copy> all) override {
    const int64_t bytes = int64_t(all.size_bytes());
    if (!copies_fit(all)) return Backend::copy_all(all);
    auto* list = static_cast<Copy*>(stream_.scratch(bytes));
    staging_.upload(list, all.data(), bytes);
    launch_copies(stream_, list, int64_t(all.size()));
  }
  void synchronize() override {
    check(cudaStreamSynchronize(owned_.handle), "the work on the card");
  }
  void order(StreamKind earlier, StreamKind later) override {
    if (earlier == later) return;
    Mark& mark = orders_[size_t(earlier)];
    mark.set(handle_of(earlier));
    mark.hold(handle_of(later));
  }
  void copy_on(StreamKind stream, std::byte* to, const std::byte* from, int64_t bytes) override {
    check(cudaMemcpyAsync(to, from, size_t(bytes), cudaMemcpyDefault, handle_of(stream)), "a copy");
  }
  void finish(StreamKind stream) override {
    check(cudaStreamSynchronize(handle_of(stream)), "the work on the card");
  }
  int64_t free_bytes() const override { return memory_.free_bytes(); }
  bool runs(DType d) const override { return d == DType::f16 || Backend::runs(d); }
  std::string refuses_fp8() const override {
    const Card& c = stream_.card;
    if (c.major < 8 || (c.major == 8 && c.minor < 9))
      return fmt::format(
          "fp8 products need a GPU of compute capability 8.9 (Ada) or later; {} has {}.{}", name_,
          c.major, c.minor);
    return {};
  }
  bool multiplies(WeightFormat) const override { return true; }
  std::string refuses_heads(int64_t qk, int64_t v, DType d) const override {
    return cuda::refused_heads(qk, v, d);
  }
  bool batch_invariant() const override { return spec_.batch_invariant; }
  std::string refuses_cache(DType weights, const CacheLayout& cache) const override {
    const bool plain = cache.format == CacheFormat::plain;
    if (!plain && cache.k_width != cache.v_width)
      return fmt::format("expected a plain cache for keys of {} and values of {}, got one in fp8",
                         cache.k_width, cache.v_width);
    if (!spec_.batch_invariant || (weights != DType::f32 && plain)) return {};
    return fmt::format("expected bf16 or fp16 and a plain cache, to be batch-invariant, got {}",
                       weights == DType::f32 ? to_string(weights) : "a cache in fp8");
  }
  bool prefers_few_programs() const override { return true; }
  bool runs_ahead() const override { return true; }
  int64_t splits_keys_below() const override {
    return spec_.batch_invariant ? 0 : stream_.card.enough_blocks();
  }
  int64_t device_bytes() const override { return device_bytes_; }
  std::unique_ptr<Replay> capture(const std::function<void()>& launch) override {
    if (!graphs_) return {};
    auto graph = std::make_unique<Graph>(owned_.handle, launch);
    stream_.captured();
    return graph;
  }
  MemoryUse memory_use() const override { return {memory_.used_bytes(), memory_.peak_bytes()}; }
  std::optional<DeviceState> device_state() override { return nvml_.state(); }

 private:
  cudaStream_t handle_of(StreamKind stream) const {
    return stream == StreamKind::compute  ? owned_.handle
           : stream == StreamKind::upload ? uploads_.handle
                                          : downloads_.handle;
  }

  CudaSpec spec_;
  std::string name_;
  OwnedStream owned_, uploads_, downloads_;  // compute; copies that overlap it
  DeviceMemory memory_;
  PinnedMemory pinned_;
  Staging staging_, ahead_;
  Downloads large_;
  Mark uploaded_;
  std::array<Mark, 3> orders_;  // by stream: the point up to which another stream waits for it
  CudaStream stream_;
  std::unique_ptr<Gemms> gemms_;
  Nvml nvml_;
  bool graphs_ = true;
  int64_t device_bytes_ = 0;
};

}  // namespace

std::unique_ptr<Backend> make_cuda_backend(const CudaSpec& spec) {
  const CudaDriver driver = cuda_driver();
  if (!driver.problem.empty())
    fail("device", "expected a CUDA card, got none: {}; use --device cpu", driver.problem);
  if (spec.card < 0 || spec.card >= driver.cards)
    fail("device", "expected cuda:0 to cuda:{}, got cuda:{}", driver.cards - 1, spec.card);
  const CudaCard card = cuda_card(spec.card);
  if (!card.problem.empty())
    fail("device", "expected a usable card, got {}: {}; use --device cpu", card.name, card.problem);
  check(cudaSetDevice(spec.card), "choosing the card");
#ifdef HEARTH_CUDA_QUICK
  static std::once_flag told;
  std::call_once(told, [] {
    say("hearth: the CUDA kernels were compiled to be checked, not to be fast; run "
        "scripts/build\n");
  });
#endif
  return std::make_unique<CudaBackend>(spec, card);
}

}  // namespace hearth
