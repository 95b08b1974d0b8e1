#include "data/validation_batches.h"

#include <algorithm>
#include <bit>
#include <utility>

#include "data/shards.h"
#include "data/whole_documents.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

// Whether the files are long enough for a full batch, and each file for a full row.
bool fills_a_batch(const LoaderSpec& s) {
  const bool by_step = s.order == LoaderSpec::Order::sequential;
  int64_t rows = 0;
  for (const std::filesystem::path& path : s.files) {
    const int64_t size = TokenFile(path).size();
    if (size < (by_step ? s.batch * s.seq : s.seq) + 1) return false;
    rows += (size - 1) / s.seq;
  }
  return rows >= s.batch;
}

// Splits short files into rows, each file once. Missing rows and the ends of short rows are masked.
class PaddedRows {
 public:
  PaddedRows(const LoaderSpec& s, int64_t batches, const std::function<bool(const Batch&)>& use)
      : spec_(s), batches_(batches), use_(use) {}

  bool add(const TokenFile& file) {  // false: no more batches are wanted
    if (spec_.vocab > 0) file.check_tokens(spec_.vocab);
    for (int64_t begin = 0; begin + 1 < file.size(); begin += spec_.seq) {
      const int64_t n = std::min(spec_.seq, file.size() - 1 - begin);
      for (int64_t i = 0; i < n; ++i) put(int32_t(file[begin + i]), int32_t(file[begin + i + 1]));
      batch_.count += n;
      for (int64_t i = n; i < spec_.seq; ++i) put(0, masked);
      if (full() && !give()) return false;
    }
    return true;
  }

  void finish() {
    if (batch_.count == 0 && given_ == 0)
      fail(spec_.files.empty() ? "--val" : spec_.files[0].string(),
           "expected at least two tokens to validate on, got fewer");
    if (batch_.count == 0) return;
    while (!full()) put(0, masked);
    give();
  }

 private:
  static constexpr int32_t masked = -100;

  bool full() const { return int64_t(batch_.tokens.size()) == spec_.batch * spec_.seq; }
  void put(int32_t token, int32_t target) {
    batch_.positions.push_back(int32_t(int64_t(batch_.tokens.size()) % spec_.seq));
    batch_.tokens.push_back(token), batch_.targets.push_back(target);
  }
  bool give() { return use_(std::exchange(batch_, {})) && ++given_ < batches_; }

  const LoaderSpec& spec_;
  int64_t batches_, given_ = 0;
  const std::function<bool(const Batch&)>& use_;
  Batch batch_;
};

}  // namespace

int64_t default_eval_tokens(int64_t tokens_per_step) {
  constexpr int64_t most = 1 << 20, steps = 64;
  if (tokens_per_step >= most / steps) return most;
  return int64_t(std::bit_floor(uint64_t(std::max<int64_t>(tokens_per_step, 1) * steps)));
}

void each_validation_batch(const LoaderSpec& s, const ValidationSpec& v,
                           const std::function<bool(const Batch&)>& use) {
  if (!s.mix.empty())
    fail_usage("--val", "expected files without weights, got {} weighted sources", s.mix.size());
  const bool short_files = !v.whole_documents && !fills_a_batch(s);
  if (v.whole_documents || (s.document_mask && short_files)) {
    for (const Batch& b :
         whole_documents(s.files, {s.batch, s.seq, s.document_start, v.tokens, s.vocab}))
      if (!use(b)) return;
    return;
  }
  const int64_t batches = std::max<int64_t>(1, v.tokens / (s.batch * s.seq));
  if (short_files) {
    PaddedRows rows(s, batches, use);
    for (const std::filesystem::path& path : s.files)
      if (!rows.add(TokenFile(path))) return;
    return rows.finish();
  }
  Loader val(s);
  Batch b;
  for (int64_t i = 0; i < batches; ++i) {
    val.next(b);
    if (b.next.epoch > 0 || !use(b)) return;
  }
}

}  // namespace hearth::inline data
