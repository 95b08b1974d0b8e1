// Backend: where a program runs. It owns memory and a stream, and offers one table of kernels.
#pragma once

#include <memory>
#include <string>

#include "core/kernels.h"

namespace hearth {

class Backend {
 public:
  virtual ~Backend() = default;
  virtual const Kernels& kernels() const = 0;
  virtual Stream& stream() = 0;
  virtual std::string describe() const = 0;  // "cpu avx512bf16, 2 threads"

  // Zeroed memory, aligned to 256 bytes. Throws Error naming `what` when there is not enough.
  virtual std::byte* allocate(int64_t bytes, const std::string& what) = 0;
  virtual void release(std::byte*, int64_t bytes) = 0;
  virtual void upload(std::byte* device, const void* host, int64_t bytes) = 0;
  virtual void download(void* host, const std::byte* device, int64_t bytes) = 0;
  virtual void synchronize() = 0;
  virtual int64_t free_bytes() const = 0;
};

// Memory of a backend with an owner.
class Buffer {
 public:
  Buffer() = default;
  Buffer(Backend& b, int64_t bytes, const std::string& what)
      : backend_(&b), bytes_(bytes), data_(bytes ? b.allocate(bytes, what) : nullptr) {}
  Buffer(Buffer&& o) noexcept { swap(o); }
  Buffer& operator=(Buffer&& o) noexcept {
    swap(o);
    return *this;
  }
  ~Buffer() {
    if (data_) backend_->release(data_, bytes_);
  }
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  void swap(Buffer& o) {
    std::swap(backend_, o.backend_);
    std::swap(bytes_, o.bytes_);
    std::swap(data_, o.data_);
  }
  Backend* backend_ = nullptr;
  int64_t bytes_ = 0;
  std::byte* data_ = nullptr;
};

}  // namespace hearth
