// Checksums of files: SHA-256 for checkpoints, CRC-32C for TensorBoard records.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <string>

#include "sys/files/files.h"

namespace hearth::inline sys {

class Sha256 {
 public:
  Sha256();
  void update(Bytes);
  std::string hex();  // 64 lowercase hex digits; ends the stream

 private:
  void (*blocks_)(uint32_t state[8], const std::byte* data, size_t blocks);
  std::array<uint32_t, 8> state_;
  std::array<std::byte, 64> tail_;  // bytes of an incomplete block
  uint64_t size_ = 0;
};

std::string sha256_hex(Bytes);

// Size and SHA-256 of a file; `file` is relative to its folder.
struct FileDigest {
  std::string file;
  uint64_t size = 0;
  std::string sha256;
};
FileDigest digest_file(const std::filesystem::path& dir, const std::string& file);

uint32_t crc32c(Bytes);

}  // namespace hearth::inline sys
