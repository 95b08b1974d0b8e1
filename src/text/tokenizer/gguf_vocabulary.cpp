#include "text/tokenizer/gguf_vocabulary.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/gguf_pre_tokenizer.h"
#include "text/tokenizer/load.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

enum TokenKind : int32_t { normal = 1, unknown, control, user_defined, unused, byte };

constexpr std::string_view spm_space = "\xe2\x96\x81";  // U+2581

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  replace_all(text, from, to);
  return text;
}

std::string as_letters(std::string_view bytes) {
  std::string s;
  for (const char c : bytes) s += byte_letters()[uint8_t(c)];
  return s;
}

struct TokenLists {
  std::vector<std::string> tokens;
  std::vector<int32_t> kinds;

  void fill(int64_t vocab) {
    if (int64_t(tokens.size()) > vocab)
      fail("gguf", "expected a tokenizer with at most the model's {} tokens, got {}", vocab,
           tokens.size());
    while (int64_t(tokens.size()) < vocab) add_unused();
  }
  void add_unused() {
    tokens.push_back(fmt::format("[PAD{}]", tokens.size()));
    kinds.push_back(unused);
  }
  void put(GgufKeys& keys) const {
    keys.set("tokenizer.ggml.tokens", tokens);
    keys.set("tokenizer.ggml.token_type", kinds);
  }
};

void put_ends(GgufKeys& keys, int32_t bos, int32_t eos) {
  if (bos >= 0) keys.set("tokenizer.ggml.bos_token_id", uint32_t(bos));
  if (eos >= 0) keys.set("tokenizer.ggml.eos_token_id", uint32_t(eos));
}

void put_bpe(GgufKeys& keys, const Vocabulary& v, int64_t vocab) {
  TokenLists lists;
  for (size_t id = 0; id < v.bytes.size(); ++id) {
    if (!v.known[id]) {
      lists.add_unused();
      continue;
    }
    lists.tokens.push_back(as_letters(v.bytes[id]));
    lists.kinds.push_back(normal);
  }
  for (const AddedToken& t : added_tokens(v)) {
    lists.tokens[size_t(t.id)] = t.text;
    lists.kinds[size_t(t.id)] = t.special ? control : user_defined;
  }
  lists.fill(vocab);
  std::vector<std::string> merges;
  for (const Merge& m : v.merges)
    merges.push_back(as_letters(v.bytes[size_t(m.left)]) + " " +
                     as_letters(v.bytes[size_t(m.right)]));
  keys.set("tokenizer.ggml.model", "gpt2");
  keys.set("tokenizer.ggml.pre", pre_tokenizer_name(v));
  lists.put(keys);
  keys.set("tokenizer.ggml.merges", merges);
  put_ends(keys, v.bos, v.eos);
  const bool adds_bos = v.bos >= 0 && v.text.before == std::vector<int32_t>{v.bos};
  if ((!v.text.before.empty() && !adds_bos) || !v.text.after.empty() ||
      v.text.leading != LeadingSpace::none || v.text.unk >= 0)
    fail("gguf",
         "expected a tokenizer whose template adds only bos, got one that GGUF cannot represent");
  if (!v.text.normal.empty())
    fail("gguf", "expected a tokenizer without a normalizer or with NFC, got another");
  keys.set("tokenizer.ggml.add_bos_token", adds_bos);
}

void put_spm(GgufKeys& keys, const VocabularyParts& parts, int64_t vocab) {
  TokenLists lists;
  for (const Token& t : parts.tokens) {
    const bool is_byte = t.id >= 3 && t.id < 259;
    lists.tokens.push_back(t.id == 1   ? "<s>"
                           : t.id == 2 ? "</s>"
                                       : replaced(t.bytes, " ", spm_space));
    lists.kinds.push_back(t.id == 0 ? unknown : t.id < 3 ? control : is_byte ? byte : normal);
  }
  lists.fill(vocab);
  std::vector<float> scores = parts.scores;
  scores.resize(size_t(vocab));
  keys.set("tokenizer.ggml.model", "llama");
  keys.set("tokenizer.ggml.pre", "default");
  lists.put(keys);
  keys.set("tokenizer.ggml.scores", scores);
  put_ends(keys, parts.bos, parts.eos);
  keys.set("tokenizer.ggml.unknown_token_id", uint32_t(0));
  keys.set("tokenizer.ggml.add_bos_token", true);
  keys.set("tokenizer.ggml.add_space_prefix", true);
}

// --- reading ---

struct GgufTokens {
  std::vector<std::string_view> tokens;
  std::vector<int32_t> kinds;

  explicit GgufTokens(const GgufTable& f)
      : tokens(f.texts("tokenizer.ggml.tokens")), kinds(f.wholes("tokenizer.ggml.token_type")) {
    if (tokens.empty() || tokens.size() != kinds.size())
      fail(f.where, "expected a type for each token, got {} types for {} tokens", kinds.size(),
           tokens.size());
  }
};

int32_t end_token(const GgufTable& f, const char* key, size_t tokens) {
  if (!f.has(key)) return -1;
  const int64_t id = f.whole(key);
  if (id < 0 || id >= int64_t(tokens))
    fail(f.where, "expected {} below {}, got {}", key, tokens, id);
  return int32_t(id);
}

VocabularyParts read_bpe(const GgufTable& f) {
  const GgufTokens list(f);
  VocabularyParts parts{.where = f.where};
  const GgufPreTokenizer& pre = set_pre_tokenizer(parts, f.text("tokenizer.ggml.pre"));
  parts.bos = end_token(f, "tokenizer.ggml.bos_token_id", list.tokens.size());
  parts.eos = end_token(f, "tokenizer.ggml.eos_token_id", list.tokens.size());
  const char* key = "tokenizer.ggml.add_bos_token";
  if (parts.bos >= 0 && (f.has(key) ? f.flag(key) : pre.add_bos)) parts.text.before = {parts.bos};
  TextIds ids;
  for (size_t i = 0; i < list.tokens.size(); ++i) {
    const auto id = int32_t(i);
    const std::string text(list.tokens[i]);
    if (list.kinds[i] == unused) continue;
    ids.emplace(text, id);
    const bool special = list.kinds[i] == control || id == parts.bos || id == parts.eos;
    if (special || list.kinds[i] == user_defined) {
      parts.added.push_back({text, id, special});
      continue;
    }
    Token token{.bytes = {}, .id = id};
    if (!bytes_of_letters(text, token.bytes))
      fail(f.where, "expected tokens in byte-level encoding, got {} (id {})", in_quotes(text), id);
    parts.tokens.push_back(std::move(token));
  }
  for (const std::string_view merge : f.texts("tokenizer.ggml.merges")) {
    const size_t gap = merge.find(' ', 1);
    const std::string left(merge.substr(0, gap));
    const std::string right(gap == merge.npos ? "" : merge.substr(gap + 1));
    const auto l = ids.find(left), r = ids.find(right), both = ids.find(left + right);
    if (l == ids.end() || r == ids.end() || both == ids.end())
      fail(f.where, "expected merges of known tokens, got {}", in_quotes(merge));
    parts.merges.push_back({l->second, r->second, both->second});
  }
  return parts;
}

// The vocabulary as a llama2.c file: int32 longest piece, then score, length and bytes of each
// piece.
std::string llama2c_file(const GgufTable& f) {
  const GgufTokens list(f);
  const std::vector<float> scores = f.numbers("tokenizer.ggml.scores");
  const int32_t ends[] = {end_token(f, "tokenizer.ggml.bos_token_id", list.tokens.size()),
                          end_token(f, "tokenizer.ggml.eos_token_id", list.tokens.size())};
  if ((ends[0] >= 0 && ends[0] != 1) || (ends[1] >= 0 && ends[1] != 2))
    fail(f.where, "expected bos 1 and eos 2 in a llama vocabulary, got {} and {}", ends[0],
         ends[1]);
  if (scores.size() != list.tokens.size())
    fail(f.where, "expected a score for each of {} tokens, got {}", list.tokens.size(),
         scores.size());
  std::string out;
  const auto put = [&](auto x) { out.append(reinterpret_cast<const char*>(&x), sizeof x); };
  int32_t longest = 0;
  put(longest);
  for (size_t i = 0; i < list.tokens.size(); ++i) {
    std::string piece = replaced(std::string(list.tokens[i]), spm_space, " ");
    if (i == 1 || i == 2) piece = "\n" + piece + "\n";  // cannot occur inside a text
    put(scores[i]);
    put(int32_t(piece.size()));
    out += piece;
    longest = std::max(longest, int32_t(piece.size()));
  }
  std::copy_n(reinterpret_cast<const char*>(&longest), sizeof longest, out.begin());
  return out;
}

bool is_spm(const GgufTable& f) {
  const std::string_view model = f.text("tokenizer.ggml.model");
  if (model != "gpt2" && model != "llama")
    fail(f.where, "expected tokenizer.ggml.model gpt2 or llama, got {}", in_quotes(model));
  return model == "llama";
}

}  // namespace

void put_vocabulary(GgufKeys& keys, const fs::path& tokenizer, int64_t vocab) {
  if (tokenizer.empty()) {
    keys.set("tokenizer.ggml.model", "none");
    return;
  }
  VocabularyParts parts = read_tokenizer(tokenizer);
  if (parts.text.pieces)
    fail("gguf",
         "expected a byte-level tokenizer or a llama2.c one, got SentencePiece pieces in {}",
         parts.where);
  if (parts.rule == MergeRule::llama2c)
    put_spm(keys, parts, vocab);
  else
    put_bpe(keys, *make_vocabulary(std::move(parts)), vocab);
}

bool has_vocabulary(const GgufTable& f) {
  if (!f.has("tokenizer.ggml.model")) return false;
  const std::string_view model = f.text("tokenizer.ggml.model");
  return model != "none" && model != "no_vocab";
}

VocabularyParts read_gguf_vocabulary(const GgufTable& f) {
  return is_spm(f) ? parse_llama2c_vocabulary(llama2c_file(f), f.where) : read_bpe(f);
}

void save_gguf_vocabulary(const GgufTable& f, const fs::path& dir) {
  if (!is_spm(f)) {
    Tokenizer(make_vocabulary(read_bpe(f))).save(dir);
    return;
  }
  const std::string file = llama2c_file(f);
  const size_t size = parse_llama2c_vocabulary(file, f.where).tokens.size();
  write_file_atomic(dir / fmt::format("tok{}.bin", size), file);
}

}  // namespace hearth::inline text
