// What the persistent kernel runs: a decode step as a list of phases, each a product or the
// attention of a layer, and where they exchange activations. Plain data, read by host and device.
#pragma once

#include <cstdint>

#include "core/kernel_specs.h"

namespace hearth::cuda::persistent {

constexpr int most_rows = 8;  // the columns of one tensor core instruction
constexpr int compute_warps = 8, compute_threads = 32 * compute_warps;
constexpr int block_threads = compute_threads + 32;  // and the warp that loads
constexpr int tile_rows = 16;                        // rows of a weight multiplied at once
constexpr int stretch = 32;                          // columns of a weight that a warp takes
constexpr int chunk_columns = 1024;                  // columns of a weight in one ring entry
constexpr int most_head_dim = 256;

// Attention over up to `whole_keys` keys is one unit of work. More keys are split where their
// positions are multiples of `split_keys`, or of the least power of two times it that makes at most
// `most_splits` whole splits. This depends on a row's position alone.
constexpr int whole_keys = 256, split_keys = 128, most_splits = 32;
constexpr int split_places = most_splits + 1;  // a window may begin and end within a split

// A matrix of activations, (rows, columns) of bf16, in the memory that blocks exchange them
// through: packets of 64 bits, each two neighbouring elements and the number of the phase that
// wrote them. `phase` may also be one of the two below.
struct Wire {
  uint32_t at = 0;  // the first packet
  int32_t phase = -2;
};
constexpr int32_t from_embedding = -1, absent = -2;

// Two neighbouring packets. Each is read and written whole, so a packet with the expected number
// has the value that was written with it: no order between different accesses is needed.
struct Packets {
  uint64_t first, second;
};

// y = alpha * act(norm(in) wᵀ + bias) + prior, or for a GLU act(gate) * up.
struct ProductPhase {
  const uint16_t* w = nullptr;  // (N, K) bf16; GLU: (2N, K), the gate first
  const uint16_t* bias = nullptr;
  const uint16_t *gain = nullptr, *shift = nullptr;  // (K)
  float* logits = nullptr;                           // (rows, N): instead of `out`
  Wire in = {}, out = {}, prior = {};
  int32_t N = 0, K = 0;
  float alpha = 1, eps = 0;
  Act act = Act::none;
  Norm norm = Norm::rms;
  bool normed = false, glu = false;
};

// Attention of one layer over the paged cache, which it also extends by the step's keys and values.
// The rows of `in` are packed q | k | v, before their norm and rotation.
struct AttentionPhase {
  uint16_t* cache = nullptr;  // laid out by CacheLayout
  const float* rope = nullptr;
  const uint16_t *q_gain = nullptr, *k_gain = nullptr;
  const float* slopes = nullptr;  // (H): ALiBi
  Wire in = {}, out = {};
  uint32_t parts = 0;  // packets of one float: (rows, H, split_places, D + 2)
  int32_t H = 0, G = 0, D = 0, rotary = 0;
  int32_t window = 0;  // 0: no limit
  float scale = 1, softcap = 0, eps = 0;
  QkNorm norm = QkNorm::none;
  bool interleaved = false, reverse = false;
};

struct alignas(16) Phase {
  bool attends = false;
  ProductPhase product = {};
  AttentionPhase attention = {};
};

// The shared memory of a block: the control data, which begins it, then the rows of a phase or the
// work of attention, then the ring that weights and keys stream through.
struct Layout {
  int32_t work = 0, ring = 0, ring_bytes = 0;
  int32_t bytes() const { return ring + ring_bytes; }
};

struct Step {
  const Phase* phases = nullptr;
  int32_t count = 0, rows = 0;
  uint64_t* wires = nullptr;
  uint32_t number = 1;  // of the first phase; never 0, which fresh memory holds

  // The embedding, which every block computes for itself.
  const int32_t* ids = nullptr;        // (rows)
  const uint16_t* table = nullptr;     // (V, width)
  const uint16_t* places = nullptr;    // (S, width): learned positions, or null
  const int32_t* positions = nullptr;  // (rows)
  int32_t width = 0;

  const int32_t* tables = nullptr;           // (rows, table_width)
  int32_t table_width = 0, score_pitch = 0;  // scores of a unit, per head
  Layout layout = {};
};

// Bytes from one row to the next of `columns` elements in shared memory: neighbouring rows begin in
// different halves of the banks, so that eight lanes that read 16 bytes each never collide.
HEARTH_FORMULA constexpr int pitch_of(int columns) { return (2 * columns + 63) / 128 * 128 + 64; }

// The query heads of a KV head that one unit of attention takes.
HEARTH_FORMULA constexpr int heads_at_once(int H, int G) { return H / G >= 3 ? 4 : H / G; }

// Bytes that a unit of attention works in: queries, the row's own key and value, scores, and the
// warps' sums and two statistics of each head.
HEARTH_FORMULA constexpr int64_t unit_bytes(int heads, int D, int score_pitch) {
  return 4 * (int64_t(heads) * (D + score_pitch + compute_warps * (D + 2)) + 2 * D);
}

// Keys of a split of a row that sees `keys` keys.
HEARTH_FORMULA constexpr int split_size(int keys) {
  int size = split_keys;
  while (keys > size * most_splits) size *= 2;
  return size;
}

}  // namespace hearth::cuda::persistent
