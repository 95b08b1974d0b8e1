// Rewards: answers in texts, patterns, the built-in rules, chess, and programs that misbehave.
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <regex>
#include <set>

#include "align/answers.h"
#include "align/arithmetic.h"
#include "align/examples.h"
#include "align/pattern.h"
#include "align/reward_program.h"
#include "align/rewards.h"
#include "chess/board.h"
#include "chess/tasks.h"
#include "core/error.h"
#include "io/files.h"
#include "served_folder.h"
#include "test_data.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

struct RewardFolder {
  RewardFolder() {
    std::string name = (fs::temp_directory_path() / "hearth-reward-XXXXXX").string();
    path = mkdtemp(name.data());
  }
  ~RewardFolder() { fs::remove_all(path); }
  // A program in sh.
  std::string script(const std::string& name, const std::string& body) const {
    const fs::path file = path / name;
    std::ofstream(file) << "#!/bin/sh\n" << body;
    fs::permissions(file, fs::perms::owner_all);
    return file.string();
  }
  fs::path path;
};

PromptRow row_of(const nlohmann::json& row) { return {row, row.value("prompt", ""), "test:1"}; }

std::vector<RewardText> texts(std::initializer_list<std::string> all) {
  std::vector<RewardText> r;
  for (const std::string& s : all) r.push_back({s, int64_t(s.size())});
  return r;
}

GroupScores scored(const std::vector<std::string>& rewards, const PromptRow& row,
                   std::vector<RewardText> all) {
  Rewards r({.rewards = rewards});
  r.check(std::span(&row, 1));
  return r.submit(row, std::move(all)).get().total;
}

TEST(Answers, TheNumberATextAnswersWith) {
  const auto is = [](std::string_view text, const char* wanted) {
    const auto n = answer_number(text);
    EXPECT_EQ(n.value_or("none"), wanted) << text;
  };
  is("so 3 + 4 = 7\n#### 7", "7");
  is("#### 1,234", "1234");
  is("#### $1,234.50 dollars", "1234.5");
  is("####-12", "-12");
  is("#### 7 and then 9", "7");
  is("#### 3\n#### 4", "3");
  is("#### Step 1\n...\n#### 42", "42");
  is("#### answer: 12", "none");
  is("#### Q1: how many\n#### 42", "42");
  is("#### No 7\n#### 42", "42");
  is("#### \xe2\x88\x92"
     "42",
     "-42");
  is("##### 5", "5");
  is("#### none", "none");
  is("The answer is 18.", "18");
  is("He has 3, or 4.", "4");
  is("1,2,3", "3");
  is("12,3456", "3456");
  is("10-3", "3");
  is("it fell to -3.50 degrees", "-3.5");
  is("(5)-2", "2");
  is("costs -$5", "-5");
  is("\xe2\x88\x92"
     "42",
     "-42");
  is(".5", "0.5");
  is("007", "7");
  is("0.0", "0");
  is("-0", "0");
  is("77.0", "77");
  is("no number", "none");
  is("", "none");
  is("####", "none");
  is("1e5", "100000");
  is("5e-05", "0.00005");
  is("1.5e3", "1500");
  is("2.50E+1 m", "25");
  is("12e", "12");
  is("3em", "3");
  is("1e9999", "1");
  is("so 3/7", "3/7");
  is("-1/7 of it", "-1/7");
  is("4/1", "4");
  is("1/0", "0");
  is("it costs 10/2.50", "2.5");
  is("1/2e3", "2000");
  is("on 11/16/2026", "2026");
  is("18 m2", "18");
  is("x1", "1");
  is("$2,125.", "2125");
}

TEST(Answers, ExactlyOrNearly) {
  EXPECT_TRUE(equal_number("#### 18", "She makes 18.\n#### 18.0"));
  EXPECT_FALSE(equal_number("#### 18.01", "#### 18"));
  EXPECT_FALSE(equal_number("", "#### 18"));
  EXPECT_FALSE(equal_number("3/7", "1/7"));
  EXPECT_TRUE(equal_number("it is 2/6", "1/3"));
  EXPECT_TRUE(equal_number("0.25", "1/4"));
  EXPECT_FALSE(equal_number("0.333", "1/3"));
  EXPECT_FALSE(near_number("-5", "5e-05", 1e-3));
  EXPECT_TRUE(near_number("0.00005", "5e-05", 1e-9));
  EXPECT_TRUE(near_number("0.333", "1/3", 1e-3));
  EXPECT_TRUE(near_number("The answer is 0.3333", "0.33333333", 1e-3));
  EXPECT_FALSE(near_number("0.32", "0.33333333", 1e-3));
  EXPECT_FALSE(near_number(std::string(400, '9'), "9", 1e-3));
}

TEST(Pattern, AgreesWithTheStandardLibraryOnPlainCases) {
  const std::vector<std::string> patterns{"abc",       "^abc$",      "a.c",     "[a-c]+x",
                                          "[^a-c]",    "(ab|cd)*e",  "a{2,3}b", "a{2}",
                                          "^$",        "\\d+\\.\\d", "x?y",     "(a|b)(c|d)$",
                                          "\\bcat\\b", "[\\w-]+@",   "a+?b",    "^\\s*\\d+\\s*$",
                                          "[]a]",      "a|",         "(?:ab)+"};
  const std::vector<std::string> lines{
      "",       "abc", "xabcx", "aac", "aab", "aaab", "cat",   "concat", "a cat!", "12.5", " 42 ",
      "me-1@x", "y",   "xy",    "acd", "bd",  "]",    "cdabe", "e",      "a",      "abab"};
  for (const std::string& p : patterns) {
    const Pattern ours(p);
    const std::regex theirs(p == "[]a]" ? "[\\]a]" : p);
    for (const std::string& line : lines)
      EXPECT_EQ(ours.found_in(line), std::regex_search(line, theirs)) << p << " in " << line;
  }
}

TEST(Pattern, TakesNoLongerOnWhatBacktrackingDiesOf) {
  const std::string many(20000, 'a');
  EXPECT_FALSE(Pattern("(a*)*b$").found_in(many));
  EXPECT_FALSE(Pattern("(a|aa)+$x").found_in(many));
  EXPECT_TRUE(Pattern("(a?){50}a{50}").found_in(many));
  EXPECT_TRUE(Pattern("(x+x+)+y|a$").found_in(many));
  // Nothing, 10^12 times, is nothing.
  EXPECT_TRUE(Pattern("^((((){1000}){1000}){1000}){1000}$").found_in(""));
  EXPECT_FALSE(Pattern("^((((a{0}){1000}){1000}){1000}){1000}$").found_in("a"));
}

TEST(Pattern, EitherCaseBytesAndLineEnds) {
  EXPECT_TRUE(Pattern("(?i)hello [A-C]").found_in("HeLLo b"));
  EXPECT_TRUE(Pattern("\\x41").found_in("A"));
  EXPECT_FALSE(Pattern("a.b").found_in("a\nb"));
  EXPECT_TRUE(Pattern("a\\nb").found_in("a\nb"));
  EXPECT_FALSE(Pattern("^b").found_in("a\nb"));
  EXPECT_TRUE(Pattern("{x}").found_in("a{x}"));
}

TEST(Pattern, RefusesByNameWhatItDoesNotKnow) {
  for (const char* bad : {"(", ")", "a**)", "[a", "\\1", "(?=a)", "(?<n>a)", "*a", "\\", "[b-a]",
                          "a{3,2}", "\\q", "((a{1000}){1000}){1000}", "\\x4"})
    EXPECT_THROW(Pattern{bad}, Error) << bad;
  EXPECT_THROW(Pattern(std::string(5000, '(')), Error);
}

TEST(Rewards, RulesSumByWeight) {
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", "46"}});
  EXPECT_EQ(scored({"exact"}, row, texts({"46", " 46\n", "47", "4 6"})), (GroupScores{1, 1, 0, 0}));
  EXPECT_EQ(scored({"numeric@2", "regex:^[0-9]+$@0.5"}, row, texts({"46", "is 46", "5"})),
            (GroupScores{2.5, 2, 0.5}));
  EXPECT_EQ(scored({"near:0.5"}, row, texts({"46.4", "46.6"})), (GroupScores{1, 0}));
  EXPECT_EQ(scored({"length:4"}, row, texts({"1234", "123456", "12345678", "123456789"})),
            (GroupScores{1, 0.5, 0, 0}));
  EXPECT_EQ(scored({"regex:a@b"}, row, texts({"a@b", "ab"})), (GroupScores{1, 0}));
}

TEST(Rewards, RefuseWhatTheyCannotScore) {
  EXPECT_THROW(Rewards({.rewards = {}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"exakt"}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"length:x"}}), Error);
  EXPECT_THROW(Rewards({.rewards = {"program:"}}), Error);
  const PromptRow no_answer = row_of({{"prompt", "q"}});
  const PromptRow no_number = row_of({{"prompt", "q"}, {"answer", "many"}});
  EXPECT_THROW(Rewards({.rewards = {"exact"}}).check(std::span(&no_answer, 1)), Error);
  EXPECT_THROW(Rewards({.rewards = {"numeric"}}).check(std::span(&no_number, 1)), Error);
  EXPECT_THROW(Rewards({.rewards = {"chess"}, .stockfish = "none"}).check(std::span(&no_answer, 1)),
               Error);
}

TEST(Rewards, ChessByLabelAndByTheRules) {
  const chess::Board start =
      chess::Board::from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  const std::string full = " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.30 0.30 0.20 0.20 0.10 B: e2e4";
  const PromptRow policy = row_of({{"prompt", chess::policy_prompt(start)}, {"completion", full}});
  const PromptRow puzzle = row_of({{"prompt", chess::policy_prompt(start)}, {"best", "e2e4"}});
  Rewards r({.rewards = {"chess"}, .stockfish = "none"});
  r.check(std::span(&policy, 1));
  const GroupScores by_label = r.submit(policy, texts({full, "rubbish"})).get().total;
  EXPECT_NEAR(*by_label[0], 1, 1e-12);
  EXPECT_NEAR(*by_label[1], -0.3, 1e-12);
  EXPECT_NEAR(*r.submit(puzzle, texts({full})).get().total[0], 1, 1e-12);
  const auto move = chess::parse_uci("e2e4");
  const PromptRow environment = row_of({{"prompt", chess::environment_prompt(start, {&*move, 1})}});
  const std::string right = chess::environment_completion(start, *move);
  EXPECT_NEAR(*r.submit(environment, texts({right})).get().total[0], 1, 1e-12);
  EXPECT_EQ(r.troubles()["chess"]["stockfish"], false);
}

// An engine that answers only when another one has been asked too.
TEST(Rewards, ChessAsksOneStockfishAWorker) {
  RewardFolder folder;
  const std::string together = (folder.path / "asked").string();
  fs::create_directory(together);
  const std::string engine = folder.script("engine", "asked=" + together + R"(
while read -r line; do
  case $line in
    uci) echo uciok ;;
    isready) echo readyok ;;
    go*)
      : >$asked/$$
      for i in $(seq 200); do [ $(ls $asked | wc -l) -ge 2 ] && break; sleep 0.05; done
      [ $(ls $asked | wc -l) -ge 2 ] || exit 1
      rank=0
      for move in e2e4 d2d4 g1f3 c2c4 b1c3; do
        rank=$((rank + 1))
        echo "info depth 5 multipv $rank score cp 20 nodes 9 pv $move"
      done
      echo "bestmove e2e4" ;;
  esac
done
)");
  const chess::Board start =
      chess::Board::from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1");
  const PromptRow policy = row_of({{"prompt", chess::policy_prompt(start)}});
  const std::string full = " M: e2e4 d2d4 g1f3 c2c4 b1c3 E: 0.20 0.20 0.20 0.20 0.20 B: e2e4";
  Rewards r({.rewards = {"chess"}, .workers = 2, .stockfish = engine});
  auto one = r.submit(policy, texts({full})), two = r.submit(policy, texts({full}));
  for (const GroupRewards& g : {one.get(), two.get()}) {
    ASSERT_TRUE(g.total[0]);
    EXPECT_NEAR(*g.total[0], 1, 1e-12);
  }
}

// Answers 1 where the completion holds "good", and misbehaves where it says so.
constexpr const char* judge = R"(while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  case "$line" in
    *'"completion":"hang'*) sleep 100 ;;
    *'"completion":"die'*) exit 3 ;;
    *'"completion":"rubbish'*) echo 'oh well' ;;
    *'"completion":"nan'*) echo "{\"id\":$id,\"reward\":NaN}" ;;
    *'"completion":"other'*) echo '{"id":-1,"reward":1}' ;;
    *'"completion":"none'*) echo "{\"id\":$id,\"reward\":null}" ;;
    *'"completion":"good'*) echo "{\"id\":$id,\"reward\":1}" ;;
    *) echo "{\"id\":$id,\"reward\":0.25}" ;;
  esac
done
)";

TEST(RewardProgram, WhatMisbehavesIsCountedNamedAndReplaced) {
  RewardFolder folder;
  int warnings = 0;
  RewardProgram p({.command = folder.script("judge", judge),
                   .timeout_s = 3,
                   .start_s = 0,
                   .warn = [&](const std::string&) { ++warnings; }});
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", 3}});
  const GroupScores s = p.score(
      row, texts({"good", "bad", "die", "good", "rubbish", "hang", "nan", "other", "none", "good"}),
      0);
  EXPECT_EQ(s, (GroupScores{1, 0.25, {}, 1, {}, {}, {}, {}, {}, 1}));
  const RewardProgramCounts c = p.counts();
  EXPECT_EQ(c.answered, 4);
  EXPECT_EQ(c.failed, 5);
  EXPECT_EQ(c.abstained, 1);
  EXPECT_EQ(c.died, 2);
  EXPECT_EQ(c.hung, 2);
  EXPECT_EQ(c.rubbish, 6);
  EXPECT_EQ(c.other_id, 2);
  EXPECT_EQ(warnings, 4);  // the first of each kind: died, rubbish, hung, another id
  const RewardFailures f = p.failures();
  EXPECT_EQ(f.asked, 10);
  EXPECT_EQ(f.failed, 5);
  const std::vector<std::pair<std::string, int64_t>> kinds{{"answers with another id", 2},
                                                           {"answers that are no reward", 4},
                                                           {"died", 2},
                                                           {"no answer in time", 2},
                                                           {"answers of null", 1}};
  EXPECT_EQ(f.kinds, kinds);
  EXPECT_EQ(c.missing, 0);
  EXPECT_EQ(c.replaced, 10);
}

TEST(RewardProgram, OneThatIsMissingFailsUpToTheLimit) {
  const PromptRow row = row_of({{"prompt", "q"}});
  const auto fails_after = [&](int64_t limit) {
    RewardProgram p({.command = "/no/such/judge --strict", .max_failures = limit});
    int64_t n = 0;
    try {
      for (; n < 20; ++n) EXPECT_EQ(p.score(row, texts({"x"}), 0), GroupScores(1));
    } catch (const Error& e) {
      EXPECT_NE(std::string(e.what()).find("/no/such/judge --strict"), std::string::npos);
      EXPECT_NE(std::string(e.what()).find("missing"), std::string::npos);
    }
    EXPECT_EQ(p.counts().missing, 2 * p.counts().failed);
    return n;
  };
  EXPECT_EQ(fails_after(3), 3);
  EXPECT_EQ(fails_after(0), 0);
  EXPECT_EQ(fails_after(-1), 20);
}

TEST(RewardProgram, CountsGoOnInAnotherProcessOfTheRun) {
  const PromptRow row = row_of({{"prompt", "q"}});
  const RewardSpec spec{.rewards = {"length:4", "program:/no/such/judge"}, .max_failures = 3};
  nlohmann::json counted;
  {
    Rewards first(spec);
    first.submit(row, texts({"x", "y"})).get();
    counted = nlohmann::json::parse(first.counted().dump());
  }
  Rewards second(spec);
  second.count_on(counted, "here");
  EXPECT_EQ(second.counted(), counted);
  EXPECT_EQ(second.troubles()["program:/no/such/judge"]["failed"], 2);
  second.submit(row, texts({"x"})).get();
  EXPECT_EQ(second.troubles()["program:/no/such/judge"]["missing"], 6);
  EXPECT_THROW(second.submit(row, texts({"x"})).get(), Error);  // the fourth of the run
  EXPECT_THROW(second.count_on(nlohmann::json::array(), "here"), Error);
  counted[1]["failed"] = -1;
  EXPECT_THROW(second.count_on(counted, "here"), Error);
}

TEST(RewardProgram, WhatItSaysOnStderrIsHeard) {
  RewardFolder folder;
  const PromptRow row = row_of({{"prompt", "q"}});
  const std::string dies = folder.script(
      "dies",
      "read -r line\necho 'one thing' >&2\nprintf 'no table \\377 there\\n\\n' >&2\nexit 1\n");
  RewardProgram p({.command = dies, .max_failures = 0});
  std::string what;
  try {
    p.score(row, texts({"x"}), 0);
  } catch (const Error& e) { what = e.what(); }
  EXPECT_NE(what.find("last on its stderr: no table ? there"), what.npos) << what;
  EXPECT_EQ(p.troubles()["stderr"], "no table ? there");
  // More than a pipe holds, before and after each answer, holds nothing up.
  const std::string talks = folder.script("talks", R"(n=0
while read -r line; do
  n=$((n + 1))
  head -c 300000 /dev/zero >&2
  echo "{\"id\":$n,\"reward\":$n}"
  head -c 300000 /dev/zero >&2
done
)");
  RewardProgram q({.command = talks, .timeout_s = 60});
  EXPECT_EQ(q.score(row, texts({"x", "y", "z"}), 0), (GroupScores{1, 2, 3}));
  EXPECT_FALSE(q.troubles().contains("stderr"));
  // One that never stops talking and never answers has hung all the same.
  const std::string floods = folder.script("floods", "while :; do echo x >&2; done\n");
  RewardProgram r({.command = floods, .timeout_s = 0.2, .start_s = 0});
  EXPECT_EQ(r.score(row, texts({"x"}), 0), (GroupScores{{}}));
  EXPECT_GT(r.counts().hung, 0);
}

TEST(RewardProgram, AFailureLeavesNoRewardWhateverTheOthersSay) {
  RewardFolder folder;
  const std::string program = folder.script("judge", judge);
  const PromptRow row = row_of({{"prompt", "q"}, {"answer", "good"}});
  Rewards r({.rewards = {"exact", "program:" + program + "@0.5"}, .workers = 3, .timeout_s = 5});
  std::vector<std::future<GroupRewards>> all;
  for (int i = 0; i < 12; ++i) all.push_back(r.submit(row, texts({"good", "die", "bad"})));
  for (auto& f : all) {
    const GroupRewards g = f.get();
    EXPECT_EQ(g.total, (GroupScores{1.5, {}, 0.125}));
    EXPECT_EQ(g.parts[0].size(), 3u);
    EXPECT_EQ(g.parts[1].size(), 2u);
  }
  EXPECT_EQ(r.troubles()["program:" + program]["failed"], 12);
  EXPECT_EQ(r.troubles()["program:" + program]["died"], 24);
}

// Completions of one group are asked side by side; what they got stays in their order.
TEST(RewardProgram, WorkersShareAGroup) {
  RewardFolder folder;
  const std::string together = (folder.path / "asked").string();
  fs::create_directory(together);
  const std::string program = folder.script("judge", "asked=" + together + R"sh(
while read -r line; do
  id=$(printf '%s' "$line" | sed 's/.*"id":\([0-9]*\).*/\1/')
  r=$(printf '%s' "$line" | sed 's/.*"completion":"\([0-9]*\)".*/\1/')
  : >$asked/$$
  for i in $(seq 400); do [ $(ls $asked | wc -l) -ge 3 ] && break; sleep 0.05; done
  [ $(ls $asked | wc -l) -ge 3 ] || exit 1
  echo "{\"id\":$id,\"reward\":$r}"
done
)sh");
  const PromptRow row = row_of({{"prompt", "q"}});
  Rewards r({.rewards = {"program:" + program}, .workers = 3, .timeout_s = 60});
  const GroupRewards g = r.submit(row, texts({"1", "2", "3"})).get();
  EXPECT_EQ(g.total, (GroupScores{1, 2, 3}));
  EXPECT_EQ(g.parts, (std::vector<std::vector<double>>{{1, 2, 3}}));
}

TEST(RewardProgram, OneThatStartsSlowlyIsWaitedFor) {
  RewardFolder folder;
  const std::string program = folder.script("judge", std::string("sleep 4\n") + judge);
  const PromptRow row = row_of({{"prompt", "q"}});
  RewardProgram p({.command = program, .timeout_s = 3, .start_s = 60});
  EXPECT_EQ(p.score(row, texts({"good", "bad"}), 0), (GroupScores{1, 0.25}));
  EXPECT_EQ(p.counts().hung, 0);
}

TEST(Rewards, KnowWhichOfThemKnowsTheAnswer) {
  EXPECT_EQ(Rewards({.rewards = {"length:9", "numeric", "exact"}}).answer_term(), 1u);
  EXPECT_EQ(Rewards({.rewards = {"length:9", "regex:a"}}).answer_term(), std::nullopt);
}

TEST(Prompts, RowsOfEveryKnownForm) {
  RewardFolder folder;
  const fs::path file = folder.path / "p.jsonl";
  std::ofstream(file) << "{\"prompt\": \"1+1=\", \"answer\": \"2\"}\n\n"
                         "{\"question\": \"q\", \"answer\": \"so\\n#### 3\"}\n"
                         "{\"original_text\": \"t\", \"ans\": 2.0}\n"
                         "{\"instruction\": \"i\", \"input\": \"x\", \"output\": \"o\"}\n";
  const std::vector<PromptRow> rows = read_prompts(file, {.form = "Q: {}\nA:"});
  ASSERT_EQ(rows.size(), 4u);
  EXPECT_EQ(rows[0].prompt, "Q: 1+1=\nA:");
  EXPECT_EQ(rows[2].answer(), "2.0");
  EXPECT_EQ(rows[3].prompt, "Q: i\nx\nA:");
  EXPECT_EQ(rows[3].answer(), "o");
  EXPECT_TRUE(rows[1].where.ends_with("p.jsonl:3"));
  std::ofstream(file) << "[{\"instruction\": \"a\", \"input\": \"\", \"answer\": \"4\"}]";
  const ChatTemplate chat(served_template(), "test");
  const auto templated = [&]() -> const ChatTemplate& { return chat; };
  EXPECT_EQ(read_prompts(file, {.chat = templated})[0].prompt, "<|user|>a<|end|><|assistant|>");
  EXPECT_THROW(read_prompts(file), Error);  // as a list of messages is refused
  for (const char* bad : {"", "[]", "{\"prompt\": 3}\n", "{\"text\": \"x\"}\n", "3\n", "{"}) {
    std::ofstream(file) << bad;
    EXPECT_THROW(read_prompts(file), Error) << bad;
  }
  EXPECT_THROW(read_prompts(folder.path / "none"), Error);
}

TEST(Prompts, FormsAndTemplatesMayBeSpecialTokensAndRowsNever) {
  RewardFolder folder;
  const fs::path file = folder.path / "p.jsonl";
  const Tokenizer t = served_tokenizer();
  const ChatTemplate chat(served_template(), "test");
  const ExampleEncoder encoder(t, chat, 100);
  const auto tokens = [&](const PromptRow& r) { return prompt_tokens(r, t); };
  const auto templated = [&]() -> const ChatTemplate& { return chat; };
  std::ofstream(file) << R"({"prompt": "a<|end|>"})"
                      << "\n";
  EXPECT_EQ(tokens(read_prompts(file)[0]), t.encode("a<|end|>"));
  EXPECT_EQ(std::ranges::count(t.encode("a<|end|>"), served_eos), 0);
  const std::vector<int32_t> formed = tokens(read_prompts(file, {.form = "<|end|>{}"})[0]);
  EXPECT_EQ(formed.front(), served_eos);
  EXPECT_EQ(std::ranges::count(formed, served_eos), 1);
  // A user's message begins as SFT's conversations do.
  const PromptRow asked = read_prompts(file, {.chat = templated, .message = true})[0];
  const Example learned = encoder.example(
      {{"messages",
        {{{"role", "user"}, {"content", "a<|end|>"}}, {{"role", "assistant"}, {"content", "b"}}}}},
      "row");
  const std::vector<int32_t> begin = tokens(asked);
  ASSERT_LT(begin.size(), learned.tokens.size());
  EXPECT_TRUE(std::equal(begin.begin(), begin.end(), learned.tokens.begin()));
  EXPECT_TRUE(learned.learned[begin.size()] && !learned.learned[begin.size() - 1]);
  std::ofstream(file) << R"({"prompt": [{"role": "user", "content": "a<|end|>"}]})"
                      << "\n";
  EXPECT_EQ(tokens(read_prompts(file, {.chat = templated})[0]), begin);
  EXPECT_THROW(read_prompts(file), Error);
  EXPECT_THROW(read_prompts(file, {.form = "Q {}", .chat = templated}), Error);
}

TEST(Prompts, TheDigestKnowsTextsAnswersAndOrder) {
  const PromptRow a{{{"answer", 1}}, "p", "f:1"}, b{{{"answer", 2}}, "p", "f:1"};
  const PromptRow c{{{"answer", 1}}, "q", "f:1"}, moved{{{"answer", 1}}, "p", "g:7"};
  const auto digest = [](std::vector<PromptRow> rows) { return digest_of(rows); };
  EXPECT_EQ(digest({a}), digest({moved}));
  EXPECT_EQ(
      std::set({digest({a}), digest({b}), digest({c}), digest({a, c}), digest({c, a})}).size(), 5u);
}

// The worked solutions that come with these sets end with their number; about one in twenty is
// wrong.
TEST(Answers, OfRealWordProblems) {
  for (const auto& [name, rows] : {std::pair{"AddSub-test.json", 395u},
                                   {"MultiArith-test.json", 600u},
                                   {"SingleEq-test.json", 508u},
                                   {"mawps-trainset.json", 1898u}}) {
    const std::vector<PromptRow> all =
        read_prompts(test::test_data("grpo/" + std::string(name)), {.form = "{}\n"});
    EXPECT_EQ(all.size(), rows) << name;
    Rewards({.rewards = {"near"}}).check(all);
    int64_t near = 0, solved = 0;
    for (const PromptRow& row : all) {
      if (!row.row.contains("output")) continue;
      ++solved;
      near += near_number(row.row["output"].get<std::string>(), *row.answer(), 1e-3);
    }
    EXPECT_GE(double(near), 0.9 * double(solved)) << name;
  }
}

TEST(Arithmetic, EverySumOnceAndOnOneSide) {
  const ArithmeticSet set = make_arithmetic({});
  EXPECT_EQ(set.train.size() + set.held_out.size(), 8100u);
  EXPECT_NEAR(double(set.held_out.size()), 810, 100);
  std::set<std::string> seen;
  for (const auto* side : {&set.train, &set.held_out})
    for (const Problem& p : *side) {
      EXPECT_TRUE(seen.insert(p.prompt).second);
      const int a = std::stoi(p.prompt), b = std::stoi(p.prompt.substr(3));
      EXPECT_EQ(p.answer, std::to_string(a + b));
      EXPECT_EQ(p.completion, p.answer);
      EXPECT_NE(p.wrong, p.answer);
    }
  EXPECT_NE(set.train[0].prompt, make_arithmetic({.seed = 2}).train[0].prompt);
}

TEST(Arithmetic, WhatIsHeldOutIsNotTrainedOnTurnedRound) {
  for (const char op : {'+', '*'}) {
    const ArithmeticSet set = make_arithmetic({.ops = std::string(1, op)});
    std::set<std::string> trained;
    for (const Problem& p : set.train) trained.insert(p.prompt);
    for (const Problem& p : set.held_out)
      EXPECT_FALSE(trained.contains(p.prompt.substr(3, 2) + op + p.prompt.substr(0, 2) + "="))
          << p.prompt;
  }
}

TEST(Arithmetic, WordProblemsHoldTheirNumbers) {
  const ArithmeticSpec spec{.digits = 3, .ops = "+-*", .words = true, .problems = 500, .seed = 4};
  const ArithmeticSet set = make_arithmetic(spec);
  EXPECT_EQ(set.train.size() + set.held_out.size(), 500u);
  EXPECT_EQ(set.train[7].prompt, make_arithmetic(spec).train[7].prompt);
  for (const Problem& p : set.train) {
    EXPECT_TRUE(p.prompt.ends_with("\nAnswer:"));
    EXPECT_EQ(p.completion, " " + p.answer);
    EXPECT_NE(p.answer[0], '-');
  }
}

TEST(Arithmetic, RefusesWhatCannotBe) {
  for (const ArithmeticSpec& s :
       {ArithmeticSpec{.digits = 0}, ArithmeticSpec{.digits = 3}, ArithmeticSpec{.ops = "/"},
        ArithmeticSpec{.ops = "++"}, ArithmeticSpec{.held_out = 1},
        ArithmeticSpec{.problems = 1000000}})
    EXPECT_THROW(make_arithmetic(s), Error);
}

TEST(Arithmetic, FilesArePromptsAndText) {
  RewardFolder folder;
  write_arithmetic(folder.path / "sums", make_arithmetic({.digits = 1}));
  const auto prompts = read_prompts(folder.path / "sums" / "prompts.jsonl");
  const auto held_out = read_prompts(folder.path / "sums" / "heldout.jsonl");
  EXPECT_EQ(prompts.size() + held_out.size(), 100u);
  EXPECT_TRUE(held_out[0].answer());
  const std::string text = read_file(folder.path / "sums" / "pretrain.txt");
  EXPECT_TRUE(text.starts_with(prompts[0].prompt + *prompts[0].answer() + "\n<|endoftext|>\n"));
}

}  // namespace
}  // namespace hearth
