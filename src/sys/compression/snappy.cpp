#include "sys/compression/snappy.h"

#include <cstring>

namespace hearth::inline sys {
namespace {

// Reads a little-endian number of `bytes` bytes from the front of `in`, which is long enough.
size_t take_number(Bytes& in, size_t bytes) {
  size_t n = 0;
  for (size_t i = 0; i < bytes; ++i) n |= size_t(in[i]) << (8 * i);
  in = in.subspan(bytes);
  return n;
}

// Copies `length` bytes from `back` bytes earlier; source and target may overlap.
void repeat(std::byte* to, size_t back, size_t length) {
  const std::byte* from = to - back;
  if (back >= length) {
    std::memcpy(to, from, length);
  } else {
    for (size_t i = 0; i < length; ++i) to[i] = from[i];
  }
}

}  // namespace

const char* unpack_snappy(std::vector<std::byte>& out, Bytes in, size_t size) {
  constexpr size_t most = 22;  // maximum output bytes per input byte: 64 from 3
  size_t stated = 0;
  for (int shift = 0;; shift += 7) {
    if (in.empty() || shift > 28) return "no length field";
    const size_t b = take_number(in, 1);
    stated |= (b & 127) << shift;
    if (b < 128) break;
  }
  if (stated != size) return "a different length than stated";
  if (size > most * in.size()) return "less data than stated";
  out.resize(size);
  size_t made = 0;
  while (!in.empty()) {
    const size_t tag = take_number(in, 1), kind = tag & 3;
    size_t length = tag >> 2, back = 0;
    if (kind == 0) {  // a literal; lengths of 60 and more follow in 1 to 4 bytes
      const size_t wide = length < 60 ? 0 : length - 59;
      if (in.size() < wide) return "truncated data";
      length = 1 + (wide ? take_number(in, wide) : length);
      if (in.size() < length) return "truncated data";
    } else {
      const size_t wide = kind == 3 ? 4 : kind;
      if (in.size() < wide) return "truncated data";
      back = take_number(in, wide);
      if (kind == 1) back |= (tag >> 5) << 8;
      length = kind == 1 ? 4 + (length & 7) : length + 1;
      if (back == 0 || back > made) return "a back reference before the start";
    }
    if (length > size - made) return "more data than stated";
    if (kind == 0) {
      std::memcpy(out.data() + made, in.data(), length);
      in = in.subspan(length);
    } else {
      repeat(out.data() + made, back, length);
    }
    made += length;
  }
  return made == size ? nullptr : "less data than stated";
}

}  // namespace hearth::inline sys
