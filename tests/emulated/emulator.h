// Runs device code on the host: every thread of a grid is a fiber, and the scheduler picks the next
// one at random. Bulk copies arrive at random moments. A grid in which no thread can go on is an
// error that says what its threads wait for, as is a barrier or a shuffle that the lanes of a warp
// do not reach together.
//
// It finds wrong results, deadlocks, reads of memory that a copy has not filled or already fills
// again, and packets written twice. It knows no weak memory order, no bank conflicts and no time.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>
#include <functional>

namespace hearth::emulated {

struct GridSpec {
  int blocks = 1, threads = 32;
  int64_t shared_bytes = 0;
  uint64_t seed = 1;  // of the schedule
};
// Calls body(shared memory of its block) in every thread. Throws what a thread throws.
void run_grid(const GridSpec&, const std::function<void(unsigned char*)>& body);

// --- for the code of a thread ---
int thread_index();
int block_index();
int block_count();

void sync_threads(int barrier, int threads);  // a named barrier of the block

// Waits until someone calls wake() with this address.
void wait_for(const void*);
void wake(const void*);
// Fails if a packet with the number of this one has been written here.
void check_write(const uint64_t* at, uint64_t packet);

// Barriers of shared memory that also count bytes.
void barrier_init(uint64_t*, int arrivals);
void barrier_arrive(uint64_t*, int64_t expected_bytes);
void barrier_wait(uint64_t*, uint32_t parity);
void copy_later(void* to, const void* from, uint32_t bytes, uint64_t* barrier);

constexpr size_t most_exchanged = 32;  // bytes per lane
using LaneBytes = std::array<std::byte, most_exchanged>;
const std::array<LaneBytes, 32>& exchange_bytes(const char* what, const LaneBytes& own);

// What all lanes of a warp passed to a call, until the lane's next one.
template <class T>
struct Exchanged {
  const std::array<LaneBytes, 32>& all;
  T operator[](int lane) const {
    T x;
    std::memcpy(&x, all[size_t(lane)].data(), sizeof(T));
    return x;
  }
};
// All lanes of the warp make this call together.
template <class T>
Exchanged<T> exchange(const char* what, const T& own) {
  static_assert(sizeof(T) <= most_exchanged);
  LaneBytes bytes;
  std::memcpy(bytes.data(), &own, sizeof(T));
  return {exchange_bytes(what, bytes)};
}

}  // namespace hearth::emulated
