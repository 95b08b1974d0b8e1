// Streams: nodes that copy beside what computes, in the order that their memory asks for; results
// that the host reads while later work runs.
#include <gtest/gtest.h>

#include <functional>
#include <numeric>

#include "core/exec.h"
#include "core/read_queue.h"
#include "cpu/backend.h"
#include "tape_case.h"

namespace hearth {
namespace {

// A CPU whose copies on another stream than compute are made as late as the order allows. `said` is
// what it was asked, a letter for each: c, u, d for a copy on a stream; "cu" in brackets for an
// order.
class LateStreams final : public Backend {
 public:
  const Kernels& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "late streams"; }
  std::byte* allocate(int64_t n, const std::string& what) override {
    return inner_->allocate(n, what);
  }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void upload(std::byte* to, const void* from, int64_t n) override { inner_->upload(to, from, n); }
  void download(void* to, const std::byte* from, int64_t n) override {
    inner_->download(to, from, n);
  }
  void synchronize() override {}
  int64_t free_bytes() const override { return inner_->free_bytes(); }

  void copy_on(StreamKind stream, std::byte* to, const std::byte* from, int64_t n) override {
    said += letter(stream);
    const auto copy = [=] { std::memcpy(to, from, size_t(n)); };
    stream == StreamKind::compute ? copy() : waiting_[size_t(stream)].push_back(copy);
  }
  void order(StreamKind earlier, StreamKind later) override {
    said += std::string("[") + letter(earlier) + letter(later) + "]";
    finish(earlier);
  }
  std::unique_ptr<Replay> capture(const std::function<void()>& launch) override {
    said += "(";
    launch();
    said += ")";
    return {};
  }
  void finish(StreamKind stream) override {
    for (const auto& copy : waiting_[size_t(stream)]) copy();
    waiting_[size_t(stream)].clear();
  }

  std::string said;

 private:
  static char letter(StreamKind l) { return "cud"[size_t(l)]; }
  const std::unique_ptr<Backend> inner_ = make_cpu_backend(1);
  std::vector<std::function<void()>> waiting_[3];
};

// y = x, where x is fed.
Tape doubling(int64_t n) {
  Tape t(DType::f32, "streams");
  const Var x = t.feed([&] { return t.input("x", {n}, DType::f32); });
  t.push(copy_op(), {x}, {t.result("y", {n}, DType::f32)});
  return t;
}

TEST(Streams, AFedInputArrivesBeforeItIsRead) {
  LateStreams backend;
  Memory memory(backend, nullptr);
  Exec exec(doubling(4), memory);
  std::vector<float> got(4);
  for (const float first : {1.0f, 5.0f}) {
    const std::vector<float> x{first, first + 1, first + 2, first + 3};
    backend.finish(StreamKind::upload);
    memory.state.write<float>(std::string("streams.x") + host_suffix, x);
    exec.run();
    memory.state.read<float>("streams.y", got);
    EXPECT_EQ(got, x);
  }
  // The upload, what waits for it, and an upload of the next run that waits for what reads it now.
  EXPECT_NE(backend.said.find("u[uc]c"), std::string::npos) << backend.said;
  EXPECT_NE(backend.said.find("c[uc][cu]u"), std::string::npos) << backend.said;
}

// A copy to the side in the middle of a program: it waits for what it reads, and the memory of that
// is not used again before the copy has ended.
TEST(Streams, AResultIsCopiedBesideWhatFollows) {
  LateStreams backend;
  Memory memory(backend, nullptr);
  Tape t(DType::f32, "streams");
  const Var x = t.input("x", {64}, DType::f32);
  const Var a = t.temp({64}), b = t.temp({64}), c = t.temp({64});
  t.push(copy_op(), {x}, {a});
  Op out;
  out.name = "out", out.copies = true;
  t.push(std::move(out), {a}, {t.result("copied", {64}, DType::f32)});
  t.nodes.back().stream = StreamKind::download;
  t.push(copy_op(), {x}, {b});
  t.push(copy_op(), {b}, {c});
  t.push(copy_op(), {c}, {t.result("y", {64}, DType::f32)});
  Exec exec(std::move(t), memory);
  EXPECT_NE(exec.memory().offset[size_t(a.id)], exec.memory().offset[size_t(b.id)]);
  EXPECT_NE(exec.memory().offset[size_t(a.id)], exec.memory().offset[size_t(c.id)]);
  std::vector<float> in(64), got(64);
  std::iota(in.begin(), in.end(), 1.0f);
  memory.state.write<float>("streams.x", in);
  exec.run();
  memory.state.read<float>("streams.copied", got);
  EXPECT_EQ(got, in);
  EXPECT_NE(backend.said.find("[cd]d[dc]"), std::string::npos) << backend.said;
}

// A copy that depends on nothing computed before it: in a capture its stream first waits for the
// captured one, or the copy would not belong to the graph.
TEST(Streams, ACaptureIncludesEverySideStream) {
  LateStreams backend;
  Memory memory(backend, nullptr);
  Tape t(DType::f32, "streams");
  const Var x = t.input("x", {8}, DType::f32), z = t.input("z", {8}, DType::f32);
  t.push(copy_op(), {x}, {t.result("y", {8}, DType::f32)});
  Op out;
  out.name = "out", out.copies = true;
  t.push(std::move(out), {z}, {t.result("copied", {8}, DType::f32)});
  t.nodes.back().stream = StreamKind::download;
  Exec exec(std::move(t), memory);
  exec.run();
  exec.run();
  EXPECT_NE(backend.said.find("([cd]d[dc])"), std::string::npos) << backend.said;
}

TEST(ReadQueue, GivesWhatWasThereWhenItWasSent) {
  const auto backend = make_cpu_backend(1);
  StateStore state(*backend);
  const Tensor t = state.get("x", {3}, DType::f32);
  ReadQueue queue(*backend);
  for (const float v : {1.0f, 2.0f, 3.0f}) {
    const std::vector<float> x(3, v);
    state.write<float>("x", x);
    queue.send(t, v == 2 ? 2 : 3);
  }
  EXPECT_EQ(queue.size(), 3u);
  for (const float v : {1.0f, 2.0f, 3.0f}) {
    const std::span<const float> got = queue.take_as<float>();
    EXPECT_EQ(got.size(), v == 2 ? 2u : 3u);
    for (const float g : got) EXPECT_EQ(g, v);
  }
  EXPECT_EQ(queue.size(), 0u);
}

}  // namespace
}  // namespace hearth
