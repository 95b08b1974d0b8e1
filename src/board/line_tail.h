// LineTail: reads the complete lines that were appended to a file since the last call. The file may
// be written meanwhile, cut, replaced, or hold anything.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <filesystem>
#include <functional>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline board {

constexpr size_t max_line_bytes = 1 << 20;  // longer lines are skipped without being held

class LineTail {
 public:
  // Starts at `offset`; if that is inside a line, with the next one.
  explicit LineTail(std::filesystem::path, uint64_t offset = 0);

  enum class Outcome {
    all,   // all complete lines that the file has now were read
    some,  // there is more
    reset  // the file was cut or replaced: nothing was read, and the next call starts at 0
  };
  // Takes a line without its newline, and the offset after it.
  using Take = std::function<void(std::string_view line, uint64_t end)>;
  // Reads about `most` bytes.
  Outcome read(const Take&, uint64_t most);

  uint64_t offset() const { return offset_; }   // after the last line that was read or skipped
  int64_t skipped() const { return skipped_; }  // lines that were too long

 private:
  bool has_changed(const Fd&, uint64_t size, dev_t, ino_t) const;
  void restart();
  void take_block(std::string_view block, uint64_t at, std::string& held, const Take&);

  std::filesystem::path path_;
  uint64_t offset_;
  dev_t device_ = 0;
  ino_t inode_ = 0;
  bool opened_ = false;
  bool skipping_ = false;  // offset_ is inside a line that is not wanted
  int64_t skipped_ = 0;
  std::string before_;  // the bytes before offset_, which tell whether the file is still the same
};

}  // namespace hearth::inline board
