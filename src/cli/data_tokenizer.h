// Whether token files and a tokenizer belong together.
#pragma once

#include <filesystem>
#include <span>
#include <string>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace hearth {

// The sha256 of the tokenizer's files: a prepare run goes on only with the same tokenizer.
std::string tokenizer_digest(const std::filesystem::path&);

// The sha256 of its tokens: the same for every copy of a tokenizer, as a file or as a folder, also
// for the one that a checkpoint carries.
std::string vocabulary_digest(const Tokenizer&);

// What is wrong where one of the token files was prepared with another tokenizer than `tokenizer`,
// which was loaded from `path`; else empty. Files whose folder does not tell are passed over.
std::string tokenizer_mismatch(std::span<const std::filesystem::path> files,
                               const Tokenizer& tokenizer, const std::filesystem::path& path);

}  // namespace hearth
