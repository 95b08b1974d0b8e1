// Latent attention around its products: rotation of some dims of heads, packing of heads, and
// latents in and out of the paged cache. Memory bound; copies move 16 bytes at a time where all
// widths allow it.
#include "cuda/device/device.cuh"
#include "cuda/kernels.h"

namespace hearth::cuda {
namespace {

constexpr int copy_threads = 256;

template <class F>
__global__ void __launch_bounds__(copy_threads) each_index(F f, int64_t n) {
  const int64_t i = int64_t(blockIdx.x) * copy_threads + threadIdx.x;
  if (i < n) f(i);
}

template <class F>
void launch_each(Stream& stream, const char* op, int64_t n, const F& f) {
  if (n == 0) return;
  each_index<<<unsigned(ceil_div(n, copy_threads)), copy_threads, 0, on(stream).handle>>>(f, n);
  check_launch(op);
}

// Calls f(Unit{}, elements of a unit): the largest unit that divides all widths, whose tensors then
// begin at multiples of it (allocations and rows do).
template <class F, class... Widths>
void by_unit(DType dtype, F&& f, Widths... widths) {
  const int64_t size = size_of(dtype);
  if (((widths * size % 16 == 0) && ...))
    f(uint4{}, 16 / size);
  else if (size == 4)
    f(uint32_t{}, int64_t(1));
  else
    f(uint16_t{}, int64_t(1));
}

// One thread per rotated pair, then one per other element unless y is x.
template <class T>
struct RotateHeads {
  T* y;
  const T* x;
  const int32_t* positions;
  const float* rope;
  RopeHeadsSpec s;
  int64_t units;  // per head

  __device__ void operator()(int64_t i) const {
    const int64_t head = i / units, u = i % units, half = s.rotary / 2;
    const int64_t at = head * s.width;
    if (u >= half) {  // the dims before and after those that are rotated
      const int64_t d = u - half < s.first ? u - half : u - half + s.rotary;
      y[at + d] = x[at + d];
      return;
    }
    const int64_t row = max(0, positions[head / s.heads]);
    const float c = rope[row * s.rotary + 2 * u];
    const float sine = (s.reverse ? -1.0f : 1.0f) * rope[row * s.rotary + 2 * u + 1];
    const int64_t first = at + s.first + (s.interleaved ? 2 * u : u);
    const int64_t second = s.interleaved ? first + 1 : first + half;
    const float a = get(load<1>(x + first), 0), b = get(load<1>(x + second), 0);
    const float out_a[1] = {a * c - b * sine}, out_b[1] = {b * c + a * sine};
    store_rounded(y + first, out_a);
    store_rounded(y + second, out_b);
  }
};

// All sizes in units.
template <class Unit>
struct Pack3 {
  Unit *y, *q, *kv, *k_rope;
  int64_t heads, nope, rope, v;

  __device__ int64_t qk() const { return nope + rope; }
  __device__ int64_t packed() const { return heads * (2 * qk() + v); }
  // Where element i of packed tokens comes from, or null if it is part of a rotated key.
  __device__ Unit* source(int64_t token, int64_t i) const {
    const int64_t q_size = heads * qk(), kv_head = nope + v;
    if (i < q_size) return q ? q + token * q_size + i : nullptr;
    i -= q_size;
    Unit* own = kv ? kv + token * heads * kv_head : nullptr;
    if (i >= q_size) {
      i -= q_size;
      return own ? own + i / v * kv_head + nope + i % v : nullptr;
    }
    const int64_t h = i / qk(), d = i % qk();
    return own && d < nope ? own + h * kv_head + d : nullptr;
  }
  __device__ int64_t rotated(int64_t i) const {  // index in the rotated key; only for such elements
    return (i - heads * qk()) % qk() - nope;
  }
};

template <class Unit>
struct PackHeads : Pack3<Unit> {
  __device__ void operator()(int64_t i) const {
    const int64_t token = i / this->packed(), at = i % this->packed();
    const Unit* from = this->source(token, at);
    this->y[i] = from ? *from : this->k_rope[token * this->rope + this->rotated(at)];
  }
};

template <class Unit>
struct UnpackHeads : Pack3<Unit> {
  __device__ void operator()(int64_t i) const {
    const int64_t token = i / this->packed(), at = i % this->packed();
    if (Unit* to = this->source(token, at)) *to = this->y[i];
  }
};

template <class T>
struct SumRotated {
  T* to;
  const T* dy;
  int64_t heads, rope, qk, packed, first;  // first: the rotated part of the first head of k
  __device__ void operator()(int64_t i) const {
    const T* from = dy + i / rope * packed + first + i % rope;
    float total = 0;
    for (int64_t h = 0; h < heads; ++h) total += get(load<1>(from + h * qk), 0);
    const float out[1] = {total};
    store_rounded(to + i, out);
  }
};

// A cache of latents, in units; a row is a latent, then a rotated key.
template <class Unit>
struct LatentBlocks {
  Unit* cache;
  Unit *latent, *rope;  // rows that are stored, or those that are read
  const int32_t *positions, *sequences, *tables;
  int64_t L, R, width, blocks;  // width: blocks of a table; blocks: of them that are read

  __device__ Unit& own(int64_t row, int64_t d) const {
    return d < L ? latent[row * L + d] : rope[row * R + d - L];
  }
  __device__ Unit& cached(int64_t block, int64_t at, int64_t d) const {
    return cache[(block * cache_block + at) * (L + R) + d];
  }
};

template <class Unit>
struct StoreLatents : LatentBlocks<Unit> {
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / (this->L + this->R), d = i % (this->L + this->R);
    const int64_t at = this->positions[row];
    if (at < 0) return;
    const int64_t block = this->tables[this->sequences[row] * this->width + at / cache_block];
    this->cached(block, at % cache_block, d) = this->own(row, d);
  }
};

template <class Unit>
struct ReadLatents : LatentBlocks<Unit> {
  __device__ void operator()(int64_t i) const {
    const int64_t row = i / (this->L + this->R), d = i % (this->L + this->R);
    const int64_t per = this->blocks * cache_block, at = row % per;
    const int64_t block = this->tables[row / per * this->width + at / cache_block];
    if (block >= 0) this->own(row, d) = this->cached(block, at % cache_block, d);
  }
};

// All sizes in units.
template <class Unit>
struct FillPanels {
  Unit* panels;
  const Unit *kv, *rope_keys;
  int64_t heads, nope, rope, v;

  __device__ void operator()(int64_t i) const {
    const int64_t qk = nope + rope, keys = heads * cache_block * qk;
    const int64_t block = keys + heads * cache_block * v;
    const int64_t at = i % block, own = at < keys ? at : at - keys, wide = at < keys ? qk : v;
    const int64_t h = own / (cache_block * wide), d = own % wide;
    const int64_t row = i / block * cache_block + own / wide % cache_block;
    const Unit* head = kv + (row * heads + h) * (nope + v);
    panels[i] = at >= keys ? head[nope + d] : d < nope ? head[d] : rope_keys[row * rope + d - nope];
  }
};

}  // namespace

void rope_heads(Stream& stream, const RopeHeadsArgs& args) {
  const RopeHeadsSpec& s = args.spec;
  expect_dtypes("rope_heads", args.x.dtype, args.y);
  expect_dtypes("rope_heads", DType::f32, args.rope);
  by_dtype("rope_heads", args.x, [&]<class T>(T*) {
    const bool in_place = args.y.data == args.x.data;
    const int64_t units = in_place ? s.rotary / 2 : s.width - s.rotary / 2;
    launch_each(stream, "rope_heads", args.x.numel() / s.width * units,
                RotateHeads<T>{as<T>(args.y), as<T>(args.x), as<int32_t>(args.positions),
                               as<float>(args.rope), s, units});
  });
}

void pack_latent(Stream& stream, const PackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("pack_latent", args.y.dtype, args.q, args.kv, args.k_rope);
  by_unit(
      args.y.dtype,
      [&]<class Unit>(Unit, int64_t n) {
        launch_each(
            stream, "pack_latent", args.y.numel() / n,
            PackHeads<Unit>{{as<Unit>(args.y), as<Unit>(args.q), as<Unit>(args.kv),
                             as<Unit>(args.k_rope), s.heads, s.nope / n, s.rope / n, s.v / n}});
      },
      s.nope, s.rope, s.v);
}

void unpack_latent(Stream& stream, const UnpackLatentArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("unpack_latent", args.dy.dtype, args.dq, args.dkv, args.dk_rope);
  if (args.dq || args.dkv)
    by_unit(
        args.dy.dtype,
        [&]<class Unit>(Unit, int64_t n) {
          launch_each(stream, "unpack_latent", args.dy.numel() / n,
                      UnpackHeads<Unit>{{as<Unit>(args.dy), as<Unit>(args.dq), as<Unit>(args.dkv),
                                         nullptr, s.heads, s.nope / n, s.rope / n, s.v / n}});
        },
        s.nope, s.rope, s.v);
  if (!args.dk_rope) return;
  by_dtype("unpack_latent", args.dy, [&]<class T>(T*) {
    launch_each(stream, "unpack_latent", args.dk_rope.numel(),
                SumRotated<T>{as<T>(args.dk_rope), as<T>(args.dy), s.heads, s.rope, s.qk(),
                              s.packed(), s.q_size() + s.nope});
  });
}

void latent_cached(Stream& stream, const LatentCachedArgs& args) {
  expect_dtypes("latent_cached", args.cache.dtype, args.latent, args.k_rope, args.latents,
                args.rope_keys);
  const int64_t L = args.latent.cols(), R = args.k_rope.cols();
  by_unit(
      args.cache.dtype,
      [&]<class Unit>(Unit, int64_t n) {
        LatentBlocks<Unit> a{.cache = as<Unit>(args.cache),
                             .latent = as<Unit>(args.latent),
                             .rope = as<Unit>(args.k_rope),
                             .positions = as<int32_t>(args.positions),
                             .sequences = as<int32_t>(args.sequences),
                             .tables = as<int32_t>(args.tables),
                             .L = L / n,
                             .R = R / n,
                             .width = args.tables.cols(),
                             .blocks = args.blocks};
        launch_each(stream, "latent_cached", args.positions.numel() * (L + R) / n,
                    StoreLatents<Unit>{a});
        if (!args.latents) return;
        a.latent = as<Unit>(args.latents), a.rope = as<Unit>(args.rope_keys);
        launch_each(stream, "latent_cached",
                    args.sequences_read * args.blocks * cache_block * (L + R) / n,
                    ReadLatents<Unit>{a});
      },
      L, R);
}

void latent_panels(Stream& stream, const LatentPanelsArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("latent_panels", args.panels.dtype, args.kv, args.rope_keys);
  by_unit(
      args.panels.dtype,
      [&]<class Unit>(Unit, int64_t n) {
        launch_each(
            stream, "latent_panels", args.panels.numel() / n,
            FillPanels<Unit>{as<Unit>(args.panels), as<Unit>(args.kv), as<Unit>(args.rope_keys),
                             s.heads, s.nope / n, s.rope / n, s.v / n});
      },
      s.nope, s.rope, s.v);
}

}  // namespace hearth::cuda
