#include "data/cursor_state.h"

namespace hearth::inline data {

nlohmann::json cursor_to_json(const Cursor& c) {
  nlohmann::json j{
      {"epoch", c.epoch}, {"shard", c.shard}, {"position", c.position}, {"tokens", c.tokens}};
  for (const SourceCursor& s : c.sources)
    j["sources"].push_back(
        {{"epoch", s.epoch}, {"shard", s.shard}, {"position", s.position}, {"tokens", s.tokens}});
  return j;
}

Cursor cursor_of(const StateFields& f) {
  constexpr size_t max_sources = 4096;
  Cursor c{f.integer("epoch"), f.integer("shard"), f.integer("position"), f.integer("tokens")};
  if (f.has("sources"))
    for (const StateFields& s : f.objects("sources", max_sources))
      c.sources.push_back(
          {s.integer("epoch"), s.integer("shard"), s.integer("position"), s.integer("tokens")});
  return c;
}

}  // namespace hearth::inline data
