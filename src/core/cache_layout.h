// CacheLayout: what one layer keeps of every token in the paged KV cache, and where it lies in a
// block. Layers of one model may differ, and a layer may keep nothing.
#pragma once

#include "core/fp8.h"
#include "core/kernels.h"

namespace hearth::inline core {

// A block holds `cache_block` tokens: first the keys, then the values, each as one panel per head.
// A panel is (cache_block, width) elements; an fp8 panel ends with the exponents of its rows.
struct CacheLayout {
  int64_t heads = 0;                 // of keys and of values; 0: the layer keeps nothing
  int64_t k_width = 0, v_width = 0;  // elements of a key and of a value
  CacheFormat format = CacheFormat::plain;
  DType dtype = DType::f32;  // of one element

  explicit operator bool() const { return heads > 0; }
  // Elements of a panel of keys, of a panel of values, and of a block. Always inlined, because
  // files compiled for several instruction sets call them.
  [[gnu::always_inline]] int64_t k_panel() const {
    return cache_block * (k_width + (format == CacheFormat::fp8));
  }
  [[gnu::always_inline]] int64_t v_panel() const {
    return cache_block * (v_width + (format == CacheFormat::fp8));
  }
  [[gnu::always_inline]] int64_t block() const { return heads * (k_panel() + v_panel()); }
  int64_t block_bytes() const { return block() * size_of(dtype); }
  Shape shape(int64_t blocks) const { return {blocks, block()}; }
};

// The layout of the cache that a call of attention_cached reads and writes.
[[gnu::always_inline]] inline CacheLayout cache_layout(const HeadLayout& k, const HeadLayout& v,
                                                       DType cache) {
  return {.heads = k.heads,
          .k_width = k.width,
          .v_width = v.width,
          .format = cache == DType::u8 ? CacheFormat::fp8 : CacheFormat::plain,
          .dtype = cache};
}

}  // namespace hearth::inline core
