// Token files, memory-mapped: shards with the 1024-byte header of llm.c, modded-nanogpt and NoCap
// (uint16, magic 20240520) or of llm.c's Llama-3 (uint32, magic 20240801), and headerless `.bin`
// files that lie beside a metadata.json.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "sys/files/files.h"

namespace hearth {

enum class TokenFormat { llmc, raw };
const char* name(TokenFormat);

// The files a shell pattern matches, sorted; those of {a,b} one alternative after the other. A
// plain path stands for itself. No match is an error.
std::vector<std::filesystem::path> expand_glob(const std::string& pattern);
std::vector<std::filesystem::path> expand_globs(std::span<const std::string> patterns);

// An error where one of the paths is a folder. It suggests a pattern: `files` in that folder.
void refuse_folders(std::span<const std::filesystem::path>, std::string_view files);

// Bytes of one token: 2 below 65536 ids, else 4.
inline int token_width(int64_t vocab) { return vocab < 65536 ? 2 : 4; }

class TokenFile {
 public:
  // Opens, maps and checks the header (magic, version, size); throws naming the file and the byte.
  explicit TokenFile(const std::filesystem::path&);

  const std::filesystem::path& path() const { return path_; }
  TokenFormat format() const { return format_; }
  int64_t size() const { return size_; }      // tokens
  int width() const { return width_; }        // bytes of a token, 2 or 4
  int64_t offset() const { return offset_; }  // byte of the first token

  // Widens tokens [begin, begin + count) to int32; the range must lie within the file.
  void read(int32_t* out, int64_t begin, int64_t count) const;
  int64_t operator[](int64_t i) const;
  // Where the token stands first in [begin, end); end: nowhere.
  int64_t find(int64_t token, int64_t begin, int64_t end) const;

  // The largest token (-1 for an empty file): a full scan at memory speed.
  int64_t max_token() const;
  // A full scan that throws, with the byte, at the first token >= vocab.
  void check_tokens(int64_t vocab) const;

 private:
  void read_header();
  void read_beside_metadata();
  template <class T>
  const T* tokens() const {
    return reinterpret_cast<const T*>(map_.bytes().data() + offset_);
  }

  std::filesystem::path path_;
  TokenFormat format_ = TokenFormat::llmc;
  MappedFile map_;
  int64_t offset_ = 0, size_ = 0;
  int width_ = 2;
};

// Writes one token file as `path.tmp`, to be renamed by finish(): a reader never sees half a file.
// The temporary file stays when the writer dies, so that a killed run can go on from it.
class TokenWriter {
 public:
  struct Spec {
    TokenFormat format = TokenFormat::llmc;
    int width = 2;
    int64_t resume_tokens = -1;  // >= 0: keep so many tokens of an unfinished (or finished) file
  };
  TokenWriter(const std::filesystem::path&, const Spec&);

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // tokens
  void append(std::span<const int32_t> tokens);
  void sync();    // everything appended so far is on the disk
  void finish();  // header, fsync, rename, fsync of the folder

 private:
  std::filesystem::path path_, temporary_;
  Spec spec_;
  Fd fd_;
  int64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

// One whole token file at once.
void write_tokens(const std::filesystem::path&, TokenFormat, int64_t vocab,
                  std::span<const int32_t> tokens);

// Counts of one token file, as prepare writes them and `data stat` finds them.
struct TokenCounts {
  int64_t tokens = 0, documents = 0;
  int64_t shortest = 0, longest = 0;  // document lengths in tokens, special ids included
  double mean_length() const { return documents ? double(tokens) / double(documents) : 0; }
  void add_document(int64_t length);
};

// metadata.json beside headerless files, with the keys of tiny-lm and the tokens of each file.
struct TokenMetadata {
  int64_t vocab_size = 0;
  int32_t bos = -1, eos = -1;  // -1: none
  TokenCounts train, val;
  std::map<std::string, int64_t> file_tokens;  // by file name
};
void write_metadata(const std::filesystem::path& folder, const TokenMetadata&);

}  // namespace hearth
