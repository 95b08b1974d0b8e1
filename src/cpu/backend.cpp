#include "cpu/backend.h"

#include <sched.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "cpu/stream.h"
#include "sys/cores.h"
#include "sys/error.h"
#include "sys/memory.h"
#include "sys/threads.h"

namespace hearth {

#define HEARTH_DECLARE(isa, base) \
  namespace base {                \
  extern const Kernels kernels;   \
  }
HEARTH_FOR_EACH_KERNELS(HEARTH_DECLARE)
#undef HEARTH_DECLARE

}  // namespace hearth

namespace hearth::inline cpu {

const Kernels& cpu_kernels(Isa i) {
  switch (i) {
#define HEARTH_CASE(isa, base) \
  case Isa::isa:               \
    return base::kernels;
    HEARTH_FOR_EACH_KERNELS(HEARTH_CASE)
#undef HEARTH_CASE
  }
  fail("cpu", "expected an instruction set built in, got number {}", int(i));
}

namespace {

constexpr int64_t huge_page = 2 << 20;

std::string mebibytes(int64_t bytes) { return fmt::format("{:.1f} MiB", double(bytes) / 1048576); }

// If the pool uses every core, each worker is pinned to a core of its own, so that none waits for
// another at the end of a step. The calling thread belongs to the caller and is not pinned. With
// fewer threads than cores the scheduler places them better. HEARTH_PIN=off disables pinning.
void pin_workers(Threads& threads) {
  const char* wish = std::getenv("HEARTH_PIN");
  if (wish && std::string_view(wish) != "off" && std::string_view(wish) != "on")
    fail_usage("HEARTH_PIN", "expected on or off, got {}", wish);
  const std::vector<int> cores = usable_cores();
  if ((wish && std::string_view(wish) == "off") || int(cores.size()) != threads.count()) return;
  std::atomic<int> there{0};
  threads.run(threads.count(), [&](int64_t, int worker) {
    ++there;  // no worker takes a second piece before all have their first
    while (there.load() < threads.count()) std::this_thread::yield();
    if (worker == 0) return;
    cpu_set_t own;
    CPU_ZERO(&own);
    CPU_SET(cores[size_t(worker)], &own);
    sched_setaffinity(0, sizeof own, &own);  // best effort: failure only costs speed
  });
}

class CpuBackend final : public Backend {
 public:
  CpuBackend(int threads, Isa isa)
      : isa_(isa),
        threads_(threads),
        stream_{{}, threads_, scratch_, gemm_table(isa), fp8_scratch_} {
    pin_workers(threads_);
  }

  const Kernels& kernels() const override { return cpu_kernels(isa_); }
  Stream& stream() override { return stream_; }
  std::string describe() const override {
    return fmt::format("cpu {}, {} thread{}", name(isa_), threads_.count(),
                       threads_.count() == 1 ? "" : "s");
  }

  std::byte* allocate(int64_t bytes, const std::string& what) override {
    if (bytes <= 0) fail("cpu", "expected a positive size of {}, got {} bytes", what, bytes);
    if (const int64_t left = free_bytes(); bytes > left)
      fail("cpu", "expected memory for {} ({}), got {} available", what, mebibytes(bytes),
           mebibytes(left));
    void* p =
        mmap(nullptr, size_t(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED)
      fail("cpu", "expected memory for {} ({}), got: {}", what, mebibytes(bytes),
           std::strerror(errno));
    if (bytes >= huge_page)
      madvise(p, size_t(bytes), MADV_HUGEPAGE);  // best effort: failure only costs speed
    return static_cast<std::byte*>(p);
  }
  void release(std::byte* p, int64_t bytes) override { munmap(p, size_t(bytes)); }
  void upload(std::byte* device, const void* host, int64_t bytes) override {
    std::memcpy(device, host, size_t(bytes));
  }
  void download(void* host, const std::byte* device, int64_t bytes) override {
    std::memcpy(host, device, size_t(bytes));
  }
  void copy(std::byte* to, const std::byte* from, int64_t bytes) override {
    std::memcpy(to, from, size_t(bytes));
  }
  void synchronize() override {}
  int64_t free_bytes() const override { return available_memory(); }

 private:
  Isa isa_;
  Threads threads_;
  Scratch scratch_, fp8_scratch_;
  CpuStream stream_;
};

}  // namespace

CpuStream& cpu_stream(Stream& s) { return static_cast<CpuStream&>(s); }

std::unique_ptr<Backend> make_cpu_backend(int threads, std::optional<Isa> isa) {
  return std::make_unique<CpuBackend>(threads, isa ? *isa : best_isa());
}

}  // namespace hearth::inline cpu
