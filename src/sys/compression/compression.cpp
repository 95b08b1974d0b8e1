#include "sys/compression/compression.h"

#include <algorithm>
#include <string_view>

#include "sys/error.h"

namespace hearth::inline sys {
namespace {

using namespace std::string_view_literals;

struct Magic {
  std::string_view bytes, name;
};

// Formats that hearth does not read, with the tool that unpacks them. Each magic is long enough
// that text does not match it by chance.
constexpr Magic foreign[] = {{"\xfd"
                              "7zXZ\0"sv,
                              "xz"},
                             {"BZh91AY&"sv, "bzip2"},
                             {"PK\3\4"sv, "zip"},
                             {"\x04\x22\x4d\x18"sv, "lz4"}};

}  // namespace

const char* name(Packing p) {
  return p == Packing::gzip ? "gzip" : p == Packing::zstd ? "zstd" : "plain";
}

Packing packing_of(Bytes head, const std::string& where) {
  const std::string_view text = to_text(head);
  for (const Magic& m : foreign)
    if (text.starts_with(m.bytes))
      fail(where,
           "expected plain, gzip or zstd data, got {}: unpack it first, or pipe it in with -",
           m.name);
  if (text.starts_with("\x1f\x8b"sv)) return Packing::gzip;
  if (text.starts_with("\x28\xb5\x2f\xfd"sv)) return Packing::zstd;
  const bool skippable = text.size() >= 4 && (text[0] & 0xf0) == 0x50 &&
                         text.substr(1, 3) == "\x2a\x4d\x18"sv;  // zstd skippable frame
  return skippable ? Packing::zstd : Packing::none;
}

std::unique_ptr<Unpacker> make_unpacker(Packing p, const std::string& where) {
  if (p == Packing::none) fail(where, "expected compressed data, got plain");
  std::unique_ptr<Unpacker> unpacker = p == Packing::gzip ? make_gzip() : make_zstd();
  if (!unpacker)
    fail(where, "this build cannot read {} data, because it was built without {}", name(p),
         p == Packing::gzip ? "zlib (package zlib1g-dev)" : "libzstd (package libzstd-dev)");
  return unpacker;
}

const char* unpack_whole(std::vector<std::byte>& out, Unpacker& unpacker, Bytes in, size_t size) {
  out.clear();
  size_t made = 0;
  std::byte beyond[1];
  for (;;) {
    if (made == out.size()) out.resize(std::min(size, std::max<size_t>(2 * made, 16 * in.size())));
    const bool full = made == size;
    const Unpacker::Step s =
        unpacker.step(in, full ? std::span<std::byte>(beyond) : std::span(out).subspan(made));
    if (s.problem) return s.problem;
    if (full && s.out > 0) return "more data than stated";
    in = in.subspan(s.in);
    made += s.out;
    if (made == size && in.empty() && unpacker.complete()) break;
    if (s.in == 0 && s.out == 0) return made < size ? "less data than stated" : "no end marker";
  }
  out.resize(size);
  return nullptr;
}

}  // namespace hearth::inline sys
