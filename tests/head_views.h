// The views of q, k and v that kernels take, of one packed tensor.
#pragma once

#include "core/kernel_args.h"

namespace hearth {

struct QkvViews {
  HeadView q, k, v;
};
inline QkvViews packed_views(const Tensor& qkv, const QkvLayout& l) {
  return {{qkv, l.q}, {qkv, l.k}, {qkv, l.v}};
}

}  // namespace hearth
