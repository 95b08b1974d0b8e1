// One side of `data prepare`'s output, train or val: a series of token files that can be continued.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/shards.h"
#include "formats/state_fields.h"

namespace hearth::inline data {

struct SplitSpec {
  std::filesystem::path folder;
  std::string name;     // train | val
  int64_t first_index;  // NoCap: val starts at 0, train at 1
  TokenFormat format;
  int width;
  int64_t shard_tokens;  // 0: one file without a number
};

class SplitWriter {
 public:
  explicit SplitWriter(SplitSpec spec) : spec_(std::move(spec)) {}

  void begin_document() { open_document_ = 0; }
  void append(std::span<const int32_t> tokens);  // may continue in the next shard
  void end_document() { counts.add_document(std::exchange(open_document_, 0)); }
  void finish();

  nlohmann::json save();  // writes everything appended so far to disk
  // Continues from a saved state: the open shard is truncated to the saved size.
  void restore(const StateFields& saved);

  // Name and token count of every file, after all are finished.
  std::vector<std::pair<std::filesystem::path, int64_t>> files() const;

  int64_t tokens() const { return counts.tokens + open_document_; }

  TokenCounts counts;  // of finished documents

 private:
  std::filesystem::path path(int64_t i) const;
  void open(int64_t resume_tokens);

  SplitSpec spec_;
  int64_t shard_ = 0;          // 0-based index of the open or next shard
  int64_t open_document_ = 0;  // tokens of the unfinished document
  std::optional<TokenWriter> writer_;
};

}  // namespace hearth::inline data
