#include "text/tokenizer/gguf_tokens.h"

#include "sys/error.h"

namespace hearth::inline text {

void GgufTokenLists::add(std::string text, GgufTokenKind kind) {
  tokens.push_back(std::move(text));
  kinds.push_back(int32_t(kind));
}

void GgufTokenLists::add_unused() {
  add(fmt::format("[PAD{}]", tokens.size()), GgufTokenKind::unused);
}

void GgufTokenLists::set(int32_t id, std::string text, GgufTokenKind kind) {
  tokens[size_t(id)] = std::move(text);
  kinds[size_t(id)] = int32_t(kind);
}

void GgufTokenLists::fill(int64_t vocab) {
  if (int64_t(tokens.size()) > vocab)
    fail("gguf", "expected a tokenizer with at most the model's {} tokens, got {}", vocab,
         tokens.size());
  while (int64_t(tokens.size()) < vocab) add_unused();
}

void GgufTokenLists::put(GgufKeys& keys) const {
  keys.set("tokenizer.ggml.tokens", tokens);
  keys.set("tokenizer.ggml.token_type", kinds);
}

GgufTokens::GgufTokens(const GgufTable& f)
    : tokens(f.texts("tokenizer.ggml.tokens")), kinds(f.wholes("tokenizer.ggml.token_type")) {
  if (tokens.empty() || tokens.size() != kinds.size())
    fail(f.where, "expected a type for each token, got {} types for {} tokens", kinds.size(),
         tokens.size());
}

int32_t GgufTokens::id_under(const GgufTable& f, const char* key, int32_t otherwise) const {
  if (!f.has(key)) return otherwise < int64_t(size()) ? otherwise : -1;
  const int64_t id = f.whole(key);
  if (id < 0 || id >= int64_t(size()))
    fail(f.where, "expected {} below {}, got {}", key, size(), id);
  return int32_t(id);
}

bool gguf_flag(const GgufTable& f, const char* key, bool otherwise) {
  return f.has(key) ? f.flag(key) : otherwise;
}

void put_gguf_ends(GgufKeys& keys, const Vocabulary& v) {
  if (v.bos >= 0) keys.set("tokenizer.ggml.bos_token_id", uint32_t(v.bos));
  if (v.eos >= 0) keys.set("tokenizer.ggml.eos_token_id", uint32_t(v.eos));
  const auto adds = [](const std::vector<int32_t>& ids, int32_t end) {
    if (!ids.empty() && (end < 0 || ids != std::vector<int32_t>{end}))
      fail("gguf",
           "expected a tokenizer whose template adds only bos and eos, got one that GGUF cannot "
           "represent");
    return !ids.empty();
  };
  keys.set("tokenizer.ggml.add_bos_token", adds(v.text.before, v.bos));
  if (adds(v.text.after, v.eos)) keys.set("tokenizer.ggml.add_eos_token", true);
}

void read_gguf_ends(VocabularyParts& parts, const GgufTable& f, bool add_bos) {
  if (parts.bos >= 0 && gguf_flag(f, "tokenizer.ggml.add_bos_token", add_bos))
    parts.text.before = {parts.bos};
  if (parts.eos >= 0 && gguf_flag(f, "tokenizer.ggml.add_eos_token", false))
    parts.text.after = {parts.eos};
}

}  // namespace hearth::inline text
