#include "sys/files/hashed_file.h"

#include <algorithm>
#include <future>

namespace hearth::inline sys {
namespace {

constexpr size_t worth_a_write = size_t(1) << 20;
constexpr size_t most_at_once = size_t(8) << 20;

}  // namespace

void HashedFile::write(Bytes bytes) {
  if (bytes.size() < worth_a_write) {
    held_.insert(held_.end(), bytes.begin(), bytes.end());
    if (held_.size() >= worth_a_write) flush();
    return;
  }
  flush();
  while (!bytes.empty()) {
    const size_t n = std::min(bytes.size(), most_at_once);
    put(bytes.first(n));
    bytes = bytes.subspan(n);
  }
}

void HashedFile::flush() {
  put(held_);
  held_.clear();
}

void HashedFile::put(Bytes bytes) {
  if (bytes.size() < worth_a_write) {  // too small to hash on another thread
    hash_.update(bytes);
    if (!bytes.empty()) file_.write(bytes);
    return;
  }
  // With `deferred`, get() computes the hash if no thread can be started.
  auto hashed = std::async(std::launch::async | std::launch::deferred,
                           [this, bytes] { hash_.update(bytes); });
  file_.write(bytes);
  file_.start_writeback(bytes.size());
  hashed.get();
}

std::string HashedFile::commit() {
  flush();
  file_.commit();
  return hash_.hex();
}

}  // namespace hearth::inline sys
