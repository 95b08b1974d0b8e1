#include "train/validation.h"

#include <algorithm>

#include "core/error.h"
#include "data/whole_documents.h"

namespace hearth {

void each_validation_batch(const LoaderSpec& s, const TrainConfig& config,
                           const std::function<bool(const Batch&)>& use) {
  if (!s.mix.empty())
    fail_usage("--val", "expected files without weights, got {} weighted sources", s.mix.size());
  if (config.eval_documents) {
    for (const Batch& b :
         whole_documents(s.files, {s.batch, s.seq, s.document_start, config.eval_tokens, s.vocab}))
      if (!use(b)) return;
    return;
  }
  Loader val(s);
  const int64_t batches = std::max<int64_t>(1, config.eval_tokens / (s.batch * s.seq));
  Batch b;
  for (int64_t i = 0; i < batches; ++i) {
    val.next(b);
    if (b.next.epoch > 0 || !use(b)) return;
  }
}

}  // namespace hearth
