// Safetensors: round trips, shards, and every way a file can be wrong.
#include "formats/safetensors.h"

#include <cstring>
#include <numeric>

#include "formats/json.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

namespace fs = std::filesystem;

std::string with_header(std::string_view header, std::string_view data) {
  const uint64_t n = header.size();
  return std::string(reinterpret_cast<const char*>(&n), 8) + std::string(header) +
         std::string(data);
}

std::string error_in(std::string_view header, std::string_view data) {
  const std::string file = with_header(header, data);
  return error_of([&] { parse_safetensors(to_bytes(file), "m.safetensors"); });
}

std::string entry(std::string_view name, std::string_view dtype, std::string_view shape,
                  std::string_view offsets) {
  return fmt::format(R"("{}":{{"dtype":"{}","shape":{},"data_offsets":{}}})", name, dtype, shape,
                     offsets);
}

std::vector<float> ramp(size_t n, float from = 0) {
  std::vector<float> v(n);
  std::iota(v.begin(), v.end(), from);
  return v;
}

TensorToWrite floats(std::string name, std::vector<int64_t> shape, const std::vector<float>& v) {
  return tensor_to_write(std::move(name),
                         {DType::f32, std::move(shape), std::as_bytes(std::span(v))});
}

TEST(IoSafetensors, ReadsAFileWrittenByHand) {
  const std::string header =
      "{\"__metadata__\":{\"format\":\"pt\"}," + entry("b", "I64", "[1]", "[6,14]") + "," +
      entry("a", "BF16", "[3,1]", "[0,6]") + "," + entry("none", "F32", "[4,0]", "[6,6]") + "," +
      entry("s", "U8", "[]", "[14,15]") + "}   ";
  const std::string file = with_header(header, "abcdefABCDEFGHz");
  const SafetensorsTable t = parse_safetensors(to_bytes(file), "x");
  EXPECT_EQ(t.metadata.at("format"), "pt");
  ASSERT_EQ(t.tensors.size(), 3u);
  EXPECT_EQ(t.tensors.at("a").dtype, DType::bf16);
  EXPECT_EQ(t.tensors.at("a").shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(to_text(t.tensors.at("a").bytes), "abcdef");
  EXPECT_EQ(t.tensors.at("none").numel(), 0);
  EXPECT_EQ(to_text(t.tensors.at("s").bytes), "z");
  EXPECT_EQ(t.foreign.at("b"), "I64");
  EXPECT_EQ(to_text(t.tensors.at("a").slice(1).bytes), "cd");
  expect_error(error_of([&] { t.tensors.at("a").slice(3); }), "index below 3");
}

TEST(IoSafetensors, RoundTripIsAlignedAndHashed) {
  const TempDir dir;
  const std::vector<float> w = ramp(6), v = ramp(3, 100);
  const std::vector<uint8_t> mask = {1, 2, 3};
  const std::vector<double> d = {1e300};
  const FileDigest digest =
      write_safetensors(dir.path(), "m.safetensors",
                        {tensor_to_write("mask", {DType::u8, {3}, std::as_bytes(std::span(mask))}),
                         floats("w \"é\n", {2, 3}, w), floats("v", {3}, v),
                         tensor_to_write("d", {DType::f64, {}, std::as_bytes(std::span(d))})});
  const FileDigest again = digest_file(dir.path(), "m.safetensors");
  EXPECT_EQ(digest.size, again.size);
  EXPECT_EQ(digest.sha256, again.sha256);

  const std::string raw = read_file(dir / "m.safetensors");
  uint64_t header_size = 0;
  std::memcpy(&header_size, raw.data(), 8);
  EXPECT_EQ(header_size % 8, 0u);
  EXPECT_EQ(raw.substr(8, 35), "{\"__metadata__\":{\"format\":\"pt\"},\"d\"");

  const Safetensors file(dir / "m.safetensors");
  EXPECT_EQ(file.metadata().at("format"), "pt");
  EXPECT_EQ(file.tensors().size(), 4u);
  EXPECT_EQ(file.at("w \"é\n").shape, (std::vector<int64_t>{2, 3}));
  for (const auto& [name, t] : file.tensors()) {
    EXPECT_EQ(reinterpret_cast<uintptr_t>(t.bytes.data()) % uintptr_t(size_of(t.dtype)), 0u)
        << name;
  }
  EXPECT_EQ(to_text(file.at("v").bytes), to_text(std::as_bytes(std::span(v))));
  EXPECT_EQ(to_text(file.at("mask").bytes), to_text(std::as_bytes(std::span(mask))));
  EXPECT_EQ(file.find("x"), nullptr);
  expect_error(error_of([&] { file.at("x"); }), "there is no tensor \"x\"");
}

TEST(IoSafetensors, ProducerMayStreamButMustFitItsShape) {
  const TempDir dir;
  const auto produce = [](size_t n) {
    return [n](const ByteSink& sink) {
      for (size_t i = 0; i < n; ++i) sink(to_bytes("x"));
    };
  };
  write_safetensors(dir.path(), "a", {{"t", DType::u8, {5}, produce(5)}});
  EXPECT_EQ(to_text(Safetensors(dir / "a").at("t").bytes), "xxxxx");
  for (const size_t wrong : {size_t(4), size_t(6)}) {
    expect_error(error_of([&] {
                   write_safetensors(dir.path(), "b", {{"t", DType::u8, {5}, produce(wrong)}});
                 }),
                 "to end at byte");
  }
  EXPECT_EQ(names_in(dir.path()), 1);  // nothing of b
}

TEST(IoSafetensors, WriterRefusesWhatCannotBeRead) {
  const TempDir dir;
  const auto v = ramp(1);
  const auto error = [&](std::vector<TensorToWrite> t) {
    return error_of([&] { write_safetensors(dir.path(), "f", t); });
  };
  expect_error(error({floats("a", {1}, v), floats("a", {1}, v)}), "name once");
  expect_error(error({floats("__metadata__", {1}, v)}), "name once");
  expect_error(error({floats("\xff", {1}, v)}), "UTF-8");
  expect_error(error({floats("a", {int64_t(1) << 62, 2}, v)}), "2^63 bytes");
  EXPECT_EQ(names_in(dir.path()), 0);
}

TEST(IoSafetensors, ShardsAboveTheLimitAndReadsThemBack) {
  const TempDir dir;
  const auto a = ramp(10), b = ramp(10, 50), c = ramp(30, 90);
  const std::vector<TensorToWrite> model = {floats("a", {10}, a), floats("b", {5, 2}, b),
                                            floats("c", {30}, c)};
  EXPECT_EQ(write_safetensors_model(dir.path(), model).size(), 1u);
  EXPECT_EQ(Safetensors(dir.path()).tensors().size(), 3u);

  const auto digests = write_safetensors_model(dir.path(), model, 80);
  ASSERT_EQ(digests.size(), 3u);
  EXPECT_EQ(digests[0].file, "model-00001-of-00002.safetensors");
  EXPECT_EQ(digests[2].file, "model.safetensors.index.json");
  for (const FileDigest& d : digests) EXPECT_EQ(d.sha256, digest_file(dir.path(), d.file).sha256);
  EXPECT_FALSE(fs::exists(dir / "model.safetensors"));
  const auto index = read_json(dir / "model.safetensors.index.json");
  EXPECT_EQ(index["metadata"]["total_size"], 200);
  EXPECT_EQ(index["weight_map"]["c"], "model-00002-of-00002.safetensors");
  for (const fs::path& path : {dir.path(), dir / "model.safetensors.index.json"}) {
    const Safetensors file(path);
    EXPECT_EQ(file.tensors().size(), 3u);
    EXPECT_EQ(to_text(file.at("c").bytes), to_text(std::as_bytes(std::span(c))));
  }

  write_safetensors_model(dir.path(), model);
  EXPECT_FALSE(fs::exists(dir / "model.safetensors.index.json"));
}

TEST(IoSafetensors, BadIndexIsOneError) {
  const TempDir dir;
  const auto v = ramp(1);
  write_safetensors(dir.path(), "one.safetensors", {floats("a", {1}, v)});
  write_safetensors(dir.path(), "two.safetensors", {floats("a", {1}, v), floats("b", {1}, v)});
  const auto error = [&](std::string_view index) {
    write_file_atomic(dir / "model.safetensors.index.json", index);
    return error_of([&] { Safetensors s(dir.path()); });
  };
  EXPECT_EQ(error(R"({"weight_map":{"a":"one.safetensors"}})"), "");
  expect_error(error("[]"), "weight_map");
  expect_error(error(R"({"weight_map":[]})"), "weight_map");
  expect_error(error(R"({"weight_map":{"a":7}})"), "a file name");
  expect_error(error(R"({"weight_map":{"a":"../one.safetensors"}})"), "a file name");
  expect_error(error(R"({"weight_map":{"a":"/etc/passwd"}})"), "a file name");
  expect_error(error(R"({"weight_map":{"a":"one.safetensors\u0000"}})"), "a file name");
  expect_error(error(R"({"weight_map":{"z":"one.safetensors"}})"),
               "this shard has no tensor \"z\"");
  expect_error(error(R"({"weight_map":{"a":"three.safetensors"}})"), "No such file");
  expect_error(error(R"({"weight_map":{"a":"one.safetensors","b":"two.safetensors"}})"),
               "one shard only");
  fs::remove(dir / "model.safetensors.index.json");
  expect_error(error_of([&] { Safetensors s(dir.path()); }), "got neither");
}

TEST(IoSafetensors, BadHeaderIsOneError) {
  const auto one = [](std::string_view dtype, std::string_view shape, std::string_view offsets) {
    return error_in("{" + entry("a", dtype, shape, offsets) + "}", "01234567");
  };
  EXPECT_EQ(one("F32", "[2]", "[0,8]"), "");
  EXPECT_EQ(error_in("{}", ""), "");
  expect_error(one("F33", "[2]", "[0,8]"), "a known type");
  expect_error(one("F32", "[3]", "[0,8]"), "12 bytes by its shape, got 8");
  expect_error(one("F32", "[-2]", "[0,8]"), "whole numbers");
  expect_error(one("F32", "[2.0]", "[0,8]"), "whole numbers");
  expect_error(one("F32", "2", "[0,8]"), "whole numbers");
  expect_error(one("F32", "[9223372036854775808]", "[0,8]"), "whole numbers");
  expect_error(one("F32", "[4294967296,4294967296]", "[0,8]"), "2^63 bytes");
  expect_error(one("F32", "[4611686018427387906]", "[0,8]"), "2^63 bytes");  // 2^64 + 8 bytes
  expect_error(one("F32", "[2]", "[8,0]"), "data_offsets");
  expect_error(one("F32", "[2]", "[-8,0]"), "data_offsets");
  expect_error(one("F32", "[2]", "[0,4,8]"), "data_offsets");
  expect_error(one("F32", "[1]", "[4,8]"), "a gap");
  expect_error(one("F32", "[1]", "[0,4]"), "expected 4 bytes of data, got 8");
  expect_error(one("F32", "[3]", "[0,12]"), "truncated");
  expect_error(one("F32", "[2]", "[9223372036854775799,9223372036854775807]"), "a gap");
  expect_error(error_in("[]", ""), "a JSON object");
  expect_error(error_in("{\"a\":1}", ""), "exactly dtype, shape and data_offsets");
  expect_error(error_in(R"({"a":{"dtype":"U8","shape":[],"x":0,"data_offsets":[0,1]}})", "z"),
               "exactly");
  expect_error(error_in(R"({"__metadata__":{"a":1}})", ""), "strings to strings");
  expect_error(error_in("{\"a\":[[[[[]]]]]}", ""), "nesting");
  expect_error(error_in("{\"\xc3\x28\":1}", ""), "UTF-8");
  expect_error(error_in("{", ""), "[m.safetensors:1:");
}

TEST(IoSafetensors, DuplicatesAndOverlapsAreErrors) {
  const std::string a = entry("a", "U8", "[4]", "[0,4]");
  expect_error(error_in("{" + a + "," + a + "}", "0123"), "got \"a\" twice");
  expect_error(error_in("{" + a + "," + entry("b", "U8", "[4]", "[2,6]") + "}", "012345"),
               "an overlap");
  expect_error(error_in("{" + a + "," + entry("b", "U8", "[4]", "[0,4]") + "}", "0123"),
               "an overlap");
  expect_error(error_in("{" + a + "," + entry("b", "U8", "[4]", "[5,9]") + "}", "012345678"),
               "a gap");
}

TEST(IoSafetensors, HugeHeaderLengthIsRefusedBeforeReading) {
  for (const uint64_t n : {uint64_t(100'000'001), uint64_t(1) << 63, ~uint64_t(0)}) {
    const std::string file = std::string(reinterpret_cast<const char*>(&n), 8) + "{}";
    expect_error(error_of([&] { parse_safetensors(to_bytes(file), "x"); }), "at most 100000000");
  }
  const uint64_t three = 3;
  const std::string file = std::string(reinterpret_cast<const char*>(&three), 8) + "{}";
  expect_error(error_of([&] { parse_safetensors(to_bytes(file), "x"); }), "truncated");
}

std::string small_file() {
  return with_header(
      "{" + entry("a", "F16", "[2,2]", "[0,8]") + "," + entry("b", "U8", "[3]", "[8,11]") + "}",
      "abcdefgh012");
}

TEST(IoSafetensors, TruncatedAnywhereIsOneError) {
  const std::string file = small_file();
  for (size_t n = 0; n < file.size(); ++n) {
    // A copy of its own, so that reading past its end is seen by the address sanitizer.
    const std::vector<std::byte> part(to_bytes(file).begin(), to_bytes(file).begin() + long(n));
    expect_error(error_of([&] { parse_safetensors(part, "x"); }), "expected");
  }
  const std::string longer = file + "!";
  expect_error(error_of([&] { parse_safetensors(to_bytes(longer), "x"); }), "bytes of data");
}

TEST(IoSafetensors, FlippedBitsAreErrorsOrWholeTables) {
  const std::string file = small_file();
  int errors = 0;
  for (size_t bit = 0; bit < 8 * (file.size() - 11); ++bit) {
    std::string flipped = file;
    flipped[bit / 8] = char(flipped[bit / 8] ^ (1 << bit % 8));
    const std::vector<std::byte> bytes(to_bytes(flipped).begin(), to_bytes(flipped).end());
    try {
      const auto t = parse_safetensors(bytes, "x");
      for (const auto& [name, s] : t.tensors) {
        EXPECT_EQ(checked_bytes(s.shape, size_of(s.dtype)), int64_t(s.bytes.size()));
        EXPECT_GE(s.bytes.data(), bytes.data());
        EXPECT_LE(s.bytes.data() + s.bytes.size(), bytes.data() + bytes.size());
      }
    } catch (const Error&) { ++errors; }
  }
  EXPECT_GT(errors, 500);  // most flips; not those that rename a tensor
}

}  // namespace
}  // namespace hearth::test
