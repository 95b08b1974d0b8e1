// Numbers as pages of Parquet files hold them (runs of levels and dictionary indices, packed
// deltas) and the strings of one data page.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth {

// The hybrid of repeated and bit-packed runs. Methods return false where the input is bad.
class RunReader {
 public:
  RunReader() = default;
  RunReader(Bytes bytes, int width) : in_(bytes), width_(width) {}  // width <= 32 bits

  // The next value and how often, at most `most` times, it comes in a row. 0 times is bad input.
  int64_t next(uint32_t& value, int64_t most);

 private:
  bool next_run();

  Bytes in_;
  int width_ = 0;
  int64_t repeated_ = 0, packed_ = 0;  // values left of the run
  uint32_t value_ = 0;                 // of a repeated run
  size_t bit_ = 0;                     // of a packed run, which lies at packed_bytes_
  Bytes packed_bytes_;
};

// DELTA_BINARY_PACKED: at most `most` numbers, each in [0, 2^31). `in` is moved behind them. A
// message where the input is bad.
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
  // `values` and the dictionary must outlive this. A message where the input is bad.
  const char* begin(Bytes values, ParquetEncoding, std::span<const std::string_view> dictionary,
                    int64_t most);
  // The next string, until the next call.
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
  std::string last_;  // delta_bytes builds on the string before
};

// The front of `in` as PLAIN has it: 4 bytes of length, then the string. False where it is cut off.
bool take_plain(std::string_view& out, Bytes& in);

}  // namespace hearth
