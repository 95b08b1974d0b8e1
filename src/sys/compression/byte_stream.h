// Reads a file or standard input sequentially, decompressing it if its first bytes are gzip or
// zstd. LineReader reads its lines. Memory use is a few buffers, regardless of length.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "sys/compression/compression.h"
#include "sys/files/files.h"

namespace hearth::inline sys {

class ByteStream {
 public:
  // A regular file, or "-" for standard input, which may be of any kind.
  explicit ByteStream(const std::filesystem::path&);

  size_t read(std::span<std::byte> out);  // 0 only at the end
  void skip(int64_t bytes);               // a shorter stream is an error
  // The next bytes, without consuming them; fewer than `wanted` only at the end.
  std::string_view peek(size_t wanted = 16);

  Packing packing() const { return packing_; }
  int64_t packed_position() const { return packed_ - int64_t(end_ - begin_); }

 private:
  bool refill();  // false: end of file
  size_t read_plain(std::span<std::byte>);
  size_t read_packed(std::span<std::byte>);

  std::string where_;
  std::filesystem::path path_;
  Fd file_;
  int fd_ = -1;         // file_ or 0
  int64_t packed_ = 0;  // bytes read from fd_
  std::vector<std::byte> buffer_;
  size_t begin_ = 0, end_ = 0;  // unread range of buffer_
  std::string peeked_;          // returned by peek(), not yet read
  Packing packing_ = Packing::none;
  std::unique_ptr<Unpacker> unpacker_;
};

// Everything in a file or standard input, of at most `limit` bytes after decompression.
std::string read_unpacked(const std::filesystem::path&, size_t limit);

class LineReader {
 public:
  explicit LineReader(ByteStream& stream) : stream_(stream), buffer_(1 << 18) {}
  // The next line with its line end (the last may lack one), valid until the next call. False at
  // the end. A line longer than `longest` bytes is split; the rest is the next line.
  bool next(std::string_view& line, size_t longest);

 private:
  ByteStream& stream_;
  std::vector<char> buffer_;
  size_t begin_ = 0, end_ = 0;
  std::string carry_;  // start of a line from an earlier buffer
};

}  // namespace hearth::inline sys
