// TensorBoard events, read back by a small TFRecord and protobuf reader of the test's own.
#include "formats/tensorboard.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <vector>

#include "sys/hash/hash.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

template <class T>
T take(std::string_view& in) {
  T v{};
  EXPECT_GE(in.size(), sizeof v);
  if (in.size() < sizeof v) return v;
  std::memcpy(&v, in.data(), sizeof v);
  in.remove_prefix(sizeof v);
  return v;
}

uint64_t take_varint(std::string_view& in) {
  uint64_t v = 0;
  for (int shift = 0; shift < 64; shift += 7) {
    const auto b = take<uint8_t>(in);
    v |= uint64_t(b & 0x7f) << shift;
    if (b < 0x80) break;
  }
  return v;
}

// Field number -> raw value: 8 or 4 bytes, or the contents of a message or string.
std::map<int, std::string> fields(std::string_view in) {
  std::map<int, std::string> out;
  while (!in.empty() && !testing::Test::HasFailure()) {
    const uint64_t key = take_varint(in);
    size_t size = 0;
    std::string value;
    switch (key & 7) {
      case 0:
        value = std::to_string(int64_t(take_varint(in)));
        break;
      case 1:
        size = 8;
        break;
      case 2:
        size = take_varint(in);
        break;
      case 5:
        size = 4;
        break;
      default:
        ADD_FAILURE() << "wire type " << (key & 7);
    }
    if (size) value = in.substr(0, size);
    in.remove_prefix(std::min(size, in.size()));
    EXPECT_TRUE(out.emplace(int(key >> 3), value).second);
  }
  return out;
}

uint32_t unmask(uint32_t masked) {
  const uint32_t rotated = masked - 0xa282ead8u;
  return (rotated >> 17) | (rotated << 15);
}

std::vector<std::string> records(const std::filesystem::path& path) {
  const std::string file = read_file(path);
  std::string_view in = file;
  std::vector<std::string> out;
  while (!in.empty()) {
    const std::string_view length_bytes = in.substr(0, 8);
    const auto length = take<uint64_t>(in);
    EXPECT_EQ(unmask(take<uint32_t>(in)), crc32c(to_bytes(length_bytes)));
    if (length > in.size()) {
      ADD_FAILURE() << "record of " << length;
      return out;
    }
    out.emplace_back(in.substr(0, length));
    in.remove_prefix(length);
    EXPECT_EQ(unmask(take<uint32_t>(in)), crc32c(to_bytes(out.back())));
  }
  return out;
}

template <class T>
T raw(const std::string& bytes) {
  std::string_view in = bytes;
  return take<T>(in);
}

TEST(IoTensorboard, ScalarsAndTextReadBack) {
  const TempDir dir;
  EventWriter writer(dir / "events");
  writer.scalar("train/loss", 3, 2.5f, 1000.25);
  writer.scalar("train/loss", int64_t(1) << 40, -0.0f, 1001);
  writer.text("sample", 7, "once upon", 1002);
  writer.flush();

  const auto events = records(writer.path());
  ASSERT_EQ(events.size(), 4u);
  EXPECT_EQ(fields(events[0])[3], "brain.Event:2");

  auto scalar = fields(events[1]);
  EXPECT_EQ(raw<double>(scalar[1]), 1000.25);
  EXPECT_EQ(scalar[2], "3");
  auto value = fields(fields(scalar[5])[1]);
  EXPECT_EQ(value[1], "train/loss");
  EXPECT_EQ(raw<float>(value[2]), 2.5f);
  EXPECT_EQ(fields(events[2])[2], std::to_string(int64_t(1) << 40));

  auto text = fields(fields(fields(events[3])[5])[1]);
  EXPECT_EQ(text[1], "sample");
  EXPECT_EQ(fields(fields(text[9])[1])[1], "text");
  auto tensor = fields(text[8]);
  EXPECT_EQ(tensor[1], "7");  // DT_STRING
  EXPECT_EQ(fields(fields(tensor[2])[2])[1], "1");
  EXPECT_EQ(tensor[8], "once upon");
}

// The first record of TensorFlow's own files, whose bytes depend on nothing but the time.
TEST(IoTensorboard, FileVersionRecordHasTensorFlowsBytes) {
  const TempDir dir;
  const EventWriter writer(dir.path());
  const std::string file = read_file(writer.path());
  ASSERT_EQ(file.size(), 40u);
  EXPECT_EQ(file.substr(0, 12), std::string("\x18\0\0\0\0\0\0\0\xa3\x7f\x4b\x22", 12));
  EXPECT_EQ(file.substr(12, 1), "\x09");
  EXPECT_EQ(file.substr(21, 15),
            "\x1a\x0d"
            "brain.Event:2");
}

TEST(IoTensorboard, EveryWriterHasItsOwnFile) {
  const TempDir dir;
  EventWriter a(dir.path()), b(dir.path());
  EXPECT_NE(a.path(), b.path());
  EXPECT_LT(a.path(), b.path());
  EXPECT_EQ(names_in(dir.path()), 2);
}

TEST(IoTensorboard, DestructorFlushes) {
  const TempDir dir;
  std::filesystem::path path;
  {
    EventWriter writer(dir.path());
    writer.scalar("x", 1, 1, 1);
    path = writer.path();
  }
  EXPECT_EQ(records(path).size(), 2u);
}

TEST(IoTensorboard, BadFolderIsOneError) {
  const TempDir dir;
  write_file_atomic(dir / "f", "");
  expect_error(error_of([&] { EventWriter w(dir / "f"); }), (dir / "f").string());
}

}  // namespace
}  // namespace hearth::test
