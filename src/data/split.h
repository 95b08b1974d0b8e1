// One side of `data prepare`'s output, train or val: a run of token files that can be taken up
// again.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "data/shards.h"
#include "formats/state_fields.h"

namespace hearth {

struct SplitSpec {
  std::filesystem::path folder;
  std::string name;     // train | val
  int64_t first_index;  // NoCap: val begins at 0, train at 1
  TokenFormat format;
  int width;
  int64_t shard_tokens;  // 0: one file without a number
};

class SplitWriter {
 public:
  explicit SplitWriter(SplitSpec spec) : spec_(std::move(spec)) {}

  void begin_document() { open_document_ = 0; }
  void append(std::span<const int32_t> tokens);  // may run on into the next shard
  void end_document() { counts.add_document(std::exchange(open_document_, 0)); }
  void finish();

  nlohmann::json save();  // everything appended so far is on the disk
  // Goes on from a saved state: the open shard is cut back to what the state knows.
  void restore(const StateFields& saved);

  // Name and tokens of every file, once all are finished.
  std::vector<std::pair<std::filesystem::path, int64_t>> files() const;

  int64_t tokens() const { return counts.tokens + open_document_; }

  TokenCounts counts;  // of the documents that have ended

 private:
  std::filesystem::path path(int64_t i) const;
  void open(int64_t resume_tokens);

  SplitSpec spec_;
  int64_t shard_ = 0;          // of the open one, or the next; counted from 0
  int64_t open_document_ = 0;  // tokens of the document that has not ended
  std::optional<TokenWriter> writer_;
};

}  // namespace hearth
