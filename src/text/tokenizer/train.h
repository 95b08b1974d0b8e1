// Trains a byte-level BPE vocabulary. Ids: the 256 bytes in GPT-2's order, then the merges in the
// order learned, then the special tokens.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sys/threads.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {

struct BpeTrainSpec {
  int vocab = 32768;             // including bytes and special tokens
  std::string pattern = "gpt2";  // or cl100k, llama3, o200k, qwen2
  // The first is bos and eos. UTF-8; none may occur twice or be spelled like a learned token.
  std::vector<std::string> special = {"<|endoftext|>"};
  // Called occasionally on the calling thread with a stage ("count": bytes read; "merge": merges
  // learned) and its progress.
  std::function<void(std::string_view stage, int64_t done)> progress = {};
};

// Writes the next document to its argument, or returns false at the end.
using TextSource = std::function<bool(std::string&)>;

// Merges the most frequent pair first; among equals the one with the lowest ids, like Hugging Face.
// The result does not depend on the number of threads. If no pair is left, the vocabulary is
// smaller than requested.
Tokenizer train_bpe(const BpeTrainSpec&, const TextSource&, Threads&);
// Trains on text files (a line with only `<|endoftext|>` ends a document) and .jsonl with "text".
Tokenizer train_bpe(const BpeTrainSpec&, std::span<const std::filesystem::path>, Threads&);

}  // namespace hearth::inline text
