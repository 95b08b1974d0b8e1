#include "http/workers.h"

#include <sys/resource.h>

namespace hearth::inline http {

Workers::Workers(int64_t threads) {
  for (int64_t i = 0; i < threads; ++i)
    threads_.emplace_back([this](std::stop_token stop) { run(std::move(stop)); });
}

Workers::~Workers() {
  for (std::jthread& t : threads_) t.request_stop();
  threads_.clear();  // joins the threads before tasks_ is destroyed
}

void Workers::post(std::function<void()> task) {
  {
    const std::lock_guard lock(mutex_);
    tasks_.push_back(std::move(task));
  }
  changed_.notify_one();
}

void Workers::run(std::stop_token stop) {
  // If cores are scarce, the network thread should run first: it has little to do and others wait
  // for it. On Linux this sets the priority of the calling thread only.
  setpriority(PRIO_PROCESS, 0, 5);
  for (;;) {
    std::function<void()> task;
    {
      std::unique_lock lock(mutex_);
      if (!changed_.wait(lock, stop, [this] { return !tasks_.empty(); }) || stop.stop_requested())
        return;
      task = std::move(tasks_.front());
      tasks_.pop_front();
    }
    task();
  }
}

bool ByteBudget::Share::grow_to(int64_t bytes) {
  const int64_t more = bytes - bytes_;
  if (more <= 0) return true;
  if (budget_->used_.fetch_add(more) + more > budget_->most_) {
    budget_->used_ -= more;
    return false;
  }
  bytes_ = bytes;
  return true;
}

void ByteBudget::Share::give_back() {
  if (budget_) budget_->used_ -= std::exchange(bytes_, 0);
}

}  // namespace hearth::inline http
