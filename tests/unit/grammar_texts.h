// Automata of JSON schemas for tests, and texts that they write at random.
#pragma once

#include <gtest/gtest.h>

#include <random>

#include "grammar/automaton.h"
#include "grammar/json_schema.h"
#include "unit/schema_cases.h"

namespace hearth {

inline Automaton automaton(const SchemaJson& schema) {
  return Automaton{Network(schema_grammar(schema, "schema"))};
}
inline Automaton automaton(const char* schema) { return automaton(SchemaJson::parse(schema)); }

inline bool takes(Automaton& a, std::string_view text) {
  return a.accepts(a.read(a.start(), text));
}

// A text of the grammar: random bytes, with a liking for ASCII and, after a while, for the end.
inline std::string written(Automaton& a, std::mt19937& random, size_t most = 4000) {
  std::string text;
  StateId s = a.start();
  while (!a.ended(s) && text.size() < most) {
    if (a.accepts(s) && random() % 3 == 0) break;
    std::vector<char> next, closing;
    for (int b = 0; b < 256; ++b) {
      if (a.step(s, uint8_t(b)) == Automaton::dead) continue;
      if (b < 0x80 || random() % 8 == 0) next.push_back(char(b));
      if (b == '"' || b == '}' || b == ']') closing.push_back(char(b));
      if (next.empty() && b == 255) break;
    }
    if (next.empty())
      for (int b = 0; b < 256; ++b)
        if (a.step(s, uint8_t(b)) != Automaton::dead) next.push_back(char(b));
    EXPECT_FALSE(next.empty()) << "a dead end after " << text;
    if (next.empty()) break;
    const auto& from = !closing.empty() && random() % 3 == 0 ? closing : next;
    text += from[random() % from.size()];
    s = a.step(s, uint8_t(text.back()));
  }
  return text;
}

}  // namespace hearth
