#include "cli/data_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <set>

#include "data/prepare.h"
#include "formats/checkpoint_dir.h"
#include "sys/files/files.h"
#include "sys/hash/hash.h"

namespace hearth::inline cli {
namespace fs = std::filesystem;

namespace {

// Folders written by versions without vocabulary_id store only the digest of the tokenizer files,
// which differs between tok/tokenizer.json and tok.
bool same_files(const std::string& id, const fs::path& path) {
  if (id == tokenizer_digest(path)) return true;
  if (!fs::is_directory(path)) return id == tokenizer_digest(fs::absolute(path).parent_path());
  const fs::path file = path / "tokenizer.json";
  return fs::exists(file) && id == tokenizer_digest(file);
}

bool same_tokenizer(const PreparedWith& with, const std::string& vocabulary, const fs::path& path) {
  if (!with.vocabulary_id.empty()) return with.vocabulary_id == vocabulary;
  // Checkpoints write the tokenizer's files anew, so their digest says nothing.
  if (fs::exists(path / "state" / "trainer.json")) return true;
  constexpr size_t digest_size = 64;  // other names are not digests
  return with.tokenizer_id.size() != digest_size || same_files(with.tokenizer_id, path);
}

}  // namespace

std::string tokenizer_digest(const fs::path& path) {
  if (!fs::is_directory(path)) {  // may be a GGUF model of many gigabytes
    return digest_file(path.parent_path(), path.filename().string()).sha256;
  }
  std::vector<fs::path> files;
  for (const auto& entry : fs::directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("tok") || name.starts_with("vocab") || name.starts_with("merges") ||
        name.ends_with(".tiktoken"))
      files.push_back(entry.path());
  }
  if (const fs::path folder = files.empty() ? model_path(path) : path; folder != path)
    return tokenizer_digest(folder);  // of a run folder
  std::sort(files.begin(), files.end());
  Sha256 sha;
  for (const fs::path& f : files) sha.update(MappedFile(f).bytes());
  return sha.hex();
}

std::string vocabulary_digest(const Tokenizer& tokenizer) {
  Sha256 sha;
  const auto add = [&](int64_t number) { sha.update(std::as_bytes(std::span(&number, 1))); };
  add(tokenizer.vocab_size());
  for (int32_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (!tokenizer.has(id)) {
      add(-1);  // no token has this size
      continue;
    }
    const std::string_view bytes = tokenizer.bytes_of(id);
    add(int64_t(bytes.size()));
    sha.update(to_bytes(bytes));
  }
  return sha.hex();
}

std::string tokenizer_mismatch(std::span<const fs::path> files, const Tokenizer& tokenizer,
                               const fs::path& path) {
  std::set<fs::path> folders;
  for (const fs::path& file : files) folders.insert(file.parent_path());
  const std::string vocabulary = vocabulary_digest(tokenizer);
  for (const fs::path& folder : folders) {
    const auto with = prepared_with(folder);
    if (with && !same_tokenizer(*with, vocabulary, path))
      return fmt::format(
          "{}/ was prepared with a different tokenizer ({} tokens) than {} ({} tokens): pass the "
          "tokenizer it was prepared with",
          folder.empty() ? "." : folder.string(), with->vocab, path.string(),
          tokenizer.vocab_size());
  }
  return {};
}

}  // namespace hearth::inline cli
