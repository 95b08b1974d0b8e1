#include "model/files/answer_ends.h"

#include <algorithm>

namespace hearth::inline model {

std::vector<int32_t> answer_ends_of(const ModelSource& source, const ChatTemplate* chat,
                                    const Tokenizer& t) {
  std::vector<int32_t> ends;
  const auto add = [&](int32_t id) {
    if (id >= 0 && std::ranges::find(ends, id) == ends.end()) ends.push_back(id);
  };
  for (const int32_t id : generation_ends(source.path(), t)) add(id);
  // An adapter's own folder may name further tokens that end its answers.
  if (source.tokenizer() != source.path())
    for (const int32_t id : generation_ends(source.tokenizer(), t)) add(id);
  if (chat) add(turn_end(*chat, t));
  return ends;
}

}  // namespace hearth::inline model
