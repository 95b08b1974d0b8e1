#include "infer/rope_rows.h"

#include <algorithm>
#include <bit>
#include <utility>

namespace hearth::inline infer {

RopeRows::RopeRows(const ModelConfig& config, int64_t positions)
    : rows_(rope_rows(config.resolve(), positions)), filled_(0) {
  for (LayerRopeTable& t : layer_rope_tables(config.resolve(), rows_))
    tables_.push_back({std::move(t)});
  if (tables_.empty()) filled_ = rows_;
}

void RopeRows::cover(Memory& memory, int64_t count) {
  if (count <= filled_) return;
  const int64_t end =
      std::min(rows_, int64_t(std::bit_ceil(uint64_t(std::max<int64_t>(count, 256)))));
  for (Table& t : tables_) {
    if (!t.ref) t.ref = {memory.state, t.made.name};
    const int64_t row = t.ref.size() / rows_;
    const int64_t most = std::max<int64_t>(1, (int64_t(1) << 20) / std::max<int64_t>(row, 1));
    for (int64_t first = filled_; first < end; first += most) {
      const std::vector<float> made = rope_table(t.made.config, first, std::min(most, end - first));
      t.ref.upload_part(first * row, made);
    }
  }
  filled_ = end;
}

}  // namespace hearth::inline infer
