#include "formats/parquet/parquet_footer.h"

#include <algorithm>
#include <cstring>

#include "formats/json.h"
#include "formats/parquet/thrift.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

using Thrift = ThriftReader;

constexpr int64_t parquet_byte_array = 6;
constexpr size_t most_elements = 100000;

struct SchemaElement {
  std::string_view name;
  int64_t type = -1;  // -1: a group
  int64_t repetition = 0, children = 0;
};

// The footer's entry for the column in a row group, unchecked.
struct ChunkFields {
  int64_t codec = 0, values = -1, packed = -1, data = -1, dictionary = 0;
  bool elsewhere = false, encrypted = false;
};

class FooterReader {
 public:
  FooterReader(Bytes file, const std::string& column, const std::string& where,
               const ParquetLimits& limits)
      : file_(file), name_(column), where_(where) {
    const int64_t size = int64_t(file.size());
    const auto magic_at = [&](int64_t at) { return to_text(file.subspan(size_t(at), 4)); };
    if (size < 12 || magic_at(0) != "PAR1")
      fail(where, "expected a Parquet file, got {}",
           size < 12 ? fmt::format("{} bytes", size) : "a file that does not start with PAR1");
    if (magic_at(size - 4) == "PARE")
      fail(where, "the footer is encrypted, which is not supported");
    if (magic_at(size - 4) != "PAR1")
      fail(where, "expected PAR1 at byte {}, got other bytes: the file is truncated", size - 4);
    uint32_t length = 0;
    std::memcpy(&length, file.data() + size - 8, 4);
    if (length > size - 12 || length > limits.footer)
      fail(where, "expected a footer of at most {} bytes at byte {}, got {}",
           std::min(size - 12, limits.footer), size - 8, length);
    begin_ = size - 8 - int64_t(length);
    footer_ = file.subspan(size_t(begin_), length);
  }

  ParquetColumn read() {
    Thrift schema(footer_, where_, begin_);
    schema.fields([&](int64_t id, Thrift::Type type) {
      if (id == 2)
        schema.elements(type, Thrift::record, [&] {
          if (elements_.size() == most_elements) schema.bad("a schema of fewer elements");
          elements_.push_back(read_element(schema));
        });
      else
        schema.skip(type);
    });
    find_leaf();
    Thrift groups(footer_, where_, begin_);
    groups.fields([&](int64_t id, Thrift::Type type) {
      if (id == 4)
        groups.elements(type, Thrift::record, [&] { read_group(groups); });
      else
        groups.skip(type);
    });
    return std::move(column_);
  }

 private:
  static SchemaElement read_element(Thrift& r) {
    SchemaElement e;
    r.fields([&](int64_t id, Thrift::Type type) {
      if (id == 1)
        e.type = r.integer(type);
      else if (id == 3)
        e.repetition = r.integer(type);
      else if (id == 4)
        e.name = r.text(type);
      else if (id == 5)
        e.children = r.integer(type);
      else
        r.skip(type);
    });
    return e;
  }

  // The schema is a tree in preorder whose leaves are the columns. The column must be at the top
  // level.
  void find_leaf() {
    if (elements_.empty() || elements_[0].children <= 0)
      fail(where_, "expected a schema with columns in the footer at byte {}, got none", begin_);
    std::string names;
    size_t at = 1, leaf = 0;
    for (int64_t child = 0; child < elements_[0].children; ++child) {
      if (at >= elements_.size())
        fail(where_, "expected {} columns in the schema, got {}", elements_[0].children, child);
      const SchemaElement& e = elements_[at];
      if (e.name == name_) return use_leaf(e, leaf);
      if (names.size() < 500) names += (names.empty() ? "" : ", ") + in_quotes(e.name);
      // Skip the whole branch, counting its leaves.
      for (int64_t open = 1; open > 0; ++at, --open) {
        if (at >= elements_.size()) fail(where_, "the schema is truncated");
        const int64_t children = elements_[at].children;
        if (children < 0 || children > int64_t(elements_.size()))
          fail(where_, "expected a schema, got an element with {} children", children);
        leaf += children == 0;
        open += children;
      }
    }
    fail(where_, "expected a column {}, got only {}", in_quotes(name_), names);
  }

  void use_leaf(const SchemaElement& e, size_t leaf) {
    if (e.children > 0 || e.repetition == 2 || e.type < 0)
      fail(where_, "expected a flat column of strings, got {}, which is nested or a list",
           in_quotes(name_));
    if (e.type != parquet_byte_array)
      fail(where_, "expected a column of strings (BYTE_ARRAY), got {} of physical type {}",
           in_quotes(name_), e.type);
    column_.optional = e.repetition == 1;
    leaf_ = leaf;
  }

  void read_group(Thrift& r) {
    ChunkFields chunk;
    int64_t rows = -1;
    bool found = false;
    r.fields([&](int64_t id, Thrift::Type type) {
      if (id == 1) {
        size_t i = 0;
        r.elements(type, Thrift::record, [&] {
          if (i++ == leaf_)
            chunk = read_chunk(r), found = true;
          else
            r.skip(Thrift::record);
        });
      } else if (id == 3) {
        rows = r.integer(type);
      } else {
        r.skip(type);
      }
    });
    if (!found || rows < 0) r.bad("a row group with rows and the column");
    add_chunk(chunk, rows);
  }

  static ChunkFields read_chunk(Thrift& r) {
    ChunkFields c;
    r.fields([&](int64_t id, Thrift::Type type) {
      if (id == 1)
        c.elsewhere = !r.text(type).empty();
      else if (id == 3 && type == Thrift::record)
        read_metadata(r, c);
      else
        c.encrypted |= id == 8, r.skip(type);
    });
    return c;
  }

  static void read_metadata(Thrift& r, ChunkFields& c) {
    r.fields([&](int64_t id, Thrift::Type type) {
      int64_t* const to = id == 4    ? &c.codec
                          : id == 5  ? &c.values
                          : id == 7  ? &c.packed
                          : id == 9  ? &c.data
                          : id == 11 ? &c.dictionary
                                     : nullptr;
      if (to)
        *to = r.integer(type);
      else
        r.skip(type);
    });
  }

  void add_chunk(const ChunkFields& c, int64_t rows) {
    const size_t group = column_.chunks.size();
    if (c.elsewhere || c.encrypted)
      fail(where_, "expected an unencrypted column in this file, got row group {} {}", group,
           c.elsewhere ? "in another file" : "encrypted");
    if (c.codec != 0 && c.codec != 1 && c.codec != 2 && c.codec != 6)
      fail(where_, "expected uncompressed, SNAPPY, GZIP or ZSTD pages, got codec {}{}", c.codec,
           c.codec == 3                   ? " (LZO)"
           : c.codec == 4                 ? " (BROTLI)"
           : c.codec == 5 || c.codec == 7 ? " (LZ4)"
                                          : "");
    if (c.values != rows)
      fail(where_, "expected a value for each of the {} rows of row group {}, got {}", rows, group,
           c.values);
    // A dictionary comes first; writers without one may still store 0.
    const int64_t begin = c.dictionary > 0 && c.dictionary < c.data ? c.dictionary : c.data;
    if (begin < 4 || begin > begin_ || c.packed < 0 || c.packed > begin_ - begin)
      fail(where_, "expected the pages of row group {} before byte {}, got {} bytes at byte {}",
           group, begin_, c.packed, begin);
    if (rows > INT64_MAX / 2 - column_.rows) fail(where_, "expected fewer rows, got {}", rows);
    column_.rows += rows;
    column_.chunks.push_back({begin, begin + c.packed, rows, ParquetCodec(c.codec)});
  }

  Bytes file_, footer_;
  std::string name_, where_;
  int64_t begin_ = 0;  // offset of the footer
  std::vector<SchemaElement> elements_;
  size_t leaf_ = 0;
  ParquetColumn column_;
};

}  // namespace

ParquetColumn read_parquet_footer(Bytes file, const std::string& column, const std::string& where,
                                  const ParquetLimits& limits) {
  return FooterReader(file, column, where, limits).read();
}

}  // namespace hearth::inline formats
