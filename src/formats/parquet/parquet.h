// Reads one column of strings from a Parquet file in memory, row by row, as FineWeb and the common
// writers store it: flat BYTE_ARRAY columns, required or optional; data pages v1 and v2; PLAIN,
// dictionary, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY encodings; uncompressed, SNAPPY, GZIP
// and ZSTD. Anything else is an error that names it. Memory: one page, one dictionary and the
// footer's lists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline formats {

// Limits on what a file may request; far above what writers produce.
struct ParquetLimits {
  int64_t footer = 256 << 20;            // bytes
  int64_t page = 256 << 20;              // uncompressed bytes of a page or dictionary
  int64_t page_values = 16 << 20;        // rows per page
  int64_t page_text = int64_t(1) << 30;  // text bytes per page
};

class ParquetText {
 public:
  // `file` must outlive this object; `where` names it in errors.
  ParquetText(Bytes file, const std::string& column, std::string where, ParquetLimits = {});
  ~ParquetText();
  ParquetText(ParquetText&&) noexcept;

  int64_t rows() const;
  // The next row that is not null, valid until the next call; false at the end.
  bool next(std::string_view& text);
  int64_t row() const;   // rows read so far, including the last one
  int64_t byte() const;  // file offset after the current page
  // Skips forward to the row() of an earlier reader.
  void skip_to(int64_t row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hearth::inline formats
