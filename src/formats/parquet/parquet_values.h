// Decoders for Parquet pages: runs of levels and dictionary indices, packed deltas, and the strings
// of one data page.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth::inline formats {

// The RLE/bit-packing hybrid. Methods return false on bad input.
class RunReader {
 public:
  RunReader() = default;
  RunReader(Bytes bytes, int width) : in_(bytes), width_(width) {}  // width <= 32 bits

  // The next value and its number of repetitions, at most `most`. 0 means bad input.
  int64_t next(uint32_t& value, int64_t most);

 private:
  bool next_run();

  Bytes in_;
  int width_ = 0;
  int64_t repeated_ = 0, packed_ = 0;  // values left in the run
  uint32_t value_ = 0;                 // value of a repeated run
  size_t bit_ = 0;                     // bit position in packed_bytes_
  Bytes packed_bytes_;
};

// DELTA_BINARY_PACKED: at most `most` numbers, each in [0, 2^31). Advances `in` past them. Returns
// an error message for bad input.
const char* read_deltas(std::vector<int32_t>& out, Bytes& in, int64_t most);

enum class ParquetEncoding {
  plain = 0,
  plain_dictionary = 2,
  delta_length = 6,
  delta_bytes = 7,
  rle_dictionary = 8
};

class PageStrings {
 public:
  PageStrings() = default;
  // `values` and the dictionary must outlive this object. Returns an error message for bad input.
  const char* begin(Bytes values, ParquetEncoding, std::span<const std::string_view> dictionary,
                    int64_t most);
  // The next string, valid until the next call.
  const char* next(std::string_view&);

 private:
  const char* next_indexed(std::string_view&);
  const char* next_delta(std::string_view&);

  ParquetEncoding encoding_ = ParquetEncoding::plain;
  Bytes rest_;
  std::span<const std::string_view> dictionary_;
  RunReader indices_;
  uint32_t index_ = 0;
  int64_t repeats_ = 0, most_ = 0;
  std::vector<int32_t> lengths_, prefixes_;
  size_t at_ = 0;
  std::string last_;  // the previous string, for delta_bytes
};

// Reads a PLAIN string from the front of `in`: 4 bytes of length, then the bytes. False if
// truncated.
bool take_plain(std::string_view& out, Bytes& in);

}  // namespace hearth::inline formats
