// Batches of whole documents, for a validation loss that can be held against what the documents are
// worth: documents that fit a row are never cut, the rest of a row is masked.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "data/loader.h"

namespace hearth {

struct WholeDocumentsSpec {
  int64_t batch = 1, seq = 1;
  int32_t document_start = 0;  // the id that opens a document
  int64_t max_tokens = 0;      // stop before the document that would be more; 0: all
  int64_t vocab = 0;           // > 0: every token of the files read is checked against it
};

// Documents in order, as many to a row as fit; one longer than a row is cut into rows. The target
// of a document's last token is the next one's first. `documents` is filled. Files after the last
// document that is taken are not opened.
std::vector<Batch> whole_documents(std::span<const std::filesystem::path>,
                                   const WholeDocumentsSpec&);

}  // namespace hearth
