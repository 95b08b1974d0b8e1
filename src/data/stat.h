// What `data stat` tells of a token file.
#pragma once

#include "data/shards.h"

namespace hearth {

struct TokenStat {
  TokenCounts counts;           // documents are counted by their opening id
  int64_t max_token = -1;       // -1: the file is empty
  int64_t continued = 0;        // tokens before the first opening id: of a document begun elsewhere
  int32_t document_start = -1;  // the id they were counted by
  double mean_length() const {
    return counts.documents ? double(counts.tokens - continued) / double(counts.documents) : 0;
  }
};

// The id that opens a document: told by prepare.json (its end-of-text id) or metadata.json (its
// bos) beside the file, else GPT-2's 50256 for uint16 and Llama-3's 128000 for uint32.
int32_t document_start_of(const TokenFile&);

TokenStat stat_tokens(const TokenFile&, int32_t document_start);

}  // namespace hearth
