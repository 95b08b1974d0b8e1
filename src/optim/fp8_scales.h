// Training in fp8: whether a device can, the scales that its checkpoints carry, and what its log
// says of them.
#pragma once

#include <nlohmann/json.hpp>
#include <span>
#include <vector>

#include "core/read_queue.h"
#include "formats/state_fields.h"
#include "optim/update_program.h"

namespace hearth::inline optim {

// Throws, with the reason, if the backend has no fp8 products.
void expect_fp8(const Backend&);

// Adds the sites of an update between two steps to the state of a task, as "fp8_scales": all up to
// the last one in use, and of each two numbers, as bit patterns: max |v| of the previous step and
// of an unfinished one, which a skipped update leaves. Nothing without fp8, as all that follows.
void save_fp8_scales(nlohmann::json& task, const UpdateProgram&);
void restore_fp8_scales(const UpdateProgram&, const StateFields& task);

// What the log of a step says: the smallest and the largest scale, and how many tensors had numbers
// beyond the largest of their format. Without the gradient of the logits, whose scale is given.
nlohmann::ordered_json fp8_summary(std::span<const Fp8Site>, std::span<const DType> formats);

// The summaries of steps, which the host reads while later steps run.
class Fp8Summaries {
 public:
  explicit Fp8Summaries(Backend& b) : sent_(b) {}
  // Queues a copy of the sites as they will be after all work launched so far.
  void send(const UpdateProgram&);
  // Adds the summary of the oldest send() that was not taken yet; waits for it.
  void take(nlohmann::ordered_json& log);

 private:
  ReadQueue sent_;
  std::vector<DType> formats_;
};

}  // namespace hearth::inline optim
