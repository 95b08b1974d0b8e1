#include "formats/parquet/parquet.h"

#include <algorithm>
#include <cstring>

#include "formats/parquet/parquet_footer.h"
#include "formats/parquet/parquet_values.h"
#include "formats/parquet/thrift.h"
#include "sys/compression/compression.h"
#include "sys/compression/snappy.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

enum class PageKind { data = 0, index = 1, dictionary = 2, data_v2 = 3 };

struct PageHeader {
  int64_t kind = -1, size = -1, packed = -1;  // size and packed: bytes unpacked and in the file
  int64_t values = -1, encoding = -1;
  int64_t level_encoding = 3;            // v1: 3 is RLE/bit-packing hybrid
  int64_t def_bytes = 0, rep_bytes = 0;  // v2
  bool compressed = true;                // v2
};

PageHeader read_page_header(ThriftReader& r) {
  using Thrift = ThriftReader;
  PageHeader h;
  const auto inner = [&](auto field) {
    r.fields([&](int64_t id, Thrift::Type type) {
      if (int64_t* to = field(id))
        *to = r.integer(type);
      else
        r.skip(type);
    });
  };
  const auto v2 = [&] {
    r.fields([&](int64_t id, Thrift::Type type) {
      int64_t* const to = id == 1   ? &h.values
                          : id == 4 ? &h.encoding
                          : id == 5 ? &h.def_bytes
                          : id == 6 ? &h.rep_bytes
                                    : nullptr;
      if (to)
        *to = r.integer(type);
      else if (id == 7)
        h.compressed = r.boolean(type);
      else
        r.skip(type);
    });
  };
  r.fields([&](int64_t id, Thrift::Type type) {
    int64_t* const to = id == 1 ? &h.kind : id == 2 ? &h.size : id == 3 ? &h.packed : nullptr;
    if (to)
      *to = r.integer(type);
    else if (id == 5 && type == Thrift::record)
      inner([&](int64_t i) {
        return i == 1 ? &h.values : i == 2 ? &h.encoding : i == 3 ? &h.level_encoding : nullptr;
      });
    else if (id == 7 && type == Thrift::record)
      inner([&](int64_t i) { return i == 1 ? &h.values : i == 2 ? &h.encoding : nullptr; });
    else if (id == 8 && type == Thrift::record)
      v2();
    else
      r.skip(type);
  });
  return h;
}

}  // namespace

struct ParquetText::State {
  Bytes file;
  std::string where;
  ParquetLimits limits;
  ParquetColumn column;

  size_t chunk = 0;        // index of the current chunk
  int64_t at = 0;          // offset of the next page
  int64_t chunk_left = 0;  // rows of the chunk after the current page
  int64_t row = 0;

  std::vector<std::byte> page, dictionary_page;
  std::vector<std::string_view> dictionary;
  bool has_dictionary = false;
  std::unique_ptr<Unpacker> gzip, zstd;

  int64_t page_begin = 0;  // file offset, for errors
  int64_t page_left = 0;   // rows left in the page
  int64_t present = 0;     // consecutive rows known not to be null
  int64_t text_left = 0;   // remaining limit for the page's text in bytes
  RunReader levels;
  PageStrings strings;

  [[noreturn]] void bad(const char* got) const {
    fail(where, "expected a page of strings at byte {}, got {}", page_begin, got);
  }
  void open_chunk() {
    at = column.chunks[chunk].begin;
    chunk_left = column.chunks[chunk].rows;
    has_dictionary = false;
    dictionary.clear();
  }
  bool next_page();
  Bytes unpack(std::vector<std::byte>& to, Bytes from, int64_t size);
  void read_dictionary(const PageHeader&, Bytes body);
  void begin_page(const PageHeader&, Bytes body);
};

// True if a page of any kind was read; false at the end of the file.
bool ParquetText::State::next_page() {
  while (chunk_left == 0) {
    if (++chunk >= column.chunks.size()) {
      chunk = column.chunks.size();
      return false;
    }
    open_chunk();
  }
  const ParquetChunk& c = column.chunks[chunk];
  page_begin = at;
  ThriftReader reader(file.subspan(size_t(at), size_t(c.end - at)), where, at);
  const PageHeader h = read_page_header(reader);
  at += int64_t(reader.position());
  if (h.packed < 0 || h.packed > c.end - at || h.size < 0 || h.size > limits.page)
    fail(where, "expected a page of at most {} bytes ({} unpacked) at byte {}, got {} ({})",
         c.end - at, limits.page, page_begin, h.packed, h.size);
  const Bytes body = file.subspan(size_t(at), size_t(h.packed));
  at += h.packed;
  const PageKind kind = PageKind(h.kind);
  if (kind == PageKind::dictionary) {
    read_dictionary(h, body);
  } else if (kind == PageKind::data || kind == PageKind::data_v2) {
    begin_page(h, body);
  } else if (kind != PageKind::index) {
    bad("a page of another kind");
  }
  return true;
}

Bytes ParquetText::State::unpack(std::vector<std::byte>& to, Bytes from, int64_t size) {
  const auto with = [&](std::unique_ptr<Unpacker>& unpacker, Packing packing) {
    if (!unpacker) unpacker = make_unpacker(packing, where);
    return unpack_whole(to, *unpacker, from, size_t(size));
  };
  const char* problem = nullptr;
  switch (column.chunks[chunk].codec) {
    case ParquetCodec::plain:
      if (int64_t(from.size()) != size) bad("a different size than stated");
      return from;
    case ParquetCodec::snappy:
      problem = unpack_snappy(to, from, size_t(size));
      break;
    case ParquetCodec::gzip:
      problem = with(gzip, Packing::gzip);
      break;
    case ParquetCodec::zstd:
      problem = with(zstd, Packing::zstd);
      break;
  }
  if (problem) bad(problem);
  return to;
}

void ParquetText::State::read_dictionary(const PageHeader& h, Bytes body) {
  if (has_dictionary) bad("a second dictionary");
  if (h.encoding != 0 && h.encoding != 2) bad("a dictionary that is not PLAIN");
  Bytes rest = unpack(dictionary_page, body, h.size);
  if (h.values < 0 || h.values > int64_t(rest.size()) / 4) bad("a truncated dictionary");
  dictionary.resize(size_t(h.values));
  for (std::string_view& word : dictionary)
    if (!take_plain(word, rest)) bad("a truncated dictionary");
  has_dictionary = true;
}

void ParquetText::State::begin_page(const PageHeader& h, Bytes body) {
  if (h.values < 0 || h.values > chunk_left || h.values > limits.page_values)
    fail(where, "expected a page of at most {} rows at byte {}, got {}",
         std::min(chunk_left, limits.page_values), page_begin, h.values);
  if (h.encoding != 0 && h.encoding != 2 && h.encoding != 6 && h.encoding != 7 && h.encoding != 8)
    fail(where,
         "expected PLAIN, dictionary, DELTA_LENGTH_BYTE_ARRAY or DELTA_BYTE_ARRAY in the page at "
         "byte {}, got encoding {}",
         page_begin, h.encoding);
  const ParquetEncoding encoding = ParquetEncoding(h.encoding);
  const bool indexed =
      encoding == ParquetEncoding::plain_dictionary || encoding == ParquetEncoding::rle_dictionary;
  if (indexed && !has_dictionary) bad("indices without a dictionary");

  Bytes values, defs;
  if (PageKind(h.kind) == PageKind::data_v2) {  // levels come first and are never compressed
    if (h.rep_bytes != 0) bad("repetition levels in a flat column");
    if (h.def_bytes < 0 || h.def_bytes > int64_t(body.size()) || h.def_bytes > h.size)
      bad("truncated levels");
    defs = body.first(size_t(h.def_bytes));
    values = body.subspan(size_t(h.def_bytes));
    const int64_t size = h.size - h.def_bytes;
    if (!h.compressed && int64_t(values.size()) != size) bad("a different size than stated");
    if (h.compressed && !(values.empty() && size == 0)) values = unpack(page, values, size);
  } else {
    values = unpack(page, body, h.size);
    if (column.optional) {
      if (h.level_encoding != 3) bad("levels in an encoding other than RLE");
      std::string_view found;
      if (!take_plain(found, values)) bad("truncated levels");
      defs = to_bytes(found);
    }
  }
  levels = RunReader(defs, 1);
  if (const char* problem = strings.begin(values, encoding, dictionary, h.values)) bad(problem);
  page_left = h.values;
  chunk_left -= h.values;
  present = 0;
  text_left = limits.page_text;
}

ParquetText::ParquetText(Bytes file, const std::string& column, std::string where,
                         ParquetLimits limits)
    : state_(std::make_unique<State>()) {
  State& s = *state_;
  s.file = file;
  s.where = std::move(where);
  s.limits = limits;
  s.column = read_parquet_footer(file, column, s.where, limits);
  if (!s.column.chunks.empty()) s.open_chunk();
}

ParquetText::~ParquetText() = default;
ParquetText::ParquetText(ParquetText&&) noexcept = default;

int64_t ParquetText::rows() const { return state_->column.rows; }
int64_t ParquetText::row() const { return state_->row; }
int64_t ParquetText::byte() const { return state_->at; }

bool ParquetText::next(std::string_view& text) {
  State& s = *state_;
  for (;;) {
    if (s.page_left == 0) {
      if (!s.next_page()) return false;
      continue;
    }
    if (s.column.optional && s.present == 0) {
      uint32_t level = 0;
      const int64_t n = s.levels.next(level, s.page_left);
      if (n == 0 || level > 1) s.bad("bad definition levels");
      if (level == 0) {
        s.page_left -= n;
        s.row += n;
        continue;
      }
      s.present = n;
    }
    if (s.column.optional) --s.present;
    --s.page_left;
    ++s.row;
    if (const char* problem = s.strings.next(text)) s.bad(problem);
    s.text_left -= int64_t(text.size());
    if (s.text_left < 0) s.bad("more text than the limit of a page");
    return true;
  }
}

void ParquetText::skip_to(int64_t row) {
  State& s = *state_;
  while (s.row < row && s.page_left == 0 && s.chunk < s.column.chunks.size() &&
         s.chunk_left == s.column.chunks[s.chunk].rows && s.row + s.chunk_left <= row) {
    s.row += s.chunk_left;
    s.chunk_left = 0;
    if (++s.chunk < s.column.chunks.size()) s.open_chunk();
  }
  std::string_view dropped;
  while (s.row < row && next(dropped)) {}
  if (s.row != row)
    fail(s.where, "expected the same file as before, got one whose row {} is at another position",
         row);
}

}  // namespace hearth::inline formats
