// Token files, the tokenizer they were prepared with, and the model that is trained on them.
#include <fmt/format.h>

#include "e2e/command.h"
#include "served_folder.h"

namespace hearth {
namespace {

class DataTokenizer : public testing::Test {
 protected:
  void SetUp() override {
    json_of(run(folder,
                {"data", "stories", "--out", folder / "text.txt", "--stories", "60", "--json"}));
    train("tok", "300");
    train("other", "280");
    prepare("tok", "toks");
  }
  Ran train(const std::string& name, const std::string& vocab,
            const std::string& text = "text.txt") const {
    const Ran r = run(folder, {"tokenizer", "train", "--input", folder / text, "--vocab", vocab,
                               "--out", folder / name});
    EXPECT_EQ(r.status, 0) << r.err;
    return r;
  }
  void prepare(const std::string& tokenizer, const std::string& to) const {
    json_of(run(folder,
                {"data", "prepare", "--tokenizer", folder / tokenizer, "--input",
                 folder / "text.txt", "--out", folder / to, "--val-fraction", "0.1", "--json"}));
  }
  Arguments pretrain(const std::string& tokenizer, const std::string& to) const {
    Arguments a = tiny_run(folder / "toks/train_*.bin", folder / to, 4);
    const auto vocab = std::find(a.begin(), a.end(), "--vocab");
    a.erase(vocab, vocab + 2);
    return a + Arguments{"--tokenizer", folder / tokenizer};
  }
  std::string text_of(const std::string& name) const { return (folder / name).string(); }

  const Folder folder;
};

TEST_F(DataTokenizer, IsOverwrittenOnlyOnRequest) {
  const std::string before = read_file(folder / "tok/tokenizer.json");
  const Arguments again{"tokenizer", "train", "--input", folder / "text.txt",
                        "--vocab",   "290",   "--out",   folder / "tok"};
  expect_error(run(folder, again), 1, "tokenizer.json] this file exists: choose another place");
  EXPECT_EQ(read_file(folder / "tok/tokenizer.json"), before);
  const Ran forced = run(folder, again + Arguments{"--force"});
  EXPECT_EQ(forced.status, 0) << forced.err;
  EXPECT_NE(read_file(folder / "tok/tokenizer.json"), before);
  const Arguments save{"tokenizer", "save", "--tokenizer", folder / "tok", "--out"};
  expect_error(run(folder, save + Arguments{folder / "tok"}), 1,
               "tokenizer.json] this file exists");
  // tokenizer_config.json may have a chat template.
  make_dirs(folder / "config");
  write_file_atomic(folder / "config/tokenizer_config.json", std::string_view("{}"));
  expect_error(run(folder, save + Arguments{folder / "config"}), 1,
               "tokenizer_config.json] this file exists");
  EXPECT_EQ(run(folder, save + Arguments{folder / "config", "--force"}).status, 0);
}

TEST_F(DataTokenizer, ARunFolderIsATokenizer) {
  json_of(run(folder, pretrain("tok", "run")));
  prepare("run", "again");
  int files = 0;
  for (const auto& entry : fs::directory_iterator(folder / "toks")) {
    if (entry.path().extension() != ".bin") continue;
    const fs::path same = folder / "again" / entry.path().filename();
    EXPECT_EQ(read_file(entry.path()), read_file(same)) << same;
    ++files;
  }
  EXPECT_EQ(files, 2);  // to train and to validate on
  json_of(run(folder, pretrain("run", "next")));
  // An interrupted prepare continues only with the same tokenizer.
  expect_error(
      run(folder, {"data", "prepare", "--tokenizer", folder / "other", "--input",
                   folder / "text.txt", "--out", folder / "again", "--val-fraction", "0.1"}),
      1, "other inputs, tokenizer or settings");
}

TEST_F(DataTokenizer, ARunFolderHasAChatTemplate) {
  write_served_folder(folder / "model");
  const std::string_view row = R"({"messages": [{"role": "user", "content": "a"},
    {"role": "assistant", "content": "b"}]})";
  write_file_atomic(folder / "rows.json", "[" + std::string(row) + "]");
  json_of(run(folder, {"sft", "--model", folder / "model", "--data", folder / "rows.json", "--run",
                       folder / "sft", "--steps", "1", "--threads", "1", "--json"}));
  const auto rendered = [&](const fs::path& of) {
    return run_on(R"([{"role": "user", "content": "hello"}])", folder,
                  {"tokenizer", "chat", "--tokenizer", of, "--ids"});
  };
  const Ran r = rendered(folder / "sft");
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(r.out, rendered(folder / "model").out);
}

TEST_F(DataTokenizer, AnotherThanTheDatasIsRefused) {
  const std::string expected = "[--tokenizer] " + text_of("toks") +
                               "/ was prepared with a different tokenizer (300 tokens) " + "than " +
                               text_of("other") +
                               " (280 tokens): pass the tokenizer it was prepared with";
  expect_error(run(folder, pretrain("other", "run")), 2, expected);
  EXPECT_FALSE(fs::exists(folder / "run"));
  // The one of the validation data counts too.
  prepare("other", "others");
  expect_error(
      run(folder, pretrain("tok", "run") + Arguments{"--val", folder / "others/val_*.bin"}), 2,
      text_of("others") + "/ was prepared with a different tokenizer (280 tokens)");
  // As versions wrote the state that told only the digest of the tokenizer's files.
  const fs::path state = folder / "toks/prepare.json";
  auto j = nlohmann::json::parse(read_file(state));
  ASSERT_EQ(j.erase("vocabulary"), 1u);
  write_file_atomic(state, j.dump());
  expect_error(run(folder, pretrain("other", "run")), 2, expected);
  json_of(run(folder, pretrain("tok", "old")));
  // What tells nothing is passed over.
  int runs = 0;
  for (const char* unknown : {"{", "[]", "{\"run\": {\"tokenizer\": 3}}", "{\"run\": []}"}) {
    write_file_atomic(state, std::string_view(unknown));
    json_of(run(folder,
                pretrain("other", "unknown" + std::to_string(runs++)) + Arguments{"--vocab=300"}));
  }
}

TEST_F(DataTokenizer, AFolderThatIsNotFinishedIsRefused) {
  const fs::path state = folder / "toks/prepare.json";
  auto j = nlohmann::json::parse(read_file(state));
  const Arguments stat{"data", "stat", folder / "toks/train_*.bin", "--json"};
  EXPECT_EQ(run(folder, stat).err, "");
  j["done"] = false;
  write_file_atomic(state, j.dump());
  const std::string problem = "this folder is not finished: run data prepare again";
  expect_error(run(folder, pretrain("tok", "run")), 1, "[" + text_of("toks") + "] " + problem);
  EXPECT_FALSE(fs::exists(folder / "run"));
  const Ran described = run(folder, stat);
  EXPECT_EQ(described.status, 0) << described.err;
  EXPECT_EQ(described.err, "hearth: " + text_of("toks") + ": " + problem + "\n");
}

TEST_F(DataTokenizer, ACopyOfTheDatasIsTaken) {
  json_of(run(folder, pretrain("tok", "run")));
  json_of(run(folder, pretrain("run/latest", "again")));
  json_of(run(folder, pretrain("tok/tokenizer.json", "file")));
}

// cl100k_base and o200k_base have unused ids between their tokens and the special ones.
TEST_F(DataTokenizer, OneWithUnusedIdsIsTaken) {
  auto sparse = nlohmann::json::parse(read_file(folder / "tok/tokenizer.json"));
  sparse["added_tokens"][0]["id"] = 305;
  const auto write = [&](const std::string& name, const nlohmann::json& file) {
    fs::create_directories(folder / name);
    fs::copy_file(folder / "tok/tokenizer_config.json", folder / name / "tokenizer_config.json");
    write_file_atomic(folder / name / "tokenizer.json", file.dump());
  };
  write("sparse", sparse);
  auto filled = sparse;
  filled["added_tokens"].push_back(sparse["added_tokens"][0]);
  filled["added_tokens"][1]["id"] = 302, filled["added_tokens"][1]["content"] = "<|new|>";
  write("filled", filled);
  fs::remove_all(folder / "toks");
  prepare("sparse", "toks");
  json_of(run(folder, pretrain("sparse", "run") + Arguments{"--stop-after-step", "2"}));
  json_of(run(folder, pretrain("run/latest", "copy")));
  EXPECT_EQ(json_of(run(folder, pretrain("sparse", "run") + Arguments{"--resume"}))["steps"], 4);
  expect_error(run(folder, pretrain("filled", "other-run")), 2,
               "was prepared with a different tokenizer (306 tokens)");
}

TEST_F(DataTokenizer, AResumedRunKeepsItsOwn) {
  const auto resumed = [&](const Arguments& more) {
    return run(folder, Arguments{"pretrain", "--run", folder / "run", "--resume", "--json"} + more);
  };
  json_of(run(folder, pretrain("tok", "run") + Arguments{"--stop-after-step", "2"}));
  // The same one in another place is fine, and so is the data.
  fs::rename(folder / "tok", folder / "moved");
  fs::rename(folder / "toks", folder / "tokens");
  const Arguments data{"--data", folder / "tokens/train_*.bin"};
  json_of(resumed(data + Arguments{"--tokenizer", folder / "moved", "--stop-after-step", "3"}));
  const std::string expected =
      "[--tokenizer] expected the tokenizer that the run began with (300 tokens), got another one ";
  expect_error(resumed(data + Arguments{"--tokenizer", folder / "other"}), 2,
               expected + "(280 tokens) in " + text_of("other"));
  train("tok", "290");  // where the one was that the run began with
  expect_error(resumed(data), 2, expected + "(290 tokens) in " + text_of("tok"));
  // Nor does it go on with data of another one.
  prepare("other", "others");
  const Arguments own{"--tokenizer", folder / "run/latest"};
  expect_error(resumed(own + Arguments{"--data", folder / "others/train_*.bin"}), 2,
               text_of("others") + "/ was prepared with a different tokenizer (280 tokens)");
  EXPECT_EQ(json_of(resumed(own + data))["steps"], 4);
}

// Before the first checkpoint, config.toml names it.
TEST_F(DataTokenizer, AResumedRunWithoutACheckpointKeepsItsOwn) {
  json_of(run(folder, pretrain("tok", "run")));
  fs::remove_all(folder / "run/checkpoints");
  fs::remove(folder / "run/latest");
  expect_error(run(folder, {"pretrain", "--run", folder / "run", "--resume", "--tokenizer",
                            folder / "other"}),
               2, "[--tokenizer] expected the tokenizer that the run began with (300 tokens)");
}

// A llama2.c vocabulary: the three special pieces, the 256 bytes and a space.
void write_llama2c(const fs::path& file) {
  std::vector<std::string> pieces{"<unk>", "<s>", "</s>"};
  for (int b = 0; b < 256; ++b) pieces.push_back(fmt::format("<0x{:02X}>", b));
  pieces.push_back(" ");
  std::string bytes;
  const auto add = [&](auto x) { bytes.append(reinterpret_cast<const char*>(&x), sizeof x); };
  add(int32_t(6));
  for (const std::string& piece : pieces) {
    add(0.0f), add(int32_t(piece.size()));
    bytes += piece;
  }
  write_file_atomic(file, bytes);
}

// Otherwise the first checkpoint would fail, and every step before it would be lost.
TEST_F(DataTokenizer, OneThatCheckpointsCannotCarryIsRefusedBeforeTheRun) {
  write_llama2c(folder / "tok260.bin");
  write_chain(folder / "chain.bin", 2000, 1);
  Arguments call = tiny_run(folder / "chain.bin", folder / "run", 4);
  *(std::find(call.begin(), call.end(), "--vocab") + 1) = "260";
  const Ran r = run(folder, call + Arguments{"--tokenizer", folder / "tok260.bin"});
  EXPECT_EQ(r.status, 1) << r.err;
  EXPECT_NE(
      r.err.find("[tokenizer] a llama2.c vocabulary cannot be saved as tokenizer.json, so the "
                 "checkpoints could not carry it; give --tokenizer another kind"),
      std::string::npos)
      << r.err;
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST_F(DataTokenizer, ADocumentIsNotStartedByATokenThatIsNotThere) {
  auto bare = nlohmann::json::parse(read_file(folder / "tok/tokenizer.json"));
  bare["added_tokens"] = nlohmann::json::array();
  fs::create_directories(folder / "bare");
  write_file_atomic(folder / "bare/tokenizer.json", bare.dump());
  fs::remove(folder / "toks/prepare.json");
  expect_error(run(folder, pretrain("bare", "run") + Arguments{"--document-mask"}), 2,
               "[--document-start] " + text_of("bare") + " names no end-of-text token");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

TEST_F(DataTokenizer, GivesTheModelItsVocabulary) {
  json_of(run(folder, pretrain("tok", "run") + Arguments{"--stop-after-step", "2"}));
  EXPECT_NE(read_file(folder / "run/config.toml").find("\nvocab = 300\n"), std::string::npos);
  json_of(run(folder, pretrain("tok", "run") + Arguments{"--resume", "--stop-after-step", "3"}));
  EXPECT_EQ(
      json_of(run(folder, {"pretrain", "--run", folder / "run", "--resume", "--json"}))["steps"],
      4);
  const Ran wide = run(folder, pretrain("tok", "wide") + Arguments{"--vocab", "320"});
  json_of(wide);
  EXPECT_NE(wide.err.find("--vocab 320 is more than the 300 tokens of " + text_of("tok") +
                          ": 20 rows of the embedding are never used"),
            std::string::npos)
      << wide.err;
  expect_error(run(folder, pretrain("tok", "narrow") + Arguments{"--vocab", "299"}), 2,
               "[--vocab] expected at least the 300 tokens of " + text_of("tok") + ", got 299");
}

// As runs began with the preset's vocabulary: the same command with --resume goes on.
TEST_F(DataTokenizer, ARunWithThePresetsVocabularyGoesOn) {
  const Arguments over{"--preset", "tiny", "--kv-heads", "2"};
  json_of(run(folder, pretrain("tok", "run") + over +
                          Arguments{"--vocab", "2048", "--stop-after-step", "2"}));
  EXPECT_EQ(json_of(run(folder, pretrain("tok", "run") + over + Arguments{"--resume"}))["steps"],
            4);
}

TEST_F(DataTokenizer, TrainingSaysHowManyTokensTheTextGave) {
  write_file_atomic(folder / "short.txt", std::string_view("the cat and the dog"));
  const Ran few = train("few", "8192", "short.txt");
  const auto made = nlohmann::json::parse(read_file(folder / "few/tokenizer.json"));
  const std::string size = std::to_string(made["model"]["vocab"].size() + 1);  // and end-of-text
  EXPECT_NE(
      few.err.find("hearth: the text yields only " + size + " of the 8192 requested tokens\n"),
      std::string::npos)
      << few.err;
  EXPECT_EQ(train("all", "300").err.find("requested tokens"), std::string::npos);
  write_file_atomic(folder / "empty.txt", std::string_view(""));
  const Ran none = run(folder, {"tokenizer", "train", "--input", folder / "empty.txt", "--vocab",
                                "300", "--out", folder / "none"});
  EXPECT_EQ(none.status, 1) << none.err;
  EXPECT_NE(none.err.find("empty.txt] expected text to train a tokenizer on, got none"),
            std::string::npos)
      << none.err;
  EXPECT_FALSE(fs::exists(folder / "none"));
}

TEST_F(DataTokenizer, ARunWithoutOneIsWarnedOnce) {
  const std::string warning =
      "hearth: without --tokenizer the checkpoints will contain no tokenizer";
  write_chain(folder / "chain.bin", 2000, 1);
  const Arguments words = tiny_run(folder / "chain.bin", folder / "run", 4);
  const Ran first = run(folder, words + Arguments{"--stop-after-step", "2"});
  json_of(first);
  const size_t at = first.err.find(warning);
  ASSERT_NE(at, std::string::npos) << first.err;
  EXPECT_EQ(first.err.find(warning, at + 1), std::string::npos) << first.err;
  const Ran resumed = run(folder, words + Arguments{"--resume"});
  EXPECT_EQ(resumed.err.find(warning), std::string::npos) << resumed.err;
  const Ran with = run(folder, pretrain("tok", "with"));
  json_of(with);
  EXPECT_EQ(with.err.find("without --tokenizer"), std::string::npos) << with.err;
}

TEST_F(DataTokenizer, AFolderIsRefusedWithThePatternToGive) {
  fs::create_directories(folder / "plain");
  const std::string texts =
      "expected files, got a folder: pass a pattern such as '" + text_of("plain") + "/*.txt'";
  expect_error(run(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input",
                            folder / "plain", "--out", folder / "out"}),
               1, texts);
  expect_error(
      run(folder, {"tokenizer", "train", "--input", folder / "plain", "--out", folder / "out"}), 1,
      texts);
  for (const Arguments& more : {Arguments{}, Arguments{"--tokenizer", folder / "tok"}})
    expect_error(run(folder, tiny_run(folder / "toks", folder / "run", 4) + more), 1,
                 "a pattern such as '" + text_of("toks") + "/train_*.bin'");
}

TEST_F(DataTokenizer, ATableIsRefusedWithTheFlagThatTakesIt) {
  for (const std::string name : {"table.csv", "list.json"}) {
    SCOPED_TRACE(name);
    write_file_atomic(folder / name, std::string_view("text\nhello\n"));
    const Arguments prepare{"data",    "prepare",     "--tokenizer", folder / "tok",
                            "--input", folder / name, "--out",       folder / ("out-" + name)};
    expect_error(run(folder, prepare), 1, "pass --source text to read it as plain text");
    EXPECT_EQ(run(folder, prepare + Arguments{"--source", "text"}).status, 0);
    expect_error(
        run(folder, {"tokenizer", "train", "--input", folder / name, "--out", folder / "none"}), 1,
        "rename it to .txt to read it as plain text");
  }
}

// Before anything is learned: expect_error() allows no line about it.
TEST_F(DataTokenizer, AnOutputThatCannotBeWrittenIsReportedFirst) {
  write_file_atomic(folder / "file", std::string_view("not a folder"));
  const auto train_to = [&](const std::string& out) {
    return run(folder, {"tokenizer", "train", "--input", folder / "text.txt", "--vocab", "300",
                        "--out", out});
  };
  expect_error(train_to("/proc/x"), 1, "[/proc/x] could not create the folder");
  expect_error(train_to(folder / "file/tok"), 1, "could not create the folder");
  expect_error(train_to("/proc"), 1, "could not create the file");
  // A path that can be written is not touched by a command that fails later.
  expect_error(run(folder, {"tokenizer", "train", "--input", folder / "gone.txt", "--out",
                            folder / "new/tok"}),
               1, "no file matches");
  EXPECT_FALSE(fs::exists(folder / "new"));
}

TEST_F(DataTokenizer, OneOfSomethingIsSingular) {
  write_file_atomic(folder / "one.txt", std::string_view("one <|endoftext|> text\n"));
  EXPECT_NE(train("single", "257", "one.txt").out.find(" 257 tokens from 1 file, "),
            std::string::npos);
  const Ran made = run(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input",
                                folder / "one.txt", "--out", folder / "one"});
  EXPECT_NE(made.out.find(" of 1 document in 1 file under "), std::string::npos) << made.out;
  EXPECT_NE(made.err.find("<|endoftext|> occurs 1 time inside a line"), std::string::npos)
      << made.err;
  const Ran stat = run(folder, {"data", "stat", folder / "one/train_000001.bin"});
  EXPECT_NE(stat.out.find(", 1 document opened by "), std::string::npos) << stat.out;
  expect_error(run(folder, {"tokenizer", "train", "--input", folder / "one.txt", "--vocab", "5",
                            "--out", folder / "few"}),
               2, "(256 bytes and 1 special token)");
  const Ran story = run(folder, {"data", "stories", "--out", folder / "s.txt", "--stories", "1"});
  EXPECT_TRUE(story.out.starts_with("1 story, ")) << story.out;
  EXPECT_TRUE(run(folder, {"data", "stories", "--out", folder / "t.txt", "--stories", "2"})
                  .out.starts_with("2 stories, "));
}

TEST_F(DataTokenizer, AColumnNamesTheKeyOfRows) {
  write_file_atomic(folder / "rows.jsonl", std::string_view("{\"content\": \"the cat\"}\n"));
  const Arguments rows{"--input", folder / "rows.jsonl"}, named{"--column", "content"};
  const Arguments prepare{"data",         "prepare", "--tokenizer",
                          folder / "tok", "--out",   folder / "rows"};
  const Arguments learn{"tokenizer", "train", "--vocab", "260", "--out", folder / "rows-tok"};
  for (const Arguments& command : {prepare, learn}) {
    expect_error(run(folder, command + rows), 1,
                 "got keys: \"content\"; --column NAME reads another key");
    expect_error(run(folder, command + Arguments{"--input", folder / "text.txt"} + named), 2,
                 "[--column] has no effect: plain text has no columns");
    const Ran read = run(folder, command + rows + named);
    EXPECT_EQ(read.status, 0) << read.err;
  }
}

TEST_F(DataTokenizer, PrepareTellsOfEndOfTextInsideLines) {
  write_file_atomic(folder / "inline.txt", std::string_view("one<|endoftext|>two<|endoftext|>\n"));
  const Ran r = run(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input",
                             folder / "inline.txt", "--out", folder / "out", "--json"});
  json_of(r);
  EXPECT_NE(r.err.find("hearth: " + text_of("inline.txt") +
                       ": <|endoftext|> occurs 2 times inside a line and was read as plain text; "
                       "put it on a separate line to end a document\n"),
            std::string::npos)
      << r.err;
}

}  // namespace
}  // namespace hearth
