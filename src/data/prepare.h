// `data prepare`: documents (data/documents.h) to token files. Blocks of documents are read in
// order, encoded in parallel and written in order, so the output is the same bytes at any thread
// count; a state file in the output folder lets a killed run go on, again to the same bytes.
// Memory: two blocks of text, their tokens, and what encoding takes of a document of
// max_document_bytes.
//
// Empty documents are dropped. llmc: each document is [eos] + tokens; raw: [bos] + tokens + [eos]
// (less the one a tokenizer lacks). A document may run on into the next shard. A text that is read
// in pieces stays one document as far as its pieces fall on one side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/documents.h"
#include "data/shards.h"

namespace hearth {

struct PrepareSpec {
  std::vector<std::string> inputs;  // paths or patterns; "-" is standard input
  SourceKind source = SourceKind::automatic;
  std::string column = "text";  // of Parquet
  std::filesystem::path out;    // folder for train_000001.bin .. and val_000000.bin ..
  TokenFormat format = TokenFormat::llmc;
  int64_t shard_tokens = 0;  // 0: 100M with a header; one train.bin and one val.bin without
  double val_fraction = 0;   // of the documents, chosen by a hash of their text (data/sides.h)
  // A longer text is read in pieces of that; a longer line of JSONL or row of Parquet is an error.
  int64_t max_document_bytes = 16 << 20;
  int threads = 0;
  int64_t block_bytes = 8 << 20;  // text encoded at a time
  int64_t save_blocks = 8;        // blocks between two savings of the state

  // Appends the tokens of a text; called from several threads at once.
  std::function<void(std::string_view, std::vector<int32_t>&)> encode;
  int64_t vocab = 0;
  int32_t bos = -1, eos = -1;
  std::string tokenizer_id;   // names the tokenizer: a run goes on only with the same one
  std::string vocabulary_id;  // names its tokens, whichever files they come from; may be empty

  bool progress = false;                        // a line on stderr
  std::function<void(int64_t block)> on_block;  // called after each block is written
};

struct PrepareResult {
  TokenCounts train, val;
  int64_t train_shards = 0, val_shards = 0;
  int64_t bytes = 0;     // of text read
  bool resumed = false;  // went on from a state file
  bool pieces = false;   // texts were cut so that both sides got some (data/sides.h)
  std::vector<std::filesystem::path> files;
  // Inputs with `<|endoftext|>` inside lines, where it separates nothing, and how often.
  std::vector<std::pair<std::filesystem::path, int64_t>> marks_inside;
};

PrepareResult prepare(const PrepareSpec&);

// The tokenizer that the token files of a folder were prepared with.
struct PreparedWith {
  std::string tokenizer_id, vocabulary_id;  // as PrepareSpec has them
  int64_t vocab = 0;
};

// Nothing where the folder has no state file of prepare, or one that cannot be read.
std::optional<PreparedWith> prepared_with(const std::filesystem::path& folder);

}  // namespace hearth
