#include "core/draw.h"

#include <algorithm>
#include <numbers>

namespace hearth::inline core {

DrawKey draw_key(uint64_t seed, std::string_view name) {
  uint64_t h = 0xcbf29ce484222325u;  // FNV-1a
  for (unsigned char c : name) h = (h ^ c) * 0x100000001b3u;
  return {uint32_t(h), uint32_t(h >> 32), uint32_t(seed), uint32_t(seed >> 32)};
}

void draw_normal_pair(float* out, double deviation, float u, float v) {
  const double rho = deviation * std::sqrt(-2 * std::log(double(u)));
  const double phi = 2 * std::numbers::pi * v;
  out[0] = float(rho * std::cos(phi)), out[1] = float(rho * std::sin(phi));
}

void draw(std::span<float> out, const Init& init, uint64_t seed, std::string_view name,
          int64_t first) {
  if (init.kind == Init::Kind::constant) return void(std::ranges::fill(out, init.scale));
  const DrawKey key = draw_key(seed, name);
  for (size_t i = 0; i < out.size(); i += 4) {
    const Words r = draw_words(key, (uint64_t(first) + i) / 4);
    float z[4];
    for (int j = 0; j < 4; j += 2) {
      if (init.kind == Init::Kind::normal)
        draw_normal_pair(z + j, init.scale, unit_draw(r.w[j]), unit_draw(r.w[j + 1]));
      else
        z[j] = uniform_draw(init.scale, r.w[j]), z[j + 1] = uniform_draw(init.scale, r.w[j + 1]);
    }
    for (size_t j = 0; j < 4 && i + j < out.size(); ++j) out[i + j] = z[j];
  }
}

}  // namespace hearth::inline core
