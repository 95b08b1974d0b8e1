#include "formats/gguf/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>

#include "formats/gguf/ggml_blocks.h"
#include "formats/json.h"
#include "formats/stored_tensor.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied without conversion");

constexpr uint64_t gguf_align = 32, max_gguf_align = 1 << 16;
constexpr uint32_t max_gguf_dims = 4;
constexpr uint64_t max_gguf_key = 65535;

// Bytes per element; 0 for types without a fixed size.
uint64_t kind_size(GgufKind k) {
  static constexpr uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[size_t(k)];
}

// Reads values from the front of the file.
struct GgufReader {
  Bytes rest;
  size_t size;
  std::string_view where;

  size_t at() const { return size - rest.size(); }
  Bytes take(uint64_t n, std::string_view what) {
    if (n > rest.size())
      fail(where, "expected {} bytes of {} at byte {}, got {}: truncated?", n, what, at(),
           rest.size());
    const Bytes taken = rest.first(size_t(n));
    rest = rest.subspan(size_t(n));
    return taken;
  }
  template <class T>
  T number(std::string_view what) {
    T x;
    std::memcpy(&x, take(sizeof x, what).data(), sizeof x);
    return x;
  }
  std::string_view text(std::string_view what, uint64_t longest) {
    const auto n = number<uint64_t>(what);
    if (n > longest)
      fail(where, "expected {} of at most {} bytes at byte {}, got {}", what, longest, at(), n);
    return to_text(take(n, what));
  }
  GgufKind kind() {
    const auto k = number<uint32_t>("a value's kind");
    if (k > uint32_t(GgufKind::f64))
      fail(where, "expected a value's kind of 0 to 12 before byte {}, got {}", at(), k);
    return GgufKind(k);
  }

  GgufValue value() {
    GgufValue v{.kind = kind(), .bytes = {}};
    if (v.kind == GgufKind::list) {
      v.list = true;
      v.kind = kind();
      if (v.kind == GgufKind::list)
        fail(where, "expected no nested lists, got one before byte {}", at());
      v.count = number<uint64_t>("a list's length");
    }
    const Bytes begin = rest;
    if (v.kind == GgufKind::text) {
      for (uint64_t i = 0; i < v.count; ++i) text("a string", rest.size());
    } else {
      if (v.count > rest.size())
        fail(where, "expected a list within the file, got one of {} at byte {}", v.count, at());
      take(v.count * kind_size(v.kind), "a value");
    }
    v.bytes = begin.first(begin.size() - rest.size());
    return v;
  }
};

// A tensor's entry, before its position is checked.
struct GgufEntry {
  std::string name;
  GgufTensor tensor;
  uint64_t begin, size;
};

GgmlType checked_type(uint32_t number, std::string_view name, std::string_view where) {
  std::string known;
  for (const GgmlBlock& block : ggml_blocks()) {
    if (number == uint32_t(block.type)) return block.type;
    known += fmt::format("{}{}", known.empty() ? "" : ", ", to_string(block.type));
  }
  fail(where, "expected tensor {} of a type among {}, got {}", in_quotes(name), known,
       ggml_type_name(number));
}

GgufEntry read_tensor(GgufReader& r) {
  GgufEntry e{std::string(r.text("a tensor's name", max_gguf_key)), {}, 0, 0};
  const auto dims = r.number<uint32_t>("a tensor's rank");
  if (dims < 1 || dims > max_gguf_dims)
    fail(r.where, "expected tensor {} to have 1 to {} dimensions, got {}", in_quotes(e.name),
         max_gguf_dims, dims);
  for (uint32_t i = 0; i < dims; ++i) e.tensor.shape.push_back(r.number<int64_t>("a dimension"));
  e.tensor.type = checked_type(r.number<uint32_t>("a tensor's type"), e.name, r.where);
  e.begin = r.number<uint64_t>("a tensor's offset");

  std::vector<int64_t> blocks = e.tensor.shape;  // the first dimension varies fastest
  const int64_t in_block = block_elements(e.tensor.type);
  if (blocks[0] % in_block != 0)
    fail(r.where, "expected the row length of tensor {} to be a multiple of {}, got {}",
         in_quotes(e.name), in_block, blocks[0]);
  blocks[0] /= in_block;
  const auto size = checked_bytes(blocks, block_bytes(e.tensor.type));
  // The number of elements is bounded too: a block holds more elements than bytes.
  if (!size || *size == 0 || *size > std::numeric_limits<int64_t>::max() / ggml_block)
    fail(r.where, "expected tensor {} to have a positive size below 2^58 bytes", in_quotes(e.name));
  e.size = uint64_t(*size);
  std::reverse(e.tensor.shape.begin(), e.tensor.shape.end());
  return e;
}

// Checks that each tensor is inside the data, aligned, and does not overlap another.
void place_tensors(GgufTable& table, std::vector<GgufEntry>& entries, Bytes data, uint64_t align) {
  std::sort(entries.begin(), entries.end(),
            [](const GgufEntry& a, const GgufEntry& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  for (GgufEntry& e : entries) {
    if (e.begin % align != 0 || e.begin < end || e.begin > data.size() ||
        e.size > data.size() - e.begin)
      fail(table.where,
           "expected tensor {} at a multiple of {}, at or after byte {}, with {} bytes inside the "
           "{} bytes of data, got offset {}",
           in_quotes(e.name), align, end, e.size, data.size(), e.begin);
    end = e.begin + e.size;
    e.tensor.bytes = data.subspan(size_t(e.begin), size_t(e.size));
    if (!table.tensors.emplace(e.name, std::move(e.tensor)).second)
      fail(table.where, "expected every tensor once, got {} twice", in_quotes(e.name));
  }
}

uint64_t alignment_of(const GgufTable& table) {
  if (!table.has("general.alignment")) return gguf_align;
  const int64_t align = table.whole("general.alignment");
  if (align < 1 || align > int64_t(max_gguf_align) || !std::has_single_bit(uint64_t(align)))
    fail(table.where, "expected general.alignment to be a power of two up to {}, got {}",
         max_gguf_align, align);
  return uint64_t(align);
}

// --- values ---

template <class T>
T element(Bytes bytes, uint64_t i) {
  T x;
  std::memcpy(&x, bytes.data() + i * sizeof x, sizeof x);
  return x;
}

const GgufValue& value_of(const GgufTable& t, std::string_view key, std::string_view wanted,
                          bool list) {
  const auto it = t.values.find(key);
  if (it == t.values.end()) fail(t.where, "the key {} is missing", key);
  if (it->second.list != list)
    fail(t.where, "expected {} to be {}, got {}", key, wanted,
         it->second.list ? "a list" : "a single value");
  return it->second;
}

[[noreturn]] void wrong_kind(const GgufTable& t, std::string_view key, std::string_view wanted) {
  fail(t.where, "expected {} to be {}, got a value of another type", key, wanted);
}

std::vector<std::string_view> texts_in(const GgufValue& v) {
  std::vector<std::string_view> out;
  Bytes rest = v.bytes;
  for (uint64_t i = 0; i < v.count; ++i) {
    const auto n = element<uint64_t>(rest, 0);
    out.push_back(to_text(rest.subspan(8, size_t(n))));
    rest = rest.subspan(8 + size_t(n));
  }
  return out;
}

}  // namespace

int64_t GgufTable::whole(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a whole number", false);
  switch (v.kind) {
    case GgufKind::u8:
      return element<uint8_t>(v.bytes, 0);
    case GgufKind::i8:
      return element<int8_t>(v.bytes, 0);
    case GgufKind::u16:
      return element<uint16_t>(v.bytes, 0);
    case GgufKind::i16:
      return element<int16_t>(v.bytes, 0);
    case GgufKind::u32:
      return element<uint32_t>(v.bytes, 0);
    case GgufKind::i32:
      return element<int32_t>(v.bytes, 0);
    case GgufKind::i64:
      return element<int64_t>(v.bytes, 0);
    case GgufKind::u64:
      if (element<uint64_t>(v.bytes, 0) <= uint64_t(std::numeric_limits<int64_t>::max()))
        return element<int64_t>(v.bytes, 0);
      break;
    default:
      break;
  }
  wrong_kind(*this, key, "a whole number below 2^63");
}

double GgufTable::number(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a number", false);
  if (v.kind == GgufKind::f32) return element<float>(v.bytes, 0);
  if (v.kind == GgufKind::f64) return element<double>(v.bytes, 0);
  return double(whole(key));
}

bool GgufTable::flag(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "true or false", false);
  if (v.kind != GgufKind::flag) wrong_kind(*this, key, "true or false");
  return element<uint8_t>(v.bytes, 0) != 0;
}

std::string_view GgufTable::text(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a text", false);
  if (v.kind != GgufKind::text) wrong_kind(*this, key, "a text");
  return texts_in(v)[0];
}

std::vector<std::string_view> GgufTable::texts(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a list of texts", true);
  if (v.kind != GgufKind::text) wrong_kind(*this, key, "a list of texts");
  return texts_in(v);
}

std::vector<float> GgufTable::numbers(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a list of numbers", true);
  if (v.kind != GgufKind::f32) wrong_kind(*this, key, "a list of 32-bit floats");
  std::vector<float> out(size_t(v.count));
  if (!out.empty()) std::memcpy(out.data(), v.bytes.data(), v.bytes.size());
  return out;
}

std::vector<int32_t> GgufTable::wholes(std::string_view key) const {
  const GgufValue& v = value_of(*this, key, "a list of whole numbers", true);
  if (v.kind != GgufKind::i32 && v.kind != GgufKind::u32)
    wrong_kind(*this, key, "a list of 32-bit whole numbers");
  std::vector<int32_t> out(size_t(v.count));
  if (!out.empty()) std::memcpy(out.data(), v.bytes.data(), v.bytes.size());
  if (v.kind == GgufKind::u32 && std::ranges::any_of(out, [](int32_t x) { return x < 0; }))
    wrong_kind(*this, key, "a list of whole numbers below 2^31");
  return out;
}

GgufTable parse_gguf(Bytes file, std::string_view where) {
  GgufReader r{file, file.size(), where};
  if (file.size() < 4 || to_text(file.first(4)) != gguf_magic)
    fail(where, "expected a GGUF file, got a file without the magic GGUF");
  r.take(4, "the magic");
  if (const auto version = r.number<uint32_t>("the version"); version != gguf_version)
    fail(where, "expected GGUF version {}, got {}", gguf_version, version);
  const auto tensors = r.number<uint64_t>("the number of tensors");
  const auto keys = r.number<uint64_t>("the number of keys");
  GgufTable table{.where = std::string(where), .values = {}, .tensors = {}};
  for (uint64_t i = 0; i < keys; ++i) {  // bounded: reading past the end of the file throws
    const std::string_view key = r.text("a key", max_gguf_key);
    if (!table.values.emplace(key, r.value()).second)
      fail(where, "expected every key once, got {} twice", in_quotes(key));
  }
  std::vector<GgufEntry> entries;
  for (uint64_t i = 0; i < tensors; ++i) entries.push_back(read_tensor(r));
  const uint64_t align = alignment_of(table);
  if (!entries.empty()) r.take((align - r.at() % align) % align, "padding");
  place_tensors(table, entries, r.rest, align);
  return table;
}

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  static_cast<GgufTable&>(*this) = parse_gguf(file_.bytes(), path.string());
}

}  // namespace hearth::inline formats
