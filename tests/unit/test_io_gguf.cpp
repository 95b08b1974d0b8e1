// GGUF files: values and tensors come back, element types keep what they can, and any damage is one
// error.
#include "formats/gguf/gguf.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>

#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;
using test::TempDir;

std::vector<float> some_numbers(size_t n) {
  std::mt19937 random(5);
  std::normal_distribution<float> draw(0, 1);
  std::vector<float> x(n);
  for (float& v : x) v = draw(random);
  return x;
}

std::string small_file() {
  const TempDir dir;
  GgufKeys keys;
  keys.set("general.architecture", "llama");
  keys.set("a.whole", int64_t(77));
  keys.set("a.number", 0.25f);
  keys.set("a.flag", true);
  keys.set("a.texts", std::vector<std::string>{"one", "", "three"});
  keys.set("a.numbers", std::vector<float>{1, -2});
  keys.set("a.wholes", std::vector<int32_t>{3, -4, 5});
  write_gguf(dir / "m.gguf", keys,
             {{"w", GgmlType::q8_0, {3, 64}, [] { return some_numbers(192); }},
              {"b", GgmlType::f32, {5}, [] { return some_numbers(5); }}});
  return read_file(dir / "m.gguf");
}

template <class T>
void overwrite(std::string& file, size_t at, T x) {
  std::memcpy(file.data() + at, &x, sizeof x);
}

std::string parse_error(const std::string& file) {
  return error_of([&] { parse_gguf(to_bytes(file), "m.gguf"); });
}

TEST(Gguf, ValuesAndTensorsComeBack) {
  const std::string file = small_file();
  const GgufTable t = parse_gguf(to_bytes(file), "m.gguf");
  EXPECT_EQ(t.text("general.architecture"), "llama");
  EXPECT_EQ(t.whole("a.whole"), 77);
  EXPECT_EQ(t.number("a.number"), 0.25);
  EXPECT_EQ(t.number("a.whole"), 77.0);
  EXPECT_TRUE(t.flag("a.flag"));
  EXPECT_EQ(t.texts("a.texts"), (std::vector<std::string_view>{"one", "", "three"}));
  EXPECT_EQ(t.numbers("a.numbers"), (std::vector<float>{1, -2}));
  EXPECT_EQ(t.wholes("a.wholes"), (std::vector<int32_t>{3, -4, 5}));
  ASSERT_EQ(t.tensors.size(), 2u);
  const GgufTensor& w = t.tensors.at("w");
  EXPECT_EQ(w.shape, (std::vector<int64_t>{3, 64}));
  EXPECT_EQ(w.bytes.size(), 6u * 34);
  EXPECT_EQ((w.bytes.data() - to_bytes(file).data()) % 32, 0);
  EXPECT_EQ(from_ggml(t.tensors.at("b").bytes, GgmlType::f32), some_numbers(5));
}

TEST(Gguf, AsksForTheKindItNeeds) {
  const std::string file = small_file();
  const GgufTable t = parse_gguf(to_bytes(file), "m.gguf");
  expect_error(error_of([&] { t.whole("a.number"); }), "expected a.number to be a whole number");
  expect_error(error_of([&] { t.text("a.texts"); }), "expected a.texts to be a text, got a list");
  expect_error(error_of([&] { t.flag("gone"); }), "the key gone is missing");
  expect_error(error_of([&] { t.wholes("a.numbers"); }), "a list of 32-bit whole numbers");
}

// The numbers of a block by hand, so that the bytes are ggml's and not only our own.
TEST(Gguf, BlocksAreGgmls) {
  std::vector<float> x(32, 0.0f);
  x[0] = 1, x[1] = -127, x[31] = 63.5f;
  const auto q8 = to_ggml(x, GgmlType::q8_0);
  ASSERT_EQ(q8.size(), 34u);
  EXPECT_EQ(uint8_t(q8[0]), 0x00);
  EXPECT_EQ(uint8_t(q8[1]), 0x3c);  // a scale of 1
  EXPECT_EQ(int8_t(q8[2]), 1);
  EXPECT_EQ(int8_t(q8[3]), -127);
  EXPECT_EQ(int8_t(q8[33]), 64);  // halves away from zero

  std::fill(x.begin(), x.end(), 0.0f);
  x[0] = -8, x[1] = 7, x[16] = 3, x[17] = 8;  // the first of the two farthest sets the scale
  const auto q4 = to_ggml(x, GgmlType::q4_0);
  ASSERT_EQ(q4.size(), 18u);
  EXPECT_EQ(uint8_t(q4[1]), 0x3c);
  EXPECT_EQ(uint8_t(q4[2]), 0xb0);  // 3 + 8 above -8 + 8
  EXPECT_EQ(uint8_t(q4[3]), 0xff);  // 8 is cut to 7
  EXPECT_EQ(from_ggml(q4, GgmlType::q4_0)[16], 3);
  EXPECT_EQ(from_ggml(to_ggml(std::vector<float>(32), GgmlType::q4_0), GgmlType::q4_0),
            std::vector<float>(32));
}

TEST(Gguf, TypesKeepWhatTheyCan) {
  const std::vector<float> x = some_numbers(640);
  const auto error = [&](GgmlType t) {
    const std::vector<float> y = from_ggml(to_ggml(x, t), t);
    EXPECT_EQ(y.size(), x.size());
    double sum = 0, all = 0;
    for (size_t i = 0; i < x.size(); ++i)
      sum += std::pow(double(x[i]) - double(y[i]), 2), all += double(x[i]) * double(x[i]);
    return std::sqrt(sum / all);
  };
  EXPECT_EQ(error(GgmlType::f32), 0);
  EXPECT_LT(error(GgmlType::f16), 3e-4);
  EXPECT_LT(error(GgmlType::bf16), 2e-3);
  EXPECT_LT(error(GgmlType::q8_0), 8e-3);
  EXPECT_LT(error(GgmlType::q4_0), 0.12);
  EXPECT_GT(error(GgmlType::q4_0), 0.02);
  expect_error(error_of([] { to_ggml(std::vector<float>(33), GgmlType::q8_0); }),
               "expected a multiple of 32 values");
  expect_error(error_of([] { to_ggml(std::vector<float>(32, NAN), GgmlType::q4_0); }),
               "expected finite weights");
}

TEST(Gguf, NamesEveryTypeOfLlamaCpp) {
  for (const GgmlType t : {GgmlType::f32, GgmlType::q8_k, GgmlType::bf16})
    EXPECT_EQ(ggml_type_name(uint32_t(t)), to_string(t));
  EXPECT_EQ(ggml_type_name(39), "MXFP4");
  EXPECT_EQ(ggml_type_name(40), "NVFP4");
  EXPECT_EQ(ggml_type_name(41), "Q1_0");
  EXPECT_EQ(ggml_type_name(42), "Q2_0");
  EXPECT_EQ(ggml_type_name(43), "type 43");
  EXPECT_EQ(ggml_type_name(4), "type 4") << "removed";
}

TEST(Gguf, NamesWhatIsWrong) {
  const std::string good = small_file();
  EXPECT_EQ(parse_error(good), "");
  std::string bad = good;
  bad[0] = 'X';
  expect_error(parse_error(bad), "expected a GGUF file");
  bad = good, overwrite(bad, 4, uint32_t(2));
  expect_error(parse_error(bad), "expected GGUF version 3, got 2");
  bad = good, overwrite(bad, 8, ~uint64_t(0));
  expect_error(parse_error(bad), "m.gguf");
  bad = good, overwrite(bad, 16, ~uint64_t(0));
  expect_error(parse_error(bad), "m.gguf");
  const size_t flag = good.find("a.flag");
  bad = good, overwrite(bad, flag - 8, ~uint64_t(0));
  expect_error(parse_error(bad), "expected a key of at most");
  bad = good, overwrite(bad, flag + 6, uint32_t(13));
  expect_error(parse_error(bad), "expected a value's kind of 0 to 12");
  bad = good, bad.replace(bad.find("a.texts"), 7, "a.whole");
  expect_error(parse_error(bad), "expected every key once, got \"a.whole\" twice");
  const size_t texts = good.find("a.texts") + 7 + 4;
  bad = good, overwrite(bad, texts, uint32_t(GgufKind::list));
  expect_error(parse_error(bad), "expected no nested lists");
  bad = good, overwrite(bad, texts + 4, uint64_t(1) << 60);
  expect_error(parse_error(bad), "m.gguf");
  const size_t w = good.rfind("w\x02");  // the tensor's name, then its rank
  bad = good, overwrite(bad, w + 1, uint32_t(5));
  expect_error(parse_error(bad), "1 to 4 dimensions, got 5");
  bad = good, overwrite(bad, w + 5, int64_t(63));
  expect_error(parse_error(bad), "to be a multiple of 32, got 63");
  bad = good, overwrite(bad, w + 13, int64_t(1) << 62);
  expect_error(parse_error(bad), "a positive size");
  bad = good, overwrite(bad, w + 13, int64_t(0));
  expect_error(parse_error(bad), "a positive size");
  bad = good, overwrite(bad, w + 21, uint32_t(17));
  expect_error(parse_error(bad), "of a type among F32, F16, BF16, Q4_0");
  expect_error(parse_error(bad), "got IQ2_XS");
  bad = good, overwrite(bad, w + 21, uint32_t(12));
  expect_error(parse_error(bad), "to be a multiple of 256, got 64");
  bad = good, overwrite(bad, w + 25, uint64_t(64));
  expect_error(parse_error(bad), "at a multiple of 32");
  bad = good, overwrite(bad, w + 25, uint64_t(3));
  expect_error(parse_error(bad), "at a multiple of 32");
}

// No cut and no flipped byte may do more than throw.
TEST(Gguf, SurvivesDamage) {
  const std::string good = small_file();
  for (size_t n = 0; n < good.size() - 32; ++n) EXPECT_NE(parse_error(good.substr(0, n)), "") << n;
  std::mt19937 random(1);
  for (int i = 0; i < 20000; ++i) {
    std::string bad = good;
    for (int k = 0; k < 3; ++k) bad[random() % (bad.size() * 3 / 4)] = char(random());
    try {
      const GgufTable t = parse_gguf(to_bytes(bad), "m.gguf");
      for (const auto& [name, tensor] : t.tensors) from_ggml(tensor.bytes, tensor.type);
      for (const auto& [key, value] : t.values)
        if (value.list && value.kind == GgufKind::text) t.texts(key);
    } catch (const Error&) {}
  }
}

}  // namespace
}  // namespace hearth
