// Backend: where a program runs. It owns memory and streams, and offers one table of kernels.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/cache_layout.h"
#include "core/quantised.h"

namespace hearth::inline core {

// Bytes of device memory that this process holds, now and at its peak.
struct MemoryUse {
  int64_t now = 0, peak = 0;
};

// Readings of a device's sensors.
struct DeviceState {
  double celsius = 0, watts = 0;
  double utilisation = 0;    // fraction of the time that the device was busy
  int64_t memory_bytes = 0;  // in use by all processes
};

// A sequence of launches that a backend replays as one.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;
};

// Queues of one device that run concurrently. Launches on one stream run in order; between streams
// only Backend::order() imposes an order.
enum class StreamKind : uint8_t { compute, upload, download };

// An asynchronous copy from the device to the host; more work may be launched behind it.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // Starts the copy, which runs after everything launched before it on StreamKind::compute.
  virtual void begin(const std::byte* device, int64_t bytes) = 0;
  // Waits until the bytes have arrived; they stay valid until the next begin(). A transfer on
  // another stream than compute overlaps later launches, so nothing may overwrite its source before
  // wait().
  virtual const std::byte* wait() = 0;
};

// A copy from one place on the device to another.
struct Copy {
  std::byte* to;
  const std::byte* from;
  int64_t bytes;
};

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Kernels& kernels() const = 0;
  virtual Stream& stream() = 0;
  virtual std::string describe() const = 0;  // "cpu avx512bf16, 2 threads"
  // Call this first in a thread that did not create the backend or that has used another one since:
  // the current GPU is a property of the thread.
  virtual void enter_thread() {}

  // Zeroed memory, aligned to 256 bytes. Throws an Error that names `what` if there is not enough.
  virtual std::byte* allocate(int64_t bytes, const std::string& what) = 0;
  virtual void release(std::byte*, int64_t bytes) = 0;
  // Whether allocate_offloaded() gives memory that free_bytes() does not count.
  virtual bool has_host_offload() const { return false; }
  // Allocates host memory that kernels can also access: slower, but there is more of it.
  virtual std::byte* allocate_offloaded(int64_t bytes, const std::string& what) {
    return allocate(bytes, what);
  }
  virtual void release_offloaded(std::byte* p, int64_t bytes) { release(p, bytes); }
  virtual void upload(std::byte* device, const void* host, int64_t bytes) = 0;
  // Upload to memory that no work launched so far reads or writes: does not wait for that work.
  virtual void upload_ahead(std::byte* device, const void* host, int64_t bytes) {
    upload(device, host, bytes);
  }
  virtual void download(void* host, const std::byte* device, int64_t bytes) = 0;
  // Makes a transfer of at most `bytes` at a time. On StreamKind::compute the copy runs in order
  // with the launches, so later ones may overwrite its source.
  virtual std::unique_ptr<Transfer> make_transfer(int64_t bytes, StreamKind stream);
  std::unique_ptr<Transfer> make_transfer(int64_t bytes) {
    return make_transfer(bytes, StreamKind::download);
  }
  // Copies between two places on the device that do not overlap, in order with the launches.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    download(host.data(), from, bytes);
    upload(to, host.data(), bytes);
  }
  // Many copies at once; none may read or write what another writes.
  virtual void copy_all(std::span<const Copy> all) {
    for (const Copy& c : all) copy(c.to, c.from, c.bytes);
  }
  virtual void synchronize() = 0;

  // Streams. A device that runs everything in launch order need not override these. Work launched
  // on `later` from here on waits for the work launched on `earlier` so far; may be captured.
  virtual void order(StreamKind /*earlier*/, StreamKind /*later*/) {}
  // Copies between the device and memory from allocate_offloaded(), in order with the stream.
  virtual void copy_on(StreamKind, std::byte* to, const std::byte* from, int64_t bytes) {
    copy(to, from, bytes);
  }
  // Makes the host wait for everything launched on the stream so far.
  virtual void finish(StreamKind) { synchronize(); }
  virtual int64_t free_bytes() const = 0;

  // Zeros if the device uses the memory of the process itself.
  virtual MemoryUse memory_use() const { return {}; }
  virtual std::optional<DeviceState> device_state() { return {}; }
  // All memory of a device that has its own, as far as this process may use it; 0 where the device
  // uses the host's.
  virtual int64_t device_bytes() const { return 0; }
  // Whether a program costs more to make (kernels are timed, graphs captured) than padding costs to
  // compute, so that few shapes are better than exact ones.
  virtual bool prefers_few_programs() const { return false; }
  // Whether launches return before the device has run them, so that the host can prepare the next
  // step meanwhile.
  virtual bool runs_ahead() const { return false; }
  // Decoding with fewer thread blocks than this, one per row and KV head, splits the keys of a row
  // into more of them, by the depth that the program is recorded for; 0: it never does.
  virtual int64_t splits_keys_below() const { return 0; }
  // Whether weights and activations may have this type here.
  virtual bool runs(DType d) const { return d == DType::f32 || d == DType::bf16; }
  // Why products of fp8 tensors cannot run here, as a sentence; empty: they can.
  virtual std::string refuses_fp8() const { return {}; }
  // Whether products accept weights in this format: see GemmQuantisedArgs.
  virtual bool multiplies(WeightFormat f) const {
    return f == WeightFormat::plain || (f != WeightFormat::fp8 && kernels().gemm_quantised);
  }
  // Whether a row of a forward pass has the same bits in any batch, in decoding as in training.
  virtual bool batch_invariant() const { return true; }
  // Why attention over heads of these widths cannot run here, as a sentence; empty: it can.
  virtual std::string refuses_heads(int64_t /*qk*/, int64_t /*v*/, DType) const { return {}; }
  // The same for decoding with weights of this type over such a cache.
  virtual std::string refuses_cache(DType /*weights*/, const CacheLayout&) const { return {}; }
  // Records the launches of `launch` for replay as one; absent if the backend would gain nothing.
  virtual std::unique_ptr<Replay> capture(const std::function<void()>& /*launch*/) { return {}; }
};

// A transfer that is complete when begin() returns, for devices that do not run asynchronously.
class ImmediateTransfer final : public Transfer {
 public:
  ImmediateTransfer(Backend& b, int64_t bytes) : backend_(b), data_(static_cast<size_t>(bytes)) {}
  void begin(const std::byte* device, int64_t bytes) override {
    backend_.download(data_.data(), device, bytes);
  }
  const std::byte* wait() override { return data_.data(); }

 private:
  Backend& backend_;
  std::vector<std::byte> data_;
};
inline std::unique_ptr<Transfer> Backend::make_transfer(int64_t bytes, StreamKind) {
  return std::make_unique<ImmediateTransfer>(*this, bytes);
}

// Owned memory of a backend.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& b, int64_t bytes, const std::string& what, bool offloaded = false)
      : backend_(&b), bytes_(bytes), offloaded_(offloaded) {
    if (bytes) data_ = offloaded ? b.allocate_offloaded(bytes, what) : b.allocate(bytes, what);
  }
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Buffer() {
    if (data_)
      offloaded_ ? backend_->release_offloaded(data_, bytes_) : backend_->release(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) {
    std::swap(backend_, o.backend_);
    std::swap(bytes_, o.bytes_);
    std::swap(data_, o.data_);
    std::swap(offloaded_, o.offloaded_);
  }
  Backend* backend_ = nullptr;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
  bool offloaded_ = false;
};

}  // namespace hearth::inline core
