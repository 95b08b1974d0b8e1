// The footer of a Parquet file: the location of one column's chunks.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "formats/parquet/parquet.h"

namespace hearth::inline formats {

enum class ParquetCodec { plain = 0, snappy = 1, gzip = 2, zstd = 6 };

// The column's data in one row group: consecutive pages.
struct ParquetChunk {
  int64_t begin = 0, end = 0;  // file offsets
  int64_t rows = 0;
  ParquetCodec codec = ParquetCodec::plain;
};

struct ParquetColumn {
  bool optional = false;  // rows may be null
  int64_t rows = 0;
  std::vector<ParquetChunk> chunks;
};

ParquetColumn read_parquet_footer(Bytes file, const std::string& column, const std::string& where,
                                  const ParquetLimits&);

}  // namespace hearth::inline formats
