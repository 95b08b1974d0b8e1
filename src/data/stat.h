// What `data stat` tells of a token file or of an evaluation file.
#pragma once

#include "data/shards.h"

namespace hearth {

// The ids around the documents of a file; -1: none.
struct DocumentMarks {
  int32_t open = -1, close = -1;
};

struct TokenStat {
  TokenCounts counts;      // documents by their marks
  int64_t max_token = -1;  // -1: the file is empty
  int64_t continued = 0;   // tokens before the first opening id: of a document begun elsewhere
  DocumentMarks marks;     // that they were counted by
  double mean_length() const {
    return counts.documents ? double(counts.tokens - continued) / double(counts.documents) : 0;
  }
};

// Told by prepare.json (its end-of-text id opens) or metadata.json (its bos and eos) beside the
// file, else GPT-2's 50256 for uint16 and Llama-3's 128000 for uint32.
DocumentMarks document_marks_of(const TokenFile&);

// Where one id both opens and closes, it opens a document if another id follows it: a closing one
// stands before an opening one or at the end. Without an opening id, closing ids are counted.
TokenStat stat_tokens(const TokenFile&, DocumentMarks);

// llm.c's evaluation files (HellaSwag, MMLU): examples of a context and completions, one of them
// right.
struct EvalStat {
  int64_t examples = 0, completions = 0;
  int64_t context_tokens = 0, completion_tokens = 0;
  int64_t longest = 0;  // tokens of the longest context with a completion
  int64_t max_token = -1;
};

bool is_eval_file(const std::filesystem::path&);  // by its magic

// Reads all of it; anything wrong is an error that names the byte. vocab 0: tokens are not checked.
EvalStat stat_eval_file(const std::filesystem::path&, int64_t vocab);

}  // namespace hearth
