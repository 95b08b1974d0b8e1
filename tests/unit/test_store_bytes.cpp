// Parameters from the bytes of a file and back: as they are where the dtypes agree, else by way of
// float, in pieces.
#include <cmath>

#include "core/params.h"
#include "cpu/backend.h"
#include "model/files/tensor_rows.h"
#include "unit/test_io_support.h"
#include "unit/wrapped_backend.h"

namespace hearth {
namespace {

using namespace test;

constexpr int64_t numbers = (1 << 20) + 77;  // more than a piece
constexpr DType dtypes[] = {DType::f32, DType::f64, DType::bf16, DType::f16};

std::vector<float> some_numbers() {
  std::vector<float> v(numbers);
  draw(v, Init::normal(2), 5, "numbers");
  return v;
}

// Bytes at an odd address, as a tensor in a mapped file may lie.
struct Unaligned {
  explicit Unaligned(const std::vector<std::byte>& from) : memory(from.size() + 1) {
    std::ranges::copy(from, memory.begin() + 1);
  }
  Bytes bytes() const { return Bytes(memory).subspan(1); }
  std::vector<std::byte> memory;
};

TEST(StoreBytes, AreSetFromAnyTypeAtAnyAddress) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> v = some_numbers();
  for (const DType from : dtypes)
    for (const DType to : dtypes) {
      SCOPED_TRACE(fmt::format("{} to {}", to_string(from), to_string(to)));
      const Unaligned file(from_floats(v, from));
      const std::vector<float> read = to_floats({from, {numbers}, file.bytes()});
      const std::vector<ParamSpec> specs{{"a", {3}, {}}, {"b", {numbers + 4}, {}}};
      ParamStore whole(*backend, specs, to), pieces(*backend, specs, to);
      std::vector<float> wanted(numbers + 4, 0);
      std::ranges::copy(read, wanted.begin() + 2);
      whole.set("b", wanted);
      pieces.set("b", 2, from, file.bytes());
      EXPECT_EQ(pieces.values(Part::weight, "b"), whole.values(Part::weight, "b"));
      EXPECT_EQ(pieces.values(Part::weight, "a"), std::vector<float>(3));
      EXPECT_EQ(pieces.made(Part::master), pieces.has_master());
      if (pieces.has_master()) {
        EXPECT_EQ(pieces.values(Part::master, "b"), whole.values(Part::master, "b"));
      }
    }
}

TEST(StoreBytes, OutsideTheParameterAreRefused) {
  const auto backend = make_cpu_backend(1);
  ParamStore store(*backend, {{"b", {10}, {}}}, DType::f32);
  const std::vector<float> v(4);
  const auto set = [&](int64_t first) {
    return error_of([&] { store.set("b", first, DType::f32, std::as_bytes(std::span(v))); });
  };
  EXPECT_EQ(set(6), "");
  expect_error(set(7), "expected at most 3 numbers from 7 on for b (10), got 4");
  EXPECT_NE(set(-1), "");
  EXPECT_NE(set(INT64_MAX), "");
}

TEST(StoreBytes, AreStreamedAsAnyType) {
  const auto backend = make_cpu_backend(1);
  const std::vector<float> v = some_numbers();
  for (const DType from : dtypes) {
    ParamStore store(*backend, {{"b", {numbers}, {}}}, from);
    store.set("b", v);
    const Tensor t = store.get(Part::weight, "b");
    const std::vector<float> held = store.values(Part::weight, "b");
    for (const DType to : dtypes)
      for (const auto& [first, count] :
           {std::pair<int64_t, int64_t>{0, numbers}, {3, numbers - 3}, {5, 1}, {0, 0}}) {
        std::vector<std::byte> got;
        stream_elements([&](Bytes b) { got.insert(got.end(), b.begin(), b.end()); }, *backend, t,
                        first, count, to);
        EXPECT_EQ(got, from_floats(std::span(held).subspan(size_t(first), size_t(count)), to));
      }
  }
}

TEST(StoreBytes, ANumberThatDoesNotFitIsNamed) {
  std::vector<float> v = some_numbers();
  EXPECT_EQ(error_of([&] { from_floats(v, DType::f16); }), "");
  v[1000] = 65520;
  expect_error(error_of([&] { from_floats(v, DType::f16); }), "requested dtype, got 65520");
  v[1000] = INFINITY;
  EXPECT_EQ(error_of([&] { from_floats(v, DType::f16); }), "");
}

// A checkpoint whose weights are beyond fp16 would otherwise be loaded with infinities.
TEST(StoreBytes, AWeightBeyondFp16IsRefusedByName) {
  class RunsF16 : public WrappedBackend {  // converts masters itself, as a GPU does
   public:
    bool runs(DType) const override { return true; }
  };
  const auto cpu = make_cpu_backend(1);
  RunsF16 device;
  std::vector<float> v = some_numbers();
  v.back() = -7e4f;
  const std::string expected =
      "[weights] expected values of b within the range of f16, got -70000; use bf16 or fp32";
  for (Backend* backend : {cpu.get(), static_cast<Backend*>(&device)}) {
    ParamStore store(*backend, {{"b", {numbers}, {}}}, DType::f16);
    EXPECT_EQ(error_of([&] { store.set("b", v); }), expected);
    EXPECT_EQ(error_of([&] { store.set("b", 0, DType::f32, std::as_bytes(std::span(v))); }),
              expected);
  }
}

}  // namespace
}  // namespace hearth
