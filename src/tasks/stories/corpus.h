// The embedded corpus: short stories from a small built-in grammar. Every choice is uniform, and
// the text determines the choices that made it (test_data_corpus proves it), so the entropy is
// exact: a model that reads stories separated by an end token cannot get below nats_per_story /
// (tokens per story, including the end token).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "tasks/stories/grammar.h"

namespace hearth::inline tasks {

const Grammar& story_grammar();  // rules and word lists are in corpus_grammar.cpp

struct Story {
  std::string text;  // one paragraph, without a line end
  double nats = 0;   // exact -log p(text)
};

// Story `index` of the corpus `seed`; each story can be generated independently.
Story make_story(uint64_t seed, uint64_t index);

// -log p of a text under the grammar; nothing if the grammar cannot produce it.
std::optional<double> story_nats(std::string_view text);

struct CorpusEntropy {
  double nats_per_story = 0,
         chars_per_story = 0;  // expectations, computed by recursion over the grammar
  double nats_per_char() const { return nats_per_story / chars_per_story; }
};
CorpusEntropy corpus_entropy();

}  // namespace hearth::inline tasks
