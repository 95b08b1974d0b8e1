// The embedded corpus: short stories from a small grammar of our own. Every choice is uniform and a
// story's text tells which choices made it (test_data_corpus proves it), so the entropy is exact: a
// model that reads stories separated by an end token cannot get below
// nats_per_story / (tokens per story, end token included).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tasks/stories/grammar.h"

namespace hearth {

const Grammar& story_grammar();  // its rules and word lists: corpus_grammar.cpp

struct Story {
  std::string text;  // one paragraph, without a line end
  double nats = 0;   // -log p(text), exact
};

// The story `index` of the corpus `seed`: any part of a corpus can be made on its own.
Story make_story(uint64_t seed, uint64_t index);

// -log p of a text under the grammar; nothing when no choices yield it.
std::optional<double> story_nats(std::string_view text);

struct CorpusEntropy {
  double nats_per_story = 0, chars_per_story = 0;  // expectations, by recursion over the grammar
  double nats_per_char() const { return nats_per_story / chars_per_story; }
};
CorpusEntropy corpus_entropy();

}  // namespace hearth
