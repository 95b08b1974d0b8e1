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
  ChatEncoder(const Tokenizer& tokenizer, const MarkedText& text)
      : tokenizer_(tokenizer), text_(text) {}

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
    return std::move(out_);
  }

 private:
  void plain(size_t begin, size_t end) {
    if (begin == end) return;
    const size_t first = out_.ids.size();
    tokenizer_.encode_to(std::string_view(text_.bytes).substr(begin, end - begin), out_.ids);
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

  // The positions of the assistant's answers within a part, in the text that its ids (from `first`)
  // decode to.
  std::vector<std::pair<size_t, size_t>> answers(size_t begin, size_t end, size_t first) const {
    size_t decoded = 0;
    for (size_t i = first; i < out_.ids.size(); ++i)
      decoded += tokenizer_.bytes_of(out_.ids[i]).size();
    const auto place = [&](size_t at) {
      if (decoded == end - begin) return at - begin;
      // The tokenizer normalises, so the text before may decode to a different length.
      return tokenizer_.decode(tokenizer_.encode(text_.bytes.substr(begin, at - begin))).size();
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
  EncodedChat out_;
};

}  // namespace

EncodedChat encode_chat(const Tokenizer& tokenizer, const MarkedText& text) {
  return ChatEncoder(tokenizer, text).run();
}

}  // namespace hearth::inline text
