#include "formats/tensorboard.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <exception>
#include <utility>

#include "sys/hash/hash.h"

namespace hearth::inline formats {
namespace {

template <class T>
void put_raw(std::string& out, T v) {
  char bytes[sizeof v];
  std::memcpy(bytes, &v, sizeof v);
  out.append(bytes, sizeof v);
}

// The protobuf encodings that events need, by field number.
void put_varint(std::string& out, uint64_t v) {
  for (; v >= 0x80; v >>= 7) out += char(v | 0x80);
  out += char(v);
}
void put_int(std::string& out, uint32_t field, int64_t v) {
  put_varint(out, field << 3 | 0);
  put_varint(out, uint64_t(v));
}
void put_double(std::string& out, uint32_t field, double v) {
  put_varint(out, field << 3 | 1);
  put_raw(out, v);
}
void put_float(std::string& out, uint32_t field, float v) {
  put_varint(out, field << 3 | 5);
  put_raw(out, v);
}
void put_bytes(std::string& out, uint32_t field, std::string_view v) {
  put_varint(out, field << 3 | 2);
  put_varint(out, v.size());
  out += v;
}
std::string message(uint32_t field, std::string_view inner) {
  std::string out;
  put_bytes(out, field, inner);
  return out;
}

// Event{wall_time = 1, step = 2, summary = 5{value = 1}}
std::string summary_event(std::string_view value, int64_t step, double wall_time) {
  std::string event;
  put_double(event, 1, wall_time);
  put_int(event, 2, step);
  put_bytes(event, 5, message(1, value));
  return event;
}

// A CRC over data that contains CRCs is weak, so TFRecord stores it rotated and offset.
uint32_t masked_crc(std::string_view data) {
  const uint32_t c = crc32c(to_bytes(data));
  return ((c >> 15) | (c << 17)) + 0xa282ead8u;
}

std::string host_name() {
  std::array<char, 256> name{};
  return gethostname(name.data(), name.size() - 1) == 0 ? name.data() : "host";
}

}  // namespace

EventWriter::EventWriter(const std::filesystem::path& dir) {
  make_dirs(dir);
  const double now =
      std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  // TensorBoard reads the files of a folder in name order, so the time comes first. The number
  // separates two writers in the same second and process.
  for (int number = 0; !fd_; ++number) {
    path_ = dir / fmt::format("events.out.tfevents.{:010}.{}.{}.{}", int64_t(now), host_name(),
                              getpid(), number);
    fd_ = Fd(open(path_.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_APPEND | O_CLOEXEC, 0666));
    if (!fd_ && errno != EEXIST) fail_errno(path_, "create the file");
  }
  std::string event;
  put_double(event, 1, now);
  put_bytes(event, 3, "brain.Event:2");  // file_version
  record(event);
  flush();
}

EventWriter::~EventWriter() {
  try {
    flush();
  } catch (const std::exception&) {}
}

void EventWriter::scalar(std::string_view tag, int64_t step, float value, double wall_time) {
  std::string v;  // Value{tag = 1, simple_value = 2}
  put_bytes(v, 1, tag);
  put_float(v, 2, value);
  record(summary_event(v, step, wall_time));
}

void EventWriter::text(std::string_view tag, int64_t step, std::string_view text,
                       double wall_time) {
  constexpr int64_t dt_string = 7;
  std::string shape_dim,
      tensor;  // TensorProto{dtype = 1, shape = 2{dim = 2{size = 1}}, string = 8}
  put_int(shape_dim, 1, 1);
  put_int(tensor, 1, dt_string);
  put_bytes(tensor, 2, message(2, shape_dim));
  put_bytes(tensor, 8, text);

  std::string v;  // Value{tag = 1, tensor = 8, metadata = 9{plugin_data = 1{plugin_name = 1}}}
  put_bytes(v, 1, tag);
  put_bytes(v, 9, message(1, message(1, "text")));
  put_bytes(v, 8, tensor);
  record(summary_event(v, step, wall_time));
}

// TFRecord: length (u64), masked CRC of the length, data, masked CRC of the data.
void EventWriter::record(std::string_view event) {
  std::string length;
  put_raw(length, uint64_t(event.size()));
  pending_ += length;
  put_raw(pending_, masked_crc(length));
  pending_ += event;
  put_raw(pending_, masked_crc(event));
}

void EventWriter::flush() {
  const std::string out = std::exchange(pending_, {});
  append_whole(fd_, to_bytes(out), size_, path_);
  size_ += out.size();
}

}  // namespace hearth::inline formats
