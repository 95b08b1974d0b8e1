// The embedded corpus: its entropy is exact, its texts tell their choices, any part can be made.
#include "tasks/stories/corpus.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "sys/error.h"

namespace hearth {
namespace {

WordList words(std::initializer_list<const char*> items) {
  WordList list{{"word"}, {}};
  for (const char* item : items) list.rows.push_back({item});
  return list;
}

struct Outcome {
  std::string text;
  double nats, p;
};

// Every sequence of choices of a small grammar, by counting through them like an odometer.
std::vector<Outcome> enumerate(const Grammar& grammar) {
  std::vector<Outcome> all;
  std::vector<std::pair<uint32_t, uint32_t>> digits;  // (value, base)
  for (;;) {
    size_t used = 0;
    Outcome o{.text = "", .nats = 0, .p = 1};
    o.nats = grammar.sample(o.text, [&](uint32_t n) {
      if (used == digits.size()) digits.emplace_back(0, n);
      EXPECT_EQ(digits[used].second, n);
      o.p /= n;
      return digits[used++].first;
    });
    all.push_back(o);
    while (!digits.empty() && digits.back().first + 1 == digits.back().second) digits.pop_back();
    if (digits.empty()) return all;
    ++digits.back().first;
  }
}

Grammar::Source small() {
  return {.lists = {{"name", {{"name", "he"}, {{"Ann", "she"}, {"Bob", "he"}, {"Cleo", "she"}}}},
                    {"toy", words({"kite", "ball"})}},
          .rules = {{"start", {"{a=name} met {b=name!a}. <plot>", "Once {a=name} slept.<end>"}},
                    {"plot",
                     {"{a.he} [ran|hid [well|badly]].", "They had a {t=toy}, a {:toy!t}.",
                      "{b} took {:name}'s {:toy}."}},
                    {"end", {" The end."}}},
          .start = "start"};
}

TEST(Grammar, ExpectationsEqualFullEnumeration) {
  const Grammar grammar(small());
  double total = 0, entropy = 0, length = 0;
  std::set<std::string> texts;
  const std::vector<Outcome> all = enumerate(grammar);
  for (const Outcome& o : all) {
    EXPECT_NEAR(o.nats, -std::log(o.p), 1e-12);
    total += o.p;
    entropy -= o.p * std::log(o.p);
    length += o.p * double(o.text.size());
    texts.insert(o.text);
    ASSERT_TRUE(grammar.nats(o.text).has_value()) << o.text;
    EXPECT_NEAR(*grammar.nats(o.text), o.nats, 1e-12);
  }
  EXPECT_GT(all.size(), 50u);
  EXPECT_EQ(texts.size(), all.size());  // distinct choices, distinct texts
  EXPECT_FALSE(grammar.find_ambiguity().has_value());
  EXPECT_NEAR(total, 1, 1e-12);
  EXPECT_NEAR(grammar.entropy(), entropy, 1e-12);
  EXPECT_NEAR(grammar.mean_length(), length, 1e-12);
}

TEST(Grammar, FindsAmbiguity) {
  const auto ambiguous = [](WordList list, std::vector<std::string> start) {
    return Grammar({.lists = {{"l", std::move(list)}},
                    .rules = {{"s", std::move(start)}},
                    .start = "s"})
        .find_ambiguity()
        .has_value();
  };
  EXPECT_TRUE(ambiguous(words({"car", "cart"}), {"{:l} x"}));
  EXPECT_TRUE(ambiguous(words({"car", "car"}), {"{:l}"}));
  EXPECT_FALSE(ambiguous(words({"car", "bar"}), {"{:l} x"}));
  EXPECT_TRUE(ambiguous(words({"car", "bar"}), {"{:l} a", "car b", "bar a"}));
  EXPECT_FALSE(ambiguous(words({"car", "bar"}), {"{:l} a", "{:l} b"}));
  EXPECT_TRUE(ambiguous(words({"car", "bar"}), {"{:l} a", "x [|y] z"}));  // nothing begins all
  EXPECT_TRUE(ambiguous(words({"a"}), {"x[a|ab]", "y"}));
  EXPECT_TRUE(ambiguous(words({"a", "b"}), {"{v=l} [{v} x|a x]"}));  // if v is "a"
}

TEST(Grammar, RefusesBadTemplates) {
  const auto make = [](const char* text) {
    Grammar g({.lists = {{"l", words({"x"})}, {"m", words({"x"})}},
               .rules = {{"s", {text}}, {"loop", {"<loop>"}}},
               .start = "s"});
  };
  make("{v=l} {v} [a|b]");
  for (const char* bad : {"{v}", "{v=none}", "<none>", "<loop>", "{v=l}{v.no}", "{v=l}{v=l}",
                          "[a|b", "{v=l", "[{v=l}|a] {v}", "{v=l}{:m!v}"})
    EXPECT_THROW(make(bad), Error) << bad;
}

TEST(Corpus, SampleMeanMeetsTheExactEntropy) {
  const CorpusEntropy exact = corpus_entropy();
  const int n = 20000;
  double nats = 0, nats2 = 0, chars = 0, chars2 = 0;
  for (int i = 0; i < n; ++i) {
    const Story s = make_story(11, uint64_t(i));
    const double c = double(s.text.size());
    nats += s.nats;
    nats2 += s.nats * s.nats;
    chars += c;
    chars2 += c * c;
  }
  const auto sigma = [&](double sum, double sum2) {
    return std::sqrt((sum2 / n - sum / n * (sum / n)) / n);
  };
  EXPECT_NEAR(nats / n, exact.nats_per_story, 4 * sigma(nats, nats2));
  EXPECT_NEAR(chars / n, exact.chars_per_story, 4 * sigma(chars, chars2));
}

// Each choice is a prefix code, so a reader knows it as soon as it is made: the text determines all
// choices, and -log p of the choices is -log p of the text.
TEST(Corpus, TextsTellTheirChoices) {
  const auto ambiguity = story_grammar().find_ambiguity();
  EXPECT_FALSE(ambiguity.has_value()) << *ambiguity;
  std::set<std::string> texts;
  for (uint64_t i = 0; i < 3000; ++i) {
    const Story s = make_story(5, i);
    const auto nats = story_nats(s.text);
    ASSERT_TRUE(nats.has_value()) << s.text;
    EXPECT_NEAR(*nats, s.nats, 1e-9);
    texts.insert(s.text);
  }
  EXPECT_EQ(texts.size(), 3000u);
}

TEST(Corpus, OtherTextsHaveNoProbability) {
  const std::string text = make_story(1, 0).text;
  EXPECT_FALSE(story_nats("").has_value());
  EXPECT_FALSE(story_nats(text + " ").has_value());
  EXPECT_FALSE(story_nats(text.substr(0, text.size() - 1)).has_value());
  EXPECT_FALSE(story_nats("A dog sat.").has_value());
}

TEST(Corpus, IsTheSameEverywhere) {
  EXPECT_EQ(make_story(1, 7).text, make_story(1, 7).text);
  EXPECT_NE(make_story(1, 7).text, make_story(2, 7).text);
  EXPECT_NE(make_story(1, 7).text, make_story(1, 8).text);
  EXPECT_NE(make_story(1, 2).text, make_story(2, 1).text);
  // Pinned: a corpus named by a seed must not change by accident.
  EXPECT_EQ(make_story(1, 0).text,
            "This is the story of Leo, a cheerful boy who lived close to the desert. More "
            "than anything, he loved to dance. It was a misty season, full of salt. One "
            "evening he wanted to make a present for his uncle. He took a stick and three "
            "black buttons and sat down on the roof. He worked gently, but it broke. This "
            "made him tired. He asked a tired pony for help. \"Try again,\" it neighed. By "
            "evening there was a round violet boat, and it floated. The uncle was content. "
            "From that day on, he and the pony were best friends. Remember: there is no "
            "place like home.");
}

TEST(Corpus, StoriesAreShortParagraphs) {
  std::set<std::string> used;
  for (uint64_t i = 0; i < 2000; ++i) {
    const std::string text = make_story(3, i).text;
    EXPECT_GE(text.size(), 300u) << text;
    EXPECT_LE(text.size(), 700u) << text;
    EXPECT_EQ(text.find_first_of("\n{}[]<>|="), text.npos) << text;
    EXPECT_EQ(text.find("  "), text.npos) << text;
    EXPECT_EQ(text.back(), '.');
  }
}

}  // namespace
}  // namespace hearth
