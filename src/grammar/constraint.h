// Constraint: what the text of a completion must match, as masks over the tokens of a vocabulary.
// Masks are kept for the states that were met, and threads compute those of new states while the
// model runs.
#pragma once

#include <atomic>
#include <future>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <tuple>

#include "grammar/token_trie.h"
#include "sys/task_threads.h"

namespace hearth::inline grammar {

using MaskPtr = std::shared_ptr<const TokenMask>;

struct ConstraintLimits {
  int64_t state_bytes = 24 << 20;   // states beyond it are forgotten, and found again when needed
  int64_t text_work = 200'000'000;  // to mask and to find again one text: about 5 s
  int threads = 0;                  // that compute masks; 0: by the number of cores
};

// A grammar with the vocabulary that writes it. Thread-safe; shared by all completions under it.
class Constraint : public std::enable_shared_from_this<Constraint> {
 public:
  Constraint(const ByteGrammar&, Tokenizer, std::shared_ptr<const TokenTrie>,
             std::weak_ptr<TaskThreads>, ConstraintLimits, std::vector<int32_t> marks = {});

  const Tokenizer& tokenizer() const { return tokenizer_; }

 private:
  friend class ConstraintCursor;
  // A place in a text: what was read, and the state after it while `epoch` is current.
  struct At {
    std::string text = {};
    StateId state = 0;
    uint64_t epoch = 0;
    bool strips = false;
    // Work that masks of this text and reading it again may still take; known states take none.
    std::shared_ptr<std::atomic<int64_t>> work_left = {};
  };
  struct Reached {
    bool valid, accepts, ended;
  };
  Reached advance(At&, std::string_view bytes);
  // The mask if it is known; otherwise a promise of it.
  std::shared_future<MaskPtr> mask(const At&);
  // The states of one automaton, which others may replace meanwhile.
  struct Epoch {
    uint64_t number = 0;
    std::shared_ptr<Automaton> automaton = {};
  };
  MaskPtr compute(At);
  static StateId find(At&, const Epoch&);
  template <class F>
  auto guarded(F&&);
  void forget();

  const Tokenizer tokenizer_;
  const std::shared_ptr<const TokenTrie> trie_;
  const std::weak_ptr<TaskThreads> threads_;  // a task may be the last to hold the constraint
  const std::shared_ptr<const Network> network_;
  const ConstraintLimits limits_;
  const std::vector<int32_t> marks_;  // special tokens that may write the text

  std::mutex mutex_;  // of what follows; never held while an automaton reads
  std::shared_ptr<Automaton> automaton_;
  uint64_t epoch_ = 0;  // states of earlier epochs were forgotten
  using Key = std::pair<StateId, bool>;
  struct Kept {
    std::shared_future<MaskPtr> mask;
    std::list<Key>::iterator used;
  };
  std::map<Key, Kept> masks_;
  std::list<Key> used_;  // most recently used first
};

// The place of one completion in its constrained text.
class ConstraintCursor {
 public:
  // `strips`: a space at the start of the first token is not part of the text.
  ConstraintCursor(std::shared_ptr<Constraint>, bool strips);

  // Reads a token that the mask allows.
  void accept(int32_t token);
  // Waits for the mask of the next token. Throws a usage error if the text is too ambiguous, if its
  // masks have taken too much work, or if the vocabulary cannot write it.
  const TokenMask& mask();
  bool accepts() const { return accepts_; }  // the text may end here
  bool ended() const { return ended_; }      // and nothing may follow

 private:
  std::shared_ptr<Constraint> constraint_;
  Constraint::At at_;
  std::shared_future<MaskPtr> next_;
  bool accepts_ = false, ended_ = false;
};

// What the text of a completion must be.
struct ConstraintSpec {
  enum class Kind : uint8_t { none, json_object, json_schema, regex, choice, tools };
  Kind kind = Kind::none;
  // The schema as JSON; the pattern; a JSON list of texts; for tools {"key": .., "tools":
  // [{"name": .., "parameters": schema}, ..]}, of which one is called. With "text": {"opening": ..,
  // "closing": .., "parallel": ..} beside them the text is free except for its calls; an opening
  // without a closing stands at the start of the text, or is left out.
  std::string text = {};
  std::string where = {};               // names it in errors
  std::string before = {}, after = {};  // text around it
  // Texts of special tokens that may write parts of it; no others may.
  std::vector<std::string> marks = {};

  bool operator<(const ConstraintSpec& o) const {
    return std::tie(kind, text, where, before, after, marks) <
           std::tie(o.kind, o.text, o.where, o.before, o.after, o.marks);
  }
};

// Makes the constraints of one vocabulary, and keeps those used last. Thread-safe.
class ConstraintMaker {
 public:
  explicit ConstraintMaker(Tokenizer, ConstraintLimits = {});
  // Null for none. Throws a usage error.
  std::shared_ptr<Constraint> make(const ConstraintSpec&);

 private:
  const Tokenizer tokenizer_;
  const ConstraintLimits limits_;
  std::mutex mutex_;
  std::shared_ptr<const TokenTrie> trie_;  // made when first needed
  std::shared_ptr<TaskThreads> threads_;
  std::list<std::pair<ConstraintSpec, std::shared_ptr<Constraint>>> kept_;  // last used first
};

}  // namespace hearth::inline grammar
