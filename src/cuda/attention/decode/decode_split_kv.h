// Split-KV decoding over a paged cache: for few rows, or heads of any size.
#pragma once

#include <type_traits>

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct Decode;

// Calls f(std::integral_constant<int, Lanes>) with the lanes per key for a head size.
template <class F>
void by_lanes(int D, F&& f) {
  if (D <= 32)
    f(std::integral_constant<int, 4>());
  else if (D <= 64)
    f(std::integral_constant<int, 8>());
  else if (D <= 128)
    f(std::integral_constant<int, 16>());
  else
    f(std::integral_constant<int, 32>());
}

// C: the element type of the cache, T or bytes (fp8).
template <class T, class C>
void decode_pieces(const Decode&, CudaStream&);

}  // namespace hearth::cuda
