// Checks that token files and a tokenizer belong together.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace hearth::inline cli {

// SHA-256 of the tokenizer's files; an interrupted prepare resumes only with the same tokenizer.
std::string tokenizer_digest(const std::filesystem::path&);

// SHA-256 of the vocabulary: equal for every copy of a tokenizer, whether a file, a folder or part
// of a checkpoint.
std::string vocabulary_digest(const Tokenizer&);

// An error message if a token file was prepared with a tokenizer other than `tokenizer`, which was
// loaded from `path`; else empty. Files whose folder does not name a tokenizer are skipped.
std::string tokenizer_mismatch(std::span<const std::filesystem::path> files,
                               const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace hearth::inline cli
