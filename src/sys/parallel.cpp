#include "sys/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "sys/cores.h"

namespace hearth::inline sys {
namespace {

constexpr size_t most_threads = 16;  // more threads would only wait for the disk

}  // namespace

void in_parallel(size_t count, const std::function<void(size_t)>& job) {
  std::atomic<size_t> next{0};
  std::vector<std::exception_ptr> errors(count);
  const auto work = [&] {
    for (size_t i; (i = next.fetch_add(1)) < count;) {
      try {
        job(i);
      } catch (...) {
        errors[i] = std::current_exception();
        next = count;
      }
    }
  };
  {
    std::vector<std::jthread> others;
    const size_t threads = std::min({count, size_t(usable_threads()), most_threads});
    try {
      while (others.size() + 1 < threads) others.emplace_back(work);
    } catch (const std::system_error&) {}  // no more threads available: fewer do the same work
    work();
  }
  for (const std::exception_ptr& e : errors)
    if (e) std::rethrow_exception(e);
}

}  // namespace hearth::inline sys
