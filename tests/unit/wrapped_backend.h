// A CPU backend that tests derive from to override one function.
#pragma once

#include "cpu/backend.h"

namespace hearth {

class WrappedBackend : public Backend {
 public:
  explicit WrappedBackend(int threads = 1) : inner_(make_cpu_backend(threads)) {}
  const Kernels& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "wrapped"; }
  std::byte* allocate(int64_t n, const std::string& what) override {
    return inner_->allocate(n, what);
  }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void upload(std::byte* to, const void* from, int64_t n) override { inner_->upload(to, from, n); }
  void download(void* to, const std::byte* from, int64_t n) override {
    inner_->download(to, from, n);
  }
  void synchronize() override { inner_->synchronize(); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }

 private:
  const std::unique_ptr<Backend> inner_;
};

}  // namespace hearth
