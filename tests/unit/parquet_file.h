// Writes small Parquet files with one column of strings, in every layout that the reader supports.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "unit/packed_bytes.h"

namespace hearth {

using Rows = std::vector<std::optional<std::string>>;

struct ParquetShape {
  bool optional = true;
  int version = 1;  // of data pages
  int encoding =
      0;  // 0 PLAIN, 2 PLAIN_DICTIONARY, 6 DELTA_LENGTH, 7 DELTA_BYTE_ARRAY, 8 RLE_DICTIONARY
  int codec = 0;  // 0 plain, 1 SNAPPY, 2 GZIP, 6 ZSTD
  size_t page_rows = 7, group_rows = 20;
  bool packed_runs = false;  // levels and indices bit-packed instead of repeated
  std::string column = "text";
  int repetition = -1, type = 6;  // of the column; -1: by `optional`
  bool statistics = false;        // adds a string before the required fields of page headers
};

class CompactWriter {
 public:
  std::string out;
  void field(int id, int type) {
    out += char((id - last_) << 4 | type);
    last_ = id;
  }
  void number(int id, int64_t n, int type = 5) { field(id, type), zigzag(n); }
  void boolean(int id, bool b) { field(id, b ? 1 : 2); }
  void text(int id, const std::string& s) { field(id, 8), varint(s.size()), out += s; }
  void list(int id, size_t n, int type) {
    field(id, 9);
    if (n < 15)
      out += char(n << 4 | size_t(type));
    else
      out += char(0xf0 | type), varint(n);
  }
  void structure(int id, const std::string& inner) { field(id, 12), out += inner; }
  std::string done() { return out + '\0'; }
  void varint(uint64_t n) {
    for (; n > 127; n >>= 7) out += char(n | 128);
    out += char(n);
  }
  void zigzag(int64_t n) { varint(uint64_t(n) << 1 ^ uint64_t(n >> 63)); }

 private:
  int last_ = 0;
};

inline std::string varint_of(uint64_t n) {
  CompactWriter w;
  w.varint(n);
  return w.out;
}

// Values below 2^width as repeated runs, or as one bit-packed run.
inline std::string runs_of(const std::vector<uint32_t>& values, int width, bool packed) {
  std::string out;
  if (packed) {
    const size_t groups = (values.size() + 7) / 8;
    std::string bits(groups * size_t(width), '\0');
    for (size_t i = 0, at = 0; i < values.size(); ++i)
      for (int b = 0; b < width; ++b, ++at)
        if (values[i] >> b & 1) bits[at / 8] = char(bits[at / 8] | 1 << at % 8);
    return varint_of(groups << 1 | 1) + bits;
  }
  for (size_t i = 0, n; i < values.size(); i += n) {
    for (n = 1; i + n < values.size() && values[i + n] == values[i];) ++n;
    out += varint_of(n << 1) + little(values[i], (width + 7) / 8);
  }
  return out;
}

// DELTA_BINARY_PACKED in blocks of 128 with 4 miniblocks.
inline std::string deltas_of(const std::vector<int64_t>& values) {
  CompactWriter w;
  w.varint(128), w.varint(4), w.varint(values.size()), w.zigzag(values.empty() ? 0 : values[0]);
  for (size_t i = 1; i < values.size(); i += 128) {
    const size_t n = std::min<size_t>(128, values.size() - i);
    int64_t low = INT64_MAX;
    for (size_t j = i; j < i + n; ++j) low = std::min(low, values[j] - values[j - 1]);
    w.zigzag(low);
    std::string widths, data;
    for (size_t m = 0; m < 4; ++m) {
      int width = 0;
      for (size_t j = i + 32 * m; j < i + n && j < i + 32 * (m + 1); ++j)
        while (uint64_t(values[j] - values[j - 1] - low) >> width) ++width;
      widths += char(width);
      if (i + 32 * m >= i + n) continue;
      std::string bits(size_t(width) * 4, '\0');
      for (size_t j = i + 32 * m, at = 0; j < i + n && j < i + 32 * (m + 1); ++j)
        for (int b = 0; b < width; ++b, ++at)
          if (uint64_t(values[j] - values[j - 1] - low) >> b & 1)
            bits[at / 8] = char(bits[at / 8] | 1 << at % 8);
      data += bits;
    }
    w.out += widths + data;
  }
  return w.out;
}

class ParquetWriter {
 public:
  ParquetWriter(const Rows& rows, ParquetShape shape) : rows_(rows), s_(std::move(shape)) {}

  std::string file() {
    out_ = "PAR1";
    std::string groups;
    size_t count = 0;
    for (size_t i = 0; i < rows_.size(); i += s_.group_rows, ++count)
      groups += group(i, std::min(rows_.size(), i + s_.group_rows));
    CompactWriter root, leaf, meta;
    root.text(4, "schema"), root.number(5, 2);
    leaf.number(1, s_.type);
    leaf.number(3, s_.repetition >= 0 ? s_.repetition : s_.optional);
    leaf.text(4, s_.column);
    CompactWriter other;  // another column before it
    other.number(1, 2), other.number(3, 0), other.text(4, "id");
    meta.number(1, 1);
    meta.list(2, 3, 12), meta.out += root.done() + other.done() + leaf.done();
    meta.number(3, int64_t(rows_.size()), 6);
    meta.list(4, count, 12), meta.out += groups;
    meta.text(6, "hearth's tests");
    const std::string footer = meta.done();
    return out_ + footer + little(footer.size(), 4) + "PAR1";
  }

 private:
  std::string pack(const std::string& body) const {
    if (s_.codec == 1) {  // one literal
      if (body.empty()) return std::string("\0", 1);
      return varint_of(body.size()) + char(62 << 2) + little(body.size() - 1, 3) + body;
    }
    return packed_of(s_.codec == 2   ? Packing::gzip
                     : s_.codec == 6 ? Packing::zstd
                                     : Packing::none,
                     body);
  }

  bool dictionary() const { return s_.encoding == 2 || s_.encoding == 8; }

  static std::string plain(const std::vector<std::string>& values) {
    std::string out;
    for (const std::string& v : values) out += little(v.size(), 4) + v;
    return out;
  }

  std::string encode(const std::vector<std::string>& values,
                     const std::vector<std::string>& words) const {
    if (s_.encoding == 0) return plain(values);
    if (dictionary()) {
      std::vector<uint32_t> indices;
      for (const std::string& v : values)
        indices.push_back(uint32_t(std::find(words.begin(), words.end(), v) - words.begin()));
      int width = 0;
      while (words.size() > size_t(1) << width) ++width;
      return char(width) + runs_of(indices, width, s_.packed_runs);
    }
    std::vector<int64_t> prefixes, lengths;
    std::string last, data;
    for (const std::string& v : values) {
      size_t shared = 0;
      if (s_.encoding == 7)
        while (shared < std::min(last.size(), v.size()) && last[shared] == v[shared]) ++shared;
      prefixes.push_back(int64_t(shared));
      lengths.push_back(int64_t(v.size() - shared));
      data += v.substr(shared);
      last = v;
    }
    return (s_.encoding == 7 ? deltas_of(prefixes) : "") + deltas_of(lengths) + data;
  }

  void page(int kind, const std::string& body, const std::string& packed, int inner_id,
            const std::string& inner) {
    CompactWriter h;
    h.number(1, kind), h.number(2, int64_t(body.size())), h.number(3, int64_t(packed.size()));
    h.structure(inner_id, inner);
    out_ += h.done() + packed;
  }

  void data_page(size_t begin, size_t end, const std::vector<std::string>& words) {
    std::vector<std::string> values;
    std::vector<uint32_t> levels;
    for (size_t i = begin; i < end; ++i) {
      levels.push_back(rows_[i].has_value());
      if (rows_[i]) values.push_back(*rows_[i]);
    }
    const std::string defs = s_.optional ? runs_of(levels, 1, s_.packed_runs) : "";
    const std::string body = encode(values, words);
    const int64_t n = int64_t(end - begin);
    CompactWriter w;
    if (s_.version == 1) {
      w.number(1, n), w.number(2, s_.encoding), w.number(3, 3), w.number(4, 3);
      if (s_.statistics) {
        CompactWriter stats;
        stats.text(5, "zzz"), stats.text(6, "aaa");
        w.structure(5, stats.done());
      }
      const std::string whole = s_.optional ? little(defs.size(), 4) + defs + body : body;
      return page(0, whole, pack(whole), 5, w.done());
    }
    const bool packs = begin % 2 == 0;  // v2 pages may stay uncompressed
    w.number(1, n), w.number(2, n - int64_t(values.size())), w.number(3, n);
    w.number(4, s_.encoding), w.number(5, int64_t(defs.size())), w.number(6, 0);
    w.boolean(7, packs && s_.codec != 0);
    page(3, defs + body, defs + (packs ? pack(body) : body), 8, w.done());
  }

  std::string group(size_t begin, size_t end) {
    const size_t at = out_.size();
    std::vector<std::string> words;
    if (dictionary()) {
      for (size_t i = begin; i < end; ++i)
        if (rows_[i] && std::find(words.begin(), words.end(), *rows_[i]) == words.end())
          words.push_back(*rows_[i]);
      CompactWriter w;
      w.number(1, int64_t(words.size())), w.number(2, s_.encoding == 2 ? 2 : 0);
      page(2, plain(words), pack(plain(words)), 7, w.done());
    }
    const size_t data = out_.size();
    for (size_t i = begin; i < end; i += s_.page_rows)
      data_page(i, std::min(end, i + s_.page_rows), words);
    CompactWriter meta, chunk, other, g;
    meta.number(1, s_.type), meta.list(2, 1, 5), meta.zigzag(s_.encoding);
    meta.list(3, 1, 8), meta.varint(s_.column.size()), meta.out += s_.column;
    meta.number(4, s_.codec), meta.number(5, int64_t(end - begin), 6);
    meta.number(6, 1000, 6), meta.number(7, int64_t(out_.size() - at), 6);
    meta.number(9, int64_t(data), 6);
    if (dictionary()) meta.number(11, int64_t(at), 6);
    chunk.number(2, 0, 6), chunk.structure(3, meta.done());
    other.number(2, 0, 6);
    g.list(1, 2, 12), g.out += other.done() + chunk.done();
    g.number(2, 1000, 6), g.number(3, int64_t(end - begin), 6);
    return g.done();
  }

  const Rows& rows_;
  ParquetShape s_;
  std::string out_;
};

inline std::string parquet_of(const Rows& rows, ParquetShape shape = {}) {
  return ParquetWriter(rows, std::move(shape)).file();
}

}  // namespace hearth
