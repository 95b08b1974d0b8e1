// Encodes marked text. Special tokens split the text; each part between them is encoded as a whole,
// so that the words of the pre-tokeniser do not depend on who wrote which byte.
#include <algorithm>

#include "text/chat/chat_template.h"

namespace hearth::inline text {
namespace {

bool any_marked(const MarkedText& t, size_t begin, size_t end, char bits) {
  return std::ranges::any_of(std::string_view(t.marks).substr(begin, end - begin),
                             [&](char m) { return m & bits; });
}

class ChatEncoder {
 public:
  ChatEncoder(const Tokenizer& tokenizer, const MarkedText& text, TextStart start)
      : tokenizer_(tokenizer), text_(text), start_(start) {}

  EncodedChat run() {
    size_t done = 0;
    const auto admits = [&](size_t begin, size_t end, bool special) {
      const bool refused =
          any_marked(text_, begin, end, special ? mark::content | mark::foreign : mark::foreign);
      out_.spelled |= refused && special;
      return !refused;
    };
    for (const auto& [begin, end, id] : tokenizer_.find_special(text_.bytes, admits)) {
      plain(done, begin);
      out_.ids.push_back(id);
      out_.answer.push_back(any_marked(text_, begin, end, mark::answer));
      done = end;
    }
    plain(done, text_.size());
    out_.next = text_.size() == 0      ? start_
                : done == text_.size() ? TextStart::after_token
                                       : TextStart::inside;
    return std::move(out_);
  }

 private:
  void plain(size_t begin, size_t end) {
    if (begin == end) return;
    const size_t first = out_.ids.size();
    encode_part(begin, end, out_.ids);
    out_.answer.resize(out_.ids.size());
    if (!any_marked(text_, begin, end, mark::answer)) return;
    const std::vector<std::pair<size_t, size_t>> spans = answers(begin, end, first);
    size_t at = 0;
    for (size_t i = first; i < out_.ids.size(); ++i) {
      const size_t next = at + tokenizer_.bytes_of(out_.ids[i]).size();
      out_.answer[i] = std::ranges::any_of(
          spans, [&](const auto& s) { return at < s.second && next > s.first; });
      at = next;
    }
  }

  // Bytes from `begin`, where the text or the part after a special token starts, to `end`.
  void encode_part(size_t begin, size_t end, std::vector<int32_t>& ids) const {
    tokenizer_.encode_to(std::string_view(text_.bytes).substr(begin, end - begin), ids,
                         begin == 0 ? start_ : TextStart::after_token);
  }

  // The bytes that ids stand for, with those that decoding strips.
  size_t bytes_of(std::span<const int32_t> ids) const {
    size_t n = 0;
    for (const int32_t id : ids) n += tokenizer_.bytes_of(id).size();
    return n;
  }

  // The positions of the assistant's answers within a part, in the bytes of its ids (from `first`).
  std::vector<std::pair<size_t, size_t>> answers(size_t begin, size_t end, size_t first) const {
    const size_t encoded = bytes_of(std::span(out_.ids).subspan(first));
    const auto place = [&](size_t at) -> size_t {
      if (encoded == end - begin) return at - begin;
      // The tokenizer normalises or adds a space, so the text before may have a different length.
      std::vector<int32_t> before;
      if (at > begin) encode_part(begin, at, before);
      return bytes_of(before);
    };
    std::vector<std::pair<size_t, size_t>> spans;
    for (size_t i = begin; i < end; ++i) {
      if (!(text_.marks[i] & mark::answer)) continue;
      size_t stop = i;
      while (stop < end && text_.marks[stop] & mark::answer) ++stop;
      spans.emplace_back(place(i), place(stop));
      i = stop;
    }
    return spans;
  }

  const Tokenizer& tokenizer_;
  const MarkedText& text_;
  const TextStart start_;
  EncodedChat out_;
};

}  // namespace

EncodedChat encode_chat(const Tokenizer& tokenizer, const MarkedText& text, TextStart start) {
  return ChatEncoder(tokenizer, text, start).run();
}

}  // namespace hearth::inline text
