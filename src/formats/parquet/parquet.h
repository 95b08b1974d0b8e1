// One column of strings from a Parquet file in memory, row by row: what FineWeb's files and those
// of the common writers need. Flat BYTE_ARRAY columns, required or optional; data pages of both
// versions; PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY and DELTA_BYTE_ARRAY; plain, SNAPPY, GZIP
// and ZSTD. All else is an error that names it. Memory: one page, one dictionary and what the
// footer lists.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth {

// What a file may ask for; far above what writers make.
struct ParquetLimits {
  int64_t footer = 256 << 20;            // bytes
  int64_t page = 256 << 20;              // bytes of a page or dictionary, unpacked
  int64_t page_values = 16 << 20;        // rows of a page
  int64_t page_text = int64_t(1) << 30;  // bytes of the strings of a page
};

class ParquetText {
 public:
  // `file` must outlive this; `where` names it in errors.
  ParquetText(Bytes file, const std::string& column, std::string where, ParquetLimits = {});
  ~ParquetText();
  ParquetText(ParquetText&&) noexcept;

  int64_t rows() const;
  // The next row that is not null, until the next call; false at the end.
  bool next(std::string_view& text);
  int64_t row() const;   // rows up to and with the last one
  int64_t byte() const;  // of the file, behind the page being read
  // Goes forward to where an earlier reader's row() stood.
  void skip_to(int64_t row);

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace hearth
