// `data prepare`: converts documents (data/documents.h) to token files. Blocks of documents are
// read in order, encoded in parallel and written in order, so the output is identical at any thread
// count. A state file in the output folder, written before the first token file, lets an
// interrupted run resume with identical output. Memory: two blocks of text, their tokens, and the
// encoding of one document of max_document_bytes.
//
// Empty documents are dropped. llmc: each document is [eos] + tokens; raw: [bos] + tokens + [eos],
// without an id that the tokenizer lacks. A document may continue in the next shard. The pieces of
// a text stay one document as long as they fall on one side.
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "data/documents.h"
#include "data/shards.h"

namespace hearth::inline data {

struct PrepareSpec {
  std::vector<std::string> inputs;  // paths or globs; "-" is standard input
  SourceKind source = SourceKind::automatic;
  std::string column = "text";  // of Parquet; key of JSONL rows
  std::filesystem::path out;    // receives train_000001.bin .. and val_000000.bin ..
  TokenFormat format = TokenFormat::llmc;
  int64_t shard_tokens = 0;  // 0: 100M for llmc; one train.bin and val.bin for raw
  double val_fraction = 0;   // fraction of documents, chosen by text hash (data/holdout.h)
  // A longer text is read in pieces of this size; a longer JSONL line or Parquet row is an error.
  int64_t max_document_bytes = 16 << 20;
  int threads = 0;
  int64_t block_bytes = 8 << 20;  // bytes of text per block
  int64_t save_blocks = 8;        // blocks between saved states

  // Appends the tokens of a text; called from several threads at once.
  std::function<void(std::string_view, std::vector<int32_t>&)> encode;
  int64_t vocab = 0;
  int32_t bos = -1, eos = -1;
  std::string tokenizer_id;   // identifies the tokenizer: a run resumes only with the same one
  std::string vocabulary_id;  // identifies its tokens, independent of the files; may be empty

  bool progress = false;                        // print progress on stderr
  std::function<void(int64_t block)> on_block;  // called after each block is written
};

struct PrepareResult {
  TokenCounts train, val;
  int64_t train_shards = 0, val_shards = 0;
  int64_t bytes = 0;     // bytes of text read
  bool resumed = false;  // continued from a state file
  bool pieces = false;   // texts were split so that no side is empty (data/holdout.h)
  std::vector<std::filesystem::path> files;
  // Inputs with `<|endoftext|>` inside lines, where it does not separate documents, and their
  // counts.
  std::vector<std::pair<std::filesystem::path, int64_t>> marks_inside;
};

PrepareResult prepare(const PrepareSpec&);

// The tokenizer that the token files of a folder were prepared with.
struct PreparedWith {
  std::string tokenizer_id, vocabulary_id;  // as in PrepareSpec
  int64_t vocab = 0;
};

// Nothing if the folder has no readable state file of prepare.
std::optional<PreparedWith> prepared_with(const std::filesystem::path& folder);

// The folders of these token files in which prepare has not finished.
std::vector<std::filesystem::path> unfinished_folders(std::span<const std::filesystem::path> files);

}  // namespace hearth::inline data
