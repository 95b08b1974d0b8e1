// TensorBoard event files: TFRecords of hand-encoded protobuf. A resumed run adds another file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline formats {

class EventWriter {
 public:
  explicit EventWriter(const std::filesystem::path& dir);
  ~EventWriter();  // flushes but ignores errors; call flush() to see them
  EventWriter(const EventWriter&) = delete;
  EventWriter& operator=(const EventWriter&) = delete;

  // wall_time is in seconds since 1970.
  void scalar(std::string_view tag, int64_t step, float value, double wall_time);
  void text(std::string_view tag, int64_t step, std::string_view text, double wall_time);
  void flush();
  const std::filesystem::path& path() const { return path_; }

 private:
  void record(std::string_view event);

  std::filesystem::path path_;
  Fd fd_;
  uint64_t size_ = 0;  // bytes written so far
  std::string pending_;
};

}  // namespace hearth::inline formats
