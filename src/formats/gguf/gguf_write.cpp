// Writes GGUF files: keys are encoded when they are set, tensors when they are written.
#include <limits>
#include <set>

#include "formats/gguf/gguf.h"
#include "formats/json.h"
#include "formats/stored_tensor.h"
#include "sys/error.h"

namespace hearth::inline formats {
namespace {

constexpr uint64_t written_align = 32;

uint64_t padding_after(uint64_t at) { return (written_align - at % written_align) % written_align; }

template <class T>
void put_number(std::string& out, T x) {
  out.append(reinterpret_cast<const char*>(&x), sizeof x);
}

void put_text(std::string& out, std::string_view text) {
  put_number(out, uint64_t(text.size()));
  out += text;
}

}  // namespace

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
    fail("gguf", "expected {} to fit 32 bits, got {}", name, x);
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
      fail(path.string(), "expected every tensor once, got {} twice", in_quotes(t.name));
    put_text(header, t.name);
    put_number(header, uint32_t(t.shape.size()));
    std::vector<int64_t> blocks = t.shape;
    for (size_t i = blocks.size(); i-- > 0;) put_number(header, blocks[i]);
    blocks.back() /= block_elements(t.type);
    const auto size = checked_bytes(blocks, block_bytes(t.type));
    if (!size)
      fail(path.string(), "expected {} to have a size below 2^63 bytes", in_quotes(t.name));
    sizes.push_back(uint64_t(*size));
    put_number(header, uint32_t(t.type));
    put_number(header, at);
    at += sizes.back() + padding_after(sizes.back());
  }
  header.append(padding_after(header.size()), '\0');

  AtomicFile out(path);
  out.write(to_bytes(header));
  const std::string zeros(written_align, '\0');
  for (size_t i = 0; i < tensors.size(); ++i) {
    const std::vector<std::byte> bytes = to_ggml(tensors[i].values(), tensors[i].type);
    if (bytes.size() != sizes[i])
      fail(path.string(), "expected {} bytes of tensor {}, got {}", sizes[i],
           in_quotes(tensors[i].name), bytes.size());
    out.write(bytes);
    out.write(to_bytes(zeros).first(padding_after(sizes[i])));
  }
  out.commit();
}

}  // namespace hearth::inline formats
