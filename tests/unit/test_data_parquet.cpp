// The Parquet reader against a writer of every layout it takes, and against damage.
#include "formats/parquet/parquet.h"

#include <random>

#include "formats/parquet/parquet_values.h"
#include "unit/data_files.h"
#include "unit/parquet_file.h"

namespace hearth {
namespace {

Rows some_rows(bool optional) {
  Rows rows = {"", "a", "ab", "abc", "ab\xc3\xa9", "naïve 😀", std::string(5000, 'x'), "ab", "ab"};
  std::mt19937 random(4);
  for (int i = 0; i < 150; ++i) {
    if (optional && random() % 3 == 0) {
      rows.push_back(std::nullopt);
    } else {
      rows.push_back(std::string(random() % 40, char('a' + random() % 3)));
    }
  }
  if (optional) rows.push_back(std::nullopt);
  return rows;
}

std::vector<std::string> present(const Rows& rows) {
  std::vector<std::string> all;
  for (const auto& r : rows)
    if (r) all.push_back(*r);
  return all;
}

std::vector<std::string> read_all(const std::string& file, const std::string& column = "text",
                                  ParquetLimits limits = {}) {
  ParquetText text(to_bytes(file), column, "f.parquet", limits);
  std::vector<std::string> all;
  std::string_view s;
  while (text.next(s)) all.emplace_back(s);
  EXPECT_EQ(text.row(), text.rows());
  return all;
}

std::vector<ParquetShape> shapes() {
  std::vector<ParquetShape> all;
  for (const bool optional : {false, true})
    for (const int version : {1, 2})
      for (const int encoding : {0, 2, 6, 7, 8})
        for (const int codec : {0, 1, 2, 6}) {
          if (codec == 2 && !can_unpack(Packing::gzip)) continue;
          if (codec == 6 && !can_unpack(Packing::zstd)) continue;
          ParquetShape s;
          s.optional = optional, s.version = version, s.encoding = encoding, s.codec = codec;
          s.packed_runs = codec % 2;
          s.statistics = encoding == 0;
          all.push_back(s);
        }
  return all;
}

TEST(Parquet, ReadsEveryLayout) {
  for (const ParquetShape& base : shapes())
    for (const size_t page_rows : {1, 7, 1000}) {
      ParquetShape s = base;
      s.page_rows = page_rows, s.group_rows = page_rows == 1000 ? 1000 : 50;
      const Rows rows = some_rows(s.optional);
      EXPECT_EQ(read_all(parquet_of(rows, s)), present(rows))
          << s.optional << " v" << s.version << " encoding " << s.encoding << " codec " << s.codec;
    }
  EXPECT_EQ(read_all(parquet_of({})), std::vector<std::string>{});
}

TEST(Parquet, GoesOnFromAnyRow) {
  for (const int encoding : {0, 7, 8}) {
    ParquetShape s;
    s.encoding = encoding;
    const Rows rows = some_rows(true);
    const std::string file = parquet_of(rows, s);
    const std::vector<std::string> all = present(rows);
    ParquetText first(to_bytes(file), "text", "f");
    std::string_view text;
    for (size_t i = 0; first.next(text); ++i) {
      ParquetText second(to_bytes(file), "text", "f");
      second.skip_to(first.row());
      std::string_view next;
      ASSERT_EQ(second.next(next), i + 1 < all.size());
      if (i + 1 < all.size()) { ASSERT_EQ(next, all[i + 1]); }
    }
    ParquetText beyond(to_bytes(file), "text", "f");
    EXPECT_TRUE(mentions(error_of([&] { beyond.skip_to(10000); }), {"same file"}));
  }
}

TEST(Parquet, NamesWhatItDoesNotTake) {
  const Rows rows = some_rows(true);
  const auto refused = [&](auto change, const char* column = "text") {
    ParquetShape s;
    change(s);
    return error_of([&] { read_all(parquet_of(rows, s), column); });
  };
  const auto as_it_is = [](ParquetShape&) {};
  EXPECT_TRUE(mentions(refused(as_it_is, "body"), {"f.parquet", "\"body\"", "\"id\", \"text\""}));
  EXPECT_TRUE(mentions(refused(as_it_is, "id"), {"\"id\"", "type 2"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.repetition = 2; }), {"\"text\"", "list"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.codec = 4; }), {"BROTLI"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.codec = 7; }), {"LZ4"}));
  EXPECT_TRUE(mentions(refused([](auto& s) { s.encoding = 9; }), {"encoding 9", "byte"}));
  const std::string file = parquet_of(rows);
  EXPECT_TRUE(
      mentions(error_of([&] { read_all(file.substr(0, file.size() - 9)); }), {"truncated"}));
  EXPECT_TRUE(mentions(error_of([&] { read_all("PAR1"); }), {"4 bytes"}));
  EXPECT_TRUE(mentions(error_of([&] { read_all("text, not Parquet at all"); }),
                       {"PAR1", "start with PAR1"}));
  EXPECT_TRUE(mentions(error_of([&] { read_all(file, "text", {.page = 100}); }), {"100"}));
  EXPECT_TRUE(mentions(error_of([&] { read_all(file, "text", {.page_values = 5}); }), {"5 rows"}));
}

// Bytes changed, dropped and cut at random: an error or other strings, and nothing else. The limits
// keep what a damaged file may ask for small.
TEST(Parquet, SurvivesDamage) {
  std::mt19937 random(5);
  const ParquetLimits small{1 << 16, 1 << 16, 1 << 12, 1 << 20};
  int errors = 0, runs = 0;
  for (const ParquetShape& s : shapes()) {
    const std::string whole = parquet_of(some_rows(s.optional), s);
    for (int i = 0; i < 150; ++i, ++runs) {
      std::string bad = whole;
      for (uint32_t n = 1 + random() % 3; n > 0; --n) {
        // Headers and the footer are where it hurts: half of the changes go to the end.
        const size_t span = random() % 2 ? bad.size() : std::min<size_t>(bad.size(), 400);
        const size_t at = bad.size() - 1 - random() % span;
        if (random() % 8 == 0)
          bad.erase(at, random() % 4);
        else
          bad[at] = random() % 4 ? char(random()) : char(bad[at] ^ 1 << random() % 8);
      }
      try {
        read_all(bad, "text", small);
      } catch (const Error& e) {
        ++errors;
        EXPECT_TRUE(mentions(e.what(), {"[f.parquet]"})) << e.what();
      }
    }
  }
  EXPECT_GT(errors, runs / 4);
}

TEST(Parquet, DeltasOfAllWidths) {
  std::mt19937_64 random(6);
  for (const size_t n : {0, 1, 2, 33, 129, 1000}) {
    std::vector<int64_t> values;
    for (size_t i = 0; i < n; ++i) values.push_back(int64_t(random() >> (33 + random() % 31)));
    const std::string packed = deltas_of(values) + "tail";
    Bytes in = to_bytes(packed);
    std::vector<int32_t> out;
    EXPECT_EQ(read_deltas(out, in, int64_t(n)), nullptr);
    EXPECT_EQ(std::vector<int64_t>(out.begin(), out.end()), values);
    EXPECT_EQ(to_text(in), "tail");
    in = to_bytes(packed);
    if (n > 0) { EXPECT_NE(read_deltas(out, in, int64_t(n) - 1), nullptr); }
  }
}

}  // namespace
}  // namespace hearth
