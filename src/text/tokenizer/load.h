// Readers of tokenizer files, one function per format; load.cpp chooses between them.
#pragma once

#include <filesystem>
#include <string>

#include "sys/files/files.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

VocabularyParts read_tokenizer_json(const std::filesystem::path&);
VocabularyParts read_vocab_and_merges(const std::filesystem::path& vocab_json,
                                      const std::filesystem::path& merges_txt);
VocabularyParts read_vocab_bpe(const std::filesystem::path&);
// `pattern` may be empty; see Tokenizer::load.
VocabularyParts read_tiktoken(const std::filesystem::path&, std::string_view pattern);
VocabularyParts read_llama2c(const std::filesystem::path&);
VocabularyParts parse_llama2c_vocabulary(std::string_view file, const std::string& where);

// Reads any of these formats or a .gguf; see Tokenizer::load.
VocabularyParts read_tokenizer(const std::filesystem::path&, std::string_view pattern = {});

// One line of merges.txt or vocab.bpe.
struct MergeLine {
  size_t line;  // 1-based
  std::string left, right;
};
std::vector<MergeLine> read_merge_lines(const std::filesystem::path&);

}  // namespace hearth::inline text
