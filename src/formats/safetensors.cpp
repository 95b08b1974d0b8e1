#include "formats/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <optional>
#include <set>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/hashed_file.h"
#include "sys/parallel.h"

namespace hearth::inline formats {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using nlohmann::ordered_json;

static_assert(std::endian::native == std::endian::little, "tensors are mapped without conversion");

constexpr uint64_t max_header = 100'000'000;
constexpr std::string_view file_end = ".safetensors", index_end = ".safetensors.index.json";

struct StoredType {
  std::string_view name;
  int64_t size;
  std::optional<DType> dtype;
};
constexpr StoredType stored_types[] = {
    {"F64", 8, DType::f64}, {"F32", 4, DType::f32}, {"BF16", 2, DType::bf16},
    {"F16", 2, DType::f16}, {"I32", 4, DType::i32}, {"U8", 1, DType::u8},
    {"I64", 8, {}},         {"U64", 8, {}},         {"U32", 4, {}},
    {"I16", 2, {}},         {"U16", 2, {}},         {"I8", 1, {}},
    {"BOOL", 1, {}},        {"F8_E4M3", 1, {}},     {"F8_E5M2", 1, {}},
    {"F8_E8M0", 1, {}}};

std::string_view stored_name(DType d) {
  for (const StoredType& t : stored_types) {
    if (t.dtype == d) return t.name;
  }
  fail("safetensors", "expected a type that safetensors can store, got {}", to_string(d));
}

// One entry of the header, with type and numbers checked but not yet its position.
struct Entry {
  std::string_view name;
  const StoredType* type;
  std::vector<int64_t> shape;
  uint64_t begin, end;
};

Entry parse_entry(const std::string& name, const json& v, std::string_view where) {
  const auto bad = [&](std::string_view expected) {
    fail(where, "expected tensor {} to have {}", in_quotes(name), expected);
  };
  const auto is_count = [](const json& n) {
    return n.is_number_unsigned() && n.get<uint64_t>() <= uint64_t(INT64_MAX);
  };
  if (!v.is_object() || v.size() != 3 || !v.contains("dtype") || !v.contains("shape") ||
      !v.contains("data_offsets")) {
    bad("exactly dtype, shape and data_offsets");
  }
  const json &dtype = v["dtype"], &shape = v["shape"], &offsets = v["data_offsets"];
  const auto type =
      std::find_if(std::begin(stored_types), std::end(stored_types), [&](const StoredType& t) {
        return dtype.is_string() && dtype.get_ref<const std::string&>() == t.name;
      });
  if (type == std::end(stored_types)) bad("a known type, got " + in_quotes(dtype.dump()));
  if (!shape.is_array() || !std::all_of(shape.begin(), shape.end(), is_count)) {
    bad("a shape of whole numbers");
  }
  if (!offsets.is_array() || offsets.size() != 2 ||
      !std::all_of(offsets.begin(), offsets.end(), is_count) || offsets[0] > offsets[1]) {
    bad("data_offsets [begin, end]");
  }
  Entry e{name, type, shape.get<std::vector<int64_t>>(), offsets[0], offsets[1]};
  const auto size = checked_bytes(e.shape, type->size);
  if (!size) bad("a size below 2^63 bytes");
  if (uint64_t(*size) != e.end - e.begin) {
    bad(fmt::format("{} bytes by its shape, got {} by its offsets", *size, e.end - e.begin));
  }
  return e;
}

std::map<std::string, std::string> parse_metadata(const json& v, std::string_view where) {
  const auto is_text = [](const json& s) { return s.is_string(); };
  if (!v.is_object() || !std::all_of(v.begin(), v.end(), is_text)) {
    fail(where, "expected __metadata__ to map strings to strings");
  }
  return v.get<std::map<std::string, std::string>>();
}

// The tensors must cover `data` from the first byte to the last.
void place(SafetensorsTable& table, std::vector<Entry>& entries, Bytes data,
           std::string_view where) {
  std::sort(entries.begin(), entries.end(), [](const Entry& a, const Entry& b) {
    return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
  });
  uint64_t at = 0;
  for (Entry& e : entries) {
    if (e.begin != at) {
      fail(where, "expected tensor {} to begin at byte {} of the data, got {} ({})",
           in_quotes(e.name), at, e.begin, e.begin > at ? "a gap" : "an overlap");
    }
    if (e.end > data.size()) {
      fail(where, "expected at least {} bytes of data for tensor {}, got {}: truncated?", e.end,
           in_quotes(e.name), data.size());
    }
    at = e.end;
    if (e.type->dtype) {
      table.tensors.emplace(e.name, StoredTensor{*e.type->dtype, std::move(e.shape),
                                                 data.subspan(e.begin, e.end - e.begin)});
    } else {
      table.foreign.emplace(e.name, e.type->name);
    }
  }
  if (at != data.size()) fail(where, "expected {} bytes of data, got {}", at, data.size());
}

int64_t bytes_of(const TensorToWrite& t) {
  const auto size = checked_bytes(t.shape, size_of(t.dtype));
  if (!size)
    fail("safetensors", "expected tensor {} to have a size below 2^63 bytes", in_quotes(t.name));
  return *size;
}

std::string header_of(const std::vector<const TensorToWrite*>& tensors, std::string_view where) {
  ordered_json header;
  header["__metadata__"] = {{"format", "pt"}};
  std::set<std::string_view> names{"__metadata__"};
  int64_t at = 0;
  for (const TensorToWrite* t : tensors) {
    if (!names.insert(t->name).second) {
      fail(where, "expected every tensor name once, got {} twice", in_quotes(t->name));
    }
    const int64_t end = at + bytes_of(*t);
    // ordered_json's operator[] would search all earlier keys
    header.get_ref<ordered_json::object_t&>().emplace_back(
        t->name,
        ordered_json{
            {"dtype", stored_name(t->dtype)}, {"shape", t->shape}, {"data_offsets", {at, end}}});
    at = end;
  }
  std::string text;
  try {
    text = header.dump();
  } catch (const json::exception&) { fail(where, "expected tensor names in UTF-8"); }
  text.resize((text.size() + 7) / 8 * 8, ' ');
  if (text.size() > max_header) {
    fail(where, "expected a header of at most {} bytes, got {}", max_header, text.size());
  }
  return text;
}

// Groups of consecutive tensors of at most `shard_bytes` each; a larger tensor is a group by
// itself.
std::vector<std::vector<TensorToWrite>> split(const std::vector<TensorToWrite>& tensors,
                                              int64_t shard_bytes) {
  std::vector<std::vector<TensorToWrite>> shards(1);
  int64_t filled = 0;
  for (const TensorToWrite& t : tensors) {
    const int64_t size = bytes_of(t);
    if (!shards.back().empty() && (size > shard_bytes || filled > shard_bytes - size)) {
      shards.emplace_back();
      filled = 0;
    }
    shards.back().push_back(t);
    filled += size;
  }
  return shards;
}

}  // namespace

SafetensorsTable parse_safetensors(Bytes file, std::string_view where) {
  uint64_t header_size = 0;
  if (file.size() < sizeof header_size) {
    fail(where, "expected a safetensors file of at least 8 bytes, got {}", file.size());
  }
  std::memcpy(&header_size, file.data(), sizeof header_size);
  file = file.subspan(sizeof header_size);
  if (header_size > max_header) {
    fail(where, "expected a header of at most {} bytes, got {}: not a safetensors file?",
         max_header, header_size);
  }
  if (header_size > file.size()) {
    fail(where, "expected a header of {} bytes, got {}: truncated?", header_size, file.size());
  }
  const json header = parse_json(to_text(file.first(header_size)), where, {.max_depth = 4});
  if (!header.is_object()) fail(where, "expected the header to be a JSON object");

  SafetensorsTable table;
  std::vector<Entry> entries;
  for (const auto& [name, value] : header.get_ref<const json::object_t&>()) {
    if (name == "__metadata__") {
      table.metadata = parse_metadata(value, where);
    } else {
      entries.push_back(parse_entry(name, value, where));
    }
  }
  place(table, entries, file.subspan(header_size), where);
  return table;
}

Safetensors::Safetensors(const fs::path& path) : path_(path) {
  std::error_code ignored;
  if (fs::is_directory(path, ignored))
    read_stem(path, "model");
  else if (path.extension() == ".json")
    read_index(path);
  else
    read_file(path);
}

Safetensors::Safetensors(const fs::path& dir, std::string_view stem) : path_(dir) {
  read_stem(dir, stem);
}

void Safetensors::read_stem(const fs::path& dir, std::string_view stem) {
  std::error_code ignored;
  const fs::path single = dir / fmt::format("{}{}", stem, file_end);
  const fs::path index = dir / fmt::format("{}{}", stem, index_end);
  if (fs::exists(single, ignored))  // like transformers, prefer a single file to an index
    read_file(single);
  else if (fs::exists(index, ignored))
    read_index(index);
  else
    fail(dir.string(), "expected {} or {}, got neither", single.filename().string(),
         index.filename().string());
}

void Safetensors::read_file(const fs::path& path) {
  files_.emplace_back(path);
  SafetensorsTable table = parse_safetensors(files_.back().bytes(), path.string());
  table_.tensors.merge(table.tensors);
  table_.foreign.merge(table.foreign);
  table_.metadata.merge(table.metadata);
  // merge() leaves the tensors that an earlier shard already had.
  if (!table.tensors.empty() || !table.foreign.empty()) {
    fail(path.string(), "expected tensor {} in one shard only",
         in_quotes(table.tensors.empty() ? table.foreign.begin()->first
                                         : table.tensors.begin()->first));
  }
}

void Safetensors::read_index(const fs::path& path) {
  const std::string where = path.string();
  const json index = read_json(path, {.max_bytes = max_header, .max_depth = 8});
  const auto map = index.is_object() ? index.find("weight_map") : index.end();
  if (!index.is_object() || map == index.end() || !map->is_object()) {
    fail(where, "expected an object with weight_map");
  }
  std::set<std::string> shards;
  for (const auto& [name, shard] : map->get_ref<const json::object_t&>()) {
    // Only a plain file name: an index must not name files outside its folder.
    if (!shard.is_string() || shard == ".." || shard == "." || shard == "" ||
        shard.get_ref<const std::string&>().find_first_of(std::string_view("/\0", 2)) !=
            std::string::npos) {
      fail(where, "expected a file name for tensor {}, got {}", in_quotes(name),
           in_quotes(shard.dump(-1, ' ', true)));
    }
    shards.insert(shard.get<std::string>());
  }
  for (const std::string& shard : shards) read_file(path.parent_path() / shard);
  for (const auto& [name, shard] : map->get_ref<const json::object_t&>()) {
    if (!find(name) && !table_.foreign.contains(name)) {
      fail((path.parent_path() / shard.get<std::string>()).string(),
           "this shard has no tensor {}, although {} lists it here", in_quotes(name),
           path.filename().string());
    }
  }
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto at = table_.tensors.find(name);
  return at == table_.tensors.end() ? nullptr : &at->second;
}

const StoredTensor& Safetensors::at(std::string_view name) const {
  if (const StoredTensor* t = find(name)) return *t;
  if (const auto f = table_.foreign.find(name); f != table_.foreign.end()) {
    fail(path_.string(), "expected tensor {} to have a supported type, got {}", name, f->second);
  }
  fail(path_.string(), "there is no tensor {} in this file", in_quotes(name));
}

TensorToWrite tensor_to_write(std::string name, const StoredTensor& t) {
  return {std::move(name), t.dtype, t.shape, [bytes = t.bytes](const ByteSink& s) { s(bytes); }};
}

FileDigest write_safetensors(const fs::path& dir, const std::string& file,
                             const std::vector<TensorToWrite>& tensors) {
  const fs::path path = dir / file;
  std::vector<const TensorToWrite*> order;
  for (const TensorToWrite& t : tensors) order.push_back(&t);
  std::stable_sort(order.begin(), order.end(), [](const auto* a, const auto* b) {
    return size_of(a->dtype) > size_of(b->dtype);
  });
  const std::string header = header_of(order, path.string());
  const uint64_t header_size = header.size();

  HashedFile out(path);
  const ByteSink sink = [&](Bytes bytes) { out.write(bytes); };
  sink(std::as_bytes(std::span(&header_size, 1)));
  sink(to_bytes(header));
  for (const TensorToWrite* t : order) {
    const uint64_t end = out.size() + uint64_t(bytes_of(*t));
    t->produce(sink);
    if (out.size() != end) {
      fail(path.string(), "expected tensor {} to end at byte {}, got {}", in_quotes(t->name), end,
           out.size());
    }
  }
  const uint64_t size = out.size();
  return {file, size, out.commit()};
}

std::vector<FileDigest> write_safetensors_shards(const fs::path& dir, const std::string& stem,
                                                 const std::vector<TensorToWrite>& tensors,
                                                 int64_t shard_bytes) {
  const auto shards = split(tensors, shard_bytes);
  const std::string single = fmt::format("{}{}", stem, file_end);
  const std::string index_name = fmt::format("{}{}", stem, index_end);
  std::error_code ignored;
  if (shards.size() == 1) {
    FileDigest digest = write_safetensors(dir, single, tensors);
    fs::remove(dir / index_name, ignored);
    return {std::move(digest)};
  }
  const auto file_of = [&](size_t i) {
    return fmt::format("{}-{:05}-of-{:05}{}", stem, i + 1, shards.size(), file_end);
  };
  ordered_json weight_map = ordered_json::object();
  std::set<std::string_view> names;
  int64_t total = 0;
  for (size_t i = 0; i < shards.size(); ++i)
    for (const TensorToWrite& t : shards[i]) {
      if (!names.insert(t.name).second) {
        fail((dir / file_of(i)).string(), "expected every tensor name once, got {} twice",
             in_quotes(t.name));
      }
      weight_map.get_ref<ordered_json::object_t&>().emplace_back(t.name, file_of(i));
      total += bytes_of(t);
    }
  std::vector<FileDigest> digests(shards.size());
  in_parallel(shards.size(),
              [&](size_t i) { digests[i] = write_safetensors(dir, file_of(i), shards[i]); });
  const ordered_json index = {{"metadata", {{"total_size", total}}}, {"weight_map", weight_map}};
  const std::string text = index.dump(2) + "\n";
  write_file_atomic(dir / index_name, text);
  digests.push_back({index_name, text.size(), sha256_hex(to_bytes(text))});
  fs::remove(dir / single, ignored);  // readers would prefer it to the index
  return digests;
}

std::vector<FileDigest> write_safetensors_model(const fs::path& dir,
                                                const std::vector<TensorToWrite>& tensors,
                                                int64_t shard_bytes) {
  return write_safetensors_shards(dir, "model", tensors, shard_bytes);
}

}  // namespace hearth::inline formats
