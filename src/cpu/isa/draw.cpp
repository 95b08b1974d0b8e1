// The initial values of parameters (core/draw.h).
#include "core/draw.h"
#include "cpu/isa/kernels.h"
#include "cpu/isa/random.h"
#include "cpu/isa/rows.h"

namespace hearth::HEARTH_ISA {
namespace {

constexpr int64_t piece = 256;  // elements whose values stay in the first cache
static_assert(piece % random_span == 0);

// The words of a piece that begins at element 4 block.
void words_of(uint32_t* out, const DrawKey& key, uint64_t block) {
  for (int64_t at = 0; at < piece; at += random_span) {
    vu c0;
    for (int i = 0; i < lanes; ++i) c0[i] = uint32_t(block + uint64_t(at / 4 + i));
    philox_words(out + at, c0, vu{} + key.name_lo, vu{} + key.name_hi, vu{} + draw_salt,
                 key.seed_lo, key.seed_hi);
  }
}

// The loops without branches and calls are those that the compiler vectorises.
void draw_normal(float* z, const uint32_t* words, double deviation) {
  constexpr int pairs = int(piece / 2);
  float u[pairs], v[pairs];
  uint8_t sure[pairs];
  for (int i = 0; i < pairs; ++i)
    u[i] = unit_draw(words[2 * i]), v[i] = unit_draw(words[2 * i + 1]);
  for (int i = 0; i < pairs; ++i) {
    const NormalPair p = normal_pair(deviation, u[i], v[i]);
    z[2 * i] = float(p.first), z[2 * i + 1] = float(p.second);
    sure[i] = int(is_sure(p.first, p.doubt)) & int(is_sure(p.second, p.doubt));  // no branch
  }
  for (int i = 0; i < pairs; ++i)
    if (!sure[i]) draw_normal_pair(z + 2 * i, deviation, u[i], v[i]);
}

}  // namespace

void draw(Stream& s, const DrawArgs& args) {
  float* const y = args.y.as<float>();
  const Init& init = args.init;
  over_elements(s, count(args.y), [&](int64_t begin, int64_t end) {
    uint32_t words[piece];
    float z[piece];
    for (int64_t at = begin; at < end; at += piece) {  // begin is a multiple of 4
      if (init.kind != Init::Kind::constant) words_of(words, args.key, uint64_t(at) / 4);
      if (init.kind == Init::Kind::normal)
        draw_normal(z, words, init.scale);
      else
        for (int i = 0; i < piece; ++i)
          z[i] =
              init.kind == Init::Kind::constant ? init.scale : uniform_draw(init.scale, words[i]);
      std::memcpy(y + at, z, size_t(smaller(piece, end - at)) * sizeof(float));
    }
  });
}

}  // namespace hearth::HEARTH_ISA
