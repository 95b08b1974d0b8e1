// Constrained completions: masks against brute force, and engines whose every text matches, with
// tokens drawn by the host and by a device, alone and beside unconstrained sequences.
#include <gtest/gtest.h>

#include <map>
#include <random>

#include "formats/json.h"
#include "grammar/constraint.h"
#include "grammar/json_schema.h"
#include "infer/block_pool.h"
#include "infer/runner.h"
#include "unit/drawing_backend.h"
#include "unit/infer_model.h"
#include "unit/message_of.h"
#include "unit/schema_cases.h"

namespace hearth {
namespace {

using Kind = ConstraintSpec::Kind;

// Bytes, words of several bytes, parts of characters, and special tokens.
Tokenizer word_tokenizer() {
  VocabularyParts parts{.where = "test"};
  for (int i = 0; i < 256; ++i) parts.tokens.push_back({std::string(1, char(i)), int32_t(i)});
  for (const char* word :
       {"{\"", "\":", "\": ", "\",", "\"}", "ab", "abc", "true", "12", "-1", "  ", "\xc3\xa9",
        "\xe6\x97", "\xe6\x97\xa5", "\n  ", "[]", "]}", "name", "null"})
    parts.tokens.push_back({word, int32_t(parts.tokens.size())});
  const int32_t next = int32_t(parts.tokens.size());
  parts.added = {{"<|end|>", next}, {"<|x|>", next + 1}, {"<t>", next + 2, false}};
  parts.eos = next;
  return Tokenizer(make_vocabulary(std::move(parts)));
}

ModelConfig config_for(const Tokenizer& t) {
  ModelConfig c = tiny_config();
  c.vocab = t.vocab_size(), c.context = 256;
  return c;
}

const char* person =
    R"({"type": "object", "properties": {"name": {"type": "string", "maxLength": 5},
  "n": {"type": "integer", "minimum": -20, "maximum": 300}, "ok": {"type": "boolean"},
  "l": {"type": "array", "items": {"enum": ["ab", "abc", null]}, "maxItems": 3}},
  "required": ["name", "l"]})";

TEST(TokenTrie, MasksAreWhatEachTokenWouldDo) {
  const Tokenizer t = word_tokenizer();
  const TokenTrie trie(t);
  std::mt19937 random(2);
  for (const bool strips : {false, true}) {
    Automaton a{Network(schema_grammar(SchemaJson::parse(person), "schema"))};
    StateId s = a.start();
    for (int step = 0; step < 60 && !a.ended(s); ++step) {
      int64_t work = 1'000'000;
      const TokenMask mask = trie.allowed(a, s, strips, work);
      std::vector<int32_t> some;
      for (int32_t id = 0; id < t.vocab_size(); ++id) {
        std::string_view bytes = t.bytes_of(id);
        const bool special = id == t.eos() || id == t.eos() + 1;
        if (strips && bytes.starts_with(' ')) bytes.remove_prefix(1);
        const bool want = !special && !bytes.empty() && a.read(s, bytes) != Automaton::dead;
        ASSERT_EQ(mask.has(id), want) << id << " after " << step;
        if (want) some.push_back(id);
      }
      ASSERT_EQ(mask.any, !some.empty());
      const int32_t token = some[random() % some.size()];
      s = a.read(s, t.bytes_of(token).substr(strips && t.bytes_of(token)[0] == ' '));
    }
  }
}

struct Constrained {
  explicit Constrained(Backend& b)
      : tokenizer(word_tokenizer()), maker(tokenizer), model(b, config_for(tokenizer)) {}

  EngineSpec spec() const { return {.max_batch = 6, .step_tokens = 16, .tokenizer = &tokenizer}; }
  Request request(ConstraintSpec c, float temperature, uint64_t seed, int64_t most = 200) {
    return {.prompt = {int32_t(seed % 200), 5, 7},
            .sampling = {.temperature = temperature, .seed = seed, .max_tokens = most},
            .constraint = maker.make(c)};
  }

  Tokenizer tokenizer;
  ConstraintMaker maker;
  TinyModel model;
};

const ConstraintSpec by_schema{.kind = Kind::json_schema, .text = person, .where = "schema"};
const ConstraintSpec by_regex{.kind = Kind::regex, .text = "(ab|c){2,6}é?", .where = "regex"};

TEST(ConstrainedEngine, EveryTextMatches) {
  const auto backend = make_cpu_backend(1);
  Constrained c(*backend);
  Engine e = c.model.engine(c.spec());
  std::vector<Request> all;
  for (uint64_t seed = 0; seed < 40; ++seed)
    all.push_back(c.request(seed % 3 ? by_schema : by_regex, seed % 4 ? 1.3f : 0.f, seed));
  all[3].n = 3;
  all[4].sampling.top_k = 2, all[4].sampling.top_p = 0.3f;
  all[5].sampling.repetition_penalty = 1.7f, all[5].sampling.logprobs = 2;
  const auto results = e.run(all);
  const SchemaJson schema = SchemaJson::parse(person);
  std::set<std::string> distinct;
  for (size_t i = 0; i < all.size(); ++i)
    for (const Completion& r : results[i]) {
      EXPECT_EQ(r.finish_reason, "stop");
      distinct.insert(r.text);
      const bool fits = i % 3 ? SchemaJudge(schema).fits(SchemaJson::parse(r.text))
                              : r.text.starts_with("ab") || r.text.starts_with("c");
      EXPECT_TRUE(fits) << r.text;
    }
  EXPECT_GT(distinct.size(), 30u);
  // Log-probabilities are those of the model, which may prefer a token that is not allowed.
  for (const TokenLogprob& p : results[5][0].logprobs) EXPECT_EQ(p.top.size(), 2u);
}

TEST(ConstrainedEngine, EndsByLengthAndByErrors) {
  const auto backend = make_cpu_backend(1);
  Constrained c(*backend);
  Engine e = c.model.engine(c.spec());
  // A text that is cut may match all the same.
  const ConstraintSpec letters{.kind = Kind::regex, .text = "[a-z]*", .where = "r"};
  for (const auto& [spec, matches] : {std::pair{by_schema, false}, {letters, true}}) {
    Request cut = c.request(spec, 1, 3, 4);
    cut.sampling.min_tokens = 4;
    const Completion r = e.run(std::vector{cut})[0][0];
    EXPECT_EQ(r.finish_reason, "length");
    EXPECT_EQ(r.matches, matches) << r.text;
  }
  Request beams = c.request(by_schema, 1, 3);
  beams.beams = 2;
  EXPECT_NE(message_of([&] { e.run(std::vector{beams}); }).find("beams"), std::string::npos);
  EXPECT_NE(message_of([&] {
              c.request({.kind = Kind::regex, .text = "", .where = "r"}, 1, 1);
            }).find("empty"),
            std::string::npos);
  // The text may go on or end: a stop token ends it, and only where it may end.
  const ConstraintSpec open{.kind = Kind::regex, .text = "(ab)+", .where = "regex"};
  for (uint64_t seed = 0; seed < 20; ++seed) {
    const Completion r = e.run(std::vector{c.request(open, 1.5f, seed)})[0][0];
    EXPECT_EQ(r.text.size() % 2, r.finish_reason == "stop" ? 0u : r.text.size() % 2);
    EXPECT_FALSE(r.tokens.empty());
  }
}

// Tokens that stop a text may be text themselves: inside an unfinished text they are not allowed.
TEST(ConstrainedEngine, StopTokensThatAreTextEndNothingEarly) {
  const ConstraintSpec words{.kind = Kind::regex, .text = "\"[ab<t>]{4,12}\"", .where = "regex"};
  for (const bool draws : {false, true}) {
    const auto cpu = make_cpu_backend(1);
    DrawingBackend drawing;
    Constrained c(draws ? static_cast<Backend&>(drawing) : *cpu);
    Engine e = c.model.engine(c.spec());
    const int32_t plain = c.tokenizer.eos() + 2;
    ASSERT_EQ(c.tokenizer.bytes_of(plain), "<t>");
    std::vector<Request> all;
    for (uint64_t seed = 0; seed < 24; ++seed) {
      all.push_back(c.request(words, 1, seed));
      all.back().sampling.stop_ids = {plain, 'a'};
    }
    for (const auto& r : e.run(all)) {
      EXPECT_EQ(r[0].finish_reason, "stop");
      EXPECT_TRUE(r[0].text.size() >= 6 && r[0].text.ends_with('"')) << r[0].text;
      EXPECT_EQ(std::ranges::count(r[0].tokens, plain), 0);
      EXPECT_EQ(std::ranges::count(r[0].tokens, 'a'), 0);
    }
    Request none = c.request({.kind = Kind::regex, .text = "a{3}", .where = "r"}, 1, 1);
    none.sampling.stop_ids = {'a'};
    EXPECT_NE(message_of([&] { e.run(std::vector{none}); }).find("only a token that stops"),
              std::string::npos);
  }
}

// What others in the batch are asked for changes nothing.
TEST(ConstrainedEngine, LeavesOthersAlone) {
  const auto backend = make_cpu_backend(2);
  Constrained c(*backend);
  std::vector<Request> plain, mixed;
  for (uint64_t seed = 0; seed < 6; ++seed) {
    plain.push_back(c.request({}, 0.9f, seed, 40));
    plain.back().sampling.logprobs = 1;
    mixed.push_back(plain.back());
    mixed.push_back(c.request(by_schema, 0.9f, seed));
  }
  Engine one = c.model.engine(c.spec()), both = c.model.engine(c.spec());
  const auto alone = one.run(plain), beside = both.run(mixed);
  for (size_t i = 0; i < plain.size(); ++i) {
    EXPECT_EQ(alone[i][0].tokens, beside[2 * i][0].tokens);
    for (size_t k = 0; k < alone[i][0].logprobs.size(); ++k)
      EXPECT_EQ(alone[i][0].logprobs[k].logprob, beside[2 * i][0].logprobs[k].logprob);
  }
}

// Drafts are checked against the mask of each token; preemption computes nothing anew but the
// cache.
TEST(ConstrainedEngine, SpeculationAndPreemptionChangeNothing) {
  const auto backend = make_cpu_backend(1);
  Constrained c(*backend);
  std::vector<Request> all;
  for (uint64_t seed = 0; seed < 12; ++seed)
    all.push_back(c.request(seed % 2 ? by_schema : by_regex, 1.1f, seed));
  EngineSpec guesses = c.spec(), small = c.spec();
  guesses.speculate = 3;
  small.cache_bytes = 5 * Runner::block_bytes(c.model.config, DType::f32);
  Engine plain = c.model.engine(c.spec()), fast = c.model.engine(guesses),
         tight = c.model.engine(small);
  const auto want = plain.run(all), guessed = fast.run(all), fought = tight.run(all);
  for (size_t i = 0; i < all.size(); ++i) {
    EXPECT_EQ(want[i][0].tokens, guessed[i][0].tokens);
    EXPECT_EQ(want[i][0].tokens, fought[i][0].tokens);
  }
  EXPECT_GT(fast.stats().drafted, 0);
}

// A device that draws runs ahead under constraints too, and draws what the host would draw.
TEST(ConstrainedEngine, DevicesDrawUnderConstraints) {
  const auto cpu = make_cpu_backend(1);
  DrawingBackend drawing;
  Constrained host(*cpu), device(drawing);
  const auto requests = [](Constrained& c) {
    std::vector<Request> all;
    for (uint64_t seed = 0; seed < 24; ++seed) {
      all.push_back(c.request(seed % 3 == 0   ? ConstraintSpec{}
                              : seed % 3 == 1 ? by_schema
                                              : by_regex,
                              0, seed, 30 + int64_t(seed)));
      if (seed % 5 == 0) all.back().n = 2;
      if (seed % 4 == 0) all.back().sampling.logprobs = 0;
    }
    return all;
  };
  Engine a = host.model.engine(host.spec()), b = device.model.engine(device.spec());
  const auto want = a.run(requests(host)), got = b.run(requests(device));
  for (size_t i = 0; i < want.size(); ++i)
    for (size_t k = 0; k < want[i].size(); ++k) {
      EXPECT_EQ(want[i][k].text, got[i][k].text) << i;
      EXPECT_EQ(want[i][k].tokens, got[i][k].tokens) << i;
      EXPECT_EQ(want[i][k].finish_reason, got[i][k].finish_reason);
      ASSERT_EQ(want[i][k].logprobs.size(), got[i][k].logprobs.size());
      for (size_t t = 0; t < want[i][k].logprobs.size(); ++t)
        EXPECT_NEAR(want[i][k].logprobs[t].logprob, got[i][k].logprobs[t].logprob, 1e-4);
    }
  EXPECT_GT(b.stats().followed, 20);
  EXPECT_EQ(b.stats().used_blocks, 0);
  Engine sampled = device.model.engine(device.spec());
  std::vector<Request> some;
  for (uint64_t seed = 0; seed < 12; ++seed) some.push_back(device.request(by_schema, 1.2f, seed));
  for (const auto& r : sampled.run(some))
    EXPECT_TRUE(SchemaJudge(SchemaJson::parse(person)).fits(SchemaJson::parse(r[0].text)));
}

// Only the masks of constrained rows travel.
TEST(ConstrainedEngine, SendsOnlyTheMasksThatRowsNeed) {
  DrawingBackend drawing;
  Constrained c(drawing);
  std::vector<Request> all{c.request(by_schema, 0, 1)};
  int64_t sent[2];
  for (int64_t& bytes : sent) {
    Engine e = c.model.engine(c.spec());
    const int64_t before = drawing.mask_bytes;
    e.run(all);
    bytes = drawing.mask_bytes - before;
    for (uint64_t seed = 2; seed < 6; ++seed)
      all.insert(all.begin() + int64_t(seed) % 2, c.request({}, 0, seed, 100));
  }
  EXPECT_GT(sent[0], 0);
  // The last step may have been launched already when the text has ended.
  EXPECT_LE(sent[1], sent[0] + (c.tokenizer.vocab_size() + 31) / 32 * 4);
}

// A text that its grammar ends leaves a step behind that drew nothing; its inputs are not touched
// while it may run.
TEST(ConstrainedEngine, AbandonedStepsKeepTheirInputs) {
  DrawingBackend drawing;
  Constrained c(drawing);
  Engine e = c.model.engine(c.spec());
  for (uint64_t seed = 0; seed < 12; ++seed)
    e.run(std::vector{c.request(seed % 3 == 2 ? ConstraintSpec{} : by_regex, 0.8f, seed, 30)});
  EXPECT_GT(input_reads.launches, 50);
  EXPECT_GT(drawing.ahead, 20);
  EXPECT_EQ(drawing.races, 0);
}

// A request whose text is too ambiguous fails alone.
TEST(ConstrainedEngine, AnErrorEndsOneRequest) {
  std::string twins = "(";
  for (int i = 0; i < 60; ++i) twins += "(a|b){0,90}" + std::string(i % 2 ? "|" : "");
  const ConstraintSpec bad{.kind = Kind::regex, .text = twins + "a{80})c", .where = "regex"};
  for (const bool draws : {false, true}) {
    const auto cpu = make_cpu_backend(1);
    DrawingBackend drawing;
    Constrained c(draws ? static_cast<Backend&>(drawing) : *cpu);
    Engine e = c.model.engine(c.spec());
    int errors = 0, whole = 0;
    for (uint64_t seed = 0; seed < 6; ++seed) {
      Request r;
      try {
        r = c.request(seed == 2 ? bad : by_schema, 1, seed);
      } catch (const Error& error) {
        EXPECT_TRUE(error.usage());
        ++errors;
        continue;
      }
      e.submit(r, {.done = [&](auto, std::exception_ptr error) { ++(error ? errors : whole); }});
    }
    while (e.step()) {}
    EXPECT_EQ(errors + whole, 6);
    EXPECT_GE(whole, 5);
    EXPECT_EQ(e.stats().used_blocks, 0);
  }
}

// States are forgotten when they are many; texts go on as if nothing had happened.
TEST(Constraint, CursorsOutliveForgottenStates) {
  const Tokenizer t = byte_tokenizer();
  ConstraintMaker maker(t, {.state_bytes = 1 << 16});
  const auto c = maker.make({.kind = Kind::regex, .text = "(a|b)*a(a|b){14}", .where = "regex"});
  ConstraintCursor first(c, false);
  std::mt19937 random(4);
  std::vector<ConstraintCursor> cursors(8, first);
  std::vector<std::string> texts(8);
  for (int step = 0; step < 800; ++step) {
    const size_t i = random() % cursors.size();
    const char next = random() % 2 ? 'a' : 'b';
    ASSERT_TRUE(cursors[i].mask().has(next));
    cursors[i].accept(next);
    texts[i] += next;
    const bool want = texts[i].size() >= 15 && texts[i][texts[i].size() - 15] == 'a';
    ASSERT_EQ(cursors[i].accepts(), want);
  }
  EXPECT_EQ(maker.make({.kind = Kind::regex, .text = "(a|b)*a(a|b){14}", .where = "regex"}), c);
}

// Masks that were computed do not keep a constraint alive.
TEST(Constraint, EndsWithItsLastOwner) {
  std::weak_ptr<Constraint> seen;
  {
    ConstraintMaker maker(byte_tokenizer());
    const auto c = maker.make(by_regex);
    seen = c;
    ConstraintCursor cursor(c, false);
    ASSERT_TRUE(cursor.mask().has('c'));
    cursor.accept('c');
    ASSERT_TRUE(cursor.mask().has('a'));
  }  // the maker's thread has ended here
  EXPECT_TRUE(seen.expired());
}

// To find a long text again takes more work than a mask may.
TEST(Constraint, ForgottenTextsAreFoundAgain) {
  ConstraintMaker maker(byte_tokenizer(), {.state_bytes = 6 << 20});
  ConstraintCursor cursor(
      maker.make({.kind = Kind::regex, .text = "[ab]*a([ab](|){8}){100}", .where = "regex"}),
      false);
  std::mt19937 random(5);
  for (int i = 0; i < 4500; ++i) {
    ASSERT_EQ(message_of([&] {
                ASSERT_TRUE(cursor.mask().has('a'));
                cursor.accept(random() % 2 ? 'a' : 'b');
              }),
              "no error")
        << i;
  }
}

// Each mask of the text is cheap enough; all of them are not.
TEST(Constraint, ATextHasABudgetOfWork) {
  const auto written = [](const ConstraintLimits& limits) {
    ConstraintMaker maker(byte_tokenizer(), limits);
    ConstraintCursor cursor(
        maker.make({.kind = Kind::regex, .text = "(a|b)*a(a|b){14}", .where = "regex"}), false);
    std::mt19937 random(7);
    int64_t length = 0;
    try {
      for (; length < 500; ++length) {
        cursor.mask();
        cursor.accept(random() % 2 ? 'a' : 'b');
      }
    } catch (const Error& e) {
      EXPECT_TRUE(e.usage());
      EXPECT_NE(std::string(e.what()).find("takes too much work"), std::string::npos) << e.what();
    }
    return length;
  };
  EXPECT_EQ(written({}), 500);
  const int64_t some = written({.text_work = 2000});
  EXPECT_GT(some, 1);
  EXPECT_LT(some, 500);
  // A text that is forgotten after each token is read again at its own expense.
  EXPECT_EQ(written({.state_bytes = 1}), 500);
  EXPECT_EQ(written({.text_work = 1'000'000}), 500);
  const int64_t again = written({.state_bytes = 1, .text_work = 1'000'000});
  EXPECT_GT(again, 20);
  EXPECT_LT(again, 500);
}

}  // namespace
}  // namespace hearth
