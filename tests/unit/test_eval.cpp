// Evaluation: the scorer against a plain softmax over plain logits, and the harness's rules and
// formulas against their definitions written out.
#include "eval/tasks.h"

#include <cmath>

#include "eval/score.h"
#include "text/tokenizer/train.h"
#include "unit/infer_model.h"
#include "unit/packed_bytes.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;
using test::TempDir;

// log softmax in double of one row.
double logprob_of(const std::vector<float>& logits, int32_t token) {
  double most = -INFINITY, sum = 0;
  for (const float x : logits) most = std::max(most, double(x));
  for (const float x : logits) sum += std::exp(double(x) - most);
  return double(logits[size_t(token)]) - most - std::log(sum);
}

Score plain_score(TinyModel& m, const ScoreItem& item) {
  Score s;
  for (size_t i = size_t(item.first); i < item.tokens.size(); ++i) {
    const auto logits = m.logits({item.tokens.begin(), item.tokens.begin() + int64_t(i)});
    const double p = logprob_of(logits, item.tokens[i]);
    s.logprob += p, s.squares += p * p, ++s.tokens;
    s.greedy &= std::max_element(logits.begin(), logits.end()) - logits.begin() == item.tokens[i];
  }
  return s;
}

std::vector<ScoreItem> some_items() {
  std::vector<ScoreItem> items;
  for (const int64_t n : {2, 25, 7, 13, 4, 24, 9})
    items.push_back({tiny_prompt(n, int32_t(n)), std::max<int64_t>(1, n / 2)});
  return items;
}

TEST(Scorer, EqualsAPlainSoftmax) {
  for (const auto& backend : exact_backends())
    for (const ModelConfig& c : tiny_configs()) {
      TinyModel m(*backend, c);
      std::vector<ScoreItem> items = some_items();
      for (const int64_t batch_tokens : {1, 64, 4096}) {
        Scorer scorer(c, m.params, *backend, {.batch_tokens = batch_tokens, .greedy = true});
        const std::vector<Score> scores = scorer.score(items);
        for (size_t i = 0; i < items.size(); ++i) {
          const Score want = plain_score(m, items[i]);
          EXPECT_NEAR(scores[i].logprob, want.logprob, 2e-5 * double(want.tokens)) << i;
          EXPECT_NEAR(scores[i].squares, want.squares, 1e-3) << i;
          EXPECT_EQ(scores[i].tokens, want.tokens);
          EXPECT_EQ(scores[i].greedy, want.greedy);
        }
      }
    }
}

TEST(Scorer, KnowsGreedyText) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  std::vector<int32_t> tokens = tiny_prompt(5);
  for (int i = 0; i < 4; ++i) {
    const auto logits = m.logits(tokens);
    tokens.push_back(int32_t(std::max_element(logits.begin(), logits.end()) - logits.begin()));
  }
  std::vector<int32_t> other = tokens;
  other[7] = (other[7] + 1) % 23;
  Scorer scorer(m.config, m.params, *backend, {.greedy = true});
  const auto scores = scorer.score(std::vector<ScoreItem>{{tokens, 5}, {other, 5}});
  EXPECT_TRUE(scores[0].greedy);
  EXPECT_FALSE(scores[1].greedy);
}

TEST(Scorer, LogitsOfEachToken) {
  const auto backend = make_cpu_backend(2);
  TinyModel m(*backend, tiny_configs()[2]);
  const std::vector<int32_t> tokens = tiny_prompt(11);
  Scorer scorer(m.config, m.params, *backend);
  const std::vector<float> all = scorer.logits(tokens);
  ASSERT_EQ(all.size(), 11u * 23);
  for (size_t i = 0; i < tokens.size(); ++i) {
    const auto want = m.logits({tokens.begin(), tokens.begin() + int64_t(i) + 1});
    for (size_t v = 0; v < 23; ++v) EXPECT_NEAR(all[i * 23 + v], want[v], 1e-5);
  }
  expect_error(error_of([&] { scorer.logits({}); }), "expected 1 to 24 tokens, got 0");
}

TEST(Scorer, RefusesWhatItCannotScore) {
  const auto backend = make_cpu_backend(1);
  TinyModel m(*backend, tiny_config());
  Scorer scorer(m.config, m.params, *backend);
  const auto scoring = [&](ScoreItem item) {
    return error_of([&] { scorer.score(std::vector{std::move(item)}); });
  };
  expect_error(scoring({{1, 2}, 0}), "after some context");
  expect_error(scoring({{1, 2}, 2}), "after some context");
  expect_error(scoring({tiny_prompt(26), 1}), "within 25");
  expect_error(scoring({{1, 23}, 1}), "expected token ids below the model's 23, got 23");
}

Tokenizer word_tokenizer() {
  Threads threads(1);
  int left = 1;
  return train_bpe(
      {.vocab = 300},
      [&](std::string& text) {
        text = "the fox and the dog and the fox and the dog saw the fox";
        return left-- > 0;
      },
      threads);
}

TEST(Eval, SplitsPairsAsTheHarnessDoes) {
  const Tokenizer t = word_tokenizer();
  const auto check = [&](std::string context, std::string rest, std::string given) {
    const ScoreItem item = encode_pair(t, context, rest, 1000);
    EXPECT_EQ(item.tokens, t.encode(context + rest));
    EXPECT_EQ(item.first, int64_t(t.encode(given).size())) << context;
  };
  check("the fox", " and", "the fox");
  check("the fox  ", "and", "the fox");  // the spaces go with the continuation
  check("the fox\n", " and", "the fox");
  const ScoreItem bare = encode_pair(t, "", "the fox", 1000);
  EXPECT_EQ(bare.tokens[0], t.eos());
  EXPECT_EQ(bare.first, 1);
  EXPECT_EQ(bare.tokens.size(), t.encode("the fox").size() + 1);
  // What is too long loses its front, and keeps one token more than the model sees.
  const ScoreItem all = encode_pair(t, "the dog and the fox", " saw", 1000);
  const ScoreItem cut = encode_pair(t, "the dog and the fox", " saw", 4);
  EXPECT_EQ(cut.tokens, std::vector<int32_t>(all.tokens.end() - 5, all.tokens.end()));
  EXPECT_EQ(cut.first, all.first - int64_t(all.tokens.size() - 5));
  expect_error(error_of([&] { encode_pair(t, "the fox", "", 1000); }), "at least one token");
}

TEST(Eval, ContextsMayStartWithBos) {
  const Tokenizer t = word_tokenizer();
  const ScoreItem plain = encode_pair(t, "the fox", " saw", 1000);
  const ScoreItem with = encode_pair(t, "the fox", " saw", 1000, true);
  std::vector<int32_t> expected = plain.tokens;
  expected.insert(expected.begin(), t.bos() >= 0 ? t.bos() : t.eos());
  EXPECT_EQ(with.tokens, expected);
  EXPECT_EQ(with.first, plain.first + 1);
  EXPECT_EQ(encode_pair(t, "", "the fox", 1000, true).tokens,
            encode_pair(t, "", "the fox", 1000).tokens);
}

TEST(Eval, WindowsPredictEachTokenOnce) {
  const Tokenizer t = word_tokenizer();
  std::string text;
  for (int i = 0; i < 40; ++i) text += i % 3 ? " the fox" : " xyz";
  const std::vector<int32_t> tokens = t.encode(text);
  for (const int64_t longest : {4, 16, 1000})
    for (const int64_t stride : {int64_t(1), longest / 2, longest}) {
      std::vector<int32_t> seen;
      for (const ScoreItem& w : rolling_windows(t, text, longest, stride)) {
        EXPECT_LE(int64_t(w.tokens.size()), longest + 1);
        const bool opens = seen.empty();
        if (opens)
          EXPECT_EQ(w.tokens[0], t.eos());
        else
          EXPECT_EQ(int64_t(w.tokens.size()), longest + 1);  // as much context as there can be
        EXPECT_LE(int64_t(w.tokens.size()) - w.first, opens ? longest : stride);
        seen.insert(seen.end(), w.tokens.begin() + w.first, w.tokens.end());
      }
      EXPECT_EQ(seen, tokens);
    }
  EXPECT_TRUE(rolling_windows(t, "", 8, 8).empty());
  expect_error(error_of([&] { rolling_windows(t, "a", 8, 9); }), "expected 1 to 8, got 9");
}

TEST(Eval, HellaSwagTexts) {
  EXPECT_EQ(hellaswag_text("  He rides. [title] Then [step] he  stops. "),
            "He rides.. Then he stops.");
  EXPECT_EQ(hellaswag_text("a [b"), "a [b");
  EXPECT_EQ(hellaswag_text("a [b\nc] d"), "a [b\nc] d");
  EXPECT_EQ(hellaswag_text("   "), "");
}

TEST(Eval, CountsAsPythonDoes) {
  EXPECT_EQ(count_words("a b  c\n"), 4);  // an empty one at the end
  EXPECT_EQ(count_words(""), 1);
  EXPECT_EQ(count_words("a\xc2\xa0"
                        "b"),
            2);  // a no-break space
  EXPECT_EQ(count_chars("caf\xc3\xa9"), 4);
}

Score scored(double logprob, bool greedy = false) {
  return {.logprob = logprob, .squares = logprob * logprob, .tokens = 1, .greedy = greedy};
}

TEST(Eval, ChoiceMetrics) {
  // "é" is one character and two bytes; the three measures choose differently.
  const std::vector<Choices> items{{"c", {"aaaa", "\xc3\xa9\xc3\xa9\xc3\xa9"}, 0},
                                   {"c", {"aaaa", "\xc3\xa9\xc3\xa9\xc3\xa9"}, 1},
                                   {"c", {"x", "y"}, 0}};
  const std::vector<Score> scores{scored(-4.4), scored(-4.2), scored(-4.4),
                                  scored(-4.2), scored(-1),   scored(-1)};
  const auto m = choice_metrics(items, scores);
  ASSERT_EQ(m.size(), 3u);
  EXPECT_EQ(m[0].name, "acc");
  EXPECT_DOUBLE_EQ(m[0].value, 2.0 / 3);  // 0 wrong, 1 right, a tie goes to the first
  EXPECT_DOUBLE_EQ(m[1].value, 2.0 / 3);  // by characters -1.1 beats -1.4
  EXPECT_DOUBLE_EQ(m[2].value, 2.0 / 3);  // by bytes -0.7 beats -1.1
  // sqrt(sum (x - mean)^2 / (n - 1)) / sqrt(n)
  const double deviation = std::sqrt((2 * std::pow(1.0 / 3, 2) + std::pow(2.0 / 3, 2)) / 2);
  EXPECT_NEAR(*m[0].error, deviation / std::sqrt(3.0), 1e-12);
  const auto first = choice_metrics(std::span(items).first(1), std::span(scores).first(2));
  EXPECT_EQ(first[0].value, 0);
  EXPECT_EQ(first[1].value, 1);
  EXPECT_EQ(first[2].value, 0);
  EXPECT_FALSE(first[0].error);  // one item has no spread
}

TEST(Eval, LastWordAndPerplexityMetrics) {
  const std::vector<Score> scores{scored(-1, true), scored(-2), scored(-4.5)};
  const auto last = last_word_metrics(scores);
  EXPECT_DOUBLE_EQ(last[0].value, std::exp(2.5));
  const double spread = std::sqrt((1.5 * 1.5 + 0.5 * 0.5 + 2.0 * 2.0) / 2 / 3);
  EXPECT_NEAR(*last[0].error, std::exp(2.5) * spread, 1e-9);
  EXPECT_DOUBLE_EQ(last[1].value, 1.0 / 3);
  const auto p = perplexity_metrics(scores, 5, 30);
  EXPECT_DOUBLE_EQ(p[0].value, std::exp(2.5));
  EXPECT_DOUBLE_EQ(p[1].value, std::exp(7.5 / 5));
  EXPECT_DOUBLE_EQ(p[2].value, std::exp(7.5 / 30));
  EXPECT_DOUBLE_EQ(p[3].value, 7.5 / 30 / std::log(2.0));
  EXPECT_FALSE(p[3].error);
}

TEST(Eval, ReadsItsFiles) {
  TempDir dir;
  write_file_atomic(dir / "h.txt", "Cooking: A man. he\n1\neats [x].\ncooks.\nruns.\nsits.\n");
  const auto six = read_hellaswag(dir / "h.txt");
  ASSERT_EQ(six.size(), 1u);
  EXPECT_EQ(six[0].context, "Cooking: A man. he");
  EXPECT_EQ(six[0].choices, (std::vector<std::string>{"eats .", "cooks.", "runs.", "sits."}));
  EXPECT_EQ(six[0].gold, 1u);
  write_file_atomic(dir / "h.jsonl",
                    R"({"activity_label":"Cooking","ctx_a":"A man.","ctx_b":"he THEN",)"
                    R"("endings":["a","b"],"label":"1"})"
                    "\n");
  EXPECT_EQ(read_hellaswag(dir / "h.jsonl")[0].context, "Cooking: A man. He then");
  write_file_atomic(
      dir / "arc.jsonl",
      R"({"question":{"stem":"Why?","choices":[{"text":"x","label":"A"},{"text":"y","label":"B"}]},"answerKey":"B"})"
      "\n"
      R"({"question":"Why?","choices":{"text":["x","y"],"label":["1","2"]},"answerKey":"1"})"
      "\n"
      R"({"context":"So","choices":["x","y","z"],"gold":2})"
      "\n");
  const auto arc = read_choices(dir / "arc.jsonl");
  ASSERT_EQ(arc.size(), 3u);
  EXPECT_EQ(arc[0].context, "Question: Why?\nAnswer:");
  EXPECT_EQ(arc[0].gold, 1u);
  EXPECT_EQ(arc[1].gold, 0u);
  EXPECT_EQ(arc[2].gold, 2u);
  write_file_atomic(dir / "l.jsonl", "{\"text\": \"one two three\"}\n");
  EXPECT_EQ(read_lambada(dir / "l.jsonl")[0].context, "one two");
  EXPECT_EQ(read_lambada(dir / "l.jsonl")[0].word, " three");
}

TEST(Eval, ReadsPackedFiles) {
  TempDir dir;
  const std::string word = R"({"text":"one two"})", six = "A man\n1\na.\nb.\nc.\nd.\n",
                    row = R"({"context":"So","choices":["x","y"],"gold":1})",
                    swag = R"({"activity_label":"A","ctx_a":"b","ctx_b":"c",)"
                           R"("endings":["a","b"],"label":"1"})";
  for (const Packing p : {Packing::gzip, Packing::zstd}) {
    if (!can_unpack(p)) continue;
    const std::string ext = p == Packing::gzip ? ".gz" : ".zst";
    const auto packed = [&](const std::string& name, const std::string& text) {
      write_file_atomic(dir / (name + ext), packed_of(p, text));
      return dir / (name + ext);
    };
    EXPECT_EQ(read_lambada(packed("l.jsonl", word)).at(0).word, " two");
    EXPECT_EQ(read_choices(packed("c.jsonl", row)).at(0).gold, 1u);
    EXPECT_EQ(read_hellaswag(packed("h.jsonl", swag)).at(0).context, "A: b C");
    EXPECT_EQ(read_hellaswag(packed("h.txt", six)).at(0).choices.size(), 4u);
    EXPECT_EQ(read_documents(packed("t.txt", six)).at(0), six);
    EXPECT_EQ(read_documents(packed("t.jsonl", word)).at(0), "one two");
    expect_error(error_of([&] { read_choices(packed("bad.jsonl", row + "\n{}")); }),
                 ":2] expected");
  }
  const std::string heads[] = {std::string("\xfd"
                                           "7zXZ\0\0\4",
                                           8),
                               "BZh91AY&SY"};
  for (const std::string& head : heads) {
    write_file_atomic(dir / "x.jsonl", head);
    const auto refused = [&](auto read) {
      expect_error(error_of([&] { read(dir / "x.jsonl"); }),
                   "x.jsonl] expected plain, gzip or zstd data, got " +
                       std::string(head[0] == 'B' ? "bzip2" : "xz") +
                       ": unpack it first, or pipe it in with -");
    };
    refused(read_lambada), refused(read_choices), refused(read_hellaswag), refused(read_documents);
  }
}

TEST(Eval, NamesTheLineThatIsWrong) {
  TempDir dir;
  const auto choices = [&](const std::string& text) {
    write_file_atomic(dir / "c.jsonl", text);
    return error_of([&] { read_choices(dir / "c.jsonl"); });
  };
  expect_error(choices(""), "no items to evaluate");
  expect_error(choices("{\"context\":\"a\",\"choices\":[\"x\"],\"gold\":0}"), "c.jsonl:1");
  expect_error(choices("{\"context\":\"a\",\"choices\":[\"x\",\"y\"],\"gold\":2}"), "index 2");
  expect_error(choices("{\"context\":\"a\",\"choices\":[\"x\",\"y\"],\"gold\":-1}"), "got \"-1\"");
  expect_error(choices("{\"context\":3,\"choices\":[\"x\",\"y\"],\"gold\":0}"), "to be a string");
  expect_error(choices("[1]"), "expected an object");
  for (const char* row :
       {R"({"context":"a","choices":["x","y"],"answer":0})", R"({"question":"a","gold":0})", "{}",
        R"({"question":{"stem":"a"},"choices":["x","y"],"answerKey":"A"})"})
    expect_error(choices(row),
                 "c.jsonl:1] expected context + choices (a list of texts) + gold (the index of the "
                 "right one), or question + choices + answerKey as in ARC, got keys: ");
  write_file_atomic(dir / "h.txt", "context\n0\nan ending\n");
  expect_error(error_of([&] { read_hellaswag(dir / "h.txt"); }), "expected six lines per item");
  write_file_atomic(dir / "h.txt", "Once upon a time\n\nthere was a dog.\n");
  expect_error(error_of([&] { read_hellaswag(dir / "h.txt"); }),
               "h.txt:2] this is no HellaSwag file: expected the index of the right ending as line "
               "2 of an item's six (context, index, four endings), or a .jsonl file of rows with "
               "activity_label, ctx_a, ctx_b, endings and label, as in HellaSwag; got \"\"");
  write_file_atomic(dir / "h.jsonl", "{\"text\":\"a\"}");
  expect_error(error_of([&] { read_hellaswag(dir / "h.jsonl"); }),
               "h.jsonl:1] expected activity_label, ctx_a, ctx_b, endings and label, as in "
               "HellaSwag, got keys: \"text\"");
  write_file_atomic(dir / "plain.txt", "Once upon a time\n");
  expect_error(error_of([&] { read_choices(dir / "plain.txt"); }),
               "plain.txt:1] expected an object with context + choices (a list of texts)");
  expect_error(error_of([&] { read_lambada(dir / "plain.txt"); }),
               "plain.txt:1] expected an object with text, whose last word is predicted, as in "
               "LAMBADA, got \"Once upon a time\"");
  write_file_atomic(dir / "marked.jsonl", "\xef\xbb\xbf{\"text\":\"one two\"}\n");
  EXPECT_EQ(read_lambada(dir / "marked.jsonl").size(), 1u);
  write_file_atomic(dir / "l.jsonl", "{\"text\":\"word\"}");
  expect_error(error_of([&] { read_lambada(dir / "l.jsonl"); }), "of several words, got one");
}

}  // namespace
}  // namespace hearth
