// Reads documents one by one from text, JSONL and Parquet, each plain or packed by gzip or zstd, in
// files or on standard input, and knows at each moment from where to go on: the position behind the
// last document.
//
// Text: documents are separated by a line that holds only `<|endoftext|>` (Unix or Windows line
// ends; the line end before it belongs to neither); a file without such a line is one document. A
// text may be read in pieces, cut at the ends of paragraphs or lines. JSONL: one object a line
// (data/jsonl.h). Parquet: one column of strings; nulls are passed over.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

// automatic: Parquet by its first bytes, JSONL by its name (.jsonl, .ndjson), else text.
enum class SourceKind { automatic, text, jsonl, parquet };

struct SourcePosition {
  int64_t file = 0;    // index into the inputs
  int64_t offset = 0;  // byte of that file, unpacked; Parquet: row
  int64_t line = 0;    // lines (Parquet: rows) before it
  // Of a text that is read in pieces: whether the position is inside a document, inside the first
  // document of its file, inside a line; and whether the last separator had a Windows line end.
  bool inside = false, in_first = false, in_line = false, windows = false;
};

struct Document {
  std::string_view raw;             // a text, or a line of JSONL; until the next one is read
  bool json = false;                // raw is to go through jsonl_text
  bool begins = true, ends = true;  // false: a piece of a text, with others before or after it
  int64_t file = 0, line = 0;
  int64_t marks_inside = 0;  // `<|endoftext|>` inside lines of a text, where it separates nothing
};

struct DocumentSpec {
  std::vector<std::filesystem::path> inputs;  // "-" is standard input
  SourceKind kind = SourceKind::automatic;
  std::string column = "text";       // of Parquet
  size_t longest = size_t(1) << 30;  // bytes of a document; a longer one is an error
  size_t piece = 0;                  // > 0: a text of more bytes is read in pieces
  const char* limit_flag = nullptr;  // that sets `longest`, for the error
  const char* kind_flag = nullptr;   // that sets `kind`, for the error
  // Bytes of a Parquet file that comes packed or through a pipe, which is unpacked to the disk.
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
  // Unpacked, by this reader, skipped ones not counted.
  int64_t bytes_read() const { return bytes_; }
  // Bytes of the inputs, as they lie on disk, up to here.
  int64_t packed_position() const;

  struct Source;

 private:
  DocumentSpec spec_;
  SourcePosition at_;
  int64_t bytes_ = 0, packed_before_ = 0;
  std::unique_ptr<Source> source_;
};

// An error for a table (.csv, .tsv), which says which keys its rows need as JSONL.
void refuse_table(const std::filesystem::path&, std::string_view keys);

// "file:line" of a document, for errors.
std::string document_place(const DocumentSpec&, int64_t file, int64_t line);

}  // namespace hearth
