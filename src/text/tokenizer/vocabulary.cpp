#include "text/tokenizer/vocabulary.h"

#include <algorithm>
#include <numeric>

#include "sys/error.h"
#include "sys/utf8.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

// Bytes that are written as themselves; the others are written as U+0100 and up.
constexpr bool prints(int b) {
  return (b >= 33 && b <= 126) || (b >= 161 && b <= 172) || (b >= 174 && b <= 255);
}

constexpr std::array<uint32_t, 256> letter_codes = [] {
  std::array<uint32_t, 256> t{};
  uint32_t next = 0x100;
  for (int b = 0; b < 256; ++b) t[size_t(b)] = prints(b) ? uint32_t(b) : next++;
  return t;
}();

// A token as text for messages, truncated if long.
std::string shown(std::string_view bytes) {
  std::string s;
  for (const char c : bytes.substr(0, 40)) s += byte_letters()[uint8_t(c)];
  return s;
}

void place_tokens(Vocabulary& v, const VocabularyParts& parts) {
  int32_t largest = -1;
  const auto check = [&](int32_t id, std::string_view text) {
    if (id < 0 || id >= most_ids)
      fail(parts.where, "expected ids in [0, {}), got {} for token \"{}\"", most_ids, id,
           shown(text));
    largest = std::max(largest, id);
  };
  for (const Token& t : parts.tokens) check(t.id, t.bytes);
  for (const AddedToken& t : parts.added) check(t.id, t.text);
  v.bytes.resize(size_t(largest + 1));
  v.known.resize(size_t(largest + 1));
  const auto place = [&](int32_t id, const std::string& bytes) {
    if (v.known[size_t(id)])
      fail(parts.where, "expected one token per id, got id {} for both \"{}\" and \"{}\"", id,
           shown(v.bytes[size_t(id)]), shown(bytes));
    v.known[size_t(id)] = true;
    v.bytes[size_t(id)] = bytes;
  };
  for (const Token& t : parts.tokens) {
    if (t.bytes.empty())
      fail(parts.where, "expected tokens of at least one byte, got an empty token for id {}", t.id);
    place(t.id, t.bytes);
  }
  for (const AddedToken& t : parts.added) {
    if (t.text.empty())
      fail(parts.where, "expected added tokens with text, got an empty one for id {}", t.id);
    place(t.id, t.text);
  }
}

void place_added(Vocabulary& v, std::vector<AddedToken> added, const std::string& where) {
  for (AddedToken& t : added) {
    t.sought = t.normalized ? normalised(v, t.text) : t.text;
    if (t.sought.empty())
      fail(where,
           "expected added tokens with text, got id {}, of which the normalizer leaves nothing",
           t.id);
  }
  std::ranges::reverse(added);
  std::ranges::stable_sort(added, {}, &AddedToken::sought);
  for (AddedToken& t : added) {
    AddedTokens& place = t.normalized ? v.normalized : v.raw;
    ++place.first[uint8_t(t.sought[0]) + 1];
    place.tokens.push_back(std::move(t));
  }
  for (AddedTokens* place : {&v.raw, &v.normalized})
    std::partial_sum(place->first.begin(), place->first.end(), place->first.begin());
}

// Ids that are used by other settings must be tokens, too.
void check_ids(const Vocabulary& v, const VocabularyParts& parts) {
  const auto check = [&](int32_t id, const char* what) {
    if (id < 0 || size_t(id) >= v.known.size() || !v.known[size_t(id)])
      fail(parts.where, "expected {} to be a token of the vocabulary, got id {}", what, id);
  };
  if (parts.text.unk >= 0) check(parts.text.unk, "unk_token");
  for (const int32_t id : parts.text.before) check(id, "a token added by the template");
  for (const int32_t id : parts.text.after) check(id, "a token added by the template");
  for (const int32_t id : {parts.bos, parts.eos})
    if (id >= 0) check(id, "bos or eos");
}

// Trying every split of a token is quadratic in its length. The longest token of o200k has 128
// bytes.
constexpr size_t longest_split = 4096;

// Every split of a token into two tokens, ordered by the resulting tokens.
std::vector<Merge> all_splits(std::vector<Token> tokens, const TextIds& ids) {
  std::ranges::sort(tokens, {}, &Token::id);
  std::vector<Merge> merges;
  for (const Token& t : tokens) {
    const size_t first = merges.size();
    if (t.bytes.size() > longest_split)
      fail("tokenizer", "expected tokens of at most {} bytes, got {} for id {}", longest_split,
           t.bytes.size(), t.id);
    for (size_t cut = 1; cut < t.bytes.size(); ++cut) {
      const auto l = ids.find(std::string_view(t.bytes).substr(0, cut));
      const auto r = ids.find(std::string_view(t.bytes).substr(cut));
      if (l != ids.end() && r != ids.end()) merges.push_back({l->second, r->second, t.id});
    }
    std::sort(merges.begin() + long(first), merges.end(), [](const Merge& a, const Merge& b) {
      return std::pair(a.left, a.right) < std::pair(b.left, b.right);
    });
  }
  return merges;
}

TextIds ids_of_tokens(const VocabularyParts& parts) {
  TextIds ids;
  ids.reserve(parts.tokens.size());
  for (const Token& t : parts.tokens)
    if (const auto [it, fresh] = ids.emplace(t.bytes, t.id); !fresh)
      fail(parts.where, "expected each token once, got \"{}\" as id {} and id {}", shown(t.bytes),
           it->second, t.id);
  return ids;
}

// The rank of each id, highest score first; equal scores have equal ranks.
std::vector<uint32_t> ranks_of_scores(const std::vector<float>& scores) {
  std::vector<uint32_t> order(scores.size()), ranks(scores.size());
  std::iota(order.begin(), order.end(), 0u);
  std::ranges::stable_sort(order, [&](uint32_t a, uint32_t b) { return scores[a] > scores[b]; });
  for (size_t i = 0; i < order.size(); ++i)
    ranks[order[i]] =
        i > 0 && scores[order[i]] == scores[order[i - 1]] ? ranks[order[i - 1]] : uint32_t(i);
  return ranks;
}

void place_pairs(Vocabulary& v, const VocabularyParts& parts) {
  v.pairs = PairTable(v.merges.size());
  std::vector<uint32_t> ranks;
  if (v.rule == MergeRule::llama2c) ranks = ranks_of_scores(parts.scores);
  for (size_t i = 0; i < v.merges.size(); ++i) {
    const Merge& m = v.merges[i];
    const uint32_t rank = v.rule == MergeRule::llama2c ? ranks[size_t(m.id)]
                          : v.rule == MergeRule::by_id ? uint32_t(m.id)
                                                       : uint32_t(i);
    v.pairs.set({m.left, m.right, rank, m.id});
  }
}

// A word that is a token needs no merging if merging would give that token (or is not required).
void place_words(Vocabulary& v, const VocabularyParts& parts) {
  v.words = WordTable(parts.tokens.size());
  std::vector<int32_t> symbols;
  for (const Token& t : parts.tokens) {
    if (v.rule == MergeRule::listed || v.rule == MergeRule::unigram) {
      symbols.clear();
      spell(v, t.bytes, symbols);
      if (merge_word(symbols, v.pairs) != 1 || symbols[0] != t.id) continue;
    }
    if (t.bytes.size() <= WordTable::longest)
      v.words.set(t.bytes, t.id);
    else
      v.long_words.emplace(t.bytes, t.id);
  }
}

void place_bytes(Vocabulary& v, const VocabularyParts& parts, const TextIds& ids) {
  for (int b = 0; b < 256; ++b) {
    const char c = char(b);
    const auto it = parts.text.pieces ? ids.find(fmt::format("<0x{:02X}>", b))
                                      : ids.find(std::string_view(&c, 1));
    v.byte_ids[size_t(b)] = it == ids.end() ? -1 : it->second;
    const bool needed = parts.text.pieces ? parts.text.byte_fallback : true;
    if (needed && it == ids.end() && parts.text.unk < 0)
      fail(parts.where, "expected a token for each of the 256 bytes, got none for byte 0x{:02x}",
           b);
  }
}

// Without a pre-tokeniser the whole text is one word. If no merge crosses the start of a run of
// spaces, splitting there gives the same ids with words short enough for the tables.
bool cuts_at_runs(const Vocabulary& v) {
  if (v.rule != MergeRule::listed || !v.pieces.contains(" ")) return false;
  return std::ranges::none_of(v.merges, [&](const Merge& m) {
    return v.bytes[size_t(m.right)].starts_with(' ') && !v.bytes[size_t(m.left)].ends_with(' ');
  });
}

}  // namespace

const std::array<std::string, 256>& byte_letters() {
  static const auto letters = [] {
    std::array<std::string, 256> t;
    for (size_t b = 0; b < 256; ++b) append_utf8(t[b], letter_codes[b]);
    return t;
  }();
  return letters;
}

const std::array<uint8_t, 256>& byte_order() {
  static constexpr auto order = [] {
    std::array<uint8_t, 256> t{};
    size_t n = 0;
    for (const bool printing : {true, false})
      for (int b = 0; b < 256; ++b)
        if (prints(b) == printing) t[n++] = uint8_t(b);
    return t;
  }();
  return order;
}

bool bytes_of_letters(std::string_view letters, std::string& bytes) {
  static constexpr auto back = [] {
    std::array<int16_t, 0x144> t{};
    t.fill(-1);
    for (int b = 0; b < 256; ++b) t[letter_codes[size_t(b)]] = int16_t(b);
    return t;
  }();
  bytes.clear();
  const char* end = letters.data() + letters.size();
  for (const char* p = letters.data(); p < end;) {
    const Utf8Char c = read_utf8(p, end);
    if (c.code >= back.size() || back[c.code] < 0) return false;
    bytes += char(back[c.code]);
    p += c.length;
  }
  return true;
}

std::vector<AddedToken> added_tokens(const Vocabulary& v) {
  std::vector<AddedToken> all = v.raw.tokens;
  all.insert(all.end(), v.normalized.tokens.begin(), v.normalized.tokens.end());
  std::ranges::sort(all, {}, &AddedToken::id);
  return all;
}

std::shared_ptr<const Vocabulary> make_vocabulary(VocabularyParts parts) {
  auto v = std::make_shared<Vocabulary>();
  v->rule = parts.rule;
  v->text = parts.text;
  v->eos = parts.eos;
  v->bos = parts.bos;
  v->saved = std::move(parts.saved);
  place_tokens(*v, parts);
  check_ids(*v, parts);
  TextIds ids = ids_of_tokens(parts);
  const bool listed =
      parts.rule != MergeRule::by_id && parts.rule != MergeRule::llama2c;  // or none at all
  if (parts.rule == MergeRule::unigram) {
    v->unigram = Unigram(parts.piece_scores, parts.text.unk);
    for (const Token& t : parts.tokens) v->unigram.add(t.bytes, t.id);
  }
  v->merges = listed ? std::move(parts.merges) : all_splits(parts.tokens, ids);
  place_pairs(*v, parts);
  if (parts.rule == MergeRule::llama2c) {
    v->pieces = std::move(ids);
    v->bytes = std::move(parts.printed);
    parts.added = {{"<s>", v->bos}, {"</s>", v->eos}};
  } else {
    place_bytes(*v, parts, ids);
    if (parts.text.pieces) v->pieces = std::move(ids);
    place_words(*v, parts);
  }
  if (parts.text.pieces && v->text.pattern == Pattern::whole && cuts_at_runs(*v))
    v->text.pattern = Pattern::runs;
  if (parts.text.bytes_decode)
    for (int b = 0; b < 256; ++b)
      if (const int32_t id = v->byte_ids[size_t(b)]; id >= 0)
        v->bytes[size_t(id)].assign(1, char(b));
  place_added(*v, std::move(parts.added), parts.where);
  return v;
}

}  // namespace hearth::inline text
