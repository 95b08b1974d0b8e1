// TaskThread: one thread that runs tasks in order. Its end waits for the running task and drops
// those that wait.
#pragma once

#include <condition_variable>
#include <deque>
#include <functional>
#include <mutex>
#include <stop_token>
#include <thread>

namespace hearth::inline sys {

class TaskThread {
 public:
  TaskThread() : thread_([this](std::stop_token stop) { run(stop); }) {}

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
  std::jthread thread_;  // last, because it uses other members
};

}  // namespace hearth::inline sys
