// Workers: a few threads for work that would block the network thread (reading bodies, rendering
// long answers). ByteBudget: the limit on body bytes that the server holds at once.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <thread>
#include <utility>
#include <vector>

namespace hearth::inline http {

class Workers {
 public:
  explicit Workers(int64_t threads);
  // Waits for running tasks and drops waiting ones.
  ~Workers();
  Workers(const Workers&) = delete;
  Workers& operator=(const Workers&) = delete;

  // Thread-safe. Tasks start in order and must not throw.
  void post(std::function<void()>);

 private:
  void run(std::stop_token);

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::jthread> threads_;  // last, because they use other members
};

// Thread-safe.
class ByteBudget {
 public:
  explicit ByteBudget(int64_t most) : most_(most) {}
  int64_t used() const { return used_; }
  // Whether this many more bytes would fit now.
  bool fits(uint64_t bytes) const {
    const int64_t left = most_ - used_;
    return left >= 0 && bytes <= uint64_t(left);
  }

  // The bytes taken by one request; its destructor returns them.
  class Share {
   public:
    Share() = default;
    explicit Share(ByteBudget& budget) : budget_(&budget) {}
    Share(Share&& o) noexcept
        : budget_(std::exchange(o.budget_, nullptr)), bytes_(std::exchange(o.bytes_, 0)) {}
    Share& operator=(Share&& o) noexcept {
      std::swap(budget_, o.budget_), std::swap(bytes_, o.bytes_);
      o.give_back();
      return *this;
    }
    ~Share() { give_back(); }

    // Returns false and changes nothing if the budget lacks the additional bytes.
    bool grow_to(int64_t bytes);
    void give_back();

   private:
    ByteBudget* budget_ = nullptr;
    int64_t bytes_ = 0;
  };

 private:
  const int64_t most_;
  std::atomic<int64_t> used_ = 0;
};

}  // namespace hearth::inline http
