// The initial values of parameters (core/draw.h): 1.2 GB of weights of a 300M model in a few
// milliseconds, where the host needs seconds to draw and to copy them.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int threads = 256;

// A thread draws four elements at a time. `doubts` has room for `room` numbers after the count.
template <Init::Kind kind>
__global__ void __launch_bounds__(threads) draw_fours(float* y, int64_t n, float scale, DrawKey key,
                                                      uint32_t* doubts, uint32_t room, bool packs) {
  const int64_t fours = ceil_div(n, 4), stride = int64_t(gridDim.x) * threads;
  for (int64_t f = int64_t(blockIdx.x) * threads + threadIdx.x; f < fours; f += stride) {
    float z[4] = {scale, scale, scale, scale};
    if constexpr (kind != Init::Kind::constant) {
      const Words r = draw_words(key, uint64_t(f));
      if constexpr (kind == Init::Kind::uniform) {
#pragma unroll
        for (int j = 0; j < 4; ++j) z[j] = uniform_draw(scale, r.w[j]);
      } else {
        bool sure = true;
#pragma unroll
        for (int j = 0; j < 4; j += 2) {
          const NormalPair p = normal_pair(scale, unit_draw(r.w[j]), unit_draw(r.w[j + 1]));
          z[j] = float(p.first), z[j + 1] = float(p.second);
          sure = sure && is_sure(p.first, p.doubt) && is_sure(p.second, p.doubt);
        }
        if (!sure) {
          const uint32_t at = atomicAdd(doubts, 1u);
          if (at < room) doubts[1 + at] = uint32_t(f);
        }
      }
    }
    if (packs && 4 * f + 4 <= n)
      *reinterpret_cast<float4*>(y + 4 * f) = make_float4(z[0], z[1], z[2], z[3]);
    else
      for (int j = 0; j < 4 && 4 * f + j < n; ++j) y[4 * f + j] = z[j];
  }
}

}  // namespace

void draw(Stream& stream, const DrawArgs& args) {
  if (args.y.dtype != DType::f32) refuse_dtype("draw", args.y.dtype);
  CudaStream& s = on(stream);
  const int64_t n = args.y.numel();
  if (n == 0) return;
  const auto blocks =
      unsigned(std::min<int64_t>(ceil_div(n, 4 * threads), int64_t(s.card.processors) * 16));
  const bool packs = packs_fit(4, args.y);
  const auto launch = [&](auto* kernel) {
    kernel<<<blocks, threads, 0, s.handle>>>(args.y.as<float>(), n, args.init.scale, args.key,
                                             args.doubts.as<uint32_t>(),
                                             uint32_t(args.doubts.numel() - 1), packs);
    check_launch("draw");
  };
  switch (args.init.kind) {
    case Init::Kind::constant:
      return launch(draw_fours<Init::Kind::constant>);
    case Init::Kind::uniform:
      return launch(draw_fours<Init::Kind::uniform>);
    case Init::Kind::normal:
      return launch(draw_fours<Init::Kind::normal>);
  }
}

}  // namespace hearth::cuda
