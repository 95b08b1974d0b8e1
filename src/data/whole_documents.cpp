#include "data/whole_documents.h"

#include <algorithm>

#include "data/shards.h"
#include "sys/counted.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

constexpr int32_t masked = -100;

// Fills rows one after another; a batch is complete when all its rows are full.
class Packer {
 public:
  explicit Packer(const WholeDocumentsSpec& s) : spec_(s) {}

  // `ids` are a document's tokens; the target of the last one is document_start.
  void add(std::span<const int32_t> ids) {
    if (int64_t(ids.size()) > spec_.seq - used_) next_row();
    while (!ids.empty()) {
      const size_t n = std::min(ids.size(), size_t(spec_.seq - used_));
      for (size_t i = 0; i < n; ++i)
        put(ids[i], i + 1 < ids.size() ? ids[i + 1] : spec_.document_start, int32_t(i));
      ids = ids.subspan(n);
      if (!ids.empty()) next_row();
    }
    ++document_;
  }

  std::vector<Batch> finish() {
    next_row();
    while (!batch_.tokens.empty()) empty_row();
    return std::move(done_);
  }
  int64_t tokens() const { return tokens_; }

 private:
  void put(int32_t token, int32_t target, int32_t position) {
    batch_.tokens.push_back(token), batch_.targets.push_back(target);
    batch_.positions.push_back(position), batch_.documents.push_back(document_);
    batch_.count += target != masked;
    tokens_ += target != masked;
    ++used_;
  }
  void empty_row() {
    put(spec_.document_start, masked, 0);
    next_row();
  }
  // Masks the rest of the row and starts the next; completes the batch after its last row.
  void next_row() {
    if (used_ == 0) return;
    ++document_;
    while (used_ < spec_.seq) put(spec_.document_start, masked, 0);
    used_ = 0, document_ = 0;
    if (int64_t(batch_.tokens.size()) < spec_.batch * spec_.seq) return;
    done_.push_back(std::move(batch_));
    batch_ = {};
  }

  WholeDocumentsSpec spec_;
  Batch batch_;
  std::vector<Batch> done_;
  int64_t used_ = 0, tokens_ = 0;
  int32_t document_ = 0;
};

// False if the next document would exceed the limit; an error if that is the first one. Copies only
// documents from the mapped file, one at a time.
bool add_documents(Packer& packer, const TokenFile& file, const std::filesystem::path& path,
                   const WholeDocumentsSpec& spec) {
  std::vector<int32_t> ids;
  int64_t begin = file.find(spec.document_start, 0, file.size());
  while (begin < file.size()) {
    int64_t room = file.size();
    if (spec.max_tokens) room = std::min(room, spec.max_tokens - packer.tokens());
    const int64_t look_at = std::min(file.size(), begin + room + 1);
    const int64_t end = file.find(spec.document_start, begin + 1, look_at);
    if (end - begin > room && packer.tokens() == 0)
      fail(path.string(),
           "the first document has {} tokens, more than the {} to validate on: use a higher "
           "--eval-tokens",
           file.find(spec.document_start, begin + 1, file.size()) - begin, spec.max_tokens);
    if (end - begin > room) return false;
    ids.resize(size_t(end - begin));
    file.read(ids.data(), begin, end - begin);
    packer.add(ids);
    begin = end;
  }
  return true;
}

}  // namespace

std::vector<Batch> whole_documents(std::span<const std::filesystem::path> files,
                                   const WholeDocumentsSpec& spec) {
  Packer packer(spec);
  for (const std::filesystem::path& path : files) {
    const TokenFile file(path);
    if (spec.vocab > 0) file.check_tokens(spec.vocab);
    if (!add_documents(packer, file, path, spec)) break;
  }
  std::vector<Batch> batches = packer.finish();
  if (batches.empty() || packer.tokens() == 0)
    fail(files.empty() ? "data" : files[0].string(),
         "no document starts with token {} in {}; check --document-start", spec.document_start,
         counted(int64_t(files.size()), "file"));
  return batches;
}

}  // namespace hearth::inline data
