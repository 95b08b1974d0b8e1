// A part of every key, taken from the token before. Memory bound: the part is read and written
// twice.
#include "cpu/isa/kernels.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

template <class T>
struct KeyParts {
  const OffsetKeysArgs& args;
  const int32_t* at = args.positions.as<const int32_t>();
  int64_t rows = count(args.positions), tokens = args.positions.cols();  // tokens: of a batch row
  int64_t size = args.size(), width = args.k.width - args.first;

  bool has_previous(int64_t n) const { return at[n] > 0 && (args.tables || n % tokens > 0); }
  bool has_next(int64_t n) const { return n % tokens + 1 < tokens && at[n + 1] > 0; }
  T* part(int64_t n, int64_t h) const { return args.y.as<T>() + args.k.at(n, h) + args.first; }
  // The stored parts of the token at position p of row n's sequence, which is row m.
  T* stored(int64_t n, int64_t p, int64_t m) const {
    if (!args.tables) return args.kept.as<T>() + m * size;
    const int64_t sequence = args.sequences.as<const int32_t>()[n];
    const int64_t block =
        args.tables.as<const int32_t>()[sequence * args.tables.cols() + p / cache_block];
    return args.kept.as<T>() + (block * cache_block + p % cache_block) * size;
  }

  void store(int64_t n) const {
    if (args.tables && at[n] < 0) return;
    T* to = stored(n, at[n], n);
    for (int64_t h = 0; h < args.k.heads; ++h) copy(to + h * width, part(n, h));
  }
  void take(int64_t n) const {
    if (!has_previous(n)) return;
    const T* from = stored(n, at[n] - 1, n - 1);
    for (int64_t h = 0; h < args.k.heads; ++h) copy(part(n, h), from + h * width);
  }
  // The gradient of what row n + 1 took, and of what row n kept.
  void give_back(int64_t n) const {
    const bool kept = !has_previous(n), taken = has_next(n);
    for (int64_t h = 0; h < args.k.heads; ++h) {
      const T* next = args.kept.as<const T>() + (n + 1) * size + h * width;
      T* to = part(n, h);
      if (kept && taken)
        vectors(width, [&](int64_t i, auto w) { w.put(to + i, w.get(to + i) + w.get(next + i)); });
      else if (taken)
        copy(to, next);
      else if (!kept)
        std::memset(static_cast<void*>(to), 0, size_t(width) * sizeof(T));
    }
  }

 private:
  void copy(T* y, const T* x) const {
    std::memcpy(static_cast<void*>(y), x, size_t(width) * sizeof(T));
  }
};

}  // namespace

void offset_keys(Stream& s, const OffsetKeysArgs& args) {
  expect_dtype("offset_keys", args.y.dtype, args.kept);
  by_dtype("offset_keys", args.y, [&]<class T>(T*) {
    const KeyParts<T> keys{args};
    over_rows(s, keys.rows, keys.size, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) keys.store(n);
    });
    over_rows(s, keys.rows, keys.size, [&](int64_t begin, int64_t end) {
      for (int64_t n = begin; n < end; ++n) args.back ? keys.give_back(n) : keys.take(n);
    });
  });
}

}  // namespace hearth::HEARTH_ISA
