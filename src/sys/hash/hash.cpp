#include "sys/hash/hash.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <vector>

#include "sys/hash/sha256_blocks.h"

namespace hearth::inline sys {
namespace {

uint32_t load_big_endian(const std::byte* p) {
  return uint32_t(p[0]) << 24 | uint32_t(p[1]) << 16 | uint32_t(p[2]) << 8 | uint32_t(p[3]);
}

constexpr std::array<uint32_t, 256> crc32c_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t c = i;
    for (int bit = 0; bit < 8; ++bit) c = (c >> 1) ^ ((c & 1) ? 0x82f63b78u : 0u);
    table[i] = c;
  }
  return table;
}

}  // namespace

void sha256_blocks_plain(uint32_t state[8], const std::byte* data, size_t blocks) {
  for (; blocks > 0; --blocks, data += 64) {
    uint32_t w[64];
    for (int i = 0; i < 16; ++i) w[i] = load_big_endian(data + 4 * i);
    for (int i = 16; i < 64; ++i) {
      const uint32_t x = w[i - 15], y = w[i - 2];
      const uint32_t s0 = std::rotr(x, 7) ^ std::rotr(x, 18) ^ (x >> 3);
      const uint32_t s1 = std::rotr(y, 17) ^ std::rotr(y, 19) ^ (y >> 10);
      w[i] = w[i - 16] + s0 + w[i - 7] + s1;
    }
    auto [a, b, c, d, e, f, g, h] = std::to_array<uint32_t>(
        {state[0], state[1], state[2], state[3], state[4], state[5], state[6], state[7]});
    for (int i = 0; i < 64; ++i) {
      const uint32_t s1 = std::rotr(e, 6) ^ std::rotr(e, 11) ^ std::rotr(e, 25);
      const uint32_t t1 = h + s1 + ((e & f) ^ (~e & g)) + sha256_k[size_t(i)] + w[i];
      const uint32_t s0 = std::rotr(a, 2) ^ std::rotr(a, 13) ^ std::rotr(a, 22);
      const uint32_t t2 = s0 + ((a & b) ^ (a & c) ^ (b & c));
      h = g, g = f, f = e, e = d + t1, d = c, c = b, b = a, a = t1 + t2;
    }
    const uint32_t add[8] = {a, b, c, d, e, f, g, h};
    for (int i = 0; i < 8; ++i) state[i] += add[i];
  }
}

Sha256::Sha256()
    : blocks_(sha256_blocks_native()), state_{0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                                              0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19} {
  if (!blocks_) blocks_ = sha256_blocks_plain;
}

void Sha256::update(Bytes bytes) {
  if (bytes.empty()) return;
  const size_t held = size_t(size_ % 64);
  size_ += bytes.size();
  if (held > 0) {
    const size_t n = std::min(64 - held, bytes.size());
    std::memcpy(tail_.data() + held, bytes.data(), n);
    bytes = bytes.subspan(n);
    if (held + n < 64) return;
    blocks_(state_.data(), tail_.data(), 1);
  }
  blocks_(state_.data(), bytes.data(), bytes.size() / 64);
  const Bytes rest = bytes.last(bytes.size() % 64);
  std::copy(rest.begin(), rest.end(), tail_.begin());
}

std::string Sha256::hex() {
  const uint64_t bits = size_ * 8;
  // Padding: a one bit, zeros up to 8 bytes before the end of a block, then the length in bits.
  std::array<std::byte, 72> padding{std::byte(0x80)};
  const size_t zeros_end = 1 + (119 - size_ % 64) % 64;
  for (size_t i = 0; i < 8; ++i) padding[zeros_end + i] = std::byte(bits >> (56 - 8 * i));
  update(Bytes(padding).first(zeros_end + 8));
  std::string text;
  for (const uint32_t word : state_) text += fmt::format("{:08x}", word);
  return text;
}

std::string sha256_hex(Bytes bytes) {
  Sha256 hash;
  hash.update(bytes);
  return hash.hex();
}

FileDigest digest_file(const std::filesystem::path& dir, const std::string& file) {
  const std::filesystem::path path = dir / file;
  const Fd fd = open_regular(path);
  // read() instead of a map: a file that shrinks or fails meanwhile is an error, not a signal.
  std::vector<std::byte> buffer(size_t(1) << 20);
  posix_fadvise(fd.get(), 0, 0, POSIX_FADV_SEQUENTIAL);  // read ahead while this thread hashes
  Sha256 hash;
  uint64_t size = 0;
  for (;;) {
    const ssize_t n = read(fd.get(), buffer.data(), buffer.size());
    if (n == 0) break;
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) fail_errno(path, "read the file");
    hash.update(Bytes(buffer).first(size_t(n)));
    size += uint64_t(n);
  }
  return {file, size, hash.hex()};
}

uint32_t crc32c(Bytes bytes) {
  static constexpr auto table = crc32c_table();
  uint32_t c = ~0u;
  for (const std::byte b : bytes) c = table[(c ^ uint32_t(b)) & 0xff] ^ (c >> 8);
  return ~c;
}

}  // namespace hearth::inline sys
