// The named buffers of programs, and handles of them.
#include "core/state_store.h"

#include <gtest/gtest.h>

#include <functional>

#include "core/math.h"
#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "sys/error.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

TEST(StateStore, NamesOneBufferForAll) {
  const auto backend = make_reference_backend();
  StateStore state(*backend);
  const Tensor a = state.get("x", {2, 3}, DType::i32);
  EXPECT_EQ(state.get("x", {2, 3}, DType::i32).data, a.data);
  EXPECT_EQ(state.bytes(), 24);
  EXPECT_EQ(message_of([&] {
              state.get("x", {3, 2}, DType::i32);
            }),
            "[state] expected x to be i32 (2, 3), as another program has it, got i32 (3, 2)");
  EXPECT_EQ(message_of([&] {
              state.get("x", {2, 3}, DType::f32);
            }),
            "[state] expected x to be i32 (2, 3), as another program has it, got f32 (2, 3)");
  EXPECT_EQ(message_of([&] { state.find("y"); }),
            "[state] expected a value some program declared, got y");
  const std::vector<int32_t> v{1, 2, 3, 4, 5, 6};
  state.write<int32_t>("x", v);
  std::vector<int32_t> back(6);
  state.read<int32_t>("x", back);
  EXPECT_EQ(back, v);
  EXPECT_EQ(message_of([&] { state.write<int32_t>("x", std::span(v).first(5)); }),
            "[state] expected 24 bytes for x (2, 3), got 20");
}

TEST(StateRef, FailsWhenMadeForAnotherNameOrType) {
  const auto backend = make_cpu_backend(1);
  StateStore state(*backend);
  state.get("ids", {2, 3}, DType::i32);
  state.get("scalars", {int64_t(sizeof(Scalars))}, DType::u8);
  EXPECT_TRUE(StateRef<int32_t>(state, "ids"));
  EXPECT_EQ(StateRef<int32_t>(state, "ids").size(), 6);
  EXPECT_EQ(StateRef<Scalars>(state, "scalars").size(), 1);
  EXPECT_FALSE(StateRef<float>());
  EXPECT_EQ(message_of([&] { StateRef<int32_t>(state, "idz"); }),
            "[state] expected a value some program declared, got idz");
  EXPECT_EQ(message_of([&] { StateRef<float>(state, "ids"); }),
            "[state] expected ids to have elements f32 of 4 bytes, got i32 (2, 3)");
  struct Larger {
    char bytes[sizeof(Scalars) + 1];
  };
  EXPECT_NE(message_of([&] {
              StateRef<Larger>(state, "scalars");
            }).find("expected scalars to have elements u8"),
            std::string::npos);
}

TEST(StateRef, MovesTheWholeOrAPartAndChecksSizes) {
  const auto backend = make_cpu_backend(1);
  StateStore state(*backend);
  for (const bool host : {false, true}) {
    const std::string name = host ? "x.host" : "x";
    state.get(name, {2, 3}, DType::f32, host);
    const StateRef<float> x(state, name);
    const std::vector<float> v{1, 2, 3, 4, 5, 6};
    x.upload(v);
    std::vector<float> all(6), two(2);
    x.download(all);
    EXPECT_EQ(all, v);
    x.download_part(4, two);
    EXPECT_EQ(two, (std::vector<float>{5, 6}));
    x.upload_part(1, two), x.upload_part_ahead(4, std::vector<float>{7, 8});
    x.download(all);
    EXPECT_EQ(all, (std::vector<float>{1, 5, 6, 4, 7, 8}));
    EXPECT_EQ(message_of([&] { x.upload(std::span(v).first(5)); }),
              "[state] expected 24 bytes for " + name + " (2, 3), got 20");
    EXPECT_EQ(message_of([&] { x.download(two); }),
              "[state] expected 24 bytes for " + name + " (2, 3), got 8");
    EXPECT_EQ(message_of([&] { x.download_part(5, two); }),
              "[state] expected a part of the 6 elements of " + name + ", got elements 5 to 7");
    EXPECT_THROW(x.upload_part(-1, two), Error);
  }
}

}  // namespace
}  // namespace hearth
