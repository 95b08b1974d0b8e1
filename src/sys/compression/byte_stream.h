// A file or standard input read from front to end, unpacked on the way where its first bytes say it
// is gzip or zstd, and the lines of one. Memory: a few buffers, whatever the length.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sys/compression/compression.h"
#include "sys/files/files.h"

namespace hearth {

class ByteStream {
 public:
  // A regular file, or "-" for standard input, which may be anything.
  explicit ByteStream(const std::filesystem::path&);

  size_t read(std::span<std::byte> out);  // 0: the end, and only there
  void skip(int64_t bytes);               // as far as that; a shorter stream is an error
  std::string_view peek();                // the first bytes of what comes next, a few at least

  Packing packing() const { return packing_; }
  int64_t packed_position() const { return packed_ - int64_t(end_ - begin_); }

 private:
  bool refill();  // false: the file has ended
  size_t read_plain(std::span<std::byte>);
  size_t read_packed(std::span<std::byte>);

  std::string where_;
  std::filesystem::path path_;
  Fd file_;
  int fd_ = -1;         // file_ or 0
  int64_t packed_ = 0;  // bytes read from fd_
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // of what buffer_ still holds
  std::string peeked_;          // read ahead of the caller
  Packing packing_ = Packing::none;
  std::unique_ptr<Unpacker> unpacker_;
};

class LineReader {
 public:
  explicit LineReader(ByteStream& stream) : stream_(stream), buffer_(1 << 18) {}
  // The next line with its line end (the last may lack one), until the next call. False at the end.
  // A line beyond `longest` bytes is cut there; the rest comes as the next.
  bool next(std::string_view& line, size_t longest);

 private:
  ByteStream& stream_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  std::string carry_;  // of a line that began in an earlier buffer
};

}  // namespace hearth
