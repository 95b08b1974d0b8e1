#include "cuda/device/downloads.h"

#include <algorithm>
#include <cstring>

#include "cuda/device/stream.h"

namespace hearth::cuda {
namespace {

constexpr int64_t half = 2 << 20;  // bytes: enough for the full bandwidth of the bus

}  // namespace

// Two halves of pinned memory, and the stream that copies into them.
struct Downloads::Block {
  Block() {
    check(cudaMallocHost(&data, size_t(2 * half)), "allocating pinned memory");
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "making a stream");
    for (cudaEvent_t& e : arrived)
      check(cudaEventCreateWithFlags(&e, cudaEventDisableTiming), "making an event");
    check(cudaEventCreateWithFlags(&launched, cudaEventDisableTiming), "making an event");
  }
  ~Block() {
    if (stream) cudaStreamSynchronize(stream), cudaStreamDestroy(stream);
    for (cudaEvent_t e : {arrived[0], arrived[1], launched})
      if (e) cudaEventDestroy(e);
    if (data) cudaFreeHost(data);
  }
  Block(const Block&) = delete;

  std::byte* at(int64_t piece) const { return static_cast<std::byte*>(data) + piece % 2 * half; }

  void* data = nullptr;
  cudaStream_t stream = nullptr;
  cudaEvent_t arrived[2] = {}, launched = nullptr;
};

Downloads::Downloads(cudaStream_t work) : work_(work) {}
Downloads::~Downloads() = default;

std::unique_ptr<Downloads::Block> Downloads::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      std::unique_ptr<Block> block = std::move(free_.back());
      free_.pop_back();
      return block;
    }
  }
  return std::make_unique<Block>();
}

void Downloads::give(std::unique_ptr<Block> block) {
  const std::lock_guard lock(mutex_);
  free_.push_back(std::move(block));
}

void Downloads::run(void* host, const std::byte* device, int64_t bytes) {
  std::unique_ptr<Block> block = take();
  check(cudaEventRecord(block->launched, work_), "marking a stream");
  check(cudaStreamWaitEvent(block->stream, block->launched), "waiting");
  const int64_t pieces = (bytes + half - 1) / half;
  const auto size = [&](int64_t piece) { return size_t(std::min(half, bytes - piece * half)); };
  const auto begin = [&](int64_t piece) {
    check(cudaMemcpyAsync(block->at(piece), device + piece * half, size(piece), cudaMemcpyDefault,
                          block->stream),
          "a download");
    check(cudaEventRecord(block->arrived[piece % 2], block->stream), "marking a stream");
  };
  for (int64_t piece = 0; piece < std::min<int64_t>(pieces, 2); ++piece) begin(piece);
  for (int64_t piece = 0; piece < pieces; ++piece) {
    check(cudaEventSynchronize(block->arrived[piece % 2]), "the work on the card");
    std::memcpy(static_cast<std::byte*>(host) + piece * half, block->at(piece), size(piece));
    if (piece + 2 < pieces) begin(piece + 2);
  }
  give(std::move(block));
}

}  // namespace hearth::cuda
