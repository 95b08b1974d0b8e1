#include "data/shards.h"

#include <fcntl.h>
#include <glob.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "formats/json.h"
#include "sys/error.h"

namespace hearth::inline data {
namespace {

namespace fs = std::filesystem;
using json = nlohmann::json;

constexpr int header_words = 256, header_bytes = 4 * header_words;
constexpr int32_t magic_u16 = 20240520, version_u16 = 1;
constexpr int32_t magic_u32 = 20240801, version_u32 = 7;
constexpr int32_t magic_eval = 20240522;

fs::path with_tmp(const fs::path& path) {
  fs::path p = path;
  p += ".tmp";
  return p;
}

// Whether a file is a source of tokens rather than tokens: by its name, or as text by its first
// bytes (token ids contain zeros and control bytes).
bool is_source_of_tokens(const fs::path& path, Bytes bytes) {
  static constexpr std::string_view sources[] = {".txt", ".md",  ".json",    ".jsonl", ".ndjson",
                                                 ".csv", ".tsv", ".parquet", ".gz",    ".zst"};
  const std::string ext = path.extension().string();
  if (std::find(std::begin(sources), std::end(sources), ext) != std::end(sources)) return true;
  const std::string_view head = to_text(bytes.first(std::min<size_t>(bytes.size(), 4096)));
  const auto control = [](uint8_t c) { return c < '\t' || (c > '\r' && c < ' '); };
  return head.size() >= 16 && std::none_of(head.begin(), head.end(), control);
}

// Blocks of fixed size, so that the compiler vectorises the inner loop without -O3.
constexpr int64_t scan_block = 4096;

template <class T>
T block_max(const T* p) {
  constexpr int lanes = 64 / sizeof(T);
  T m[lanes] = {};
  for (int64_t i = 0; i < scan_block; i += lanes)
    for (int j = 0; j < lanes; ++j) m[j] = p[i + j] > m[j] ? p[i + j] : m[j];
  return *std::max_element(m, m + lanes);
}

template <class T>
int64_t scan_max(const T* p, int64_t n) {
  T m = 0;
  int64_t i = 0;
  for (; i + scan_block <= n; i += scan_block) m = std::max(m, block_max(p + i));
  for (; i < n; ++i) m = std::max(m, p[i]);
  return n ? int64_t(m) : -1;
}

// The index of the first token >= vocab, or n.
template <class T>
int64_t scan_above(const T* p, int64_t n, int64_t vocab) {
  int64_t i = 0;
  for (; i + scan_block <= n; i += scan_block)
    if (int64_t(block_max(p + i)) >= vocab) break;
  while (i < n && int64_t(p[i]) < vocab) ++i;
  return i;
}

}  // namespace

const char* name(TokenFormat format) { return format == TokenFormat::llmc ? "llmc" : "raw"; }

std::vector<fs::path> expand_glob(const std::string& pattern) {
  glob_t found = {};
  const int code = ::glob(pattern.c_str(), GLOB_BRACE | GLOB_TILDE, nullptr, &found);
  std::vector<fs::path> paths;
  for (size_t i = 0; code == 0 && i < found.gl_pathc; ++i) paths.emplace_back(found.gl_pathv[i]);
  ::globfree(&found);
  // A name that contains brackets or stars is still a name.
  if (paths.empty() && fs::exists(pattern)) paths.emplace_back(pattern);
  const bool list = pattern.find(',') != pattern.npos && pattern.find('{') == pattern.npos;
  if (paths.empty())
    fail(pattern, "no file matches this path or pattern{}",
         list ? "; a comma does not separate files: give each file its own flag" : "");
  return paths;
}

std::vector<fs::path> expand_globs(std::span<const std::string> patterns) {
  std::vector<fs::path> all;
  for (const std::string& p : patterns)
    for (fs::path& path : expand_glob(p)) all.push_back(std::move(path));
  return all;
}

void refuse_folders(std::span<const fs::path> paths, std::string_view files) {
  std::error_code unknown;
  for (const fs::path& path : paths)
    if (fs::is_directory(path, unknown))
      fail(path.string(), "expected files, got a folder: pass a pattern such as '{}'",
           (path / files).string());
}

std::string_view kind_of_tokens(std::string_view head) {
  int32_t magic = 0;
  if (head.size() >= sizeof magic) std::memcpy(&magic, head.data(), sizeof magic);
  if (magic == magic_u16 || magic == magic_u32) return "a token file";
  return magic == magic_eval ? "an evaluation file" : "";
}

TokenFile::TokenFile(const fs::path& path) : path_(path) {
  std::error_code unknown;  // the map reports a missing file
  if (fs::exists(path, unknown) && !fs::is_regular_file(path, unknown))
    fail(path.string(), "expected a token file, got a path that is not a regular file");
  map_ = MappedFile(path);
  read_header();
}

void TokenFile::read_header() {
  const std::string where = path_.string();
  const int64_t bytes = int64_t(map_.bytes().size());
  int32_t word[3] = {};
  if (bytes > 0) std::memcpy(word, map_.bytes().data(), std::min(size_t(bytes), sizeof word));
  if (word[0] == magic_eval)
    fail(where, "expected a token file, got an evaluation file (magic {} at byte 0)", magic_eval);
  if (word[0] != magic_u16 && word[0] != magic_u32) return read_beside_metadata();

  if (bytes < header_bytes)
    fail(where, "expected a header of {} bytes, got a file of {} bytes", header_bytes, bytes);
  const int32_t version = word[0] == magic_u16 ? version_u16 : version_u32;
  if (word[1] != version)
    fail(where, "expected version {} at byte 4 after magic {}, got {}", version, word[0], word[1]);
  if (word[2] < 0) fail(where, "expected a token count >= 0 at byte 8, got {}", word[2]);
  format_ = TokenFormat::llmc;
  width_ = word[0] == magic_u16 ? 2 : 4;
  offset_ = header_bytes;
  size_ = word[2];
  if (bytes != offset_ + size_ * width_)
    fail(where, "expected {} bytes for the {} tokens stated at byte 8, got {} bytes",
         offset_ + size_ * width_, size_, bytes);
}

void TokenFile::read_beside_metadata() {
  const std::string where = path_.string();
  const int64_t bytes = int64_t(map_.bytes().size());
  const fs::path beside = path_.parent_path() / "metadata.json";
  if (is_source_of_tokens(path_, map_.bytes()))
    fail(where,
         "expected a token file, got text or another input format: convert it with `hearth data "
         "prepare --tokenizer T --input {} --out DIR`",
         where);
  if (!fs::exists(beside)) {
    int32_t magic = 0;
    if (bytes >= 4) std::memcpy(&magic, map_.bytes().data(), 4);
    fail(where,
         "expected magic {} or {} at byte 0, got {}: for a file of plain ids put a metadata.json "
         "beside it with {{\"vocab_size\": N, \"dtype\": \"uint16\"}} (or uint32)",
         magic_u16, magic_u32,
         bytes < 4 ? fmt::format("a file of {} bytes", bytes) : fmt::format("{}", magic));
  }
  const json meta = read_json(beside);
  if (!meta.is_object() || !meta.contains("vocab_size") ||
      !meta["vocab_size"].is_number_integer() || meta["vocab_size"].get<int64_t>() <= 0)
    fail(beside.string(), "expected a JSON object with a positive integer vocab_size");
  format_ = TokenFormat::raw;
  width_ = token_width(meta["vocab_size"].get<int64_t>());
  if (meta.contains("dtype")) {
    const json& dtype = meta["dtype"];
    if (dtype == "uint16") {
      width_ = 2;
    } else if (dtype == "uint32") {
      width_ = 4;
    } else {
      fail(beside.string(), "expected dtype \"uint16\" or \"uint32\", got {}", dtype.dump());
    }
  }
  offset_ = 0;
  size_ = bytes / width_;
  if (bytes % width_ != 0)
    fail(where, "expected whole tokens of {} bytes, got {} extra bytes at byte {}", width_,
         bytes % width_, size_ * width_);

  // The token count of this file: listed by name, or tiny-lm's entries for train.bin and val.bin.
  const std::string file_name = path_.filename().string(), stem = path_.stem().string();
  const json* told = nullptr;
  if (meta.contains("files") && meta["files"].is_object() && meta["files"].contains(file_name))
    told = &meta["files"][file_name];
  else if ((stem == "train" || stem == "val") && meta.contains(stem + "_tokens"))
    told = &meta[stem + "_tokens"];
  if (told && *told != size_)
    fail(where, "expected the {} tokens stated in metadata.json, got {} ({} bytes)", told->dump(),
         size_, bytes);
}

void TokenFile::read(int32_t* out, int64_t begin, int64_t count) const {
  if (width_ == 2) {
    const uint16_t* p = tokens<uint16_t>() + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = p[i];
  } else {
    const uint32_t* p = tokens<uint32_t>() + begin;
    for (int64_t i = 0; i < count; ++i) out[i] = int32_t(p[i]);
  }
}

int64_t TokenFile::operator[](int64_t i) const {
  return width_ == 2 ? tokens<uint16_t>()[i] : tokens<uint32_t>()[i];
}

int64_t TokenFile::find(int64_t token, int64_t begin, int64_t end) const {
  const auto in = [&](const auto* all) { return std::find(all + begin, all + end, token) - all; };
  return width_ == 2 ? in(tokens<uint16_t>()) : in(tokens<uint32_t>());
}

int64_t TokenFile::max_token() const {
  return width_ == 2 ? scan_max(tokens<uint16_t>(), size_) : scan_max(tokens<uint32_t>(), size_);
}

void TokenFile::check_tokens(int64_t vocab) const {
  const int64_t i = width_ == 2 ? scan_above(tokens<uint16_t>(), size_, vocab)
                                : scan_above(tokens<uint32_t>(), size_, vocab);
  if (i < size_)
    fail(path_.string(), "expected tokens below the vocabulary's {}, got {} at byte {} (token {})",
         vocab, (*this)[i], offset_ + i * width_, i);
}

TokenWriter::TokenWriter(const fs::path& path, const Spec& spec)
    : path_(path), temporary_(with_tmp(path)), spec_(spec) {
  const int64_t head = spec.format == TokenFormat::llmc ? header_bytes : 0;
  const bool go_on = spec.resume_tokens >= 0;
  // A file that was finished after the state was saved is reopened: its first tokens are the same.
  if (go_on && !fs::exists(temporary_) && fs::exists(path_)) fs::rename(path_, temporary_);
  fd_ = go_on ? open_file(temporary_, O_RDWR | O_CREAT | O_NOFOLLOW, "write the file")
              : create_file(temporary_, O_RDWR, "write the file");
  if (go_on) {
    const int64_t want = head + spec.resume_tokens * spec.width;
    const int64_t have = ::lseek(fd_.get(), 0, SEEK_END);
    if (have < want)
      fail(temporary_.string(),
           "expected the {} bytes that an earlier run wrote, got {}: delete the output folder and "
           "start again",
           want, have);
    if (::ftruncate(fd_.get(), want) != 0 || ::lseek(fd_.get(), want, SEEK_SET) < 0)
      fail_errno(temporary_, "truncate the file");
    size_ = spec.resume_tokens;
  } else if (head) {
    const std::byte zeros[header_bytes] = {};
    write_all(fd_, zeros, temporary_);
  }
}

void TokenWriter::append(std::span<const int32_t> tokens) {
  if (tokens.empty()) return;
  buffer_.resize(tokens.size() * size_t(spec_.width));
  if (spec_.width == 2) {
    uint16_t* p = reinterpret_cast<uint16_t*>(buffer_.data());
    for (size_t i = 0; i < tokens.size(); ++i) p[i] = uint16_t(tokens[i]);
  } else {
    std::memcpy(buffer_.data(), tokens.data(), buffer_.size());
  }
  write_all(fd_, buffer_, temporary_);
  size_ += int64_t(tokens.size());
}

void TokenWriter::sync() {
  if (::fsync(fd_.get()) != 0) fail_errno(temporary_, "sync the file to disk");
}

void TokenWriter::finish() {
  if (spec_.format == TokenFormat::llmc) {
    if (size_ > INT32_MAX)
      fail(path_.string(), "expected at most {} tokens in a shard, got {}", INT32_MAX, size_);
    const bool narrow = spec_.width == 2;
    const int32_t head[3] = {narrow ? magic_u16 : magic_u32, narrow ? version_u16 : version_u32,
                             int32_t(size_)};
    if (::pwrite(fd_.get(), head, sizeof head, 0) != ssize_t(sizeof head))
      fail_errno(temporary_, "write the file");
  }
  sync();
  fd_ = Fd();
  if (::rename(temporary_.c_str(), path_.c_str()) != 0)
    fail_errno(path_, "move the finished file into place");
  fsync_dir(path_.has_parent_path() ? path_.parent_path() : ".");
}

void write_tokens(const fs::path& path, TokenFormat format, int64_t vocab,
                  std::span<const int32_t> tokens) {
  TokenWriter writer(path, {.format = format, .width = token_width(vocab)});
  writer.append(tokens);
  writer.finish();
}

void TokenCounts::add_document(int64_t length) {
  shortest = documents ? std::min(shortest, length) : length;
  longest = std::max(longest, length);
  tokens += length;
  ++documents;
}

void write_metadata(const fs::path& folder, const TokenMetadata& m) {
  json meta = {{"vocab_size", m.vocab_size},
               {"dtype", token_width(m.vocab_size) == 2 ? "uint16" : "uint32"},
               {"bos_token_id", m.bos},
               {"eos_token_id", m.eos},
               {"files", m.file_tokens}};
  const auto add = [&](const std::string& split, const TokenCounts& c) {
    meta[split + "_tokens"] = c.tokens;
    meta[split + "_examples"] = c.documents;
    meta[split + "_length_stats"] = {
        {"token", {{"min", c.shortest}, {"max", c.longest}, {"mean", c.mean_length()}}}};
  };
  add("train", m.train);
  add("val", m.val);
  write_file_atomic(folder / "metadata.json", meta.dump(2) + "\n");
}

}  // namespace hearth::inline data
