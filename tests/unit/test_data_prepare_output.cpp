// The token files of prepare: sides and shards, the same bytes from every packing, at any thread
// count and after any kill, and folders that are refused.
#include <sys/wait.h>

#include <csignal>
#include <map>
#include <nlohmann/json.hpp>
#include <random>

#include "data/holdout.h"
#include "data/prepare.h"
#include "unit/data_files.h"
#include "unit/packed_bytes.h"
#include "unit/parquet_file.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

// Several files of both kinds with documents of many lengths.
struct Corpus {
  TemporaryFolder dir;
  std::vector<std::string> inputs;
  std::vector<std::string> documents;

  Corpus() {
    std::mt19937 random(3);
    std::string text, lines;
    for (int i = 0; i < 300; ++i) {
      std::string d;
      for (int n = 1 + int(random() % 200); n > 0; --n) d += char('a' + random() % 26);
      documents.push_back(d);
      if (i < 200) {
        text += d + (i < 199 ? "\n<|endoftext|>\n" : "\n");
      } else {
        lines += nlohmann::json{{"text", d}}.dump() + "\n";
      }
    }
    put_file(dir / "1.txt", text);
    put_file(dir / "2.jsonl", lines);
    inputs = {(dir / "[12].*").string()};
  }

  PrepareSpec spec(const std::string& out) const {
    PrepareSpec s = byte_spec(dir / out, inputs);
    s.shard_tokens = 6000;
    s.val_fraction = 0.2;
    s.block_bytes = 3000;
    s.save_blocks = 1;
    return s;
  }

  // Names and bytes of all token files; nothing temporary may be left.
  std::map<std::string, std::string> output(const std::string& out) const {
    std::map<std::string, std::string> files;
    for (const auto& entry : fs::directory_iterator(dir / out)) {
      const std::string name = entry.path().filename().string();
      EXPECT_EQ(name.find("tmp"), name.npos) << name;
      if (name.ends_with(".bin")) files[name] = get_file(entry.path());
    }
    return files;
  }
};

TEST(Prepare, SplitsAndShardsEveryDocument) {
  const Corpus corpus;
  const PrepareResult r = prepare(corpus.spec("out"));
  std::vector<int32_t> train, val, got_train, got_val;
  for (size_t i = 0; i < corpus.documents.size(); ++i) {
    auto& side = is_validation(corpus.documents[i], 0.2) ? val : train;
    const auto tokens = llmc_tokens({corpus.documents[i]});
    side.insert(side.end(), tokens.begin(), tokens.end());
  }
  for (const fs::path& path : r.files) {
    const TokenFile file(path);
    const bool is_val = path.filename().string().starts_with("val");
    auto& side = is_val ? got_val : got_train;
    const auto tokens = all_tokens(file);
    side.insert(side.end(), tokens.begin(), tokens.end());
  }
  EXPECT_EQ(got_train, train);
  EXPECT_EQ(got_val, val);
  EXPECT_EQ(r.train.documents + r.val.documents, 300);
  EXPECT_GT(r.val.documents, 30);
  EXPECT_LT(r.val.documents, 90);
  EXPECT_EQ(r.train.tokens, int64_t(train.size()));
  EXPECT_EQ(r.train_shards, (int64_t(train.size()) + 5999) / 6000);
  EXPECT_TRUE(fs::exists(corpus.dir / "out/train_000001.bin"));
  EXPECT_TRUE(fs::exists(corpus.dir / "out/val_000000.bin"));
  EXPECT_EQ(TokenFile(corpus.dir / "out/train_000001.bin").size(), 6000);
}

// The text alone decides: not its place, and not what else there is.
TEST(Prepare, ADocumentAndItsCopiesFallOnOneSide) {
  int val = 0;
  for (int i = 0; i < 20000; ++i) {
    const std::string text = fmt::format("document {} {}", i, std::string(size_t(i % 23), 'x'));
    val += is_validation(text, 0.1);
    EXPECT_TRUE(is_validation(text, 1));
    EXPECT_FALSE(is_validation(text, 0));
    if (is_validation(text, 0.05)) { EXPECT_TRUE(is_validation(text, 0.1)); }
  }
  EXPECT_NEAR(val, 2000, 150);  // 3.5 deviations of chance
}

// One corpus in every clothing: the same tokens, also when it is taken up in the middle.
TEST(Prepare, TheSameTokensFromEveryPacking) {
  const Corpus corpus;
  std::string lines;
  Rows rows;
  for (const std::string& d : corpus.documents) {
    lines += nlohmann::json{{"text", d}, {"id", "x\n"}}.dump() + "\n";
    rows.push_back(d);
    if (d.size() % 5 == 0) rows.push_back(std::nullopt), rows.push_back("");
  }
  const auto tokens_of = [&](const std::string& file, std::string_view bytes, bool stop) {
    put_file(corpus.dir / file, bytes);
    PrepareSpec spec = corpus.spec("out-" + file);
    spec.inputs = {(corpus.dir / file).string()};
    struct Stop {};
    if (stop) {
      spec.on_block = [](int64_t block) {
        if (block == 4) throw Stop();
      };
      EXPECT_THROW(prepare(spec), Stop);
      spec.on_block = nullptr;
    }
    EXPECT_EQ(prepare(spec).resumed, stop);
    return corpus.output("out-" + file);
  };
  const auto expected = tokens_of("plain.jsonl", lines, false);
  ASSERT_GT(expected.size(), 3u);
  for (const Packing p : {Packing::none, Packing::gzip, Packing::zstd}) {
    if (p != Packing::none && !can_unpack(p)) continue;
    const std::string half = packed_of(p, lines.substr(0, 9000)) + packed_of(p, lines.substr(9000));
    // A name may say nothing of the packing: the bytes do.
    EXPECT_EQ(tokens_of(fmt::format("a{}.jsonl", int(p)), half, true), expected) << name(p);
    ParquetShape shape;
    shape.encoding = p == Packing::gzip ? 8 : p == Packing::zstd ? 7 : 0;
    shape.codec = p == Packing::gzip ? 2 : p == Packing::zstd ? 6 : 1;
    const std::string parquet = parquet_of(rows, shape);
    EXPECT_EQ(tokens_of(fmt::format("b{}.parquet", int(p)), parquet, true), expected) << name(p);
    EXPECT_EQ(tokens_of(fmt::format("c{}", int(p)), packed_of(p, parquet), true), expected);
  }
}

TEST(Prepare, SameBytesAtAnyThreadCountAndBlockSize) {
  const Corpus corpus;
  prepare(corpus.spec("out1"));
  const auto expected = corpus.output("out1");
  for (const int threads : {2, 3}) {
    PrepareSpec spec = corpus.spec(fmt::format("out{}", threads));
    spec.threads = threads;
    spec.block_bytes = threads == 3 ? 7777 : 1000;
    spec.save_blocks = 3;
    prepare(spec);
    EXPECT_EQ(corpus.output(fmt::format("out{}", threads)), expected);
  }
}

TEST(Prepare, GoesOnAfterAStopAtAnyBlock) {
  const Corpus corpus;
  const int64_t bytes = prepare(corpus.spec("whole")).bytes;
  const auto expected = corpus.output("whole");
  struct Stop {};
  for (const int64_t stop : {0, 1, 4, 7}) {
    PrepareSpec spec = corpus.spec(fmt::format("stopped{}", stop));
    spec.save_blocks = 1 + stop % 3;
    spec.on_block = [stop](int64_t block) {
      if (block == stop) throw Stop();
    };
    EXPECT_THROW(prepare(spec), Stop);
    spec.on_block = nullptr;
    const PrepareResult r = prepare(spec);
    EXPECT_EQ(r.resumed, stop + 1 >= spec.save_blocks);
    EXPECT_EQ(r.bytes, bytes);
    EXPECT_EQ(corpus.output(fmt::format("stopped{}", stop)), expected) << stop;
  }
}

// A process killed in the middle of its writing, again and again, until it gets through.
TEST(Prepare, SurvivesKills) {
  const Corpus corpus;
  prepare(corpus.spec("whole"));
  const auto expected = corpus.output("whole");
  std::mt19937 random(9);
  int kills = 0;
  for (int run = 0; run < 6; ++run) {
    const PrepareSpec spec = corpus.spec("killed");
    const pid_t child = ::fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
      prepare(spec);
      ::_exit(0);
    }
    ::usleep(1000 + random() % 30000);
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    kills += WIFSIGNALED(status);
  }
  // As of a run that was killed while it saved its state, before one that finished and was killed.
  prepare(corpus.spec("killed"));
  put_file(corpus.dir / "killed/.tmp-prepare.json-1", "{");
  prepare(corpus.spec("killed"));
  EXPECT_EQ(corpus.output("killed"), expected) << "after " << kills << " kills";
}

TEST(Prepare, ARunInAFolderOfAnotherIsRefused) {
  const Corpus corpus;
  prepare(corpus.spec("out"));
  EXPECT_TRUE(prepare(corpus.spec("out")).resumed);  // nothing to do
  PrepareSpec spec = corpus.spec("out");
  spec.tokenizer_id = "other";
  EXPECT_TRUE(mentions(error_of([&] { prepare(spec); }), {"prepare.json", "tokenizer"}));
  fs::remove(corpus.dir / "out/train_000002.bin");
  EXPECT_TRUE(mentions(error_of([&] { prepare(corpus.spec("out")); }), {"train_000002.bin"}));
  put_file(corpus.dir / "out/prepare.json", "{}");
  EXPECT_TRUE(mentions(error_of([&] { prepare(corpus.spec("out")); }), {"prepare.json"}));
}

// Whoever trains on train_*.bin gets the tokens of one run.
TEST(Prepare, AFolderWithTokenFilesOfAnotherIsRefused) {
  const Corpus corpus;
  const auto refused = [&] { return error_of([&] { prepare(corpus.spec("out")); }); };
  fs::create_directory(corpus.dir / "out");
  for (const char* name : {"train_000007.bin", "val_000003.bin.tmp", "train.bin", "val.bin.tmp"}) {
    put_file(corpus.dir / "out" / name, "");
    EXPECT_TRUE(mentions(refused(), {"/out]", "1 token file ", name, "choose a new folder"}));
    EXPECT_FALSE(fs::exists(corpus.dir / "out/prepare.json"));
    fs::remove(corpus.dir / "out" / name);
  }
  put_file(corpus.dir / "out/training.bin", "");
  prepare(corpus.spec("out"));
  put_file(corpus.dir / "out/train_000099.bin", "");
  EXPECT_TRUE(mentions(refused(), {"train_000099.bin"}));  // in a finished folder too
}

// Stops a run after some blocks, before it has saved any progress.
void stop_before_progress(PrepareSpec spec) {
  struct Stop {};
  spec.save_blocks = 1000;
  spec.on_block = [](int64_t block) {
    if (block == 6) throw Stop();
  };
  EXPECT_THROW(prepare(spec), Stop);
}

TEST(Prepare, ARunThatWasStoppedEarlyKeepsItsFolder) {
  const Corpus corpus;
  stop_before_progress(corpus.spec("out"));
  const std::vector<fs::path> files{corpus.dir / "out/train_000001.bin"};
  ASSERT_TRUE(fs::exists(files[0]));
  EXPECT_EQ(unfinished_folders(files), std::vector{corpus.dir / "out"});
  // A file that the run does not write is found at its end.
  put_file(corpus.dir / "out/train_000099.bin", "");
  EXPECT_TRUE(
      mentions(error_of([&] { prepare(corpus.spec("out")); }), {"such as train_000099.bin"}));
  EXPECT_EQ(unfinished_folders(files).size(), 1u);
  fs::remove(corpus.dir / "out/train_000099.bin");
  prepare(corpus.spec("out"));
  EXPECT_TRUE(unfinished_folders(files).empty());
  prepare(corpus.spec("whole"));
  EXPECT_EQ(corpus.output("out"), corpus.output("whole"));
}

// A setting can be corrected in the same folder as long as no progress was saved.
TEST(Prepare, AnotherRunTakesTheFolderOfOneWithoutProgress) {
  const Corpus corpus;
  stop_before_progress(corpus.spec("out"));
  for (const char* out : {"out", "own"}) {
    PrepareSpec other = corpus.spec(out);
    other.inputs = {(corpus.dir / "1.txt").string()};
    EXPECT_FALSE(prepare(other).resumed);
  }
  EXPECT_EQ(corpus.output("out"), corpus.output("own"));
}

TEST(Prepare, OnlyOneProcessWritesAFolder) {
  const Corpus corpus;
  PrepareSpec spec = corpus.spec("out");
  std::string refused;
  spec.on_block = [&](int64_t block) {
    if (block == 0) refused = error_of([&] { prepare(corpus.spec("out")); });
  };
  prepare(spec);
  EXPECT_TRUE(mentions(refused, {"/out]", "another process prepares data", "new folder"}));
  prepare(corpus.spec("own"));
  EXPECT_EQ(corpus.output("out"), corpus.output("own"));
}

TEST(Prepare, AStateOutOfRangeIsRefused) {
  const Corpus corpus;
  prepare(corpus.spec("out"));
  const fs::path file = corpus.dir / "out/prepare.json";
  const nlohmann::json good = nlohmann::json::parse(read_file(file));
  const std::vector<std::pair<std::string, nlohmann::json>> bad{
      {"file", -1},        {"file", 1 << 20},      {"offset", -1},
      {"line", INT64_MIN}, {"bytes", -1},          {"done", 1},
      {"train/shard", -1}, {"val/shard", 1 << 30}, {"train/open_tokens", -5},
      {"val/tokens", -1},  {"train/documents", ""}};
  for (const auto& [field, value] : bad) {
    nlohmann::json j = good;
    j[nlohmann::json::json_pointer("/" + field)] = value;
    put_file(file, j.dump());
    std::string wanted = "expected " + field + " to be";
    std::replace(wanted.begin(), wanted.end(), '/', '.');
    EXPECT_TRUE(
        mentions(error_of([&] { prepare(corpus.spec("out")); }), {"prepare.json", wanted.c_str()}))
        << field;
  }
}

}  // namespace
}  // namespace hearth
