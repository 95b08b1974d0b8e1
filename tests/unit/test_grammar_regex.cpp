// Regular expressions as automata, against PCRE2 on random patterns and texts; what is refused; and
// patterns made to explode.
#include <gtest/gtest.h>

#include <random>
#include <set>

#include "grammar/automaton.h"
#include "grammar/json_schema.h"
#include "rewards/regex.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

bool matches(Automaton& a, std::string_view text) { return a.accepts(a.read(a.start(), text)); }

bool matches(std::string_view pattern, std::string_view text) {
  Automaton a{Network(regex_grammar(pattern, "regex"))};
  return matches(a, text);
}

struct RandomPattern {
  std::mt19937 random{5};
  int below(int n) { return int(random() % unsigned(n)); }

  std::string atom(int depth) {
    static const std::vector<std::string> atoms = {
        "a",      "b",      "c",   ".",    "[ab]",   "[^a]",    "[b-d]", "\\d",      "\\w", "\\s",
        "\\D",    "\\W",    "\\S", "é",    "[a-cé]", "\\x{e9}", "\\x61", "[^\\d]",   "\\.", "日",
        "[\\w-]", "[^é日]", "\\n", "[.*]", "1",      " ",       "[à-ü]", "[\\s\\d]", "-",   "{"};
    if (depth > 0 && below(3) == 0) return (below(2) ? "(" : "(?:") + choice(depth - 1) + ")";
    return atoms[size_t(below(int(atoms.size())))];
  }
  std::string piece(int depth) {
    static const std::vector<std::string> counts = {"*",    "+",     "?",  "{2}", "{0,2}",
                                                    "{1,}", "{2,3}", "*?", "{0}", "{1,3}?"};
    return atom(depth) + (below(3) == 0 ? counts[size_t(below(int(counts.size())))] : "");
  }
  std::string branch(int depth) {
    std::string s;
    for (int n = below(4); n > 0; --n) s += piece(depth);
    return s;
  }
  std::string choice(int depth) {
    std::string s = branch(depth);
    for (int n = below(3) == 0 ? 1 + below(2) : 0; n > 0; --n) s += "|" + branch(depth);
    return s;
  }
  // Characters on which PCRE2's classes, which know Unicode, agree with ASCII ones.
  std::string text() {
    static const std::vector<std::string> letters = {"a", "b", "c", "d",  "1", " ",
                                                     "-", ".", "{", "\n", "*", "2"};
    std::string s;
    for (int n = below(7); n > 0; --n) s += letters[size_t(below(int(letters.size())))];
    return s;
  }
};

TEST(GrammarRegex, AgreesWithPcre) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  RandomPattern r;
  int both = 0, pairs = 0;
  for (int i = 0; i < 1500; ++i) {
    const std::string pattern = r.choice(3);
    const Regex oracle("\\A(?:" + pattern + ")\\z");
    Automaton a{Network(regex_grammar(pattern, "regex"))};
    for (int k = 0; k < 60; ++k, ++pairs) {
      const std::string text = r.text();
      const std::optional<bool> want = oracle.found_in(text);
      if (!want) continue;
      ASSERT_EQ(matches(a, text), *want) << pattern << " on " << text;
      both += *want;
    }
  }
  EXPECT_GT(both, pairs / 50);
}

// Texts made by walking an automaton at random match, also with characters of several bytes.
TEST(GrammarRegex, WhatItWritesMatches) {
  if (!*regex_library()) GTEST_SKIP() << "built without PCRE2";
  std::mt19937 random(9);
  for (const char* pattern : {"[^a]{1,3}", ".{2,4}", "(é|日){1,2}[à-ü]", "[^\\x00-\\x7f]+",
                              "\\x{1f600}|[\\x{3040}-\\x{309f}]{2}", "a.b", "[^\\n\\r]{0,3}x"}) {
    const Regex oracle("\\A(?:" + std::string(pattern) + ")\\z");
    Automaton a{Network(regex_grammar(pattern, "regex"))};
    for (int i = 0; i < 200; ++i) {
      std::string text;
      StateId s = a.start();
      while (!a.ended(s) && !(a.accepts(s) && random() % 3 == 0)) {
        std::vector<uint8_t> next;
        for (int b = 0; b < 256; ++b)
          if (a.step(s, uint8_t(b)) != Automaton::dead) next.push_back(uint8_t(b));
        ASSERT_FALSE(next.empty());
        text += char(next[random() % next.size()]);
        s = a.step(s, uint8_t(text.back()));
      }
      EXPECT_EQ(valid_prefix(text), text.size());
      EXPECT_EQ(oracle.found_in(text), true) << pattern << " wrote " << text;
    }
  }
}

TEST(GrammarRegex, WholeTextMatches) {
  EXPECT_TRUE(matches("^abc$", "abc"));
  EXPECT_FALSE(matches("b", "abc"));
  EXPECT_TRUE(matches("^(a|b)c$|x", "bc"));
  EXPECT_TRUE(matches("(^a|^b)c", "bc"));
  EXPECT_TRUE(matches("a||b", ""));
  EXPECT_TRUE(matches("\\u00e9\\ud83d\\ude00", "é😀"));
  EXPECT_FALSE(matches(".", "\xff"));  // not UTF-8
  EXPECT_FALSE(matches("..", "é"));
  EXPECT_TRUE(matches("(?<year>\\d{4})-(?P<m>\\d\\d)", "2026-11"));
}

TEST(GrammarRegex, RefusesByName) {
  const std::vector<std::pair<std::string, std::string>> cases = {
      {"(?=a)", "lookahead"},
      {"(?!a)", "lookahead"},
      {"(?<=a)b", "lookbehind"},
      {"(a)\\1", "backreference"},
      {"\\bword", "word boundary"},
      {"(?>a)", "atomic"},
      {"(?i)a", "flags"},
      {"a++", "possessive"},
      {"\\p{L}", "Unicode property"},
      {"[[:alpha:]]", "POSIX"},
      {"a**", "second"},
      {"(a", "expected )"},
      {"a)", "end of the pattern"},
      {"[a", "expected ]"},
      {"[]", "expected a character"},
      {"*a", "something to repeat"},
      {"a{3,2}", "at least 3"},
      {"a{100000}", "at most 10000"},
      {"[z-a]", "lower to a higher"},
      {"\\", "after \\"},
      {"\\q", "known escape"},
      {"\\ud800", "code point"},
      {"a^b", "start of an alternative"},
      {"a$b", "end of an"},
      {"\xff", "UTF-8"},
      {"\\u12", "hexadecimal"},
      {"(?<n", "group name"}};
  for (const auto& [pattern, part] : cases) {
    const std::string said =
        message_of([&, &pattern = pattern] { regex_grammar(pattern, "regex"); });
    EXPECT_NE(said.find(part), std::string::npos) << pattern << ": " << said;
    EXPECT_EQ(said.find('\n'), std::string::npos);
    EXPECT_TRUE(said.starts_with("[regex] ")) << said;
  }
}

// Each ends soon: with a result, or with one clear error.
TEST(GrammarRegex, BombsAreBounded) {
  std::string deep(150, '('), wide;
  deep += "a" + std::string(150, ')');
  for (int i = 0; i < 3000; ++i) wide += "a{0,9}|";
  for (const std::string& pattern :
       {std::string("(a|b)*a(a|b){30}"), std::string("((a{1000}){1000}){1000}"),
        std::string("(a*)*b"), std::string("(a|aa)+"), std::string("((a?){1000}){1000}"),
        std::string("(.*a){50}"), std::string("(a|b|ab)*c(a|b){1000}"), deep, wide + "b",
        std::string("(((((a{9}){9}){9}){9}){9}){9}"), std::string("(.{0,1000}){0,1000}x"),
        std::string("(|a|)*"), std::string("([ab]{1,500}c?){1,500}")}) {
    try {
      Automaton a{Network(regex_grammar(pattern, "regex"))};
      a.allow(1'000'000);
      std::mt19937 random(1);
      StateId s = a.start();
      for (int i = 0; i < 2000 && s != Automaton::dead; ++i)
        s = a.step(s, random() % 2 ? 'a' : 'b');
    } catch (const Error& e) {
      EXPECT_TRUE(e.usage());
      EXPECT_NE(std::string(e.what()).find("too many ways"), std::string::npos) << e.what();
    }
  }
}

// Places that a byte does not continue are looked at too.
TEST(GrammarRegex, LookingAtPlacesIsWork) {
  std::string pattern = "(a?){800}b";
  for (char c = 'c'; c <= 'l'; ++c) pattern += std::string("|") + c + "1";
  Automaton a{Network(regex_grammar(pattern, "regex"))};
  a.allow(1000);
  const std::string said = message_of([&] {
    for (uint8_t c = 'c'; c <= 'l'; ++c) a.step(a.start(), c);
  });
  EXPECT_NE(said.find("too many ways"), std::string::npos) << said;
}

TEST(ScratchSet, HoldsWhatASetHolds) {
  std::mt19937_64 random(3);
  ScratchSet s;
  for (const size_t most : {5u, 3000u, 40u, 1u, 700u}) {
    std::set<uint64_t> want;
    for (size_t i = 0; i < most; ++i) {
      const uint64_t x = random() % (most + 1) << (random() % 2 * 32);
      EXPECT_EQ(s.insert(x), want.insert(x).second);
      EXPECT_EQ(s.size(), want.size());
    }
    s.clear();
    EXPECT_EQ(s.size(), 0u);
  }
}

}  // namespace
}  // namespace hearth
