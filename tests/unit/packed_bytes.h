// Writes gzip and zstd by hand, without compression, so that tests need no library for it.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sys/compression/compression.h"

namespace hearth {

inline std::string little(uint64_t n, int bytes) {
  std::string s;
  for (int i = 0; i < bytes; ++i) s += char(n >> (8 * i));
  return s;
}

inline uint32_t crc32_of(std::string_view text) {
  uint32_t crc = ~0u;
  for (const char c : text) {
    crc ^= uint8_t(c);
    for (int i = 0; i < 8; ++i) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
  }
  return ~crc;
}

// One gzip member of stored blocks.
inline std::string gzip_of(std::string_view text) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  const std::string tail = little(crc32_of(text), 4) + little(text.size(), 4);
  do {
    const size_t n = std::min<size_t>(text.size(), 65535);
    out += char(n == text.size());
    out += little(n, 2) + little(~n, 2);
    out += text.substr(0, n);
    text.remove_prefix(n);
  } while (!text.empty());
  return out + tail;
}

// One zstd frame of raw blocks.
inline std::string zstd_of(std::string_view text) {
  std::string out = "\x28\xb5\x2f\xfd\xa0" + little(text.size(), 4);
  do {
    const size_t n = std::min<size_t>(text.size(), 100000);
    out += little((n == text.size()) | n << 3, 3);
    out += text.substr(0, n);
    text.remove_prefix(n);
  } while (!text.empty());
  return out;
}

inline bool can_unpack(Packing p) {
  return *(p == Packing::gzip ? gzip_library() : zstd_library()) != 0;
}

inline std::string packed_of(Packing p, std::string_view text) {
  return p == Packing::gzip   ? gzip_of(text)
         : p == Packing::zstd ? zstd_of(text)
                              : std::string(text);
}

inline std::string from_hex(std::string_view hex) {
  std::string out;
  for (size_t i = 0; i + 1 < hex.size(); i += 2)
    out += char(std::stoi(std::string(hex.substr(i, 2)), nullptr, 16));
  return out;
}

}  // namespace hearth
