// Streams of a card: results read while later work runs, inputs that arrive beside it, and
// downloads of several threads.
#include <algorithm>
#include <numeric>
#include <thread>
#include <vector>

#include "core/exec.h"
#include "core/read_queue.h"
#include "cuda_case.h"
#include "unit/tape_case.h"

namespace hearth {
namespace {

using test::card;

// What was sent is what was there, although later work overwrites it before the host looks.
TEST(CudaStreams, AReadKeepsItsPlaceAmongTheLaunches) {
  HEARTH_NEEDS_A_CARD();
  StateStore state(card());
  constexpr int64_t n = 1 << 16;
  const Tensor t = state.get("x", {n}, DType::f32);
  ReadQueue queue(card());
  for (int round = 0; round < 50; ++round) {
    std::vector<float> x(static_cast<size_t>(n), float(round));
    state.write<float>("x", x);
    queue.send(t);
  }
  for (int round = 0; round < 50; ++round) {
    const std::span<const float> got = queue.take_as<float>();
    ASSERT_EQ(got.size(), size_t(n));
    EXPECT_TRUE(std::ranges::all_of(got, [&](float g) { return g == float(round); })) << round;
  }
}

// Each run reads what the host wrote for it, however many of them are on their way. The work after
// the input is long enough for the next upload to meet it.
TEST(CudaStreams, EveryRunReadsItsOwnInput) {
  HEARTH_NEEDS_A_CARD();
  constexpr int64_t n = 1 << 18;
  Memory memory(card(), nullptr);
  Tape t(DType::f32, "streams");
  const Var x = t.feed([&] { return t.input("x", {n}, DType::f32); });
  Var y = x;
  for (int i = 0; i < 200; ++i) {
    const Var z = t.temp({n});
    t.push(copy_op(), {y}, {z});
    y = z;
  }
  t.push(copy_op(), {y}, {t.result("first", {n}, DType::f32)});
  t.push(copy_op(), {x}, {t.result("last", {n}, DType::f32)});  // still the same input
  Exec exec(std::move(t), memory);
  ReadQueue first(card()), last(card());
  constexpr int runs = 40;
  for (int run = 0; run < runs; ++run) {
    std::vector<float> v(static_cast<size_t>(n), float(run));
    card().finish(StreamKind::upload);
    memory.state.write<float>(std::string("streams.x") + host_suffix, v);
    exec.run();
    first.send(memory.state.find("streams.first"));
    last.send(memory.state.find("streams.last"));
  }
  for (int run = 0; run < runs; ++run)
    for (ReadQueue* q : {&first, &last}) {
      const std::span<const float> got = q->take_as<float>();
      EXPECT_TRUE(std::ranges::all_of(got, [&](float g) { return g == float(run); })) << run;
    }
}

// A copy on the stream of downloads in the middle of a program, which is captured with it.
TEST(CudaStreams, ACopyBesideTheWorkIsCaptured) {
  HEARTH_NEEDS_A_CARD();
  constexpr int64_t n = 1 << 16;
  Memory memory(card(), nullptr);
  Tape t(DType::f32, "side");
  const Var x = t.input("x", {n}, DType::f32), a = t.temp({n});
  t.push(copy_op(), {x}, {a});
  Op out;
  out.name = "out", out.copies = true;
  t.push(std::move(out), {a}, {t.result("copied", {n}, DType::f32)});
  t.nodes.back().stream = StreamKind::download;
  Var y = x;
  for (int i = 0; i < 20; ++i) {
    const Var z = t.temp({n});
    t.push(copy_op(), {y}, {z});
    y = z;
  }
  t.push(copy_op(), {y}, {t.result("y", {n}, DType::f32)});
  Exec exec(std::move(t), memory);
  for (int run = 0; run < 5; ++run) {
    const std::vector<float> v(static_cast<size_t>(n), float(run));
    memory.state.write<float>("side.x", v);
    exec.run();
    std::vector<float> got(static_cast<size_t>(n));
    memory.state.read<float>("side.copied", got);
    EXPECT_EQ(got, v);
    memory.state.read<float>("side.y", got);
    EXPECT_EQ(got, v);
  }
}

TEST(CudaStreams, SeveralThreadsDownloadAtOnce) {
  HEARTH_NEEDS_A_CARD();
  constexpr int64_t n = (9 << 20) + 12;  // bytes: several pieces and a rest
  constexpr int threads = 4;
  std::vector<Buffer> buffers;
  std::vector<std::vector<unsigned char>> sent(threads), got(threads);
  for (int i = 0; i < threads; ++i) {
    sent[size_t(i)].resize(size_t(n));
    for (size_t k = 0; k < sent[size_t(i)].size(); ++k)
      sent[size_t(i)][k] = static_cast<unsigned char>(k * 7 + k / 4096 + size_t(i) * 31);
    buffers.emplace_back(card(), n, "test");
    card().upload(buffers.back().data(), sent[size_t(i)].data(), n);
  }
  {
    std::vector<std::jthread> all;
    for (int i = 0; i < threads; ++i)
      all.emplace_back([&, i] {
        card().enter_thread();
        for (int round = 0; round < 3; ++round) {
          got[size_t(i)].assign(size_t(n), 0);
          card().download(got[size_t(i)].data(), buffers[size_t(i)].data(), n);
        }
      });
  }
  for (int i = 0; i < threads; ++i) EXPECT_TRUE(got[size_t(i)] == sent[size_t(i)]) << i;
}

}  // namespace
}  // namespace hearth
