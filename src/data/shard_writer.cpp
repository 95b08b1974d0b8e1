#include "data/shard_writer.h"

#include <algorithm>

#include "sys/error.h"

namespace hearth::inline data {

void SplitWriter::restore(const StateFields& saved) {
  shard_ = saved.integer("shard", 0, 999'999);  // six digits in a file name
  const int64_t most = spec_.shard_tokens > 0 ? spec_.shard_tokens : StateFields::max_count;
  const int64_t open_tokens = saved.integer("open_tokens", 0, most);
  counts = {.tokens = saved.integer("tokens"),
            .documents = saved.integer("documents"),
            .shortest = saved.integer("shortest"),
            .longest = saved.integer("longest")};
  open_document_ = saved.has("open_document") ? saved.integer("open_document") : 0;
  if (open_tokens > 0) open(open_tokens);
}

nlohmann::json SplitWriter::save() {
  if (writer_) writer_->sync();
  return {{"shard", shard_},
          {"open_tokens", writer_ ? writer_->size() : 0},
          {"tokens", counts.tokens},
          {"documents", counts.documents},
          {"shortest", counts.shortest},
          {"longest", counts.longest},
          {"open_document", open_document_}};
}

void SplitWriter::append(std::span<const int32_t> tokens) {
  open_document_ += int64_t(tokens.size());
  while (!tokens.empty()) {
    if (!writer_) open(-1);
    size_t n = tokens.size();
    if (spec_.shard_tokens > 0) n = std::min(n, size_t(spec_.shard_tokens - writer_->size()));
    writer_->append(tokens.first(n));
    tokens = tokens.subspan(n);
    if (writer_->size() == spec_.shard_tokens) finish();
  }
}

void SplitWriter::finish() {
  if (!writer_) return;
  writer_->finish();
  writer_.reset();
  ++shard_;
}

std::vector<std::pair<std::filesystem::path, int64_t>> SplitWriter::files() const {
  std::vector<std::pair<std::filesystem::path, int64_t>> all;
  for (int64_t i = 0, left = counts.tokens; i < shard_; ++i) {
    const int64_t n = spec_.shard_tokens > 0 ? std::min(left, spec_.shard_tokens) : left;
    all.emplace_back(path(i), n);
    left -= n;
  }
  return all;
}

std::filesystem::path SplitWriter::path(int64_t i) const {
  if (spec_.shard_tokens == 0) return spec_.folder / (spec_.name + ".bin");
  return spec_.folder / fmt::format("{}_{:06}.bin", spec_.name, spec_.first_index + i);
}

void SplitWriter::open(int64_t resume_tokens) {
  writer_.emplace(path(shard_), TokenWriter::Spec{.format = spec_.format,
                                                  .width = spec_.width,
                                                  .resume_tokens = resume_tokens});
}

}  // namespace hearth::inline data
