#include "tasks/stories/corpus.h"

#include "data/permutation.h"

namespace hearth::inline tasks {

Story make_story(uint64_t seed, uint64_t index) {
  // A counter-based generator: story `index` does not depend on earlier stories.
  const uint64_t key = mix64(mix64(seed) ^ mix64(~index));
  uint64_t counter = 0;
  const auto pick = [&](uint32_t n) {
    const uint64_t fair = UINT64_MAX - UINT64_MAX % n;  // larger values would bias the remainder
    uint64_t x;
    do x = mix64(key + counter++);
    while (x >= fair);
    return uint32_t(x % n);
  };
  Story story;
  story.nats = story_grammar().sample(story.text, pick);
  return story;
}

std::optional<double> story_nats(std::string_view text) { return story_grammar().nats(text); }

CorpusEntropy corpus_entropy() {
  return {story_grammar().entropy(), story_grammar().mean_length()};
}

}  // namespace hearth::inline tasks
