#include "io/gguf.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>

#include "core/error.h"
#include "io/json.h"
#include "io/stored_tensor.h"

namespace hearth {
namespace {

static_assert(std::endian::native == std::endian::little, "values are copied as they are");

constexpr std::string_view gguf_magic = "GGUF";
constexpr uint32_t gguf_version = 3;
constexpr uint64_t gguf_align = 32, max_gguf_align = 1 << 16;
constexpr uint32_t max_gguf_dims = 4;
constexpr uint64_t max_gguf_key = 65535;

// Bytes of one element; 0 for those of no fixed size.
uint64_t kind_size(GgufKind k) {
  static constexpr uint8_t sizes[] = {1, 1, 2, 2, 4, 4, 4, 1, 0, 0, 8, 8, 8};
  return sizes[size_t(k)];
}

int64_t elements_in_block(GgmlType t) { return is_quantised(t) ? ggml_block : 1; }

int64_t block_bytes(GgmlType t) {
  switch (t) {
    case GgmlType::f32:
      return 4;
    case GgmlType::f16:
    case GgmlType::bf16:
      return 2;
    case GgmlType::q4_0:
      return 2 + ggml_block / 2;
    case GgmlType::q8_0:
      return 2 + ggml_block;
  }
  return 0;
}

// Takes values off the front of the file.
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
        fail(where, "expected no list of lists, got one before byte {}", at());
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

// A tensor's entry, its place among the others not yet checked.
struct GgufEntry {
  std::string name;
  GgufTensor tensor;
  uint64_t begin, size;
};

GgmlType checked_type(uint32_t number, std::string_view name, std::string_view where) {
  for (const GgmlType t :
       {GgmlType::f32, GgmlType::f16, GgmlType::q4_0, GgmlType::q8_0, GgmlType::bf16})
    if (number == uint32_t(t)) return t;
  fail(where, "expected tensor {} as F32, F16, BF16, Q8_0 or Q4_0, got ggml type {}",
       in_quotes(name), number);
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

  std::vector<int64_t> blocks = e.tensor.shape;  // the first one runs fastest
  const int64_t in_block = elements_in_block(e.tensor.type);
  if (blocks[0] % in_block != 0)
    fail(r.where, "expected rows of tensor {} to be whole blocks of {}, got {}", in_quotes(e.name),
         in_block, blocks[0]);
  blocks[0] /= in_block;
  const auto size = checked_bytes(blocks, block_bytes(e.tensor.type));
  // The number of elements is bounded too: a block holds more of them than it has bytes.
  if (!size || *size == 0 || *size > std::numeric_limits<int64_t>::max() / ggml_block)
    fail(r.where, "expected tensor {} to have a positive size of 58 bits", in_quotes(e.name));
  e.size = uint64_t(*size);
  std::reverse(e.tensor.shape.begin(), e.tensor.shape.end());
  return e;
}

// Each tensor within the data, aligned, none over another.
void place_tensors(GgufTable& table, std::vector<GgufEntry>& entries, Bytes data, uint64_t align) {
  std::sort(entries.begin(), entries.end(),
            [](const GgufEntry& a, const GgufEntry& b) { return a.begin < b.begin; });
  uint64_t end = 0;
  for (GgufEntry& e : entries) {
    if (e.begin % align != 0 || e.begin < end || e.begin > data.size() ||
        e.size > data.size() - e.begin)
      fail(table.where,
           "expected tensor {} at a multiple of {} from byte {} on and {} bytes within {} of data, "
           "got offset {}",
           in_quotes(e.name), align, end, e.size, data.size(), e.begin);
    end = e.begin + e.size;
    e.tensor.bytes = data.subspan(size_t(e.begin), size_t(e.size));
    if (!table.tensors.emplace(e.name, std::move(e.tensor)).second)
      fail(table.where, "expected every tensor once, got {} again", in_quotes(e.name));
  }
}

uint64_t padding_to(uint64_t at, uint64_t align) { return (align - at % align) % align; }

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
  if (it == t.values.end()) fail(t.where, "expected the key {}, got none", key);
  if (it->second.list != list)
    fail(t.where, "expected {} to be {}, got {}", key, wanted,
         it->second.list ? "a list" : "a single value");
  return it->second;
}

[[noreturn]] void wrong_kind(const GgufTable& t, std::string_view key, std::string_view wanted) {
  fail(t.where, "expected {} to be {}, got another kind of value", key, wanted);
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

template <class T>
void put_number(std::string& out, T x) {
  out.append(reinterpret_cast<const char*>(&x), sizeof x);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, uint64_t(text.size()));
  out += text;
}

}  // namespace

std::string_view to_string(GgmlType t) {
  switch (t) {
    case GgmlType::f32:
      return "F32";
    case GgmlType::f16:
      return "F16";
    case GgmlType::q4_0:
      return "Q4_0";
    case GgmlType::q8_0:
      return "Q8_0";
    case GgmlType::bf16:
      return "BF16";
  }
  return "?";
}

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
  wrong_kind(*this, key, "a whole number of 63 bits");
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
  return out;
}

GgufTable parse_gguf(Bytes file, std::string_view where) {
  GgufReader r{file, file.size(), where};
  if (file.size() < 4 || to_text(file.first(4)) != gguf_magic)
    fail(where, "expected a GGUF file, got one that does not begin so");
  r.take(4, "the magic");
  if (const auto version = r.number<uint32_t>("the version"); version != gguf_version)
    fail(where, "expected GGUF version {}, got {}", gguf_version, version);
  const auto tensors = r.number<uint64_t>("the number of tensors");
  const auto keys = r.number<uint64_t>("the number of keys");
  GgufTable table{.where = std::string(where), .values = {}, .tensors = {}};
  for (uint64_t i = 0; i < keys; ++i) {  // ends with the file at the latest
    const std::string_view key = r.text("a key", max_gguf_key);
    if (!table.values.emplace(key, r.value()).second)
      fail(where, "expected every key once, got {} again", in_quotes(key));
  }
  std::vector<GgufEntry> entries;
  for (uint64_t i = 0; i < tensors; ++i) entries.push_back(read_tensor(r));
  const uint64_t align = alignment_of(table);
  if (!entries.empty()) r.take(padding_to(r.at(), align), "padding");
  place_tensors(table, entries, r.rest, align);
  return table;
}

GgufFile::GgufFile(const std::filesystem::path& path) : file_(path) {
  static_cast<GgufTable&>(*this) = parse_gguf(file_.bytes(), path.string());
}

void GgufKeys::key(std::string_view name, GgufKind kind) {
  put_text(bytes_, name);
  put_number(bytes_, uint32_t(kind));
  ++count_;
}
void GgufKeys::set(std::string_view name, std::string_view text) {
  key(name, GgufKind::text);
  put_text(bytes_, text);
}
void GgufKeys::set(std::string_view name, uint32_t x) {
  key(name, GgufKind::u32);
  put_number(bytes_, x);
}
void GgufKeys::set(std::string_view name, int64_t x) {
  if (x < 0 || x > int64_t(std::numeric_limits<uint32_t>::max()))
    fail("gguf", "expected {} of 32 bits, got {}", name, x);
  set(name, uint32_t(x));
}
void GgufKeys::set(std::string_view name, float x) {
  key(name, GgufKind::f32);
  put_number(bytes_, x);
}
void GgufKeys::set(std::string_view name, bool x) {
  key(name, GgufKind::flag);
  put_number(bytes_, uint8_t(x));
}
void GgufKeys::set(std::string_view name, std::span<const std::string> list) {
  key(name, GgufKind::list);
  put_number(bytes_, uint32_t(GgufKind::text));
  put_number(bytes_, uint64_t(list.size()));
  for (const std::string& text : list) put_text(bytes_, text);
}
void GgufKeys::set(std::string_view name, std::span<const float> list) {
  key(name, GgufKind::list);
  put_number(bytes_, uint32_t(GgufKind::f32));
  put_number(bytes_, uint64_t(list.size()));
  bytes_ += to_text(std::as_bytes(list));
}
void GgufKeys::set(std::string_view name, std::span<const int32_t> list) {
  key(name, GgufKind::list);
  put_number(bytes_, uint32_t(GgufKind::i32));
  put_number(bytes_, uint64_t(list.size()));
  bytes_ += to_text(std::as_bytes(list));
}

void write_gguf(const std::filesystem::path& path, const GgufKeys& keys,
                const std::vector<GgufTensorToWrite>& tensors) {
  std::string header(gguf_magic);
  put_number(header, gguf_version);
  put_number(header, uint64_t(tensors.size()));
  put_number(header, keys.count());
  header += keys.bytes();
  std::vector<uint64_t> sizes;
  std::set<std::string_view> names;
  uint64_t at = 0;
  for (const GgufTensorToWrite& t : tensors) {
    if (!names.insert(t.name).second)
      fail(path.string(), "expected every tensor once, got {} again", in_quotes(t.name));
    put_text(header, t.name);
    put_number(header, uint32_t(t.shape.size()));
    std::vector<int64_t> blocks = t.shape;
    for (size_t i = blocks.size(); i-- > 0;) put_number(header, blocks[i]);
    blocks.back() /= elements_in_block(t.type);
    const auto size = checked_bytes(blocks, block_bytes(t.type));
    if (!size) fail(path.string(), "expected {} to have a size of 63 bits", in_quotes(t.name));
    sizes.push_back(uint64_t(*size));
    put_number(header, uint32_t(t.type));
    put_number(header, at);
    at += sizes.back() + padding_to(sizes.back(), gguf_align);
  }
  header.append(padding_to(header.size(), gguf_align), '\0');

  AtomicFile out(path);
  out.write(to_bytes(header));
  const std::string zeros(gguf_align, '\0');
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> bytes = to_ggml(tensors[i].values(), tensors[i].type);
    if (bytes.size() != sizes[i])
      fail(path.string(), "expected {} bytes of tensor {}, got {}", sizes[i],
           in_quotes(tensors[i].name), bytes.size());
    out.write(bytes);
    out.write(to_bytes(zeros).first(padding_to(sizes[i], gguf_align)));
  }
  out.commit();
}

}  // namespace hearth
