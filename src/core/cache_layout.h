// CacheLayout: what one layer keeps of every token in the paged KV cache, and where it lies in a
// block. Layers of one model may differ, and a layer may keep nothing.
#pragma once

#include "core/fp8.h"
#include "core/kernels.h"

namespace hearth {

// A block holds `cache_block` tokens: first the keys, then the values, each as one panel per head.
// A panel is (cache_block, width) elements; an fp8 panel ends with the exponents of its rows.
struct CacheLayout {
  int64_t heads = 0;                 // of keys and of values; 0: the layer keeps nothing
  int64_t k_width = 0, v_width = 0;  // numbers of a key, of a value
  CacheFormat format = CacheFormat::plain;
  DType dtype = DType::f32;  // of an element

  explicit operator bool() const { return heads > 0; }
  int64_t k_panel() const { return cache_block * cache_width(format, k_width); }  // elements
  int64_t v_panel() const { return cache_block * cache_width(format, v_width); }
  int64_t block() const { return heads * (k_panel() + v_panel()); }
  int64_t block_bytes() const { return block() * size_of(dtype); }
  // Bytes that a decode step reads of each token in sight.
  int64_t token_bytes() const { return block_bytes() / cache_block; }
  Shape shape(int64_t blocks) const {
    return {blocks, 2 * heads, cache_block, cache_width(format, k_width)};
  }
};

}  // namespace hearth
