// The statistics that `data stat` prints for a token file or an evaluation file.
#pragma once

#include "data/shards.h"

namespace hearth::inline data {

// The ids that open and close documents in a file; -1: none.
struct DocumentMarks {
  int32_t open = -1, close = -1;
};

struct TokenStat {
  TokenCounts counts;      // documents found by their marks
  int64_t max_token = -1;  // -1: the file is empty
  int64_t continued = 0;   // tokens before the first opening id, continuing an earlier shard
  DocumentMarks marks;     // the marks used for counting
  double mean_length() const {
    return counts.documents ? double(counts.tokens - continued) / double(counts.documents) : 0;
  }
};

// From prepare.json (its end-of-text id opens) or metadata.json (bos and eos) beside the file, else
// GPT-2's 50256 for uint16 and Llama-3's 128000 for uint32.
DocumentMarks document_marks_of(const TokenFile&);

// If one id both opens and closes, it opens a document when another id follows it; it closes one
// before an opening id or at the end. Without an opening id, closing ids are counted.
TokenStat stat_tokens(const TokenFile&, DocumentMarks);

// llm.c's evaluation files (HellaSwag, MMLU): examples with a context and completions, one of which
// is correct.
struct EvalStat {
  int64_t examples = 0, completions = 0;
  int64_t context_tokens = 0, completion_tokens = 0;
  int64_t longest = 0;  // tokens of the longest context plus completion
  int64_t max_token = -1;
};

bool is_eval_file(const std::filesystem::path&);  // by its magic

// Reads the whole file; errors name the byte. vocab 0: tokens are not checked.
EvalStat stat_eval_file(const std::filesystem::path&, int64_t vocab);

}  // namespace hearth::inline data
