#include "text/tokenizer/tokenizer.h"

#include <algorithm>
#include <utility>

#include "sys/error.h"
#include "text/tokenizer/encode.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

const std::string& bytes_in(const Vocabulary& v, int32_t id) {
  if (id < 0 || size_t(id) >= v.bytes.size() || !v.known[size_t(id)])
    fail("tokenizer", "expected an id of the vocabulary (below {}), got {}", v.bytes.size(), id);
  return v.bytes[size_t(id)];
}

// Encoding puts a space before the text of pieces; decoding drops it at the start (previous -1) and
// after bos. llama2.c drops it only after bos.
bool strips(const Vocabulary& v, int32_t previous) {
  const bool after_bos = previous >= 0 && previous == v.bos;
  return v.rule == MergeRule::llama2c ? after_bos
                                      : v.text.strip_first && (previous < 0 || after_bos);
}

// The text of a token after `previous`.
std::string_view piece(const Vocabulary& v, int32_t previous, int32_t id) {
  std::string_view bytes = bytes_in(v, id);
  if (strips(v, previous) && bytes.starts_with(' ')) bytes.remove_prefix(1);
  return bytes;
}

// The start of an incomplete UTF-8 character at the end of the text; text.size() if there is none.
size_t unfinished(std::string_view text) {
  const char* end = text.data() + text.size();
  for (size_t back = std::min<size_t>(3, text.size()); back > 0; --back)
    if (read_utf8(end - back, end).needed) return text.size() - back;
  return text.size();
}

}  // namespace

Tokenizer::Tokenizer(std::shared_ptr<const Vocabulary> v) : vocabulary_(std::move(v)) {}

void Tokenizer::encode_to(std::string_view text, std::vector<int32_t>& out, TextStart start) const {
  encode_plain(*vocabulary_, text, start, out);
}

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> out;
  out.reserve(text.size() / 3 + 8);
  encode_plain(*vocabulary_, text, TextStart::whole, out);
  return out;
}

std::vector<int32_t> Tokenizer::encode_with_special(std::string_view text) const {
  std::vector<int32_t> out;
  encode_with_added(*vocabulary_, text, out);
  return out;
}

std::vector<FoundToken> Tokenizer::find_special(std::string_view text, const Admits& admits) const {
  const Vocabulary& v = *vocabulary_;
  if (v.rule == MergeRule::llama2c) return {};  // llama2.c has no added tokens in text
  std::vector<FoundToken> all;
  size_t done = 0;
  const auto between = [&](size_t begin, size_t end) {
    const auto inside = [&](size_t b, size_t e, bool special) {
      return admits(begin + b, begin + e, special);
    };
    for (FoundToken f : find_added(v.normalized, text.substr(begin, end - begin), inside))
      all.push_back({begin + f.begin, begin + f.end, f.id});
  };
  for (const FoundToken& f : find_added(v.raw, text, admits)) {
    between(done, f.begin);
    all.push_back(f);
    done = f.end;
  }
  between(done, text.size());
  return all;
}

void Tokenizer::add_template(std::vector<int32_t>& ids) const {
  const TextRules& rules = vocabulary_->text;
  ids.insert(ids.begin(), rules.before.begin(), rules.before.end());
  ids.insert(ids.end(), rules.after.begin(), rules.after.end());
}

void Tokenizer::complete_template(std::vector<int32_t>& ids) const {
  const TextRules& rules = vocabulary_->text;
  if (std::ranges::mismatch(rules.before, ids).in1 != rules.before.end())
    ids.insert(ids.begin(), rules.before.begin(), rules.before.end());
  ids.insert(ids.end(), rules.after.begin(), rules.after.end());
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

std::string_view Tokenizer::bytes_of(int32_t id) const { return bytes_in(*vocabulary_, id); }

int32_t Tokenizer::vocab_size() const { return int32_t(vocabulary_->bytes.size()); }
int32_t Tokenizer::eos() const { return vocabulary_->eos; }
int32_t Tokenizer::bos() const { return vocabulary_->bos; }

std::optional<int32_t> Tokenizer::special(std::string_view text) const {
  for (const AddedTokens* added : {&vocabulary_->raw, &vocabulary_->normalized})
    for (const AddedToken& t : added->tokens)
      if (t.text == text) return t.id;
  return std::nullopt;
}

bool Tokenizer::has(int32_t id) const {
  return id >= 0 && size_t(id) < vocabulary_->known.size() && vocabulary_->known[size_t(id)];
}

std::vector<int32_t> Tokenizer::special_ids() const {
  const Vocabulary& v = *vocabulary_;
  std::vector<int32_t> ids;
  for (const AddedToken& t : added_tokens(v))
    if (t.special) ids.push_back(t.id);
  for (const int32_t id : {v.bos, v.eos, v.text.unk})
    if (id >= 0) ids.push_back(id);
  return ids;
}

bool Tokenizer::strips_after(int32_t previous) const { return strips(*vocabulary_, previous); }

StreamDecoder::StreamDecoder(const Tokenizer& t, int32_t previous)
    : tokenizer_(t), previous_(previous) {}

std::string StreamDecoder::push(int32_t id) {
  const bool unused = id >= 0 && id < tokenizer_.vocab_size() && !tokenizer_.has(id);
  if (!unused) held_ += piece(*tokenizer_.vocabulary_, previous_, id);
  previous_ = id;
  const size_t whole = unfinished(held_);
  std::string text = held_.substr(0, whole);
  held_.erase(0, whole);
  return text;
}

std::string StreamDecoder::finish() { return std::exchange(held_, {}); }

}  // namespace hearth::inline text
