// Batches of whole documents, for a validation loss that can be compared with the documents'
// entropy: documents that fit a row are never split; the rest of a row is masked.
#pragma once

#include <filesystem>
#include <span>
#include <vector>

#include "data/loader.h"

namespace hearth::inline data {

struct WholeDocumentsSpec {
  int64_t batch = 1, seq = 1;
  int32_t document_start = 0;  // the id that starts a document
  // Stop before the document that would exceed it, which must not be the first; 0: all.
  int64_t max_tokens = 0;
  int64_t vocab = 0;  // > 0: every token of the files is checked
};

// Documents in order, as many per row as fit; one longer than a row is split over rows. The target
// of a document's last token is the first token of the next. Fills `documents`. Files after the
// last used document are not opened.
std::vector<Batch> whole_documents(std::span<const std::filesystem::path>,
                                   const WholeDocumentsSpec&);

}  // namespace hearth::inline data
