#include "text/tokenizer/encode.h"

#include <algorithm>

#include "text/tokenizer/nfc.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

// Merges one word that is not a single token; short words use the cache.
void encode_word(const Vocabulary& v, std::string_view word, const WordKey* key,
                 std::vector<int32_t>& out) {
  if (key) {
    std::array<int32_t, WordCache::most_ids> ids;
    if (const size_t n = v.cache.find(*key, ids)) {
      out.insert(out.end(), ids.begin(), ids.begin() + n);
      return;
    }
  }
  if (word.size() > WordTable::longest) {
    if (const auto it = v.long_words.find(word); it != v.long_words.end()) {
      out.push_back(it->second);
      return;
    }
  }
  const size_t start = out.size();
  spell(v, word, out);
  const std::span<int32_t> symbols(out.data() + start, out.size() - start);
  const size_t n = merge_word(symbols, v.pairs);
  out.resize(start + n);
  if (key && n > 0 && n <= WordCache::most_ids) v.cache.put(*key, symbols.first(n));
}

// `limit` is the end of the readable text.
inline void add_word(const Vocabulary& v, std::string_view word, const char* limit,
                     std::vector<int32_t>& out) {
  if (word.size() > WordKey::longest) return encode_word(v, word, nullptr, out);
  const WordKey key(word, limit);
  const int32_t id = word.size() <= WordTable::longest ? v.words.find(key) : -1;
  if (id >= 0)
    out.push_back(id);
  else
    encode_word(v, word, &key, out);
}

struct LastWord {
  size_t begin = 0;  // offset in the text
  size_t ids = 0;    // index of its first id
};

LastWord encode_words(const Vocabulary& v, std::string_view text, std::vector<int32_t>& out) {
  const Scanner scan = scanner_of(v.text.pattern);
  const char *p = text.data(), *end = p + text.size();
  LastWord last{0, out.size()};
  while (p < end) {
    const char* q = scan(p, end);
    last = {size_t(p - text.data()), out.size()};
    add_word(v, {p, size_t(q - p)}, end, out);
    p = q;
  }
  return last;
}

bool all_blank(std::string_view bytes) {
  return bytes.find_first_not_of(" \n\t") == std::string_view::npos;
}

// From the first invalid UTF-8 byte on the text has no words. Like tiktoken, merges the last word
// before it (and blank tokens before that, if it starts with one) and all the rest as one word.
void encode_bytes(const Vocabulary& v, std::string_view text, size_t valid,
                  std::vector<int32_t>& out) {
  const size_t start = out.size();
  auto [begin, ids] = encode_words(v, text.substr(0, valid), out);
  const auto bytes = [&](size_t i) -> std::string_view { return v.bytes[size_t(out[i])]; };
  if (ids < out.size() && all_blank(bytes(ids)))
    for (; ids > start && all_blank(bytes(ids - 1)); --ids) begin -= bytes(ids - 1).size();
  out.resize(ids);
  add_word(v, text.substr(begin), text.data() + text.size(), out);
}

constexpr int32_t first_byte_piece = 3;  // llama2.c: <unk>, <s>, </s>, then the 256 bytes

bool continues(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

// Follows encode() of llama2.c: bos, a dummy space, then each character that is a piece, or its
// bytes; merges over the whole text. Inside a text there is neither bos nor dummy space.
void encode_llama2c(const Vocabulary& v, std::string_view text, TextStart at,
                    std::vector<int32_t>& out) {
  if (at != TextStart::inside) out.push_back(v.bos);
  if (text.empty()) return;
  const size_t start = out.size();
  if (at != TextStart::inside) out.push_back(v.pieces.find(std::string_view(" "))->second);
  for (size_t i = 0; i < text.size();) {
    size_t n = 1;
    while (n < 4 && i + n < text.size() && continues(text[i + n])) ++n;
    const auto it = v.pieces.find(text.substr(i, n));
    if (it != v.pieces.end())
      out.push_back(it->second);
    else
      for (const char c : text.substr(i, n)) out.push_back(first_byte_piece + uint8_t(c));
    i += n;
  }
  out.resize(start + merge_word(std::span(out).subspan(start), v.pairs));
}

// Normalises the text; makes no copy if nothing changes.
std::string_view normalise(const Vocabulary& v, std::string_view text, TextStart start,
                           std::string& storage) {
  std::string copy;
  if (!v.text.normal.empty()) {
    storage = normalised_by(v.text.normal, text, start);
    if (v.text.pieces && v.text.pattern != Pattern::steps) replace_all(storage, space_mark, " ");
    return storage;
  }
  if (v.text.nfc) text = nfc(text, v.text.pieces ? copy : storage);
  if (!v.text.pieces || text.empty()) return text;
  const bool lead = v.text.leading == LeadingSpace::always && start != TextStart::inside;
  if (!lead && text.find(space_mark) == std::string_view::npos && text.data() != copy.data())
    return text;
  storage = lead ? " " : "";
  storage += text;
  replace_all(storage, space_mark, " ");
  return storage;
}

// Words by steps. From the first invalid UTF-8 byte on the text is one word.
void encode_by_steps(const Vocabulary& v, std::string_view text, TextStart start,
                     std::vector<int32_t>& out) {
  std::deque<std::string> made;
  std::string storage;
  const size_t valid = valid_prefix(text);
  const auto add = [&](std::string_view word) {
    if (v.text.pieces && word.find(space_mark) != word.npos) {
      storage = word;
      replace_all(storage, space_mark, " ");
      word = storage;
    }
    add_word(v, word, word.data() + word.size(), out);
  };
  if (valid > 0)
    for (const std::string_view word : split_by(v.text.splits, text.substr(0, valid), start, made))
      add(word);
  if (valid < text.size()) add(text.substr(valid));
}

// Encodes normalised text between added tokens.
void encode_between(const Vocabulary& v, std::string_view text, TextStart start,
                    std::vector<int32_t>& out) {
  if (text.empty()) return;
  std::string storage;
  const bool may_lead =
      (v.text.leading == LeadingSpace::missing && start != TextStart::inside) ||
      (v.text.leading == LeadingSpace::missing_first && start == TextStart::whole);
  if (may_lead && text[0] != ' ') {
    storage = " ";
    text = storage += text;
  }
  if (v.text.pattern == Pattern::steps) return encode_by_steps(v, text, start, out);
  const size_t valid = v.text.pieces ? text.size() : valid_prefix(text);
  if (valid == text.size())
    encode_words(v, text, out);
  else
    encode_bytes(v, text, valid, out);
}

bool is_word(const Utf8Char& c) { return in_ranges(word_ranges, c.code); }

// The character that ends at `at`; a byte that ends no character counts as one.
Utf8Char char_before(std::string_view text, size_t at) {
  const char* end = text.data() + at;
  for (int n = 2; n <= 4 && size_t(n) <= at; ++n)
    if (const Utf8Char c = read_utf8(end - n, end); c.length == n) return c;
  return read_utf8(end - 1, end);
}

Utf8Char char_after(std::string_view text, size_t at) {
  return read_utf8(text.data() + at, text.data() + text.size());
}

bool is_blank(const Utf8Char& c) { return char_class(c.code) == CharClass::space; }

// Splits a text at added tokens. Calls between(text, begin) for the parts between them.
template <class F>
void cut_added(const AddedTokens& added, std::string_view text, std::vector<int32_t>& out,
               F between) {
  size_t done = 0;
  for (const FoundToken& f : find_added(added, text)) {
    between(text.substr(done, f.begin - done), done);
    out.push_back(f.id);
    done = f.end;
  }
  between(text.substr(done), done);
}

// The longest token that a text starts with, among those that `admits` accepts, or null. Narrows
// down the sorted tokens byte by byte, so many tokens that start alike cost little.
template <class F>
const AddedToken* token_at_start(const AddedTokens& added, std::string_view text, F admits) {
  auto begin = added.tokens.begin() + long(added.first[uint8_t(text[0])]);
  auto end = added.tokens.begin() + long(added.first[uint8_t(text[0]) + 1]);
  const AddedToken* longest = nullptr;
  for (size_t same = 1; begin != end; ++same) {
    for (; begin != end && begin->sought.size() == same; ++begin)
      if (admits(*begin)) longest = &*begin;
    if (same == text.size()) break;
    const auto next = [same](const AddedToken& t) { return uint8_t(t.sought[same]); };
    begin = std::ranges::lower_bound(begin, end, uint8_t(text[same]), {}, next);
    end = std::ranges::upper_bound(begin, end, uint8_t(text[same]), {}, next);
  }
  return longest;
}

}  // namespace

std::vector<FoundToken> find_added(const AddedTokens& added, std::string_view text,
                                   const Admits& admits) {
  std::vector<FoundToken> found;
  size_t done = 0;
  for (size_t i = 0; i < text.size();) {
    const AddedToken* const it = token_at_start(added, text.substr(i), [&](const AddedToken& t) {
      return !admits || admits(i, i + t.sought.size(), t.special);
    });
    if (!it) {
      ++i;
      continue;
    }
    size_t begin = i, end = i + it->sought.size();
    i = end;
    if (it->single_word && ((begin > 0 && is_word(char_before(text, begin))) ||
                            (end < text.size() && is_word(char_after(text, end)))))
      continue;
    if (it->lstrip)
      while (begin > done && is_blank(char_before(text, begin)))
        begin -= size_t(char_before(text, begin).length);
    if (it->rstrip)
      while (end < text.size() && is_blank(char_after(text, end)))
        end += size_t(char_after(text, end).length);
    found.push_back({begin, end, it->id});
    done = i = end;
  }
  return found;
}

void replace_all(std::string& text, std::string_view from, std::string_view to) {
  size_t at = text.find(from);
  if (at == std::string::npos) return;
  std::string made = text.substr(0, at);
  while (at != std::string::npos) {
    made += to;
    const size_t begin = at + from.size();
    at = text.find(from, begin);
    made += std::string_view(text).substr(begin, at == std::string::npos ? at : at - begin);
  }
  text = std::move(made);
}

std::string normalised(const Vocabulary& v, std::string_view text) {
  std::string storage;
  return std::string(normalise(v, text, TextStart::whole, storage));
}

void spell(const Vocabulary& v, std::string_view word, std::vector<int32_t>& out) {
  const TextRules& rules = v.text;
  if (!rules.pieces && rules.unk < 0) {  // every byte is a token
    const size_t start = out.size();
    out.resize(start + word.size());
    std::ranges::transform(word, out.begin() + long(start),
                           [&](char c) { return v.byte_ids[uint8_t(c)]; });
    return;
  }
  bool unknown = false;  // the previous symbol was unknown
  const auto add_unknown = [&] {
    if (!(unknown && rules.fuse_unk)) out.push_back(rules.unk);
    unknown = true;
  };
  const auto add = [&](int32_t id) {
    if (id < 0) return add_unknown();
    out.push_back(id);
    unknown = false;
  };
  if (!rules.pieces) {
    for (const char c : word) add(v.byte_ids[uint8_t(c)]);
    return;
  }
  const auto byte_id = [&](char c) { return v.byte_ids[uint8_t(c)]; };
  const auto fall_back = [&](std::string_view c) {
    if (rules.byte_fallback && std::ranges::all_of(c, [&](char b) { return byte_id(b) >= 0; }))
      for (const char b : c) add(byte_id(b));
    else
      add_unknown();
  };
  if (v.rule == MergeRule::unigram) {
    size_t begin = 0;
    for (const Unigram::Part& part : v.unigram.parts(word)) {
      part.id >= 0 && part.id != rules.unk ? add(part.id)
                                           : fall_back(word.substr(begin, part.end - begin));
      begin = part.end;
    }
    return;
  }
  const char *p = word.data(), *end = p + word.size();
  while (p < end) {
    const std::string_view c(p, size_t(read_utf8(p, end).length));
    p += c.size();
    if (const auto it = v.pieces.find(c); it != v.pieces.end())
      add(it->second);
    else
      fall_back(c);
  }
}

void encode_plain(const Vocabulary& v, std::string_view text, TextStart start,
                  std::vector<int32_t>& out) {
  if (v.rule == MergeRule::llama2c) return encode_llama2c(v, text, start, out);
  std::string storage;
  encode_between(v, normalise(v, text, start, storage), start, out);
}

void encode_with_added(const Vocabulary& v, std::string_view text, std::vector<int32_t>& out) {
  if (v.rule == MergeRule::llama2c)
    return encode_llama2c(v, text, TextStart::whole, out);  // it has no added tokens in text
  cut_added(v.raw, text, out, [&](std::string_view part, size_t at) {
    std::string storage;
    const auto start = [](bool first) { return first ? TextStart::whole : TextStart::after_token; };
    const std::string_view whole = normalise(v, part, start(at == 0), storage);
    cut_added(v.normalized, whole, out, [&](std::string_view rest, size_t inside) {
      encode_between(v, rest, start(at + inside == 0), out);
    });
  });
}

}  // namespace hearth::inline text
