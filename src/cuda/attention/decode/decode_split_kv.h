// Decoding over a paged cache by blocks of a row's keys: few rows, or heads of any size.
#pragma once

#include <type_traits>

#include "cuda/device/stream.h"

namespace hearth::cuda {

struct Decode;

// f(std::integral_constant<int, Lanes>) for a head's size.
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

// C: what the cache is made of, T or bytes (fp8).
template <class T, class C>
void decode_pieces(const Decode&, CudaStream&);

}  // namespace hearth::cuda
