// An atomically written file with its SHA-256. Hashing and writing overlap, and the disk starts
// writing before the file is complete.
#pragma once

#include <string>
#include <vector>

#include "sys/files/files.h"
#include "sys/hash/hash.h"

namespace hearth::inline sys {

class HashedFile {
 public:
  explicit HashedFile(const std::filesystem::path& path) : file_(path) {}
  void write(Bytes);
  std::string commit();  // returns the SHA-256
  uint64_t size() const { return file_.size() + held_.size(); }

 private:
  void put(Bytes);
  void flush();

  AtomicFile file_;
  Sha256 hash_;
  std::vector<std::byte> held_;  // small pieces, collected into larger writes
};

}  // namespace hearth::inline sys
