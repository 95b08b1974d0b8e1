#include <algorithm>

#include "formats/parquet/parquet.h"
#include "fuzz.h"
#include "unit/parquet_file.h"

int fuzz_parquet(const uint8_t* data, size_t size) {
  return hearth::fuzz::taken([&] {
    // Far smaller limits than a reader's own, or a few bytes may rightly unpack to a gigabyte.
    hearth::ParquetText file(
        std::as_bytes(std::span(data, size)), "text", "fuzz",
        {.footer = 1 << 16, .page = 1 << 16, .page_values = 1 << 12, .page_text = 1 << 18});
    std::string_view text;
    for (int rows = 0; rows < 1 << 12 && file.next(text); ++rows)
      hearth::fuzz::require(file.row() <= file.rows());
  });
}

hearth::fuzz::Seeds seeds_parquet() {
  const hearth::Rows rows = {"one", std::nullopt, "",      "two two", "three",
                             "one", "two",        "three", "four"};
  hearth::fuzz::Seeds seeds;
  for (const int encoding : {0, 2, 6, 7, 8})
    for (const int version : {1, 2})
      seeds.push_back(
          hearth::parquet_of(rows, {.version = version, .encoding = encoding, .page_rows = 4}));
  seeds.push_back(hearth::parquet_of(rows, {.codec = 1, .packed_runs = true}));
  return seeds;
}
