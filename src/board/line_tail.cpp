#include "board/line_tail.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

namespace hearth::inline board {
namespace {

constexpr size_t block_bytes = 256 << 10;
constexpr uint64_t compared_bytes = 64;  // before the offset

std::string read_at(const Fd& fd, uint64_t from, uint64_t count) {
  std::string s(count, '\0');
  const ssize_t n = pread(fd.get(), s.data(), s.size(), off_t(from));
  s.resize(n < 0 ? 0 : size_t(n));
  return s;
}

}  // namespace

LineTail::LineTail(std::filesystem::path path, uint64_t offset)
    : path_(std::move(path)), offset_(offset) {}

void LineTail::restart() {
  offset_ = 0;
  opened_ = skipping_ = false;
  before_.clear();
}

bool LineTail::has_changed(const Fd& fd, uint64_t size, dev_t device, ino_t inode) const {
  if (size < offset_) return true;
  if (!opened_) return false;
  return device != device_ || inode != inode_ ||
         read_at(fd, offset_ - before_.size(), before_.size()) != before_;
}

LineTail::Outcome LineTail::read(const Take& take, uint64_t most) {
  const Fd fd = open_plainly(path_);
  struct stat s {};
  if (!fd || fstat(fd.get(), &s) != 0) {
    if (offset_ == 0) return Outcome::all;
    restart();
    return Outcome::reset;
  }
  if (has_changed(fd, uint64_t(s.st_size), s.st_dev, s.st_ino)) {
    restart();
    return Outcome::reset;
  }
  if (!opened_ && offset_ > 0) skipping_ = read_at(fd, offset_ - 1, 1) != "\n";
  opened_ = true, device_ = s.st_dev, inode_ = s.st_ino;
  std::string block(std::clamp<uint64_t>(most, 4096, block_bytes), '\0'), held;
  uint64_t at = offset_;
  const uint64_t begin = at;
  bool ended = false;
  // A line that was begun is read again next time, unless it is longer than what may be read.
  while (!ended && (at - begin < most || offset_ == begin)) {
    const ssize_t n = pread(fd.get(), block.data(), block.size(), off_t(at));
    ended = n <= 0;
    if (ended) break;
    take_block(std::string_view(block.data(), size_t(n)), at, held, take);
    at += uint64_t(n);
  }
  const uint64_t back = std::min(compared_bytes, offset_);
  before_ = read_at(fd, offset_ - back, back);
  return ended ? Outcome::all : Outcome::some;
}

// `block` was read at byte `at`; `held` is the beginning of a line that continues in it.
void LineTail::take_block(std::string_view block, uint64_t at, std::string& held,
                          const Take& take) {
  for (size_t from = 0; from < block.size();) {
    const size_t end = block.find('\n', from);
    if (end == block.npos) {
      if (!skipping_) held += block.substr(from);
      if (held.size() > max_line_bytes) {
        held = {};
        skipping_ = true;
        ++skipped_;
      }
      if (skipping_) offset_ = at + block.size();
      return;
    }
    const std::string_view rest = block.substr(from, end - from);
    offset_ = at + end + 1;
    from = end + 1;
    if (skipping_) {
      skipping_ = false;
    } else if (held.size() + rest.size() > max_line_bytes) {
      ++skipped_;
    } else if (held.empty()) {
      take(rest, offset_);
    } else {
      held += rest;
      take(held, offset_);
    }
    held.clear();
  }
}

}  // namespace hearth::inline board
