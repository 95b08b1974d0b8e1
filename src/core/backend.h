// Backend: where a program runs. It owns memory and a stream, and offers one table of kernels.
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

// Bytes this process holds of a device, now and at most so far.
struct MemoryUse {
  int64_t now = 0, peak = 0;
};

// How a device fares, by its own sensors.
struct DeviceState {
  double celsius = 0, watts = 0;
  double utilisation = 0;    // share of time with work on it
  int64_t memory_bytes = 0;  // in use by everybody
};

// A sequence of launches that a backend runs as one.
class Replay {
 public:
  virtual ~Replay() = default;
  virtual void run() = 0;
};

// Queues of one device that run beside each other. What is launched on one stream runs in order;
// between streams only Backend::order() keeps an order.
enum class StreamKind : uint8_t { compute, upload, download };

// Bytes on their way from the device to the host while more is launched behind them.
class Transfer {
 public:
  virtual ~Transfer() = default;
  // After what was launched before it on StreamKind::compute.
  virtual void begin(const std::byte* device, int64_t bytes) = 0;
  // Waits until the bytes are here; they stay until the next begin(). A transfer on another stream
  // than compute runs beside later launches: before wait() nothing may overwrite what it reads.
  virtual const std::byte* wait() = 0;
};

// Bytes to be copied on the device.
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
  // First of all by a thread that did not make the backend, and by one that has used another since:
  // which card a call means is a matter of the thread.
  virtual void enter_thread() {}

  // Zeroed memory, aligned to 256 bytes. Throws Error naming `what` when there is not enough.
  virtual std::byte* allocate(int64_t bytes, const std::string& what) = 0;
  virtual void release(std::byte*, int64_t bytes) = 0;
  // Whether allocate_offloaded() gives memory that free_bytes() does not count.
  virtual bool has_host_offload() const { return false; }
  // The same of the host's memory, where kernels can reach it too: slower, and there is more of it.
  virtual std::byte* allocate_offloaded(int64_t bytes, const std::string& what) {
    return allocate(bytes, what);
  }
  virtual void release_offloaded(std::byte* p, int64_t bytes) { release(p, bytes); }
  virtual void upload(std::byte* device, const void* host, int64_t bytes) = 0;
  // The same for bytes that nothing launched so far reads or writes: it waits for none of that.
  virtual void upload_ahead(std::byte* device, const void* host, int64_t bytes) {
    upload(device, host, bytes);
  }
  virtual void download(void* host, const std::byte* device, int64_t bytes) = 0;
  // Of at most so many bytes at a time. On StreamKind::compute the copy keeps its place among the
  // launches, so later ones may overwrite what it reads.
  virtual std::unique_ptr<Transfer> make_transfer(int64_t bytes, StreamKind stream);
  std::unique_ptr<Transfer> make_transfer(int64_t bytes) {
    return make_transfer(bytes, StreamKind::download);
  }
  // From one place of the device to another that it does not overlap, in order with what runs
  // there.
  virtual void copy(std::byte* to, const std::byte* from, int64_t bytes) {
    std::vector<std::byte> host(static_cast<size_t>(bytes));
    download(host.data(), from, bytes);
    upload(to, host.data(), bytes);
  }
  // Many at once, none of which reads or writes what another writes.
  virtual void copy_all(std::span<const Copy> all) {
    for (const Copy& c : all) copy(c.to, c.from, c.bytes);
  }
  virtual void synchronize() = 0;

  // Streams. A device that runs everything in the order it was asked has nothing to do for them.
  // What is launched on `later` from here on waits for what was launched on `earlier` so far; may
  // be captured.
  virtual void order(StreamKind /*earlier*/, StreamKind /*later*/) {}
  // Between memory of the device and memory that allocate_offloaded() gave, in order with what the
  // stream runs.
  virtual void copy_on(StreamKind, std::byte* to, const std::byte* from, int64_t bytes) {
    copy(to, from, bytes);
  }
  // The host waits for what was launched on a stream so far.
  virtual void finish(StreamKind) { synchronize(); }
  virtual int64_t free_bytes() const = 0;

  // Zeros where the device's memory is the process's own.
  virtual MemoryUse memory_use() const { return {}; }
  virtual std::optional<DeviceState> device_state() { return {}; }
  // How much memory a chunk of logits is worth here: large products run faster on some devices.
  virtual int64_t logits_bytes() const { return int64_t(64) << 20; }
  // How much of it logits may hold from a forward pass to its backward pass, rather than be made
  // again.
  virtual int64_t kept_logits_bytes() const { return 0; }
  // Whether a program costs more to make (kernels are timed, graphs captured) than padding costs to
  // compute, so that few shapes are better than exact ones.
  virtual bool prefers_few_programs() const { return false; }
  // Whether launches return before the device has run them, so that the host can prepare the next
  // step meanwhile.
  virtual bool runs_ahead() const { return false; }
  // Whether weights and activations may be of this type here.
  virtual bool runs(DType d) const { return d == DType::f32 || d == DType::bf16; }
  // Whether products take weights kept so: see GemmQuantisedArgs.
  virtual bool multiplies(WeightFormat f) const {
    return f == WeightFormat::plain || (f != WeightFormat::fp8 && kernels().gemm_quantised);
  }
  // Whether a row of a forward pass has the same bits in any batch, and decoding those of training.
  virtual bool batch_invariant() const { return true; }
  // Why attention over heads of these widths cannot run here, in words; empty: it can.
  virtual std::string refuses_heads(int64_t /*qk*/, int64_t /*v*/, DType) const { return {}; }
  // The same of decoding with weights of this type over such a cache.
  virtual std::string refuses_cache(DType /*weights*/, const CacheLayout&) const { return {}; }
  // What `launch` launches, recorded to be replayed as one; absent where that gains nothing.
  virtual std::unique_ptr<Replay> capture(const std::function<void()>& /*launch*/) { return {}; }
};

// A transfer that is over when it has begun, for devices that run nothing behind the host's back.
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

// Memory of a backend with an owner.
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
