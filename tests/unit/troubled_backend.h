// A CPU backend that fails on demand, and that a thread must enter before it uses it, as it must
// select a GPU.
#pragma once

#include <mutex>
#include <set>
#include <string>
#include <thread>

#include "cpu/backend.h"
#include "sys/error.h"

namespace hearth {

class TroubledBackend final : public Backend {
 public:
  TroubledBackend() { enter_thread(); }

  void fail_with(const std::string& trouble) {  // empty: stop failing
    const std::lock_guard lock(mutex_);
    trouble_ = trouble;
  }

  void enter_thread() override {
    const std::lock_guard lock(mutex_);
    entered_.insert(std::this_thread::get_id());
  }
  // Every step of a model starts with an upload.
  void upload(std::byte* device, const void* host, int64_t bytes) override {
    {
      const std::lock_guard lock(mutex_);
      if (!entered_.contains(std::this_thread::get_id()))
        fail("card", "expected a thread that has entered, got another");
      if (!trouble_.empty()) fail("card", "{}", trouble_);
    }
    inner_->upload(device, host, bytes);
  }

  const Kernels& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "troubled"; }
  std::byte* allocate(int64_t n, const std::string& what) override {
    return inner_->allocate(n, what);
  }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void download(void* host, const std::byte* device, int64_t n) override {
    inner_->download(host, device, n);
  }
  void synchronize() override { inner_->synchronize(); }
  int64_t free_bytes() const override { return inner_->free_bytes(); }

 private:
  const std::unique_ptr<Backend> inner_ = make_cpu_backend(1);
  std::mutex mutex_;
  std::set<std::thread::id> entered_;
  std::string trouble_;
};

}  // namespace hearth
