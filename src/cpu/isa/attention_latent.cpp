// Attention over cached latents: each row and head by itself, as one query of width L + R against
// latents that are keys and values at once. In fp32.
#include "cpu/isa/attention_row.h"
#include "cpu/isa/kernels.h"

namespace hearth::HEARTH_ISA {
namespace {

// One worker's memory: the query, the weighted sum of latents, and scratch of attend_few.
struct LatentWork {
  float *query, *sum, *q, *y;
  static int64_t floats(const AttnShape& s) { return 2 * (s.ld + s.lv); }
  LatentWork(float* at, const AttnShape& s) {
    query = at;
    sum = query + s.ld;
    q = sum + s.lv;
    y = q + s.ld;
  }
};

// query = w_k^T q without position | q rotated, where w_k (nope, L) computes keys.
template <class T>
void absorb_query(float* query, const T* q, const T* w_k, const LatentSpec& s, int64_t L) {
  vectors(L, [&](int64_t l, auto w) {
    vf total = zero();
    for (int64_t i = 0; i < s.nope; ++i)
      total = fma(w.get(w_k + i * L + l), broadcast(load_partial(q + i, 1)[0]), total);
    w.put(query + l, total);
  });
  vectors(s.rope, [&](int64_t i, auto w) { w.put(query + L + i, w.get(q + s.nope + i)); });
}

// y = w_v sum, where w_v (v, L) computes values.
template <class T>
void expand_values(T* y, const float* sum_of_latents, const T* w_v, int64_t V, int64_t L) {
  for (int64_t i = 0; i < V; ++i) {
    vf total = zero();
    vectors(L, [&](int64_t l, auto w) {
      total = fma(w.get(w_v + i * L + l), w.get(sum_of_latents + l), total);
    });
    store_partial(y + i, broadcast(sum(total)), 1);
  }
}

}  // namespace

void attention_latent(Stream& stream, const AttentionLatentArgs& args) {
  const LatentSpec& s = args.spec;
  expect_dtypes("attention_latent", args.y.dtype, args.cache, args.q, args.w);
  const int64_t N = args.y.shape[1], L = args.w.cols(), W = args.tables.cols();
  const HeadLayout k{.heads = 1, .width = L + s.rope}, v{.heads = 1, .width = L};
  const AttnShape shape(args.y, k, k, v);
  const int64_t floats = LatentWork::floats(shape);
  float* memory = reinterpret_cast<float*>(
      cpu_stream(stream).scratch.get(floats * 4 * thread_count(cpu_stream(stream).threads)));
  by_dtype("attention_latent", args.y, [&]<class T>(T*) {
    parallel(cpu_stream(stream).threads, N * s.heads, [&](int64_t piece, int worker) {
      const int64_t n = piece / s.heads, h = piece % s.heads;
      const int32_t at = args.positions.as<const int32_t>()[n];
      T* y = args.y.as<T>() + piece * s.v;
      if (at < 0) {
        std::memset(static_cast<void*>(y), 0, size_t(s.v) * sizeof(T));
        return;
      }
      const LatentWork work(memory + worker * floats, shape);
      const T* w = args.w.as<const T>() + h * (s.nope + s.v) * L;
      absorb_query(work.query, args.q.as<const T>() + n * s.q_size() + h * s.qk(), w, s, L);
      const T* cache = args.cache.as<const T>();
      const int32_t sequence = args.sequences.as<const int32_t>()[n];
      const Keys<T> keys{cache,
                         cache,
                         L + s.rope,
                         L + s.rope,
                         nullptr,
                         args.tables.as<const int32_t>() + sequence * W,
                         cache_block * (L + s.rope)};
      attend_few(
          {work.q, work.y, nullptr, nullptr}, keys, &at, 1, shape, args.attn,
          [&](int64_t) { return work.query; }, [&](int64_t) { return work.sum; });
      expand_values(y, work.sum, w + s.nope * L, s.v, L);
    });
  });
}

}  // namespace hearth::HEARTH_ISA
