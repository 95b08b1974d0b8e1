// TaskThreads: a few threads that begin tasks in order. Their end waits for the running tasks and
// drops those that wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>
#include <vector>

namespace hearth::inline sys {

class TaskThreads {
 public:
  explicit TaskThreads(int count) {
    for (int i = 0; i < count; ++i)
      threads_.emplace_back([this](const std::stop_token& stop) { run(stop); });
  }
  ~TaskThreads() {
    for (std::jthread& t : threads_) t.request_stop();  // all of them, before the first is joined
  }

  // Thread-safe. Tasks must not throw.
  void post(std::function<void()> task) {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
    changed_.notify_one();
  }

 private:
  void run(const std::stop_token& stop) {
    for (;;) {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !tasks_.empty(); }) || stop.stop_requested())
        return;
      const std::function<void()> task = std::move(tasks_.front());
      tasks_.pop_front();
      lock.unlock();
      task();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<std::function<void()>> tasks_;
  std::vector<std::jthread> threads_;  // last, because they use other members
};

}  // namespace hearth::inline sys
