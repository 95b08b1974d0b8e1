// Compressed data, gzip and zstd, told apart by its first bytes and unpacked piece by piece. A
// build without one of the libraries says so when it is asked for.
#pragma once

#include <memory>
#include <span>
#include <string>
#include <vector>

#include "sys/files/files.h"

namespace hearth {

enum class Packing { none, gzip, zstd };
const char* name(Packing);

constexpr size_t packing_head = 8;  // bytes that tell
// Plain data is `none`; xz, bzip2, zip and lz4 are an error that says what to do.
Packing packing_of(Bytes head, const std::string& where);

class Unpacker {
 public:
  struct Step {
    size_t in = 0, out = 0;         // bytes consumed and made
    const char* problem = nullptr;  // what is wrong with the input behind `in`
  };
  virtual ~Unpacker() = default;
  // Goes on until the input is used up, the output is full or something is wrong. Members of gzip
  // and frames of zstd that follow each other are one stream.
  virtual Step step(Bytes in, std::span<std::byte> out) = 0;
  virtual bool complete() const = 0;  // the input may end here
};

// `where` is for the error of a build without the library.
std::unique_ptr<Unpacker> make_unpacker(Packing, const std::string& where);

// All of `in` into `out`, which must come to `size` bytes: a message otherwise, nullptr when it
// did. Memory grows with what is there, not with what `size` promises.
const char* unpack_whole(std::vector<std::byte>& out, Unpacker&, Bytes in, size_t size);

// One file for each library, and one for its absence.
std::unique_ptr<Unpacker> make_gzip();  // nullptr: built without
std::unique_ptr<Unpacker> make_zstd();
const char* gzip_library();  // "zlib 1.2.13"; "" when built without
const char* zstd_library();

}  // namespace hearth
