#include "sys/compression/byte_stream.h"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "sys/error.h"

namespace hearth::inline sys {

ByteStream::ByteStream(const std::filesystem::path& path)
    : where_(path == "-" ? "stdin" : path.string()), path_(path), buffer_(1 << 18) {
  if (path != "-") file_ = open_regular(path);
  fd_ = path == "-" ? 0 : file_.get();
  while (end_ < packing_head && refill()) {}
  packing_ = packing_of(Bytes(buffer_).first(end_), where_);
  if (packing_ != Packing::none) unpacker_ = make_unpacker(packing_, where_);
}

bool ByteStream::refill() {
  if (begin_ == end_) begin_ = end_ = 0;
  for (;;) {
    const ssize_t n = ::read(fd_, buffer_.data() + end_, buffer_.size() - end_);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(where_, fmt::format("read at byte {}", packed_));
    packed_ += n;
    end_ += size_t(n);
    return n > 0;
  }
}

size_t ByteStream::read(std::span<std::byte> out) {
  if (peeked_.empty()) return packing_ == Packing::none ? read_plain(out) : read_packed(out);
  const size_t n = std::min(out.size(), peeked_.size());
  std::memcpy(out.data(), peeked_.data(), n);
  peeked_.erase(0, n);
  return n;
}

size_t ByteStream::read_plain(std::span<std::byte> out) {
  if (begin_ == end_ && !refill()) return 0;
  const size_t n = std::min(out.size(), end_ - begin_);
  std::memcpy(out.data(), buffer_.data() + begin_, n);
  begin_ += n;
  return n;
}

size_t ByteStream::read_packed(std::span<std::byte> out) {
  for (;;) {
    const bool more = begin_ < end_ || refill();
    const Unpacker::Step s = unpacker_->step(Bytes(buffer_).subspan(begin_, end_ - begin_), out);
    begin_ += s.in;
    if (s.problem)
      fail(where_, "expected {} data at byte {}, got: {}", name(packing_), packed_position(),
           s.problem);
    if (s.out > 0) return s.out;
    if (more && s.in == 0)
      fail(where_, "expected {} data at byte {}, got data that cannot be decoded", name(packing_),
           packed_position());
    if (more) continue;
    if (unpacker_->complete()) return 0;
    fail(where_, "the {} data is truncated: the file ends at byte {}", name(packing_), packed_);
  }
}

std::string_view ByteStream::peek(size_t wanted) {
  std::vector<std::byte> some(wanted);
  while (peeked_.size() < wanted) {
    const std::span<std::byte> rest(some.data(), wanted - peeked_.size());
    const size_t n = packing_ == Packing::none ? read_plain(rest) : read_packed(rest);
    if (n == 0) break;
    peeked_ += to_text(Bytes(some).first(n));
  }
  return peeked_;
}

void ByteStream::skip(int64_t bytes) {
  if (bytes <= 0) return;
  std::vector<std::byte> dropped(1 << 18);
  for (int64_t left = bytes; left > 0;) {
    const size_t n = read(std::span(dropped).first(size_t(std::min<int64_t>(left, 1 << 18))));
    if (n == 0)
      fail(where_, "expected the same input as before, got {} bytes fewer than the {} it had", left,
           bytes);
    left -= int64_t(n);
    if (packing_ != Packing::none || path_ == "-" || left <= int64_t(end_ - begin_)) continue;
    // A plain file: seek to the rest.
    const off_t to = off_t(packed_position() + left);
    std::error_code none;
    if (to > off_t(std::filesystem::file_size(path_, none)))
      continue;  // too short: the next read reports by how much
    if (::lseek(fd_, to, SEEK_SET) != to) fail_errno(where_, "seek in the file");
    packed_ = to, begin_ = end_ = 0, left = 0;
  }
}

std::string read_unpacked(const std::filesystem::path& path, size_t limit) {
  ByteStream stream(path);
  std::string text;
  for (size_t size = 0;;) {
    if (size == text.size()) text.resize(std::min(std::max<size_t>(2 * size, 1 << 16), limit + 1));
    const size_t n = stream.read(std::as_writable_bytes(std::span(text)).subspan(size));
    if ((size += n) > limit)
      fail(path == "-" ? "stdin" : path.string(), "expected at most {} bytes, got more", limit);
    if (n > 0) continue;
    text.resize(size);
    return text;
  }
}

bool LineReader::next(std::string_view& line, size_t longest) {
  carry_.clear();
  for (;;) {
    const size_t room = std::min(end_ - begin_, longest - carry_.size());
    const char* begin = buffer_.data() + begin_;
    const void* found = room ? std::memchr(begin, '\n', room) : nullptr;
    const size_t n = found ? size_t(static_cast<const char*>(found) - begin) + 1 : room;
    begin_ += n;
    if (found || carry_.size() + n == longest) {
      line = {begin, n};
      if (!carry_.empty()) line = carry_ += line;
      return true;
    }
    carry_.append(begin, n);
    begin_ = 0;
    end_ = stream_.read(std::as_writable_bytes(std::span(buffer_)));
    if (end_ > 0) continue;
    line = carry_;
    return !carry_.empty();
  }
}

}  // namespace hearth::inline sys
