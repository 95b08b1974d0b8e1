#include "text/tokenizer/gguf_vocabulary.h"

#include <algorithm>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/gguf_pieces.h"
#include "text/tokenizer/gguf_pre_tokenizer.h"
#include "text/tokenizer/gguf_tokens.h"
#include "text/tokenizer/load.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline text {
namespace {

namespace fs = std::filesystem;

constexpr const char* turn_key = "tokenizer.ggml.eot_token_id";
constexpr const char* message_key = "tokenizer.ggml.eom_token_id";
constexpr const char* ends_key = "hearth.end_token_ids";  // where these keys do not hold them all

// Marks a llama2.c vocabulary, which llama.cpp reads like any other of SentencePiece.
constexpr const char* llama2c_key = "hearth.tokenizer";
constexpr const char* llama2c_mark = "llama2c";

using TokenKind = GgufTokenKind;

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  replace_all(text, from, to);
  return text;
}

std::string as_letters(std::string_view bytes) {
  std::string s;
  for (const char c : bytes) s += byte_letters()[uint8_t(c)];
  return s;
}

void put_bpe(GgufKeys& keys, const Vocabulary& v, int64_t vocab) {
  GgufTokenLists lists;
  for (size_t id = 0; id < v.bytes.size(); ++id)
    if (v.known[id])
      lists.add(as_letters(v.bytes[id]), TokenKind::normal);
    else
      lists.add_unused();
  for (const AddedToken& t : added_tokens(v))
    lists.set(t.id, t.text, t.special ? TokenKind::control : TokenKind::user_defined);
  lists.fill(vocab);
  std::vector<std::string> merges;
  for (const Merge& m : v.merges)
    merges.push_back(as_letters(v.bytes[size_t(m.left)]) + " " +
                     as_letters(v.bytes[size_t(m.right)]));
  keys.set("tokenizer.ggml.model", "gpt2");
  keys.set("tokenizer.ggml.pre", pre_tokenizer_name(v));
  lists.put(keys);
  keys.set("tokenizer.ggml.merges", merges);
  put_gguf_ends(keys, v);
  if (v.text.leading != LeadingSpace::none || v.text.unk >= 0)
    fail("gguf", "expected a tokenizer without a leading space and without unk, got another");
  if (!v.text.normal.empty())
    fail("gguf", "expected a tokenizer without a normalizer or with NFC, got another");
}

void put_llama2c(GgufKeys& keys, const VocabularyParts& parts, int64_t vocab) {
  GgufTokenLists lists;
  for (const Token& t : parts.tokens) {
    const bool is_byte = t.id >= 3 && t.id < 259;
    lists.add(t.id == 1   ? "<s>"
              : t.id == 2 ? "</s>"
                          : replaced(t.bytes, " ", space_mark),
              t.id == 0  ? TokenKind::unknown
              : t.id < 3 ? TokenKind::control
              : is_byte  ? TokenKind::byte
                         : TokenKind::normal);
  }
  lists.fill(vocab);
  std::vector<float> scores = parts.scores;
  scores.resize(size_t(vocab));
  keys.set("tokenizer.ggml.model", "llama");
  keys.set("tokenizer.ggml.pre", "default");
  lists.put(keys);
  keys.set("tokenizer.ggml.scores", scores);
  keys.set("tokenizer.ggml.bos_token_id", uint32_t(parts.bos));
  keys.set("tokenizer.ggml.eos_token_id", uint32_t(parts.eos));
  keys.set("tokenizer.ggml.unknown_token_id", uint32_t(0));
  keys.set("tokenizer.ggml.add_bos_token", true);
  keys.set("tokenizer.ggml.add_space_prefix", true);
  keys.set(llama2c_key, llama2c_mark);
}

// --- reading ---

VocabularyParts read_bpe(const GgufTable& f) {
  const GgufTokens list(f);
  VocabularyParts parts{.where = f.where};
  const GgufPreTokenizer& pre = set_pre_tokenizer(parts, f.text("tokenizer.ggml.pre"));
  parts.bos = list.id_under(f, "tokenizer.ggml.bos_token_id");
  parts.eos = list.id_under(f, "tokenizer.ggml.eos_token_id");
  read_gguf_ends(parts, f, pre.add_bos);
  TextIds ids;
  for (size_t i = 0; i < list.size(); ++i) {
    const auto id = int32_t(i);
    const std::string text(list.tokens[i]);
    if (list.kind(i) == TokenKind::unused) continue;
    ids.emplace(text, id);
    const bool special = list.kind(i) == TokenKind::control || id == parts.bos || id == parts.eos;
    if (special || list.kind(i) == TokenKind::user_defined) {
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
  const int32_t bos = list.id_under(f, "tokenizer.ggml.bos_token_id", 1),
                eos = list.id_under(f, "tokenizer.ggml.eos_token_id", 2);
  if (bos != 1 || eos != 2)
    fail(f.where, "expected bos 1 and eos 2 in a llama2.c vocabulary, got {} and {}", bos, eos);
  if (scores.size() != list.size())
    fail(f.where, "expected a score for each of {} tokens, got {}", list.size(), scores.size());
  std::string out;
  const auto put = [&](auto x) { out.append(reinterpret_cast<const char*>(&x), sizeof x); };
  int32_t longest = 0;
  put(longest);
  for (size_t i = 0; i < list.size(); ++i) {
    std::string piece = replaced(std::string(list.tokens[i]), space_mark, " ");
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

bool is_llama2c(const GgufTable& f) {
  return is_spm(f) && f.has(llama2c_key) && f.text(llama2c_key) == llama2c_mark;
}

}  // namespace

bool put_vocabulary(GgufKeys& keys, const fs::path& tokenizer, int64_t vocab) {
  if (tokenizer.empty()) {
    keys.set("tokenizer.ggml.model", "none");
    return false;
  }
  VocabularyParts parts = read_tokenizer(tokenizer);
  if (parts.rule == MergeRule::llama2c) {
    put_llama2c(keys, parts, vocab);
    return false;
  }
  const auto v = make_vocabulary(std::move(parts));
  if (v->text.pieces) return put_gguf_pieces(keys, *v, vocab);
  put_bpe(keys, *v, vocab);
  return false;
}

void put_text_ends(GgufKeys& keys, const TextEnds& ends) {
  std::vector<int32_t> rest = ends.more;
  const int32_t turn = ends.turn >= 0 || rest.empty() ? ends.turn : rest[0];
  std::erase(rest, turn);
  if (turn >= 0) keys.set(turn_key, uint32_t(turn));
  if (!rest.empty()) keys.set(message_key, uint32_t(rest[0]));
  if (rest.size() > 1) keys.set(ends_key, std::span<const int32_t>(ends.more));
}

std::vector<int32_t> text_ends(const GgufTable& f) {
  std::vector<int32_t> ends;
  const auto add = [&](int64_t id) {
    const bool fits = id >= 0 && id < most_ids;
    if (fits && std::ranges::find(ends, id) == ends.end()) ends.push_back(int32_t(id));
  };
  for (const char* key : {turn_key, message_key})
    if (f.has(key)) add(f.whole(key));
  if (f.has(ends_key))
    for (const int32_t id : f.wholes(ends_key)) add(id);
  return ends;
}

bool has_vocabulary(const GgufTable& f) {
  if (!f.has("tokenizer.ggml.model")) return false;
  const std::string_view model = f.text("tokenizer.ggml.model");
  return model != "none" && model != "no_vocab";
}

VocabularyParts read_gguf_vocabulary(const GgufTable& f) {
  if (is_llama2c(f)) return parse_llama2c_vocabulary(llama2c_file(f), f.where);
  return is_spm(f) ? read_gguf_pieces(f) : read_bpe(f);
}

void save_gguf_vocabulary(const GgufTable& f, const fs::path& dir) {
  if (!is_llama2c(f)) return Tokenizer(make_vocabulary(read_gguf_vocabulary(f))).save(dir);
  const std::string file = llama2c_file(f);
  const size_t size = parse_llama2c_vocabulary(file, f.where).tokens.size();
  write_file_atomic(dir / fmt::format("tok{}.bin", size), file);
}

}  // namespace hearth::inline text
