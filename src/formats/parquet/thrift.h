// The part of Thrift's compact protocol that Parquet headers need. Reads from memory, checks every
// length, and skips unused fields in linear time.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "sys/error.h"
#include "sys/files/files.h"

namespace hearth::inline formats {

class ThriftReader {
 public:
  enum Type : uint8_t {
    stop,
    yes,
    no,
    byte,
    i16,
    i32,
    i64,
    real,
    binary,
    list,
    set,
    map,
    record,
    uuid
  };

  // `begin` is the file offset of `bytes`, for errors.
  ThriftReader(Bytes bytes, std::string_view where, int64_t begin)
      : all_(bytes), where_(where), begin_(begin) {}

  size_t position() const { return at_; }

  // Calls field(id, type) for each field of a struct; it must read the field or skip(type) it.
  template <class F>
  void fields(F field) {
    enter();
    int64_t id = 0;
    for (;;) {
      const uint8_t head = take();
      const Type type = Type(head & 15);
      if (type == stop) break;
      id = head >> 4 ? id + (head >> 4) : signed_number();
      field(id, type);
    }
    --depth_;
  }

  // Calls element() for each element of a list of the given element type.
  template <class F>
  void elements(Type given, Type wanted, F element) {
    expect(given, list);
    const uint8_t head = take();
    const size_t n = (head >> 4) == 15 ? size_t(number()) : head >> 4;
    if (n > left()) bad("a list that fits the remaining bytes");  // at least a byte per element
    if (n > 0) expect(Type(head & 15), wanted);
    enter();
    for (size_t i = 0; i < n; ++i) element();
    --depth_;
  }

  // The value of an integer field of the given type.
  int64_t integer(Type given) {
    if (given != i32 && given != i64 && given != i16) bad("a whole number");
    return signed_number();
  }
  bool boolean(Type given) {
    if (given != yes && given != no) bad("a boolean");
    return given == yes;
  }
  std::string_view text(Type given) {
    expect(given, binary);
    return bytes(size_t(number()));
  }

  void skip(Type type) {
    switch (type) {
      case yes:
      case no:
        break;
      case byte:
        take();
        break;
      case i16:
      case i32:
      case i64:
        number();
        break;
      case real:
        bytes(8);
        break;
      case uuid:
        bytes(16);
        break;
      case binary:
        bytes(size_t(number()));
        break;
      case list:
      case set:
        skip_list();
        break;
      case map:
        skip_map();
        break;
      case record:
        fields([&](int64_t, Type t) { skip(t); });
        break;
      default:
        bad("a known type");
    }
  }

  [[noreturn]] void bad(std::string_view wanted) const {
    fail(where_, "expected {} in a Parquet header at byte {}, got other data", wanted,
         begin_ + int64_t(at_));
  }

 private:
  size_t left() const { return all_.size() - at_; }
  void enter() {
    if (++depth_ > 24) bad("less nesting");
  }
  void expect(Type given, Type wanted) const {
    if (given != wanted)
      bad(fmt::format("a value of type {} rather than {}", int(wanted), int(given)));
  }
  uint8_t take() {
    if (left() == 0) bad("more bytes");
    return uint8_t(all_[at_++]);
  }
  std::string_view bytes(size_t n) {
    if (n > left()) bad("more bytes");
    at_ += n;
    return to_text(all_.subspan(at_ - n, n));
  }
  uint64_t number() {
    uint64_t n = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      const uint8_t b = take();
      n |= uint64_t(b & 127) << shift;
      if (b < 128) return n;
    }
    bad("a number of at most 64 bits");
  }
  int64_t signed_number() {
    const uint64_t n = number();
    return int64_t(n >> 1) ^ -int64_t(n & 1);
  }
  // Booleans in lists and maps take one byte each.
  void skip_element(Type type) { type == yes || type == no ? void(take()) : skip(type); }
  void skip_list() {
    const uint8_t head = take();
    const size_t n = (head >> 4) == 15 ? size_t(number()) : head >> 4;
    if (n > left()) bad("a list that fits the remaining bytes");
    enter();
    for (size_t i = 0; i < n; ++i) skip_element(Type(head & 15));
    --depth_;
  }
  void skip_map() {
    const size_t n = size_t(number());
    if (n == 0) return;
    const uint8_t types = take();
    if (n > left()) bad("a map that fits the remaining bytes");
    enter();
    for (size_t i = 0; i < n; ++i) skip_element(Type(types >> 4)), skip_element(Type(types & 15));
    --depth_;
  }

  Bytes all_;
  std::string_view where_;
  int64_t begin_;
  size_t at_ = 0;
  int depth_ = 0;
};

}  // namespace hearth::inline formats
