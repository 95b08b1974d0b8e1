#include "formats/parquet/parquet_values.h"

#include <algorithm>
#include <cstring>

namespace hearth::inline formats {
namespace {

constexpr const char* cut_off = "truncated values";

bool take_varint(uint64_t& n, Bytes& in) {
  n = 0;
  for (int shift = 0; shift < 64 && !in.empty(); shift += 7) {
    const uint8_t b = uint8_t(in[0]);
    in = in.subspan(1);
    n |= uint64_t(b & 127) << shift;
    if (b < 128) return true;
  }
  return false;
}

// `width` bits starting at bit `at`, all inside the bytes; width <= 64.
uint64_t bits_at(Bytes bytes, size_t at, int width) {
  uint64_t value = 0;
  int have = 0;
  for (size_t byte = at / 8, skip = at % 8; have < width; ++byte, skip = 0) {
    value |= (uint64_t(bytes[byte]) >> skip) << have;
    have += 8 - int(skip);
  }
  return width == 64 ? value : value & ((uint64_t(1) << width) - 1);
}

}  // namespace

bool RunReader::next_run() {
  uint64_t head;
  if (!take_varint(head, in_) || head >> 1 == 0 || head > UINT32_MAX) return false;
  if (head & 1) {  // groups of 8 packed values; the last may be shorter
    const size_t bytes = std::min(size_t(head >> 1) * size_t(width_), in_.size());
    packed_ = width_ == 0 ? int64_t(head >> 1) * 8 : int64_t(bytes * 8 / size_t(width_));
    packed_bytes_ = in_.first(bytes);
    in_ = in_.subspan(bytes);
    bit_ = 0;
    return packed_ > 0;
  }
  const size_t bytes = size_t(width_ + 7) / 8;
  if (in_.size() < bytes) return false;
  value_ = 0;
  for (size_t i = 0; i < bytes; ++i) value_ |= uint32_t(in_[i]) << (8 * i);
  in_ = in_.subspan(bytes);
  repeated_ = int64_t(head >> 1);
  return true;
}

int64_t RunReader::next(uint32_t& value, int64_t most) {
  if (repeated_ == 0 && packed_ == 0 && !next_run()) return 0;
  if (repeated_ > 0) {
    const int64_t n = std::min(repeated_, most);
    repeated_ -= n;
    value = value_;
    return n;
  }
  value = width_ == 0 ? 0 : uint32_t(bits_at(packed_bytes_, bit_, width_));
  bit_ += size_t(width_);
  --packed_;
  return 1;
}

const char* read_deltas(std::vector<int32_t>& out, Bytes& in, int64_t most) {
  uint64_t block, minis, total, first;
  if (!take_varint(block, in) || !take_varint(minis, in) || !take_varint(total, in) ||
      !take_varint(first, in))
    return cut_off;
  if (minis < 1 || minis > 1024 || block > (1 << 20) || block % (8 * minis) != 0 || block == 0)
    return "deltas in blocks of an unsupported size";
  if (total > uint64_t(most)) return "more deltas than the page has rows";
  out.clear();
  uint64_t value = first >> 1 ^ -(first & 1);  // wraps around, as the format specifies
  const uint64_t per_mini = block / minis;
  const auto put = [&] {
    if (value > INT32_MAX) return false;
    out.push_back(int32_t(value));
    return true;
  };
  if (total > 0 && !put()) return "a length out of range";
  while (out.size() < total) {
    uint64_t low;
    if (!take_varint(low, in) || in.size() < minis) return cut_off;
    low = low >> 1 ^ -(low & 1);
    const Bytes widths = in.first(minis);
    in = in.subspan(minis);
    for (uint64_t m = 0; m < minis && out.size() < total; ++m) {
      const int width = int(widths[m]);
      if (width > 64) return "deltas of more than 64 bits";
      const size_t bytes = per_mini * uint64_t(width) / 8;
      if (in.size() < bytes) return cut_off;
      for (uint64_t i = 0; i < per_mini && out.size() < total; ++i) {
        value += low + (width ? bits_at(in, i * uint64_t(width), width) : 0);
        if (!put()) return "a length out of range";
      }
      in = in.subspan(bytes);
    }
  }
  return nullptr;
}

bool take_plain(std::string_view& out, Bytes& in) {
  uint32_t length;
  if (in.size() < 4) return false;
  std::memcpy(&length, in.data(), 4);
  if (in.size() - 4 < length) return false;
  out = to_text(in.subspan(4, length));
  in = in.subspan(4 + size_t(length));
  return true;
}

const char* PageStrings::begin(Bytes values, ParquetEncoding encoding,
                               std::span<const std::string_view> dictionary, int64_t most) {
  encoding_ = encoding;
  rest_ = values;
  dictionary_ = dictionary;
  repeats_ = 0, at_ = 0, most_ = most;
  last_.clear();
  switch (encoding) {
    case ParquetEncoding::plain:
      return nullptr;
    case ParquetEncoding::plain_dictionary:
    case ParquetEncoding::rle_dictionary:
      if (values.empty()) {  // a page with only nulls
        indices_ = {};
        return nullptr;
      }
      if (uint8_t(values[0]) > 32) return "dictionary indices of more than 32 bits";
      indices_ = RunReader(values.subspan(1), int(values[0]));
      return nullptr;
    case ParquetEncoding::delta_bytes:
      if (const char* problem = read_deltas(prefixes_, rest_, most)) return problem;
      [[fallthrough]];
    case ParquetEncoding::delta_length:
      return read_deltas(lengths_, rest_, most);
  }
  return "another encoding";
}

const char* PageStrings::next(std::string_view& out) {
  switch (encoding_) {
    case ParquetEncoding::plain:
      return take_plain(out, rest_) ? nullptr : cut_off;
    case ParquetEncoding::plain_dictionary:
    case ParquetEncoding::rle_dictionary:
      return next_indexed(out);
    default:
      return next_delta(out);
  }
}

const char* PageStrings::next_indexed(std::string_view& out) {
  if (repeats_ == 0) repeats_ = indices_.next(index_, most_);
  if (repeats_ == 0) return cut_off;
  --repeats_;
  if (index_ >= dictionary_.size()) return "an index beyond the dictionary";
  out = dictionary_[index_];
  return nullptr;
}

const char* PageStrings::next_delta(std::string_view& out) {
  if (at_ >= lengths_.size() || rest_.size() < size_t(lengths_[at_])) return cut_off;
  const std::string_view tail = to_text(rest_.first(size_t(lengths_[at_])));
  rest_ = rest_.subspan(tail.size());
  if (encoding_ == ParquetEncoding::delta_bytes) {
    if (at_ >= prefixes_.size() || size_t(prefixes_[at_]) > last_.size())
      return "a prefix longer than the previous string";
    last_.resize(size_t(prefixes_[at_]));
    out = last_ += tail;
  } else {
    out = tail;
  }
  ++at_;
  return nullptr;
}

}  // namespace hearth::inline formats
