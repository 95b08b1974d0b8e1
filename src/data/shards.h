// Memory-mapped token files: shards with the 1024-byte header of llm.c, modded-nanogpt and NoCap
// (uint16, magic 20240520) or of llm.c's Llama-3 (uint32, magic 20240801), and headerless `.bin`
// files with a metadata.json beside them.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "sys/files/files.h"

namespace hearth::inline data {

enum class TokenFormat { llmc, raw };
const char* name(TokenFormat);

// The files that match a shell pattern, sorted; for {a,b} one alternative after the other. A plain
// path matches itself. No match is an error.
std::vector<std::filesystem::path> expand_glob(const std::string& pattern);
std::vector<std::filesystem::path> expand_globs(std::span<const std::string> patterns);

// Throws if one of the paths is a folder. The error suggests the pattern `files` in that folder.
void refuse_folders(std::span<const std::filesystem::path>, std::string_view files);

// Bytes per token: 2 below 65536 ids, else 4.
inline int token_width(int64_t vocab) { return vocab < 65536 ? 2 : 4; }

// What a file is whose first bytes are these: "a token file", "an evaluation file", or empty for
// neither. A headerless token file is not recognised.
std::string_view kind_of_tokens(std::string_view head);

class TokenFile {
 public:
  // Opens, maps and checks the header (magic, version, size); errors name the file and the byte.
  explicit TokenFile(const std::filesystem::path&);

  const std::filesystem::path& path() const { return path_; }
  TokenFormat format() const { return format_; }
  int64_t size() const { return size_; }      // number of tokens
  int width() const { return width_; }        // bytes per token, 2 or 4
  int64_t offset() const { return offset_; }  // file offset of the first token

  // Converts tokens [begin, begin + count) to int32; the range must be inside the file.
  void read(int32_t* out, int64_t begin, int64_t count) const;
  int64_t operator[](int64_t i) const;
  // The first position of the token in [begin, end); end: not found.
  int64_t find(int64_t token, int64_t begin, int64_t end) const;

  // The largest token (-1 for an empty file): a full scan at memory speed.
  int64_t max_token() const;
  // A full scan that throws at the first token >= vocab and names its byte.
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

// Writes one token file as `path.tmp`; finish() renames it, so a reader never sees a partial file.
// The temporary file stays if the writer dies, so that an interrupted run can continue it.
class TokenWriter {
 public:
  struct Spec {
    TokenFormat format = TokenFormat::llmc;
    int width = 2;
    int64_t resume_tokens = -1;  // >= 0: keep this many tokens of an existing file
  };
  TokenWriter(const std::filesystem::path&, const Spec&);

  const std::filesystem::path& path() const { return path_; }
  int64_t size() const { return size_; }  // number of tokens
  void append(std::span<const int32_t> tokens);
  void sync();    // writes everything appended so far to disk
  void finish();  // header, fsync, rename, fsync of the folder

 private:
  std::filesystem::path path_, temporary_;
  Spec spec_;
  Fd fd_;
  int64_t size_ = 0;
  std::vector<std::byte> buffer_;
};

// Writes one whole token file.
void write_tokens(const std::filesystem::path&, TokenFormat, int64_t vocab,
                  std::span<const int32_t> tokens);

// Token and document counts of a file, written by prepare and found by `data stat`.
struct TokenCounts {
  int64_t tokens = 0, documents = 0;
  int64_t shortest = 0, longest = 0;  // document lengths in tokens, including special ids
  double mean_length() const { return documents ? double(tokens) / double(documents) : 0; }
  void add_document(int64_t length);
};

// metadata.json beside headerless files, with the keys of tiny-lm and the token count of each file.
struct TokenMetadata {
  int64_t vocab_size = 0;
  int32_t bos = -1, eos = -1;  // -1: none
  TokenCounts train, val;
  std::map<std::string, int64_t> file_tokens;  // by file name
};
void write_metadata(const std::filesystem::path& folder, const TokenMetadata&);

}  // namespace hearth::inline data
