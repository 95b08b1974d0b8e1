// Views of q, k and v in one packed tensor, as kernels take them.
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
