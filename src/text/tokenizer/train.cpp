// Two stages: count the words of the text in parallel, then merge pairs of symbols one by one,
// touching only the words that contain the pair. Memory grows with the number of distinct words,
// not with the text.
#include "text/tokenizer/train.h"

#include <algorithm>
#include <array>
#include <queue>
#include <tuple>

#include "formats/json.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/utf8.h"
#include "text/tokenizer/scanner.h"
#include "text/tokenizer/vocabulary.h"

namespace hearth::inline text {
namespace {

// Longer words are split: a megabyte without a space is not a word, and merging it would dominate.
constexpr size_t longest_word = 1024;
constexpr size_t batch_bytes = 16 << 20;

class WordCounts {
 public:
  struct Word {
    size_t begin = 0;
    uint32_t length = 0, hash = 0;
    int64_t count = 0;  // 0: empty slot
  };

  void add(std::string_view word, int64_t count) {
    if (2 * used_ >= slots_.size()) grow();
    const uint32_t hash = hash_of(word);
    size_t i = hash & (slots_.size() - 1);
    for (; slots_[i].count != 0; i = (i + 1) & (slots_.size() - 1))
      if (slots_[i].hash == hash && text(slots_[i]) == word) {
        slots_[i].count += count;
        return;
      }
    slots_[i] = {bytes_.size(), uint32_t(word.size()), hash, count};
    bytes_ += word;
    ++used_;
  }

  void add_text(std::string_view text, Scanner scan) {
    const char *p = text.data(), *end = p + text.size();
    while (p < end) {
      const char* q = scan(p, end);
      for (; p < q; p += std::min<size_t>(longest_word, size_t(q - p)))
        add({p, std::min<size_t>(longest_word, size_t(q - p))}, 1);
    }
  }

  void add_all(const WordCounts& other) {
    for (const Word& w : other.slots_)
      if (w.count) add(other.text(w), w.count);
  }

  std::string_view text(const Word& w) const { return {bytes_.data() + w.begin, w.length}; }
  const std::vector<Word>& slots() const { return slots_; }

 private:
  static uint32_t hash_of(std::string_view word) {
    uint64_t h = std::hash<std::string_view>()(word);
    return uint32_t(h ^ h >> 32);
  }

  void grow() {
    std::vector<Word> old(std::max<size_t>(1024, 2 * slots_.size()));
    old.swap(slots_);
    for (const Word& w : old) {
      if (!w.count) continue;
      size_t i = w.hash & (slots_.size() - 1);
      while (slots_[i].count) i = (i + 1) & (slots_.size() - 1);
      slots_[i] = w;
    }
  }

  std::string bytes_;
  std::vector<Word> slots_;
  size_t used_ = 0;
};

WordCounts count_words(const TextSource& next, Scanner scan, const BpeTrainSpec& spec,
                       Threads& threads) {
  std::vector<WordCounts> counts(static_cast<size_t>(threads.count()));
  std::vector<std::string> batch;
  size_t bytes = 0, done = 0;
  const auto count_batch = [&] {
    threads.run(int64_t(batch.size()), [&](int64_t i, int worker) {
      counts[size_t(worker)].add_text(batch[size_t(i)], scan);
    });
    done += bytes;
    bytes = 0;
    batch.clear();
    if (spec.progress) spec.progress("count", int64_t(done));
  };
  for (std::string text; next(text);) {
    bytes += text.size();
    batch.push_back(std::move(text));
    text.clear();
    if (bytes >= batch_bytes) count_batch();
  }
  count_batch();
  for (size_t i = 1; i < counts.size(); ++i) counts[0].add_all(counts[i]);
  return std::move(counts[0]);
}

struct Pair {
  int32_t left, right;
  int64_t count = 0;
  std::vector<uint32_t> words = {};  // that contain it, or did earlier
  bool queued = false;               // will be pushed after the current merge
};

struct Candidate {
  int64_t count;
  int32_t left, right;
  uint32_t pair;
  // The top of the heap is the largest: highest count, then lowest ids.
  bool operator<(const Candidate& o) const {
    return std::tuple(count, o.left, o.right) < std::tuple(o.count, left, right);
  }
};

class Trainer {
 public:
  explicit Trainer(const WordCounts& counts) {
    std::array<int32_t, 256> ids;
    for (int32_t i = 0; i < 256; ++i) {
      const auto b = byte_order()[size_t(i)];
      ids[b] = i;
      add_token(std::string(1, char(b)));
    }
    for (const WordCounts::Word& w : counts.slots()) {
      if (w.count == 0 || w.length < 2) continue;
      words_.push_back({symbols_.size(), w.length, w.count});
      for (const char c : counts.text(w)) symbols_.push_back(ids[uint8_t(c)]);
    }
    index_.resize(1 << 16, none);
    for (uint32_t w = 0; w < words_.size(); ++w) {
      const int32_t* s = symbols_.data() + words_[w].begin;
      for (size_t i = 0; i + 1 < words_[w].length; ++i) change(s[i], s[i + 1], w, words_[w].count);
    }
    queue_changed();
  }

  void learn(const BpeTrainSpec& spec, size_t vocab) {
    while (tokens_.size() < vocab) {
      const uint32_t best = take_best();
      if (best == none) return;
      merge(best);
      if (spec.progress && merges_.size() % 256 == 0)
        spec.progress("merge", int64_t(merges_.size()));
    }
  }

  VocabularyParts parts() && {
    VocabularyParts parts{.where = "tokenizer train"};
    parts.tokens = std::move(tokens_);
    parts.merges = std::move(merges_);
    return parts;
  }

 private:
  static constexpr uint32_t none = UINT32_MAX;
  struct Word {
    size_t begin;  // index in symbols_
    uint32_t length;
    int64_t count;
  };

  // Two merges can produce the same bytes ("ab"+"c", "a"+"bc"): they are one token.
  int32_t add_token(const std::string& bytes) {
    const auto [it, fresh] = ids_.emplace(bytes, int32_t(tokens_.size()));
    if (fresh) tokens_.push_back({bytes, it->second});
    return it->second;
  }

  size_t slot_of(int32_t left, int32_t right) const {
    const uint64_t key = uint64_t(uint32_t(left)) << 32 | uint32_t(right);
    const uint64_t h = key * 0x9e3779b97f4a7c15ull;
    return size_t(h ^ h >> 32) & (index_.size() - 1);
  }

  uint32_t pair_of(int32_t left, int32_t right) {
    size_t i = slot_of(left, right);
    for (; index_[i] != none; i = (i + 1) & (index_.size() - 1))
      if (pairs_[index_[i]].left == left && pairs_[index_[i]].right == right) return index_[i];
    const auto added = index_[i] = uint32_t(pairs_.size());
    pairs_.push_back({.left = left, .right = right});
    if (2 * pairs_.size() > index_.size()) grow_index();
    return added;
  }

  void grow_index() {
    index_.assign(2 * index_.size(), none);
    for (uint32_t p = 0; p < pairs_.size(); ++p) {
      size_t i = slot_of(pairs_[p].left, pairs_[p].right);
      while (index_[i] != none) i = (i + 1) & (index_.size() - 1);
      index_[i] = p;
    }
  }

  void change(int32_t left, int32_t right, uint32_t word, int64_t by) {
    const uint32_t p = pair_of(left, right);
    Pair& pair = pairs_[p];
    pair.count += by;
    if (by < 0) return;
    if (pair.words.empty() || pair.words.back() != word) pair.words.push_back(word);
    if (!pair.queued) changed_.push_back(p);
    pair.queued = true;
  }

  void queue_changed() {
    for (const uint32_t p : changed_) {
      Pair& pair = pairs_[p];
      pair.queued = false;
      if (pair.count > 0) heap_.push({pair.count, pair.left, pair.right, p});
    }
    changed_.clear();
  }

  // Counts on the heap may be too high, never too low: a stale one is pushed again with its true
  // count.
  uint32_t take_best() {
    while (!heap_.empty()) {
      Candidate top = heap_.top();
      heap_.pop();
      const int64_t count = pairs_[top.pair].count;
      if (top.count == count) return top.pair;
      if (count > 0 && count < top.count) {
        top.count = count;
        heap_.push(top);
      }
    }
    return none;
  }

  void merge(uint32_t p) {
    const int32_t left = pairs_[p].left, right = pairs_[p].right;
    const std::vector<uint32_t> words = std::move(pairs_[p].words);
    const int32_t made = add_token(tokens_[size_t(left)].bytes + tokens_[size_t(right)].bytes);
    merges_.push_back({left, right, made});
    for (const uint32_t w : words) merge_in(w, left, right, made);
    pairs_[p].count = 0;
    pairs_[p].words.clear();
    queue_changed();
  }

  void merge_in(uint32_t w, int32_t left, int32_t right, int32_t made) {
    Word& word = words_[w];
    int32_t* s = symbols_.data() + word.begin;
    size_t n = 0;
    for (size_t i = 0; i < word.length; ++i) {
      if (s[i] != left || i + 1 == word.length || s[i + 1] != right) {
        s[n++] = s[i];
        continue;
      }
      if (n > 0) {
        change(s[n - 1], left, w, -word.count);
        change(s[n - 1], made, w, word.count);
      }
      if (i + 2 < word.length) {
        change(right, s[i + 2], w, -word.count);
        change(made, s[i + 2], w, word.count);
      }
      s[n++] = made;
      ++i;
    }
    word.length = uint32_t(n);
  }

  std::vector<Token> tokens_;
  TextIds ids_;
  std::vector<Merge> merges_;
  std::vector<Word> words_;
  std::vector<int32_t> symbols_;
  std::vector<Pair> pairs_;
  std::vector<uint32_t> index_;  // hash slots: index in pairs_, or none
  std::vector<uint32_t> changed_;
  std::priority_queue<Candidate> heap_;
};

void check_special(const std::vector<std::string>& special) {
  for (auto it = special.begin(); it != special.end(); ++it) {
    if (it->empty()) fail_usage("--special", "expected the text of a token, got an empty one");
    if (!is_utf8(*it))
      fail_usage("--special", "expected UTF-8, which tokenizer.json is written in, got {}",
                 in_quotes(*it));
    if (std::find(special.begin(), it, *it) != it)
      fail_usage("--special", "expected each token once, got {} twice; every tokenizer has {}",
                 in_quotes(*it), in_quotes(special[0]));
  }
}

// Hugging Face would give a special token that is spelled like a learned one, as bytes or as
// tokenizer.json writes them, the id of that one.
void check_not_learned(const std::vector<std::string>& special, const std::vector<Token>& tokens) {
  for (const std::string& text : special) {
    std::string bytes;
    const bool letters = bytes_of_letters(text, bytes);
    for (const Token& t : tokens)
      if (t.bytes == text || (letters && t.bytes == bytes))
        fail_usage("--special",
                   "{} is already in the vocabulary, as id {}: choose a text that is not a word "
                   "or a part of one",
                   in_quotes(text), t.id);
  }
}

}  // namespace

Tokenizer train_bpe(const BpeTrainSpec& spec, const TextSource& next, Threads& threads) {
  const std::optional<Pattern> pattern = pattern_named(spec.pattern);
  if (!pattern)
    fail_usage("tokenizer train", "expected pattern {}, got {}", pattern_names(), spec.pattern);
  const size_t least = 256 + spec.special.size();
  if (spec.vocab < 0 || size_t(spec.vocab) < least || spec.vocab > 1 << 24)
    fail_usage("tokenizer train",
               "expected a vocabulary of {} (256 bytes and {}) to 16777216, got {}", least,
               counted(int64_t(spec.special.size()), "special token"), spec.vocab);
  check_special(spec.special);
  Trainer trainer(count_words(next, scanner_of(*pattern), spec, threads));
  trainer.learn(spec, size_t(spec.vocab) - spec.special.size());
  VocabularyParts parts = std::move(trainer).parts();
  parts.text.pattern = *pattern;
  check_not_learned(spec.special, parts.tokens);
  for (const std::string& text : spec.special)
    parts.added.push_back({text, int32_t(parts.tokens.size() + parts.added.size())});
  if (!parts.added.empty()) parts.eos = parts.bos = parts.added[0].id;
  return Tokenizer(make_vocabulary(std::move(parts)));
}

}  // namespace hearth::inline text
