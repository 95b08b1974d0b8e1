// How blocks exchange activations: the rows that a phase reads, copied into shared memory and
// normalised if it asks for that, and the packets that it writes.
//
// A block writes each of its outputs as a packet with the number of the phase, and others read it
// until the number is there: one trip through the L2 cache, and no barrier of the grid. The next
// step begins when this kernel has ended. Within a step the same packets serve phases that are far
// enough apart: Recorder::reserve() says why no block can still wait for what is overwritten.
#pragma once

#include "cuda/persistent/ring.cuh"

namespace hearth::cuda::persistent {

struct alignas(8) TwoWords {
  uint32_t x, y;
};
struct alignas(16) FourWords {
  uint32_t x, y, z, w;
};

template <class T>
__device__ __forceinline__ T load_as(const void* from) {
  return *static_cast<const T*>(from);
}

// The elements of a word of two bf16.
__device__ __forceinline__ float low(uint32_t two) { return from_bits(two << 16); }
__device__ __forceinline__ float high(uint32_t two) { return from_bits(two & 0xffff0000u); }
__device__ __forceinline__ float to_bf16(float x) { return low(pack_bf16(x, x)); }
__device__ __forceinline__ float element(const uint16_t* x, int64_t i) {
  return from_bits(uint32_t(x[i]) << 16);
}

__device__ __forceinline__ float sum_of_warp(float x) {
#pragma unroll
  for (int lanes = 16; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
  return x;
}

__device__ __forceinline__ uint64_t packet(uint32_t value, uint32_t number) {
  return uint64_t(number) << 32 | value;
}

// Element pairs of a row of the embedding: of the token and, with learned positions, of its place.
struct EmbeddedRow {
  const uint16_t *token, *place;  // null: zeros; null: no positions

  __device__ EmbeddedRow(const Step& s, const Control& c, int row)
      : token(c.ids[row] < 0 ? nullptr : s.table + int64_t(c.ids[row]) * s.width),
        place(s.places && token ? s.places + int64_t(max(c.positions[row], 0)) * s.width
                                : nullptr) {}
  __device__ uint32_t sum(uint32_t x, uint32_t y) const {
    return place ? pack_bf16(low(x) + low(y), high(x) + high(y)) : x;
  }
  __device__ uint32_t two(int column) const {
    if (!token) return 0;
    const uint32_t x = load_as<uint32_t>(token + column);
    return place ? sum(x, load_as<uint32_t>(place + column)) : x;
  }
  __device__ TwoWords four(int column) const {
    if (!token) return {0, 0};
    const TwoWords x = load_as<TwoWords>(token + column);
    if (!place) return x;
    const TwoWords y = load_as<TwoWords>(place + column);
    return {sum(x.x, y.x), sum(x.y, y.y)};
  }
};

// The part of the rows that a warp copies: of one row, every parts-th 128 columns. A warp without a
// row has a width of 0.
struct WarpShare {
  int row, part, parts, width;

  __device__ WarpShare(int rows, int K) {
    int lines = 1;
    while (lines < rows) lines *= 2;
    const int warp = thread_index() / 32;
    parts = compute_warps / lines, row = warp / parts, part = warp % parts;
    width = row < rows ? K : 0;
  }
  // How many columns a part has.
  __device__ int columns_of(int of_part) const {
    const int whole = width / 128, rest = width % 128;
    return (whole + parts - 1 - of_part) / parts * 128 + (whole % parts == of_part ? rest : 0);
  }
  // The lane's four columns of turn i; past the width if it has none.
  __device__ int column(int i) const {
    return (part + i * parts) * 128 + 4 * (thread_index() % 32);
  }
};

// Reads packets p[i] at the addresses at(i), except where that is null. Of those that were read too
// early the first is polled, and only then all others are read again, at once: polling all of them
// would load the L2 cache, and one after the other would cost a trip to it for each.
template <int N, class At>
__device__ __forceinline__ void receive(Packets (&p)[N], uint32_t number, const At& at) {
  const auto missing = [&](int i) {
    return at(i) && (uint32_t(p[i].first >> 32) != number || uint32_t(p[i].second >> 32) != number);
  };
#pragma unroll
  for (int i = 0; i < N; ++i)
    if (const uint64_t* const from = at(i)) p[i] = read_packets(from);
#pragma unroll
  for (int i = 0; i < N; ++i) {
    if (!missing(i)) continue;
    await_packets(p[i], at(i), number);
#pragma unroll
    for (int k = i + 1; k < N; ++k)
      if (missing(k)) p[k] = read_packets(at(k));
  }
}

// Copies the warp's part of a wire's row to `to` in shared memory. Returns what the lane's elements
// add up to: the elements themselves, or for an RMS norm their squares.
__device__ __forceinline__ float copy_rows(const Step& s, const Control& control, const Wire& wire,
                                           const WarpShare& own, unsigned char* to, bool squares) {
  constexpr int at_once = 8;
  const int K = own.width;
  float sum = 0;
  const auto put = [&](int column, TwoWords x) {
    *reinterpret_cast<TwoWords*>(to + 2 * column) = x;
    const float a = low(x.x), b = high(x.x), c = low(x.y), d = high(x.y);
    sum += squares ? a * a + b * b + c * c + d * d : a + b + c + d;
  };
  if (K == 0) return 0;
  if (wire.phase == from_embedding) {
    const EmbeddedRow row(s, control, own.row);
    for (int i = 0; own.column(i) < K; ++i) put(own.column(i), row.four(own.column(i)));
    return sum;
  }
  const uint64_t* const from = s.wires + wire.at + int64_t(own.row) * (K / 2);
  const uint32_t number = s.number + uint32_t(wire.phase);
  const int step = own.column(1) - own.column(0);
  for (int first = own.column(0); first < K; first += at_once * step) {
    Packets p[at_once];
    receive(p, number, [&](int i) -> const uint64_t* {
      const int column = first + i * step;
      return column < K ? from + column / 2 : nullptr;
    });
#pragma unroll
    for (int i = 0; i < at_once; ++i)
      if (const int column = first + i * step; column < K)
        put(column, {uint32_t(p[i].first), uint32_t(p[i].second)});
  }
  return sum;
}

// The statistics of a row, from those of the warps that copied it.
struct RowStatistics {
  float mean = 0, inverse = 0;

  // `sum` is the lane's share. The squares are those of the distances from the warp's own mean, and
  // then from the row's, so that a large mean costs no precision.
  __device__ RowStatistics(const ProductPhase& f, Control& control, const WarpShare& own,
                           const unsigned char* row, float sum) {
    const bool layer = f.norm == Norm::layer;
    const int warp = thread_index() / 32;
    sum = sum_of_warp(sum);
    float squares = sum;
    if (layer) {
      const float middle = own.columns_of(own.part) ? sum / float(own.columns_of(own.part)) : 0;
      squares = 0;
      for (int i = 0; own.column(i) < own.width; ++i) {
        const TwoWords x = load_as<TwoWords>(row + 2 * own.column(i));
        const float a = low(x.x) - middle, b = high(x.x) - middle;
        const float c = low(x.y) - middle, d = high(x.y) - middle;
        squares += a * a + b * b + c * c + d * d;
      }
      squares = sum_of_warp(squares);
    }
    if (thread_index() % 32 == 0)
      control.norm_sums[warp] = layer ? sum : 0, control.norm_squares[warp] = squares;
    sync_compute();
    // A lane for each part, and every eight lanes the same.
    const int of_part = thread_index() % compute_warps, at = own.row * own.parts + of_part;
    const bool has_part = of_part < own.parts;
    const float n = has_part ? float(own.columns_of(of_part)) : 0;
    const float part = has_part ? control.norm_sums[at] : 0;
    mean = sum_of_parts(part) / float(f.K);
    const float away = layer && n > 0 ? part / n - mean : 0;
    const float own_squares = has_part ? control.norm_squares[at] + n * away * away : 0;
    inverse = rsqrtf(sum_of_parts(own_squares) / float(f.K) + f.eps);
  }

 private:
  __device__ static float sum_of_parts(float x) {
#pragma unroll
    for (int lanes = compute_warps / 2; lanes > 0; lanes /= 2) x += shuffle_xor(x, lanes);
    return x;
  }
};

// Normalises what the lane has copied. `gain` and `shift` are in shared memory, or null.
__device__ __forceinline__ void normalise(const RowStatistics& stats, const WarpShare& own,
                                          unsigned char* row, const unsigned char* gain,
                                          const unsigned char* shift) {
  for (int i = 0; own.column(i) < own.width; ++i) {
    const int at = 2 * own.column(i);
    const TwoWords two = load_as<TwoWords>(row + at);
    float x[4] = {low(two.x), high(two.x), low(two.y), high(two.y)};
#pragma unroll
    for (int k = 0; k < 4; ++k) x[k] = (x[k] - stats.mean) * stats.inverse;
    if (gain) {
      const TwoWords g = load_as<TwoWords>(gain + at);
      x[0] *= low(g.x), x[1] *= high(g.x), x[2] *= low(g.y), x[3] *= high(g.y);
    }
    if (shift) {
      const TwoWords g = load_as<TwoWords>(shift + at);
      x[0] += low(g.x), x[1] += high(g.x), x[2] += low(g.y), x[3] += high(g.y);
    }
    *reinterpret_cast<TwoWords*>(row + at) = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
  }
}

// Bytes of the ring entry with the gain and the shift of a phase.
__device__ __forceinline__ uint32_t norm_bytes(const ProductPhase& f) {
  return uint32_t((f.gain ? 2 * f.K : 0) + (f.shift ? 2 * f.K : 0));
}

// Fills `rows` with the rows that a product reads. The block's computing warps call it together; a
// barrier must follow. Rows from step.rows on are not written.
__device__ __forceinline__ void read_input(const Step& s, const ProductPhase& f, Control& control,
                                           RingReader& ring, unsigned char* rows) {
  const WarpShare own(s.rows, f.K);
  unsigned char* const row = rows + own.row * pitch_of(f.K);
  const bool squares = f.normed && f.norm == Norm::rms;
  const float sum = copy_rows(s, control, f.in, own, row, squares);
  if (!f.normed) return;
  const RowStatistics stats(f, control, own, row, sum);
  const uint32_t bytes = norm_bytes(f);
  const unsigned char* const vectors = bytes ? ring.take(bytes) : nullptr;
  normalise(stats, own, row, f.gain ? vectors : nullptr,
            f.shift ? vectors + (f.gain ? 2 * f.K : 0) : nullptr);
  if (bytes) ring.release();
}

}  // namespace hearth::cuda::persistent
