// A product of a decode step: reads every weight once, through the ring. For the tensor cores w is
// the left operand and the rows are the right one. The order of a sum over K is free, so each lane
// reads 16 contiguous bytes of a row of w where the instruction expects scattered pairs. The warps
// of a block take turns at stretches of K, and their sums are added in order, so the bits depend
// neither on the number of blocks nor on which of them has a row.
#pragma once

#include "cuda/persistent/wires.cuh"

namespace hearth::cuda::persistent {

// The outputs of a block, [first, last), in tiles of `step`. All numbers are even: a packet holds
// two outputs.
struct Share {
  int first, last, step;

  __device__ explicit Share(const ProductPhase& f) {
    const uint32_t pairs = uint32_t(f.N / 2), block = uint32_t(block_index());
    const uint32_t blocks = uint32_t(block_count());
    first = int(pairs * block / blocks * 2), last = int(pairs * (block + 1) / blocks * 2);
    const int most = f.glu ? tile_rows / 2 : tile_rows, tiles = (last - first + most - 1) / most;
    step = tiles ? ((last - first + tiles - 1) / tiles + 1) / 2 * 2 : 2;
  }
  __device__ int count(int at) const { return min(step, last - at); }  // outputs of a tile
};

// --- the loading warp ---

// All blocks read these, so they stay in the L2 cache.
__device__ __forceinline__ void load_norm(const ProductPhase& f, RingWriter& ring) {
  const uint32_t bytes = norm_bytes(f);
  if (!f.normed || !bytes) return;
  unsigned char* const to = ring.begin(bytes, bytes);
  if (thread_index() % 32) return;
  if (f.gain) copy_shared(to, f.gain, uint32_t(2 * f.K), ring.barrier());
  if (f.shift) copy_shared(to + (f.gain ? 2 * f.K : 0), f.shift, uint32_t(2 * f.K), ring.barrier());
}

// An entry is up to chunk_columns columns of a tile's rows of w, one bulk copy for each row.
__device__ __forceinline__ void load_product(const ProductPhase& f, RingWriter& ring) {
  const Share share(f);
  const int lane = thread_index() % 32;
  if (share.first == share.last) return;
  load_norm(f, ring);
  for (int at = share.first; at < share.last; at += share.step) {
    const int outputs = share.count(at), rows = f.glu ? 2 * outputs : outputs;
    const int64_t row = lane < outputs ? at + lane : f.N + at + lane - outputs;
    for (int k = 0; k < f.K; k += chunk_columns) {
      const int columns = min(chunk_columns, f.K - k), pitch = pitch_of(columns);
      unsigned char* const to = ring.begin(uint32_t(rows * pitch), uint32_t(rows * 2 * columns));
      if (lane < rows)
        copy_once(to + lane * pitch, f.w + row * f.K + k, uint32_t(2 * columns), ring.barrier());
    }
  }
}

// --- the computing warps ---

// The output of a tile that a thread of the first four warps finishes: row thread / 16, column
// thread % 16, where a GLU has eight gates and then eight values.
struct Place {
  int row, output;  // output: the GLU's, for both of its halves
  bool writes;

  __device__ Place(const Step& s, const ProductPhase& f, const Share& share, int at) {
    const int own = thread_index() % tile_rows;
    const int place = f.glu ? own % (tile_rows / 2) : own;
    row = thread_index() / tile_rows, output = at + place;
    writes = row < s.rows && place < share.count(at);
  }
  __device__ static bool of_values() { return thread_index() % tile_rows >= tile_rows / 2; }
  __device__ const uint64_t* prior(const Step& s, const ProductPhase& f) const {
    return s.wires + f.prior.at + int64_t(row) * (f.N / 2) + output / 2;
  }
};

// What an output is finished with, read without waiting for it.
struct Addends {
  float bias = 0;
  uint64_t prior = 0;

  __device__ Addends(const Step& s, const ProductPhase& f, const Control& control,
                     const Place& own) {
    if (!own.writes) return;
    if (f.bias) bias = element(f.bias, own.output + (f.glu && Place::of_values() ? f.N : 0));
    if (f.prior.phase == from_embedding)
      prior = EmbeddedRow(s, control, own.row).two(own.output & ~1);
    else if (f.prior.phase != absent)
      prior = read_packet(own.prior(s, f));
  }
  // The prior of this output.
  __device__ float added(const Step& s, const ProductPhase& f, const Place& own) {
    if (f.prior.phase != from_embedding)
      await_packet(prior, own.prior(s, f), s.number + uint32_t(f.prior.phase));
    return own.output % 2 ? high(uint32_t(prior)) : low(uint32_t(prior));
  }
};

// act(x); for a GLU, of its gate.
__device__ __forceinline__ float activated(Act act, float x) {
  switch (act) {
    case Act::none:
      return x;
    case Act::gelu_tanh:
    case Act::geglu_tanh:
      return act_slope<Act::gelu_tanh, true>(x).y;
    case Act::gelu_erf:
    case Act::geglu:
      return act_slope<Act::gelu_erf, true>(x).y;
    case Act::swiglu:
      return act_slope<Act::swiglu, true>(x).y;
    case Act::relu2:
      return act_slope<Act::relu2, true>(x).y;
    case Act::reglu:
      return act_slope<Act::reglu, true>(x).y;
  }
  return x;
}

// Multiplies a tile of w by the rows in shared memory and leaves the warp's sums for the threads
// that finish it.
__device__ __forceinline__ void multiply_tile(const ProductPhase& f, int rows, int outputs,
                                              const unsigned char* x, RingReader& ring,
                                              float* sums) {
  const int lane = thread_index() % 32, warp = thread_index() / 32;
  const int group = lane / 4, part = lane % 4;
  // The rows of the tile that the lane reads; those past its end repeat the last one.
  const int last = outputs - 1;
  const int upper = min(group, last);
  const int lower = f.glu ? outputs + upper : min(group + tile_rows / 2, last);
  const int stored = f.glu ? 2 * outputs : outputs, x_pitch = pitch_of(f.K);
  constexpr int step = stretch * compute_warps;
  float d[2][4] = {};
  for (int k = 0; k < f.K; k += chunk_columns) {
    const int columns = min(chunk_columns, f.K - k), pitch = pitch_of(columns);
    const unsigned char* const w = ring.take(uint32_t(stored * pitch));
#pragma unroll
    for (int i = 0; i < chunk_columns / step; ++i) {
      const int column = i * step + warp * stretch + 8 * part;
      if (column - 8 * part >= columns) break;
      FourWords a = {}, b = {}, c = {};
      if (column < columns) {
        a = load_as<FourWords>(w + upper * pitch + 2 * column);
        b = load_as<FourWords>(w + lower * pitch + 2 * column);
        if (group < rows) c = load_as<FourWords>(x + group * x_pitch + 2 * (k + column));
      }
      multiply_add(d[0], {a.x, b.x, a.y, b.y}, c.x, c.y);
      multiply_add(d[1], {a.z, b.z, a.w, b.w}, c.z, c.w);
    }
    ring.release();
  }
  float* const to = sums + 40 * part + group;
  to[0] = d[0][0] + d[1][0], to[20] = d[0][1] + d[1][1];
  to[8] = d[0][2] + d[1][2], to[28] = d[0][3] + d[1][3];
}

// Adds up the warps' sums of one output and writes it.
__device__ __forceinline__ void finish(const Step& s, const ProductPhase& f, const float* sums,
                                       Place own, Addends addends, uint32_t number) {
  const float* const from = sums + 20 * own.row + thread_index() % tile_rows;
  float x = 0;
#pragma unroll
  for (int w = 0; w < compute_warps; ++w) x += from[160 * w];
  x += addends.bias;
  if (f.glu) {
    x = to_bf16(x);
    const float other = shuffle_xor(x, tile_rows / 2);
    own.writes = own.writes && !Place::of_values();
    x = activated(f.act, x) * other;
  } else if (f.act != Act::none) {
    x = activated(f.act, to_bf16(x));
  }
  x *= f.alpha;
  if (own.writes && f.prior.phase != absent) x += addends.added(s, f, own);
  const float next = shuffle_xor(x, 1);
  if (!own.writes) return;
  const int64_t line = own.row;
  if (f.logits)
    f.logits[line * f.N + own.output] = x;
  else if (own.output % 2 == 0)
    write_packet(s.wires + f.out.at + line * (f.N / 2) + own.output / 2,
                 packet(pack_bf16(x, next), number));
}

__device__ __forceinline__ void run_product(const Step& s, const ProductPhase& f, Control& control,
                                            unsigned char* rows, RingReader& ring,
                                            uint32_t number) {
  const Share share(f);
  if (share.first == share.last) return;
  const auto place = [&](int at) { return Place(s, f, share, at); };
  Addends next(s, f, control, place(share.first));
  read_input(s, f, control, ring, rows);
  sync_compute();
  int turn = 0;  // a warp may begin the next tile while others finish this one, but not two ahead
  for (int at = share.first; at < share.last; at += share.step, turn ^= 1) {
    const Addends addends = next;  // read a tile ahead; none past the last tile
    next = Addends(s, f, control, place(at + share.step));
    multiply_tile(f, s.rows, share.count(at), rows, ring, control.sums[turn][thread_index() / 32]);
    sync_compute();
    if (thread_index() < most_rows * tile_rows)
      finish(s, f, control.sums[turn][0], place(at), addends, number);
  }
}

}  // namespace hearth::cuda::persistent
