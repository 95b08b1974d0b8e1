#include "text/tokenizer/text_steps.h"

#include <algorithm>

#include "text/tokenizer/encode.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

bool is_blank_char(uint32_t code) { return char_class(code) == CharClass::space; }

// --- normaliser ---

std::string replaced_matches(std::string_view text, const NormalStep& step) {
  std::vector<Cut> cuts;
  const size_t valid = valid_prefix(text);
  step.regex->find(text.substr(0, valid), cuts);
  std::string out;
  for (const Cut& c : cuts)
    out += c.match ? std::string_view(step.to) : text.substr(c.begin, c.end - c.begin);
  out += text.substr(valid);
  return out;
}

std::string stripped(std::string_view text, const NormalStep& step) {
  const char *p = text.data(), *end = p + text.size(), *kept = p;
  while (step.left && p < end) {
    const Utf8Char c = read_utf8(p, end);
    if (!is_blank_char(c.code)) break;
    p += c.length;
  }
  kept = p;
  for (const char* q = p; q < end;) {
    const Utf8Char c = read_utf8(q, end);
    q += c.length;
    if (!is_blank_char(c.code)) kept = q;
  }
  return {p, step.right ? kept : end};
}

// --- pre-tokeniser ---

// Calls matches(code) for each character; each one that it accepts is a match.
template <class F>
void cut_characters(std::string_view word, std::vector<Cut>& out, F matches) {
  const char *begin = word.data(), *end = begin + word.size(), *done = begin;
  for (const char* p = begin; p < end;) {
    const Utf8Char c = read_utf8(p, end);
    const char* next = p + c.length;
    if (matches(c.code)) {
      if (done < p) out.push_back({size_t(done - begin), size_t(p - begin), false});
      out.push_back({size_t(p - begin), size_t(next - begin), true});
      done = next;
    }
    p = next;
  }
  if (done < end) out.push_back({size_t(done - begin), word.size(), false});
}

void cut_text(std::string_view word, std::string_view sought, std::vector<Cut>& out) {
  size_t done = 0;
  if (!sought.empty())
    for (size_t at; (at = word.find(sought, done)) != word.npos;) {
      if (at > done) out.push_back({done, at, false});
      out.push_back({at, at + sought.size(), true});
      done = at + sought.size();
    }
  if (done < word.size()) out.push_back({done, word.size(), false});
}

void cut_by_scanner(std::string_view word, Pattern pattern, std::vector<Cut>& out) {
  const Scanner scan = scanner_of(pattern);
  const char *begin = word.data(), *end = begin + word.size();
  for (const char* p = begin; p < end;) {
    const char* q = scan(p, end);
    out.push_back({size_t(p - begin), size_t(q - begin), true});
    p = q;
  }
}

// \w+|[^\w\s]+
void cut_words(std::string_view word, std::vector<Cut>& out) {
  const auto kind = [](uint32_t code) {
    return is_blank_char(code) ? 0 : in_ranges(word_ranges, code) ? 1 : 2;
  };
  const char *begin = word.data(), *end = begin + word.size();
  for (const char* p = begin; p < end;) {
    const int own = kind(read_utf8(p, end).code);
    const char* q = p;
    while (q < end && kind(read_utf8(q, end).code) == own) q += read_utf8(q, end).length;
    out.push_back({size_t(p - begin), size_t(q - begin), own != 0});
    p = q;
  }
}

bool is_punctuation(uint32_t code) {
  if (code < 0x80) return code > ' ' && code < 0x7f && char_class(code) == CharClass::other;
  return in_ranges(punctuation_ranges, code);
}

void find_cuts(const SplitStep& step, std::string_view word, std::vector<Cut>& out) {
  switch (step.kind) {
    case SplitKind::scanner:
      return cut_by_scanner(word, step.pattern, out);
    case SplitKind::regex:
      return step.regex->find(word, out);
    case SplitKind::text:
      return cut_text(word, step.text, out);
    case SplitKind::digits:
      return cut_characters(word, out,
                            [](uint32_t c) { return char_class(c) == CharClass::number; });
    case SplitKind::punctuation:
      return cut_characters(word, out, is_punctuation);
    case SplitKind::words:
      return cut_words(word, out);
    case SplitKind::spaces:
      return cut_characters(word, out, is_blank_char);
    case SplitKind::letters:
    case SplitKind::metaspace:
      break;
  }
  out.push_back({0, word.size(), false});
}

// Joins cuts that belong together. `joins` says for two neighbours, in the order in which they are
// visited, whether the second continues the first.
template <class F>
void join_cuts(std::vector<Cut>& cuts, F joins) {
  bool before = false;  // whether the previous cut was a match
  size_t n = 0;
  for (const Cut c : cuts) {
    if (joins(c.match, before) && n > 0) {
      cuts[n - 1].begin = std::min(cuts[n - 1].begin, c.begin);
      cuts[n - 1].end = std::max(cuts[n - 1].end, c.end);
    } else {
      cuts[n++] = c;
    }
    before = c.match;
  }
  cuts.resize(n);
}

void apply_behaviour(SplitBehaviour behaviour, std::vector<Cut>& cuts) {
  const auto onto_other = [](bool match, bool before) { return match && !before; };
  switch (behaviour) {
    case SplitBehaviour::removed:
      std::erase_if(cuts, &Cut::match);
      return;
    case SplitBehaviour::isolated:
      return;
    case SplitBehaviour::contiguous:
      return join_cuts(cuts, [](bool match, bool before) { return match == before; });
    case SplitBehaviour::with_previous:
      return join_cuts(cuts, onto_other);
    case SplitBehaviour::with_next:
      std::ranges::reverse(cuts);
      join_cuts(cuts, onto_other);
      std::ranges::reverse(cuts);
      return;
  }
}

using WordList = std::vector<std::string_view>;

void split_word(const SplitStep& step, std::string_view word, WordList& out) {
  std::vector<Cut> cuts;
  find_cuts(step, word, cuts);
  if (step.invert)
    for (Cut& c : cuts) c.match = !c.match;
  apply_behaviour(step.behaviour, cuts);
  for (const Cut& c : cuts)
    if (c.end > c.begin) out.push_back(word.substr(c.begin, c.end - c.begin));
}

// U+2581 and spaces are the same from here on.
void add_metaspace(const SplitStep& step, std::string_view word, bool leads, WordList& out,
                   std::deque<std::string>& made) {
  std::string text(word);
  replace_all(text, space_mark, " ");
  if (leads && text[0] != ' ') text.insert(0, " ");
  const std::string_view whole = made.emplace_back(std::move(text));
  if (step.behaviour != SplitBehaviour::with_next) {
    out.push_back(whole);
    return;
  }
  std::vector<Cut> cuts;
  cut_text(whole, " ", cuts);
  apply_behaviour(step.behaviour, cuts);
  for (const Cut& c : cuts) out.push_back(whole.substr(c.begin, c.end - c.begin));
}

std::string_view as_letters_of(std::string_view bytes, std::deque<std::string>& made) {
  std::string& letters = made.emplace_back();
  for (const char c : bytes) letters += byte_letters()[uint8_t(c)];
  return letters;
}

}  // namespace

std::string normalised_by(const std::vector<NormalStep>& steps, std::string_view given,
                          TextStart start) {
  std::string text(given);
  for (const NormalStep& step : steps) {
    if (text.empty()) break;
    switch (step.kind) {
      case NormalKind::form:
        text = normal_form(text, step.form);
        break;
      case NormalKind::replace:
        if (step.regex)
          text = replaced_matches(text, step);
        else
          replace_all(text, step.from, step.to);
        break;
      case NormalKind::prepend:
        if (start != TextStart::inside) text.insert(0, step.to);
        break;
      case NormalKind::strip:
        text = stripped(text, step);
        break;
    }
  }
  return text;
}

std::vector<std::string_view> split_by(const std::vector<SplitStep>& steps, std::string_view text,
                                       TextStart start, std::deque<std::string>& made) {
  WordList words{text}, next;
  bool letters = false;
  for (const SplitStep& step : steps) {
    next.clear();
    for (const std::string_view word : words) {
      const bool begins = word.data() == text.data();
      if (step.kind == SplitKind::metaspace)
        add_metaspace(step, word,
                      step.always ? !begins || start != TextStart::inside
                                  : step.first && begins && start == TextStart::whole,
                      next, made);
      else if (step.kind == SplitKind::letters)
        next.push_back(as_letters_of(word, made));
      else
        split_word(step, word, next);
    }
    letters = letters || step.kind == SplitKind::letters;
    std::swap(words, next);
  }
  if (letters)
    for (std::string_view& word : words) {
      std::string& bytes = made.emplace_back();
      bytes_of_letters(word, bytes);
      word = bytes;
    }
  return words;
}

}  // namespace hearth::inline text
