#include "tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "tokenizer/unicode.h"
#include "tokenizer/vocabulary.h"

namespace hearth {
namespace {

// Merges one word that is no single token, by way of the cache where it is short.
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
  out.resize(start + word.size());
  const std::span<int32_t> symbols(out.data() + start, word.size());
  std::ranges::transform(word, symbols.begin(), [&](char c) { return v.byte_ids[uint8_t(c)]; });
  const size_t n = merge_word(symbols, v.pairs);
  out.resize(start + n);
  if (key && n <= WordCache::most_ids) v.cache.put(*key, symbols.first(n));
}

void encode_byte_level(const Vocabulary& v, std::string_view text, std::vector<int32_t>& out) {
  const Scanner scan = scanner_of(v.pattern);
  const char *p = text.data(), *end = p + text.size();
  while (p < end) {
    const char* q = scan(p, end);
    const std::string_view word(p, size_t(q - p));
    p = q;
    if (word.size() > WordKey::longest) {
      encode_word(v, word, nullptr, out);
      continue;
    }
    const WordKey key(word, end);
    const int32_t id = word.size() <= WordTable::longest ? v.words.find(key) : -1;
    if (id >= 0)
      out.push_back(id);
    else
      encode_word(v, word, &key, out);
  }
}

constexpr int32_t first_byte_piece = 3;  // llama2.c: <unk>, <s>, </s>, then the 256 bytes

bool continues(char c) { return (uint8_t(c) & 0xc0) == 0x80; }

// As encode() of llama2.c: bos, a dummy space, then each character that is a piece, or its bytes;
// and merging over the whole text.
void encode_llama2c(const Vocabulary& v, std::string_view text, std::vector<int32_t>& out) {
  out.push_back(v.bos);
  if (text.empty()) return;
  const size_t start = out.size();
  out.push_back(v.pieces.find(std::string_view(" "))->second);
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

// The text of a piece after the one before it: llama2.c takes the dummy space off after bos.
std::string_view piece(const Vocabulary& v, int32_t previous, int32_t id) {
  if (id < 0 || size_t(id) >= v.bytes.size() || !v.known[size_t(id)])
    fail("tokenizer", "expected an id of the vocabulary (below {}), got {}", v.bytes.size(), id);
  std::string_view bytes = v.bytes[size_t(id)];
  if (v.rule == MergeRule::llama2c && previous == v.bos && bytes.starts_with(' '))
    bytes.remove_prefix(1);
  return bytes;
}

// Where a UTF-8 character begins that the text does not finish; text.size() where there is none.
size_t unfinished(std::string_view text) {
  const char* end = text.data() + text.size();
  for (size_t back = std::min<size_t>(3, text.size()); back > 0; --back)
    if (read_utf8(end - back, end).needed) return text.size() - back;
  return text.size();
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Vocabulary> v) : vocabulary_(std::move(v)) {}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out) const {
  if (vocabulary_->rule == MergeRule::llama2c)
    encode_llama2c(*vocabulary_, text, out);
  else
    encode_byte_level(*vocabulary_, text, out);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  encode_to(text, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<int32_t> out;
  size_t done = 0;
  for (const Found& f : find_special(text, [](size_t, size_t, bool) { return true; })) {
    encode_to(text.substr(done, f.begin - done), out);
    out.push_back(f.id);
    done = f.end;
  }
  encode_to(text.substr(done), out);
  return out;
}

std::vector<Tokenizer::Found> Tokenizer::find_special(std::string_view text,
                                                      const Admits& admits) const {
  const Vocabulary& v = *vocabulary_;
  std::vector<Found> found;
  if (v.rule == MergeRule::llama2c) return found;  // its format has none in text
  for (size_t i = 0; i < text.size();) {
    const auto starts_here = [&](const AddedToken& t) {
      return text.substr(i).starts_with(t.text) && admits(i, i + t.text.size(), t.special);
    };
    const auto it = v.starts_added[uint8_t(text[i])] ? std::ranges::find_if(v.added, starts_here)
                                                     : v.added.end();
    if (it == v.added.end()) {
      ++i;
      continue;
    }
    found.push_back({i, i + it->text.size(), it->id});
    i += it->text.size();
  }
  return found;
}

std::string Tokenizer::decode(std::span<const int32_t> ids) const {
  std::string text;
  int32_t previous = -1;
  for (const int32_t id : ids) {
    text += piece(*vocabulary_, previous, id);
    previous = id;
  }
  return text;
}

std::string_view Tokenizer::bytes_of(int32_t id) const { return piece(*vocabulary_, -1, id); }

int32_t Tokenizer::vocab_size() const { return int32_t(vocabulary_->bytes.size()); }
int32_t Tokenizer::eos() const { return vocabulary_->eos; }
int32_t Tokenizer::bos() const { return vocabulary_->bos; }

std::optional<int32_t> Tokenizer::special(std::string_view text) const {
  const auto it = std::ranges::find(vocabulary_->added, text, &AddedToken::text);
  if (it == vocabulary_->added.end()) return std::nullopt;
  return it->id;
}

StreamDecoder::StreamDecoder(const Tokenizer& t) : tokenizer_(t) {}

std::string StreamDecoder::push(int32_t id) {
  held_ += piece(*tokenizer_.vocabulary_, previous_, id);
  previous_ = id;
  const size_t whole = unfinished(held_);
  std::string text = held_.substr(0, whole);
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() { return std::exchange(held_, {}); }

}  // namespace hearth
