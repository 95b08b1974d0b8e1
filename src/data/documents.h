// Reads documents one by one from text and JSONL files and standard input, and knows at each moment
// from where to go on: the position behind the last document.
#pragma once

#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

enum class SourceKind { automatic, text, jsonl };  // automatic: by name; standard input is text

struct SourcePosition {
  int64_t file = 0;    // index into the inputs
  int64_t offset = 0;  // byte of that file
  int64_t line = 0;    // lines before it
};

struct Document {
  std::string raw;    // a text, or a line of JSONL
  bool json = false;  // raw is to go through jsonl_text
  std::string where;  // file:line of its first line, for errors
};

class DocumentReader {
 public:
  // "-" is standard input.
  DocumentReader(std::vector<std::filesystem::path> inputs, SourceKind, SourcePosition start = {});
  ~DocumentReader();
  DocumentReader(const DocumentReader&) = delete;
  DocumentReader& operator=(const DocumentReader&) = delete;

  bool next(Document&);  // false at the end of the last file
  SourcePosition position() const { return at_; }
  int64_t bytes_read() const { return bytes_; }  // by this reader, skipped bytes not counted

 private:
  struct Close {
    void operator()(std::FILE*) const;
  };
  void open(int64_t offset);
  bool read_line();
  bool next_text(Document&);
  bool next_json(Document&);

  std::vector<std::filesystem::path> inputs_;
  SourceKind kind_;
  SourcePosition at_;
  int64_t bytes_ = 0;
  std::unique_ptr<std::FILE, Close> file_;
  char* buffer_ = nullptr;  // of getline
  size_t capacity_ = 0;
  std::string_view line_;  // with its line end
};

// The text of one JSONL object; `where` names the file and line for the error.
std::string jsonl_text(std::string_view line, std::string_view where);

}  // namespace hearth
