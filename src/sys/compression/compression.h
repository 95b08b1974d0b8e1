// Streaming decompression of gzip and zstd, detected by their first bytes. A build without one of
// the libraries reports an error when that format is needed.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sys/files/files.h"

namespace hearth::inline sys {

enum class Packing { none, gzip, zstd };
const char* name(Packing);

constexpr size_t packing_head = 8;  // bytes needed to detect the format
// `none` for plain data. xz, bzip2, zip and lz4 are errors that name the remedy.
Packing packing_of(Bytes head, const std::string& where);

class Unpacker {
 public:
  struct Step {
    size_t in = 0, out = 0;         // bytes consumed and produced
    const char* problem = nullptr;  // the error in the input after `in`
  };
  virtual ~Unpacker() = default;
  // Runs until the input is consumed, the output is full or an error occurs. Consecutive gzip
  // members or zstd frames form one stream.
  virtual Step step(Bytes in, std::span<std::byte> out) = 0;
  virtual bool complete() const = 0;  // the input may end here
};

// `where` is named in the error of a build without the library.
std::unique_ptr<Unpacker> make_unpacker(Packing, const std::string& where);

// Unpacks all of `in` into `out`, which must become `size` bytes. Returns an error message, or
// nullptr on success. Memory grows with the actual data, not with `size`.
const char* unpack_whole(std::vector<std::byte>& out, Unpacker&, Bytes in, size_t size);

// The bytes as a gzip file; empty in a build without zlib.
std::string gzip(Bytes);

// Each library has one source file, and one for builds without it.
std::unique_ptr<Unpacker> make_gzip();  // nullptr: built without zlib
std::unique_ptr<Unpacker> make_zstd();
const char* gzip_library();  // "zlib 1.2.13"; "" in a build without it
const char* zstd_library();

}  // namespace hearth::inline sys
