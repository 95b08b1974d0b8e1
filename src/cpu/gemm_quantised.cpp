// Divides a product with quantised weights into strips of panels and blocks of rows.
#include <algorithm>
#include <cstring>
#include <functional>

#include "core/math.h"
#include "cpu/gemm.h"
#include "cpu/isa/gemm_table.h"
#include "sys/error.h"
#include "sys/threads.h"

namespace hearth::inline cpu {
namespace {

constexpr int64_t strip_panels = 4;   // per task
constexpr int64_t block_rows = 512;   // per task, so that widening int4 is paid once for this many
constexpr int64_t rows_at_once = 16;  // quantised by one task; also the rows of a tile

}  // namespace

const char* quantised_instructions(Isa isa) { return gemm_table(isa).quantised.name; }

void gemm_quantised(Threads& threads, Scratch& scratch, const GemmTable& table,
                    const GemmProblem& g) {
  QuantHeader header;
  std::memcpy(&header, g.b, sizeof header);
  const QuantLayout l(header);
  if (l.cols != g.k || g.b_row + g.n > l.rows || g.b_row % quant_panel || g.ta || !g.tb)
    fail("gemm_quantised", "expected weights of {} x {} from row {} on, got {} x {}", g.n, g.k,
         g.b_row, l.rows, l.cols);
  if (g.m == 0 || g.n == 0) return;

  const bool four = l.format == WeightFormat::int4;
  const int64_t padded = l.padded_k(), block = std::min(g.m, block_rows);
  const bool few = g.m <= quant_few_rows;
  const int flip = few ? table.quantised.few_flip : table.quantised.flip;
  // The padding avoids rows a power of two apart, which would share few cache sets.
  QuantRows x{
      .ld = padded + 64, .k = g.k, .padded = padded, .flip = uint8_t(four ? 0 : flip), .few = few};
  const int64_t strip = strip_panels * quant_panel, ld = strip + 16;
  const int64_t q_bytes = round_up(g.m, 32) * x.ld, scale_bytes = round_up(g.m * 4, 64);
  const int64_t offset_bytes = four ? round_up(g.m * l.groups() * 4, 64) : 0;
  const int64_t acc_bytes = round_up(block, 32) * ld * 4, worker_bytes = acc_bytes + 32 * padded;
  std::byte* memory =
      scratch.get(q_bytes + scale_bytes + offset_bytes + threads.count() * worker_bytes);
  x.q = reinterpret_cast<int8_t*>(memory);
  x.scales = reinterpret_cast<float*>(memory + q_bytes);
  if (four) x.offsets = reinterpret_cast<int32_t*>(memory + q_bytes + scale_bytes);
  std::byte* workers = memory + q_bytes + scale_bytes + offset_bytes;

  auto quantise = [&](int64_t piece, int) {
    const int64_t begin = piece * rows_at_once, end = std::min(g.m, begin + rows_at_once);
    table.quantised.quantise(x, g.a, g.ab_type == DType::bf16, g.lda, begin, end);
  };
  threads.run(ceil_div(g.m, rows_at_once), std::ref(quantise));

  const int64_t strips = ceil_div(g.n, strip), blocks = ceil_div(g.m, block);
  auto multiply = [&](int64_t piece, int worker) {
    const int64_t s = piece % strips, row = piece / strips * block;
    const int64_t rows = std::min(block, g.m - row), col = s * strip;
    const int64_t begin = g.b_row / quant_panel, first = begin + s * strip_panels;
    const int64_t last = std::min(first + strip_panels, begin + ceil_div(g.n, quant_panel));
    QuantRows part = x;
    part.q += row * x.ld;
    part.scales += row;
    if (four) part.offsets += row * l.groups();
    std::byte* own = workers + worker * worker_bytes;
    float* acc = reinterpret_cast<float*>(own);
    table.quantised.multiply(acc, ld, part, static_cast<const std::byte*>(g.b), first, last, rows,
                             own + acc_bytes);
    table.finish(g, acc, ld, row, col, rows, std::min(strip, g.n - col));
  };
  threads.run_adjacent(strips * blocks, std::ref(multiply));
}

}  // namespace hearth::inline cpu
