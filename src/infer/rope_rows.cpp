#include "infer/rope_rows.h"

#include <algorithm>
#include <bit>
#include <string>

#include "model/layer_spec.h"

namespace hearth::inline infer {

RopeRows::RopeRows(const ModelConfig& config, int64_t positions)
    : config_(config.resolve()),
      rows_(rope_rows(config_, positions)),
      filled_(std::ranges::any_of(layer_specs(config_), &LayerSpec::rope) ? 0 : rows_) {}

void RopeRows::cover(Memory& memory, int64_t count) {
  if (count <= filled_) return;
  if (!table_) table_ = {memory.state, "rope." + std::to_string(rows_)};  // see decoder()
  const int64_t row = table_.size() / rows_;
  const int64_t most = std::max<int64_t>(1, (int64_t(1) << 20) / std::max<int64_t>(row, 1));
  const int64_t end =
      std::min(rows_, int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(count, 256)))));
  while (filled_ < end) {
    const int64_t n = std::min(most, end - filled_);
    const std::vector<float> made = rope_table(config_, filled_, n);
    table_.upload_part(filled_ * row, made);
    filled_ += n;
  }
}

}  // namespace hearth::inline infer
