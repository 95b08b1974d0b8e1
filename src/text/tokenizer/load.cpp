// Chooses the tokenizer file for a path.
#include "text/tokenizer/load.h"

#include <algorithm>

#include "formats/checkpoint_dir.h"
#include "sys/error.h"
#include "text/tokenizer/gguf_vocabulary.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

VocabularyParts read_any_file(const fs::path& path, std::string_view pattern) {
  const std::string name = path.filename().string(), extension = path.extension().string();
  if (extension == ".tiktoken" || name == "tokenizer.model") return read_tiktoken(path, pattern);
  if (!pattern.empty())
    fail_usage(path.string(), "--pattern {} applies only to .tiktoken files; leave it out",
               pattern);
  if (name == "vocab.json") return read_vocab_and_merges(path, path.parent_path() / "merges.txt");
  if (name == "merges.txt") {
    const fs::path vocab = path.parent_path() / "vocab.json";
    return fs::exists(vocab) ? read_vocab_and_merges(vocab, path) : read_vocab_bpe(path);
  }
  if (extension == ".json") return read_tokenizer_json(path);
  if (extension == ".bpe") return read_vocab_bpe(path);
  if (extension == ".bin") return read_llama2c(path);
  if (extension == ".gguf") return read_gguf_vocabulary(GgufFile(path));
  fail(path.string(),
       "expected a tokenizer file (.json, .tiktoken, tokenizer.model, .bpe, merges.txt, .bin or "
       ".gguf), got {}",
       name);
}

// The only file in the folder that `wanted` accepts; empty if there is none.
template <class F>
fs::path only_file(const fs::path& dir, F wanted) {
  fs::path found;
  for (const auto& entry : fs::directory_iterator(dir)) {
    if (!wanted(entry.path())) continue;
    if (!found.empty())
      fail(dir.string(), "expected one tokenizer, got {} and {}: pass the path of one of them",
           found.filename().string(), entry.path().filename().string());
    found = entry.path();
  }
  return found;
}

VocabularyParts read_folder(const fs::path& dir, std::string_view pattern) {
  for (const char* name : {"tokenizer.json", "vocab.json"})
    if (fs::exists(dir / name)) return read_any_file(dir / name, pattern);
  if (const fs::path p = only_file(dir, [](auto& f) { return f.extension() == ".tiktoken"; });
      !p.empty())
    return read_any_file(p, pattern);
  for (const char* name : {"tokenizer.model", "vocab.bpe", "merges.txt"})
    if (fs::exists(dir / name)) return read_any_file(dir / name, pattern);
  const auto llama2c = [](const fs::path& f) {
    return f.extension() == ".bin" && f.filename().string().starts_with("tok");
  };
  if (const fs::path p = only_file(dir, llama2c); !p.empty()) return read_any_file(p, pattern);
  if (const fs::path checkpoint = model_path(dir); checkpoint != dir)
    return read_folder(checkpoint, pattern);
  fail(dir.string(),
       "this folder has no tokenizer: expected tokenizer.json, vocab.json, *.tiktoken, "
       "tokenizer.model, vocab.bpe or tok*.bin");
}

}  // namespace

VocabularyParts read_tokenizer(const fs::path& path, std::string_view pattern) {
  if (!fs::exists(path)) fail(path.string(), "no such tokenizer file or folder");
  return fs::is_directory(path) ? read_folder(path, pattern) : read_any_file(path, pattern);
}

Tokenizer Tokenizer::load(const fs::path& path, std::string_view pattern) {
  return Tokenizer(make_vocabulary(read_tokenizer(path, pattern)));
}

}  // namespace hearth::inline text
