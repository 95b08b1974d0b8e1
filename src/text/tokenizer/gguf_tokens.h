// What both kinds of GGUF tokenizers share: the lists of tokens with their kinds, and the ids of
// bos and eos.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "formats/gguf/gguf.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {

enum class GgufTokenKind : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

// Lists to write. An unused id gets a name of its own.
struct GgufTokenLists {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;

  void add(std::string text, GgufTokenKind);
  void add_unused();
  void set(int32_t id, std::string text, GgufTokenKind);
  void fill(int64_t vocab);  // with unused ids; more tokens than that are an error
  void put(GgufKeys&) const;
};

// Lists as they are in a file.
struct GgufTokens {
  std::vector<std::string_view> tokens;
  std::vector<int32_t> kinds;

  explicit GgufTokens(const GgufTable&);
  size_t size() const { return tokens.size(); }
  GgufTokenKind kind(size_t id) const { return GgufTokenKind(kinds[id]); }
  // The id under a key; without the key `otherwise`, if it is an id at all, else -1.
  int32_t id_under(const GgufTable&, const char* key, int32_t otherwise = -1) const;
};

bool gguf_flag(const GgufTable&, const char* key, bool otherwise);

// bos and eos, and whether they are put around a text. What GGUF has no key for is refused.
void put_gguf_ends(GgufKeys&, const Vocabulary&);
void read_gguf_ends(VocabularyParts&, const GgufTable&, bool add_bos);

}  // namespace hearth::inline text
