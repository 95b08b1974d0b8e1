// Attention of a decode step. A unit's queries, and the key and value of its row's own token, are
// normalised and rotated by the block that reads them; keys and values of earlier tokens stream
// through the ring. Scores go through shared memory: all of a unit's, then the sums of its values
// by them.
#pragma once

#include "cuda/persistent/units.cuh"

namespace hearth::cuda::persistent {

// The floats in shared memory that a unit works in: unit_bytes().
template <int Heads>
struct UnitMemory {
  float *q, *key, *value;  // (Heads, D), (D), (D)
  float *tops, *sums;      // (compute_warps, Heads): largest score, sum of exponentials
  float* scores;           // (Heads, score_pitch)
  float* parts;            // (compute_warps, Heads, D)

  __device__ UnitMemory(float* memory, int D, int score_pitch) {
    q = memory, key = q + Heads * D, value = key + D;
    tops = value + D, sums = tops + compute_warps * Heads;
    scores = sums + compute_warps * Heads;
    parts = scores + Heads * score_pitch;
  }
};

__device__ __forceinline__ float max_of_warp(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x = fmaxf(x, shuffle_xor(x, lanes));
  return x;
}

// A head of q or k, or one of v, which one warp makes ready: the lane's packets, and what it turns
// them by, which is read while the packets are on the way.
struct RawHead {
  static constexpr int most = most_head_dim / 64;  // pairs of elements per lane
  const AttentionPhase& f;
  bool turns, norms;
  float cosine[most], sine[most], gain[2 * most];
  uint64_t packets[most];
  const uint64_t* from;

  __device__ static int pair(int i) { return thread_index() % 32 + 32 * i; }

  // `half`: -1 for q, 0 for k, 1 for v; `head` counts from its first.
  __device__ RawHead(const Step& s, const AttentionPhase& f, const Unit& u, int half, int head)
      : f(f), turns(half < 1 && f.rotary), norms(half < 1 && f.norm != QkNorm::none) {
    const int of_token = (half < 0 ? 0 : f.H + half * f.G) + head;
    from = s.wires + f.in.at + (int64_t(u.row) * (f.H + 2 * f.G) + of_token) * (f.D / 2);
    const float* const angles = f.rope + int64_t(u.position) * f.rotary;
    const uint16_t* const gains = half < 0 ? f.q_gain : f.k_gain;
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (pair(i) < f.D / 2) packets[i] = read_packet(from + pair(i));
      cosine[i] = 1, sine[i] = 0, gain[2 * i] = gain[2 * i + 1] = 1;
      if (turns && pair(i) < f.rotary / 2)
        cosine[i] = angles[2 * pair(i)], sine[i] = angles[2 * pair(i) + 1];
      if (norms && gains && pair(i) < f.D / 2)
        gain[2 * i] = element(gains, 2 * pair(i)),
                 gain[2 * i + 1] = element(gains, 2 * pair(i) + 1);
    }
  }

  // Waits for packet i. Later ones that were read too early are then read again at once.
  __device__ void await(int i, uint32_t number) {
    if (uint32_t(packets[i] >> 32) == number) return;
    await_packet(packets[i], from + pair(i), number);
#pragma unroll
    for (int k = 1; k < most; ++k)
      if (k > i && pair(k) < f.D / 2 && uint32_t(packets[k] >> 32) != number)
        packets[k] = read_packet(from + pair(k));
  }

  __device__ void rotate(float* x) const {
    if (!turns) return;
    const int half = f.rotary / 2;
    sync_warp();
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (pair(i) >= half) break;
      float& a = x[f.interleaved ? 2 * pair(i) : pair(i)];
      float& b = x[f.interleaved ? 2 * pair(i) + 1 : pair(i) + half];
      const float turned = f.reverse ? -sine[i] : sine[i], first = a, second = b;
      a = first * cosine[i] - second * turned;
      b = second * cosine[i] + first * turned;
    }
    sync_warp();
  }

  // The finished head, rounded to bf16, in shared memory and, if given, in the cache.
  __device__ void finish(float* x, uint32_t number, uint16_t* stored) {
#pragma unroll
    for (int i = 0; i < most; ++i) {
      if (pair(i) >= f.D / 2) break;
      await(i, number);
      x[2 * pair(i)] = low(uint32_t(packets[i])), x[2 * pair(i) + 1] = high(uint32_t(packets[i]));
    }
    if (f.norm != QkNorm::before_rope) rotate(x);
    if (norms) {
      float squares = 0;
#pragma unroll
      for (int i = 0; i < most; ++i)
        if (pair(i) < f.D / 2) {
          const float a = x[2 * pair(i)], b = x[2 * pair(i) + 1];
          squares += a * a + b * b;
        }
      const float inverse = rsqrtf(sum_of_warp(squares) / float(f.D) + f.eps);
#pragma unroll
      for (int i = 0; i < most; ++i)
        if (pair(i) < f.D / 2) {
          x[2 * pair(i)] *= inverse * gain[2 * i];
          x[2 * pair(i) + 1] *= inverse * gain[2 * i + 1];
        }
    }
    if (f.norm == QkNorm::before_rope) rotate(x);
#pragma unroll
    for (int i = 0; i < most; ++i)
      if (pair(i) < f.D / 2) {
        const uint32_t two = pack_bf16(x[2 * pair(i)], x[2 * pair(i) + 1]);
        x[2 * pair(i)] = low(two), x[2 * pair(i) + 1] = high(two);
        if (stored) reinterpret_cast<uint32_t*>(stored)[pair(i)] = two;
      }
  }
};

// The work of one unit, by all computing warps.
template <int Heads>
struct UnitWork {
  const Step& s;
  const AttentionPhase& f;
  const Unit& u;
  RingReader& ring;
  UnitMemory<Heads> m;
  int lane = thread_index() % 32, warp = thread_index() / 32;
  int lanes = 1;  // that share a key or value, eight columns each
  int group, groups, column;

  __device__ UnitWork(const Step& s, const AttentionPhase& f, const Unit& u, RingReader& ring,
                      float* memory)
      : s(s), f(f), u(u), ring(ring), m(memory, f.D, s.score_pitch) {
    while (lanes * 8 < f.D) lanes *= 2;
    groups = compute_threads / lanes, group = thread_index() / lanes;
    column = lane % lanes * 8;
  }

  __device__ void make_ready() {
    const uint32_t number = s.number + uint32_t(f.in.phase);
    const int vectors = u.heads + (u.has_own() ? 2 : 0);
    const bool stores = u.first_head % (f.H / f.G) == 0;  // one unit of each KV head
    for (int i = warp; i < vectors; i += compute_warps) {
      const bool query = i < u.heads;
      const int half = query ? -1 : i - u.heads;
      RawHead head(s, f, u, half, query ? u.first_head + i : u.kv_head);
      uint16_t* const stored =
          query || !stores ? nullptr : in_cache(s, f, u.row, u.kv_head, half, u.position);
      head.finish(query ? m.q + i * f.D : half == 0 ? m.key : m.value, number, stored);
    }
  }

  __device__ float score(float product, int head, int key) const {
    float x = product * f.scale;
    if (f.softcap > 0) x = f.softcap * tanhf(x / f.softcap);
    if (f.slopes) x -= f.slopes[u.first_head + head] * float(u.position - key);
    return x;
  }
  __device__ float& score_at(int head, int key) const {
    return m.scores[head * s.score_pitch + key - u.begin];
  }

  __device__ void eight(float (&x)[8], const unsigned char* from) const {
    const FourWords w = load_as<FourWords>(from);
    x[0] = low(w.x), x[1] = high(w.x), x[2] = low(w.y), x[3] = high(w.y);
    x[4] = low(w.z), x[5] = high(w.z), x[6] = low(w.w), x[7] = high(w.w);
  }

  // Adds over the groups of a warp, of which all lanes have the same x.
  __device__ float sum_of_groups(float x) const {
    for (int step = lanes; step < 32; step *= 2) x += shuffle_xor(x, step);
    return x;
  }

  // Scores of all keys, and the largest of each warp.
  __device__ void score_keys() {
    constexpr int at_once = 2;
    float q[Heads][8] = {}, top[Heads];
    for (int h = 0; h < Heads; ++h) {
      top[h] = -INFINITY;
      for (int i = 0; i < 8; ++i)
        if (h < u.heads && column < f.D) q[h][i] = m.q[h * f.D + column + i];
    }
    each_entry(u, [&](int first, int keys) {
      const unsigned char* const from = ring.take(uint32_t(keys * f.D * 2));
      for (int begin = group - group % (32 / lanes); begin < keys; begin += at_once * groups) {
        float x[at_once][8] = {}, sum[at_once][Heads] = {};
#pragma unroll
        for (int n = 0; n < at_once; ++n)
          if (const int i = key_of(begin, n); i < keys && column < f.D)
            eight(x[n], from + 2 * (i * f.D + column));
#pragma unroll
        for (int n = 0; n < at_once; ++n)
#pragma unroll
          for (int h = 0; h < Heads; ++h)
#pragma unroll
            for (int k = 0; k < 8; ++k) sum[n][h] = fmaf(q[h][k], x[n][k], sum[n][h]);
        // All sums take each step together, because a shuffle takes long.
        for (int step = 1; step < lanes; step *= 2)
#pragma unroll
          for (int n = 0; n < at_once; ++n)
#pragma unroll
            for (int h = 0; h < Heads; ++h) sum[n][h] += shuffle_xor(sum[n][h], step);
#pragma unroll
        for (int n = 0; n < at_once; ++n)
#pragma unroll
          for (int h = 0; h < Heads; ++h)
            if (const int i = key_of(begin, n); i < keys && h < u.heads)
              put_score(sum[n][h], h, first + i, lane % lanes == 0, top[h]);
      }
      ring.release();
    });
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      if (u.has_own() && h < u.heads && warp == h % compute_warps) {
        float sum = 0;
        for (int i = lane; i < f.D; i += 32) sum = fmaf(m.q[h * f.D + i], m.key[i], sum);
        put_score(sum_of_warp(sum), h, u.position, lane == 0, top[h]);
      }
      const float largest = max_of_warp(top[h]);
      if (lane == 0) m.tops[warp * Heads + h] = largest;
    }
  }
  // The key of the lane's group in turn n from the warp's first one.
  __device__ int key_of(int begin, int n) const { return begin + n * groups + lane / lanes; }
  __device__ void put_score(float product, int h, int key, bool stores, float& top) const {
    const float x = score(product, h, key);
    top = fmaxf(top, x);
    if (stores) score_at(h, key) = x;
  }

  // The largest score of a head.
  __device__ float top_of(int h) const {
    float top = -INFINITY;
    for (int w = 0; w < compute_warps; ++w) top = fmaxf(top, m.tops[w * Heads + h]);
    return top;
  }

  // Exponentials of the scores relative to the largest, their sums, and the sums of the values
  // times them, of each warp.
  __device__ void add_values() {
    float y[Heads][8] = {}, sum[Heads] = {}, top[Heads];
#pragma unroll
    for (int h = 0; h < Heads; ++h) top[h] = h < u.heads ? top_of(h) : 0;
    const auto add = [&](const float(&x)[8], int key) {
#pragma unroll
      for (int h = 0; h < Heads; ++h) {
        if (h >= u.heads) break;
        const float p = expf(score_at(h, key) - top[h]);
        sum[h] += p;
#pragma unroll
        for (int k = 0; k < 8; ++k) y[h][k] = fmaf(p, x[k], y[h][k]);
      }
    };
    each_entry(u, [&](int first, int keys) {
      const unsigned char* const from = ring.take(uint32_t(keys * f.D * 2));
      for (int i = group; i < keys; i += groups) {
        float x[8] = {};
        if (column < f.D) eight(x, from + 2 * (i * f.D + column));
        add(x, first + i);
      }
      ring.release();
    });
    if (u.has_own() && group == 0) {
      float x[8] = {};
#pragma unroll
      for (int k = 0; k < 8; ++k)
        if (column < f.D) x[k] = m.value[column + k];
      add(x, u.position);
    }
    sync_warp();
#pragma unroll
    for (int h = 0; h < Heads; ++h) {
      const float all = sum_of_groups(sum[h]);
      if (lane == 0) m.sums[warp * Heads + h] = all;
#pragma unroll
      for (int k = 0; k < 8; ++k) {
        const float total = sum_of_groups(y[h][k]);
        if (lane < lanes && column < f.D) m.parts[(warp * Heads + h) * f.D + column + k] = total;
      }
    }
  }

  __device__ float total(int head, int i) const {
    float x = 0;
    for (int w = 0; w < compute_warps; ++w) x += m.parts[(w * Heads + head) * f.D + i];
    return x;
  }
  __device__ float sum_of(int head) const {
    float x = 0;
    for (int w = 0; w < compute_warps; ++w) x += m.sums[w * Heads + head];
    return x;
  }
  // The packets of head h of the row in the result, and in the parts those of one split.
  __device__ uint64_t* result(int h) const {
    return s.wires + f.out.at + (int64_t(u.row) * f.H + u.first_head + h) * (f.D / 2);
  }
  __device__ uint64_t* part(int h, int split) const {
    const int64_t line = int64_t(u.row) * f.H + u.first_head + h;
    return s.wires + f.parts + (line * split_places + split) * (f.D + 2);
  }

  __device__ void write(uint32_t number) const {
    for (int n = thread_index(); n < u.heads * f.D / 2; n += compute_threads) {
      const int h = n / (f.D / 2), i = n % (f.D / 2);
      const float x = total(h, 2 * i), y = total(h, 2 * i + 1);
      if (u.splits == 1) {
        const float sum = sum_of(h);
        write_packet(result(h) + i, packet(pack_bf16(x / sum, y / sum), number));
      } else {
        write_packet(part(h, u.split) + 2 * i, packet(bits_of(x), number));
        write_packet(part(h, u.split) + 2 * i + 1, packet(bits_of(y), number));
      }
    }
    if (const int h = thread_index(); u.splits > 1 && h < u.heads) {
      write_packet(part(h, u.split) + f.D, packet(bits_of(top_of(h)), number));
      write_packet(part(h, u.split) + f.D + 1, packet(bits_of(sum_of(h)), number));
    }
  }
  // A row of padding sees no key. It reads its queries, key and value all the same: the recorder
  // relies on every packet being read, and on a packet being written after one was read.
  __device__ void write_zeros(uint32_t number) const {
    const uint32_t expected = s.number + uint32_t(f.in.phase);
    for (int n = thread_index(); n < (u.heads + 2) * f.D / 2; n += compute_threads) {
      const int i = n / (f.D / 2), head = i < u.heads    ? u.first_head + i
                                          : i == u.heads ? f.H + u.kv_head
                                                         : f.H + f.G + u.kv_head;
      const int64_t line = int64_t(u.row) * (f.H + 2 * f.G) + head;
      const uint64_t* const from = s.wires + f.in.at + line * (f.D / 2) + n % (f.D / 2);
      uint64_t p = read_packet(from);
      await_packet(p, from, expected);
    }
    sync_compute();
    for (int n = thread_index(); n < u.heads * f.D / 2; n += compute_threads)
      write_packet(result(n / (f.D / 2)) + n % (f.D / 2), packet(0, number));
  }

  // Joins the splits of the unit's heads, in order.
  __device__ void join(uint32_t number) {
    constexpr int at_once = 8;
    const int lines = u.heads * u.splits;
    for (int n = thread_index(); n < lines; n += compute_threads) {
      const uint64_t* const from = part(n / u.splits, n % u.splits) + f.D;
      Packets p = read_packets(from);
      await_packets(p, from, number);
      m.scores[2 * n] = from_bits(uint32_t(p.first));
      m.scores[2 * n + 1] = from_bits(uint32_t(p.second));
    }
    sync_compute();
    for (int n = thread_index(); n < u.heads * f.D / 2; n += compute_threads) {
      const int h = n / (f.D / 2), i = n % (f.D / 2);
      const float* const own = m.scores + 2 * h * u.splits;
      float top = -INFINITY, sum = 0, x = 0, y = 0;
      for (int j = 0; j < u.splits; ++j) top = fmaxf(top, own[2 * j]);
      for (int first = 0; first < u.splits; first += at_once) {
        Packets p[at_once];
        receive(p, number, [&](int k) -> const uint64_t* {
          return first + k < u.splits ? part(h, first + k) + 2 * i : nullptr;
        });
#pragma unroll
        for (int k = 0; k < at_once; ++k) {
          if (first + k >= u.splits) break;
          const float weight = expf(own[2 * (first + k)] - top);
          sum = fmaf(weight, own[2 * (first + k) + 1], sum);
          x = fmaf(weight, from_bits(uint32_t(p[k].first)), x);
          y = fmaf(weight, from_bits(uint32_t(p[k].second)), y);
        }
      }
      write_packet(result(h) + i, packet(pack_bf16(x / sum, y / sum), number));
    }
    sync_compute();
  }

  __device__ void run(uint32_t number) {
    if (u.position < 0) return write_zeros(number);
    make_ready();
    sync_compute();
    score_keys();
    sync_compute();
    add_values();
    sync_compute();
    write(number);
    sync_compute();
  }
};

template <int Heads>
__device__ __forceinline__ void run_units(const Step& s, const AttentionPhase& f,
                                          const Control& control, float* memory, RingReader& ring,
                                          uint32_t number) {
  const Units units(s, f, control);
  bool joins = false;
  units.each([&](const Unit& u) {
    UnitWork<Heads>(s, f, u, ring, memory).run(number);
    joins = joins || (u.splits > 1 && u.split == 0);
  });
  // The block of the first split joins them all. It waits for splits of other blocks only after its
  // own are written, so no block waits for one that waits for it.
  if (!joins) return;
  units.each([&](const Unit& u) {
    if (u.splits > 1 && u.split == 0) UnitWork<Heads>(s, f, u, ring, memory).join(number);
  });
}

__device__ __forceinline__ void run_attention(const Step& s, const AttentionPhase& f,
                                              const Control& control, unsigned char* memory,
                                              RingReader& ring, uint32_t number) {
  float* const floats = reinterpret_cast<float*>(memory);
  const int heads = heads_at_once(f.H, f.G);
  if (heads == 1) return run_units<1>(s, f, control, floats, ring, number);
  if (heads == 2) return run_units<2>(s, f, control, floats, ring, number);
  run_units<4>(s, f, control, floats, ring, number);
}

}  // namespace hearth::cuda::persistent
