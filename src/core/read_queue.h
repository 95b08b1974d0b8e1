// ReadQueue: results of the device that the host reads while later work runs. Copies go into pinned
// memory in order with the launches, so a later launch may overwrite the source.
#pragma once

#include <deque>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "core/backend.h"
#include "sys/error.h"

namespace hearth::inline core {

class ReadQueue {
 public:
  explicit ReadQueue(Backend& b) : backend_(b) {}

  // Starts copying `count` elements of a tensor to the host, as they will be after everything
  // launched so far.
  void send(const Tensor& t, int64_t count) {
    const int64_t bytes = count * size_of(t.dtype);
    Slot slot = free_slot(t.bytes());  // of the whole tensor, so that any part fits next time
    slot.bytes = bytes;
    slot.transfer->begin(t.data, bytes);
    sent_.push_back(std::move(slot));
  }
  void send(const Tensor& t) { send(t, t.numel()); }
  // Waits for the oldest result not yet taken; its bytes are valid until the next take().
  std::span<const std::byte> take() {
    if (sent_.empty()) fail("read queue", "nothing was sent that has not been taken");
    if (taken_.transfer) free_.push_back(std::move(taken_));
    taken_ = std::move(sent_.front());
    sent_.pop_front();
    return {taken_.transfer->wait(), static_cast<size_t>(taken_.bytes)};
  }
  template <class T>
  std::span<const T> take_as() {
    const std::span<const std::byte> bytes = take();
    return {reinterpret_cast<const T*>(bytes.data()), bytes.size() / sizeof(T)};
  }
  size_t size() const { return sent_.size(); }  // in flight

 private:
  struct Slot {
    std::unique_ptr<Transfer> transfer = {};
    int64_t most = 0, bytes = 0;
  };
  Slot free_slot(int64_t bytes) {
    for (auto it = free_.begin(); it != free_.end(); ++it)
      if (it->most >= bytes) {
        Slot slot = std::move(*it);
        free_.erase(it);
        return slot;
      }
    return {backend_.make_transfer(bytes, StreamKind::compute), bytes};
  }

  Backend& backend_;
  std::deque<Slot> sent_;
  std::vector<Slot> free_;
  Slot taken_;
};

}  // namespace hearth::inline core
