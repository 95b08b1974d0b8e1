// Reads documents from text and JSON-lines files for the trainer.
#include <fstream>
#include <nlohmann/json.hpp>

#include "sys/error.h"
#include "text/tokenizer/train.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

// A document without an end is returned in parts of about this size, split at line ends.
constexpr size_t longest_document = 4 << 20;

class Documents {
 public:
  explicit Documents(std::span<const fs::path> files) : files_(files) {}

  bool next(std::string& text) {
    for (;;) {
      if (!in_.is_open() && !open()) return false;
      if (json_lines_ ? next_line(text) : next_text(text)) return true;
      if (in_.bad()) fail(name(), "could not read the file after line {}", line_);
      in_.close();
      ++file_;
    }
  }

 private:
  std::string name() const { return files_[file_].string(); }

  bool open() {
    if (file_ == files_.size()) return false;
    in_ = std::ifstream(files_[file_], std::ios::binary);
    if (!in_ || fs::is_directory(files_[file_])) fail(name(), "this file cannot be read");
    json_lines_ = files_[file_].extension() == ".jsonl";
    line_ = 0;
    return true;
  }

  bool next_text(std::string& text) {
    text.clear();
    for (std::string line; std::getline(in_, line);) {
      ++line_;
      const bool end = line == "<|endoftext|>" || line == "<|endoftext|>\r";
      if (!end) {
        text += line;
        if (!in_.eof()) text += '\n';
      }
      if ((end && !text.empty()) || text.size() > longest_document) break;
    }
    return !text.empty();
  }

  bool next_line(std::string& text) {
    for (std::string line; std::getline(in_, line);) {
      ++line_;
      if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
      const auto object = nlohmann::json::parse(line, nullptr, false);
      if (!object.is_object() || !object.contains("text") || !object["text"].is_string())
        fail(name(), "expected an object with \"text\" on line {}, got: {}", line_,
             line.substr(0, 60));
      text = object["text"].get<std::string>();
      return true;
    }
    return false;
  }

  std::span<const fs::path> files_;
  size_t file_ = 0, line_ = 0;
  std::ifstream in_;
  bool json_lines_ = false;
};

}  // namespace

Tokenizer train_bpe(const BpeTrainSpec& spec, std::span<const fs::path> files, Threads& threads) {
  Documents documents(files);
  return train_bpe(
      spec, [&](std::string& text) { return documents.next(text); }, threads);
}

}  // namespace hearth::inline text
