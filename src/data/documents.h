// Reads documents one by one from text, JSONL and Parquet, optionally compressed by gzip or zstd,
// from files or standard input. After each document it knows the position where a later reader can
// continue.
//
// Text: a line with only `<|endoftext|>` separates documents (Unix or Windows line ends; the line
// end before it belongs to neither document). A file without such a line is one document. A text
// may be read in pieces, split at the ends of paragraphs or lines. JSONL: one object per line
// (data/jsonl.h). Parquet: one column of strings; nulls are skipped.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hearth::inline data {

// automatic: Parquet by its first bytes, JSONL by its extension (.jsonl, .ndjson), else text. Text
// and JSONL with a zero byte near the start are then refused as binary.
enum class SourceKind { automatic, text, jsonl, parquet };

struct SourcePosition {
  int64_t file = 0;    // index into the inputs
  int64_t offset = 0;  // uncompressed byte offset; Parquet: row
  int64_t line = 0;    // lines (Parquet: rows) before the offset
  // For a text read in pieces: whether the position is inside a document, inside the first document
  // of the file or inside a line, and whether the last separator had a Windows line end.
  bool inside = false, in_first = false, in_line = false, windows = false;
};

struct Document {
  std::string_view raw;             // a text or a JSONL line; valid until the next read
  bool json = false;                // raw is a JSONL line for jsonl_text()
  bool begins = true, ends = true;  // false: other pieces of the text come before or after
  int64_t file = 0, line = 0;
  int64_t marks_inside = 0;  // number of `<|endoftext|>` inside lines, which separate nothing
};

struct DocumentSpec {
  std::vector<std::filesystem::path> inputs;  // "-" is standard input
  SourceKind kind = SourceKind::automatic;
  std::string column = "text";        // of Parquet; key of JSONL rows, as TextKey::name
  size_t longest = size_t(1) << 30;   // maximum bytes of a document; longer is an error
  size_t piece = 0;                   // > 0: longer texts are read in pieces of this size
  const char* limit_flag = nullptr;   // flag that sets `longest`, for errors
  const char* kind_flag = nullptr;    // flag that sets `kind`, for errors
  const char* column_flag = nullptr;  // flag that sets `column`, for errors
  // Maximum bytes of a compressed or piped Parquet file, which is unpacked to disk.
  int64_t longest_spool = int64_t(4) << 30;
};

class DocumentReader {
 public:
  explicit DocumentReader(DocumentSpec, SourcePosition start = {});
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;

  bool next(Document&);  // false at the end of the last file
  SourcePosition position() const { return at_; }
  // Uncompressed bytes read by this reader, not counting skipped ones.
  int64_t bytes_read() const { return bytes_; }
  // Bytes of the inputs on disk up to the current position.
  int64_t packed_position() const;

  struct Source;

 private:
  DocumentSpec spec_;
  SourcePosition at_;
  int64_t bytes_ = 0, packed_before_ = 0;
  std::unique_ptr<Source> source_;
};

// The extension of a file name without a compression suffix: ".jsonl" of rows.jsonl.gz.
std::string extension_of(const std::filesystem::path&);

// Throws if `column` is set but all inputs are plain text, which has no columns. Standard input of
// unknown kind may have some.
void expect_column_effect(const DocumentSpec&);

// Throws for a table (.csv, .tsv), with the keys that its rows need as JSONL.
void refuse_table(const std::filesystem::path&, std::string_view keys);

// "file:line" of a document, for errors.
std::string document_place(const DocumentSpec&, int64_t file, int64_t line);

}  // namespace hearth::inline data
