// Learning a byte-level BPE vocabulary from text. Ids: the 256 bytes in GPT-2's order, then the
// merges in the order learned, then the special tokens.
#pragma once

#include <filesystem>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "sys/threads.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth {

struct BpeTrainSpec {
  int vocab = 32768;             // with the bytes and the special tokens
  std::string pattern = "gpt2";  // or cl100k, llama3, o200k, qwen2
  std::vector<std::string> special = {"<|endoftext|>"};
  // Called now and then from the calling thread with a stage ("count": bytes read; "merge": merges
  // learned) and how far it is.
  std::function<void(std::string_view stage, int64_t done)> progress = {};
};

// Puts the next document into its argument, or returns false at the end.
using TextSource = std::function<bool(std::string&)>;

// The most frequent pair is merged first; among equals the one with the lowest ids, as Hugging Face
// does. The result does not depend on the number of threads. Where the text has no pair left, the
// vocabulary comes out smaller than asked.
Tokenizer train_bpe(const BpeTrainSpec&, const TextSource&, Threads&);
// Text files (a line that holds only `<|endoftext|>` ends a document) and .jsonl with "text".
Tokenizer train_bpe(const BpeTrainSpec&, std::span<const std::filesystem::path>, Threads&);

}  // namespace hearth
