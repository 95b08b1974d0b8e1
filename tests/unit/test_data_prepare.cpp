// prepare: documents of every kind and packing, the same bytes at any thread count and after any
// kill.
#include "data/prepare.h"

#include <sys/wait.h>

#include <csignal>
#include <nlohmann/json.hpp>
#include <random>

#include "data/holdout.h"
#include "unit/data_files.h"
#include "unit/packed_bytes.h"
#include "unit/parquet_file.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

std::vector<int32_t> llmc_tokens(std::initializer_list<std::string_view> documents) {
  std::vector<int32_t> tokens;
  for (const std::string_view d : documents) {
    tokens.push_back(257);
    for (const char c : d) tokens.push_back(uint8_t(c));
  }
  return tokens;
}

std::vector<int32_t> prepared(const std::string& file, std::string_view bytes,
                              SourceKind kind = SourceKind::automatic) {
  const TemporaryFolder dir;
  put_file(dir / file, bytes);
  PrepareSpec spec = byte_spec(dir / "out", {(dir / file).string()});
  spec.source = kind;
  prepare(spec);
  return all_tokens(TokenFile(dir / "out/train_000001.bin"));
}

TEST(Prepare, PartsTextAtEndOfTextLines) {
  EXPECT_EQ(prepared("a.txt", "one\ntwo\n"), llmc_tokens({"one\ntwo\n"}));
  EXPECT_EQ(prepared("a.txt", "one\n<|endoftext|>\ntwo\n\n<|endoftext|>\nthree\n"),
            llmc_tokens({"one", "two\n", "three"}));
  EXPECT_EQ(prepared("a.txt", "<|endoftext|>\n\n<|endoftext|>\none\n<|endoftext|>"),
            llmc_tokens({"one"}));
  EXPECT_EQ(prepared("a.txt", "a <|endoftext|>\n<|endoftext|> b"),
            llmc_tokens({"a <|endoftext|>\n<|endoftext|> b"}));
  EXPECT_EQ(prepared("a.txt", "x\xfey\n<|endoftext|>\n\xff"), llmc_tokens({"x\xfey", "\xff"}));
}

TEST(Prepare, RefusesBinaryFilesByTheirFirstBytes) {
  const auto refused = [](const std::string& file, std::string_view bytes) {
    return error_of([&] { prepared(file, bytes); });
  };
  const std::string zeros(1000, '\0');
  std::string tokens(4, '\0'), questions(4, '\0');
  for (size_t i = 0; i < 4; ++i) {
    tokens[i] = char(20240520 >> 8 * i);
    questions[i] = char(20240522 >> 8 * i);
  }
  EXPECT_TRUE(mentions(refused("a.bin", tokens + zeros), {"a token file", "already", "--source"}));
  EXPECT_TRUE(mentions(refused("a.bin", questions + zeros), {"an evaluation file"}));
  EXPECT_TRUE(mentions(refused("a.bin", "abcd" + zeros), {"a binary file", "byte 4)"}));
  EXPECT_TRUE(mentions(refused("a",
                               "\x7f"
                               "ELF\x02\x01\x01" +
                                   zeros),
                       {"a binary file"}));
  EXPECT_TRUE(mentions(refused("a.txt", std::string(60000, 'a') + zeros), {"byte 60000)"}));
  if (can_unpack(Packing::gzip)) {
    EXPECT_TRUE(mentions(refused("a.txt.gz", gzip_of("text" + zeros)), {"a binary file"}));
  }
  std::string wide, high_first;
  for (const char c : std::string("Some text.\n")) {
    wide += c, wide += '\0';
    high_first += '\0', high_first += c;
  }
  for (const std::string& text : {wide, high_first, "\xff\xfe" + wide, "\xfe\xff" + high_first})
    EXPECT_TRUE(mentions(refused("a.txt", text), {"UTF-16", "iconv"}));
  EXPECT_TRUE(mentions(refused("a.jsonl", wide), {"UTF-16", "iconv"}));
  // Whoever says that it is text gets its bytes.
  EXPECT_EQ(prepared("a.txt", std::string_view("x\0y", 3), SourceKind::text),
            llmc_tokens({std::string_view("x\0y", 3)}));
}

TEST(Prepare, PartsTextAtEndOfTextLinesOfWindows) {
  EXPECT_EQ(prepared("a.txt", "one\r\n<|endoftext|>\r\ntwo\r\n2\r\n<|endoftext|>\r\nthree\r\n"),
            llmc_tokens({"one", "two\r\n2", "three"}));
  EXPECT_EQ(prepared("a.txt", "one\r\n"), llmc_tokens({"one\r\n"}));
  // With Unix line ends a carriage return is the text's own.
  EXPECT_EQ(prepared("a.txt", "one\r\n<|endoftext|>\ntwo\r\n"), llmc_tokens({"one\r", "two\r"}));
  EXPECT_EQ(prepared("a.txt", "one\n<|endoftext|>\r"), llmc_tokens({"one\n<|endoftext|>\r"}));
}

// The same count at any thread count, and after a stop in any block.
TEST(Prepare, CountsEndOfTextInsideLines) {
  const TemporaryFolder dir;
  std::string text;
  for (int i = 0; i < 40; ++i)
    text += fmt::format("a{}<|endoftext|>b<|endoftext|>\r\n{}", i,
                        i % 3 == 0 ? "<|endoftext|>\r\n" : "");
  put_file(dir / "a.txt", text);
  put_file(dir / "b.txt", "one\n<|endoftext|>\ntwo\n");
  put_file(dir / "c.txt", "one <|endoftext|>\ntwo\n");
  put_file(dir / "d.jsonl", "{\"text\": \"one<|endoftext|>two\"}\n");
  const auto spec_to = [&](const std::string& out) {
    PrepareSpec spec = byte_spec(dir / out, {});
    for (const char* name : {"a.txt", "b.txt", "c.txt", "d.jsonl"})
      spec.inputs.push_back((dir / name).string());
    spec.block_bytes = 200, spec.save_blocks = 1;
    return spec;
  };
  const std::vector<std::pair<fs::path, int64_t>> expected{{dir / "a.txt", 80}, {dir / "c.txt", 1}};
  std::string bytes;
  for (const int threads : {1, 3}) {
    PrepareSpec spec = spec_to(fmt::format("threads{}", threads));
    spec.threads = threads;
    EXPECT_EQ(prepare(spec).marks_inside, expected);
    EXPECT_EQ(prepare(spec).marks_inside, expected);  // of the finished run
    bytes = get_file(spec.out / "train_000001.bin");
  }
  for (const int64_t stop : {0, 2, 4}) {
    PrepareSpec spec = spec_to(fmt::format("stopped{}", stop));
    struct Stop {};
    spec.on_block = [&](int64_t block) {
      if (block == stop) throw Stop();
    };
    EXPECT_THROW(prepare(spec), Stop);
    spec.on_block = nullptr;
    const PrepareResult r = prepare(spec);
    EXPECT_TRUE(r.resumed);
    EXPECT_EQ(r.marks_inside, expected) << stop;
    EXPECT_EQ(get_file(spec.out / "train_000001.bin"), bytes) << stop;
  }
}

TEST(Prepare, TakesEveryKindOfJsonl) {
  EXPECT_EQ(
      prepared("a.jsonl", R"({"text": "hello\n"}
{"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}

{"prompt": "p ", "completion": "c"}
{"prompt": "p", "chosen": "good", "rejected": "bad"}
{"prompt": "p", "chosen": [{"content": "x"}, {"content": "y"}], "rejected": []}
{"instruction": "i", "input": "", "output": "o"}
{"instruction": "i", "input": "n", "output": "o", "more": 1}
{"text": ""}
{"instruction": "i", "output": "o"})"),
      llmc_tokens({"hello\n", "a\nb", "p c", "p\ngood", "p\nx\ny", "i\no", "i\nn\no", "i\no"}));
}

TEST(Prepare, NamesTheLineOfBadJsonl) {
  const auto refused = [](const char* line) {
    return error_of([&] { prepared("a.jsonl", std::string("{\"text\": \"ok\"}\n\n") + line); });
  };
  EXPECT_TRUE(mentions(refused("{\"text\": \n"), {"a.jsonl:3:10]"}));
  EXPECT_TRUE(mentions(refused("[1]"), {"a.jsonl:3", "object"}));
  EXPECT_TRUE(mentions(refused("{\"body\": \"x\"}"), {"a.jsonl:3", "body"}));
  EXPECT_TRUE(mentions(refused("{\"text\": 3}"), {"a.jsonl:3", "text"}));
  EXPECT_TRUE(
      mentions(refused("{\"messages\": [{\"role\": \"user\"}]}"), {"a.jsonl:3", "content"}));
  EXPECT_TRUE(mentions(refused("{\"text\": \"\xff\"}"), {"a.jsonl:3"}));
}

TEST(Prepare, AColumnIsTheKeyOfJsonlRows) {
  const TemporaryFolder dir;
  put_file(dir / "a.jsonl",
           "{\"body\": \"one\"}\n{\"body\": null}\n{\"body\": \"two\", \"n\": [1]}\n");
  put_file(dir / "a.txt", "text");
  PrepareSpec spec = byte_spec(dir / "out", {(dir / "a.jsonl").string()});
  EXPECT_TRUE(mentions(error_of([&] { prepare(spec); }), {"a.jsonl:1]", "--column NAME"}));
  spec = byte_spec(dir / "named", spec.inputs);
  spec.column = "body";
  prepare(spec);
  EXPECT_EQ(all_tokens(TokenFile(dir / "named/train_000001.bin")), llmc_tokens({"one", "two"}));
  spec = byte_spec(dir / "sides", spec.inputs);
  spec.column = "body", spec.val_fraction = 0.5;
  const PrepareResult sides = prepare(spec);
  EXPECT_EQ(sides.train.documents + sides.val.documents, 2);
  // Text alone has no columns; a text beside rows may be read.
  spec = byte_spec(dir / "plain", {(dir / "a.txt").string()});
  spec.column = "body";
  EXPECT_TRUE(mentions(error_of([&] { prepare(spec); }), {"[--column] has no effect"}));
  EXPECT_FALSE(fs::exists(dir / "plain"));
  spec.inputs.push_back((dir / "a.jsonl").string());
  prepare(spec);
  EXPECT_EQ(all_tokens(TokenFile(dir / "plain/train_000001.bin")),
            llmc_tokens({"text", "one", "two"}));
}

TEST(Prepare, RefusesBadCalls) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", "text");
  put_file(dir / "a.json", "[]");
  put_file(dir / "a.xz", std::string("\xfd"
                                     "7zXZ\0\0\0",
                                     8));
  put_file(dir / "empty.txt", "");
  const auto refused = [&](const char* input, auto change) {
    PrepareSpec spec = byte_spec(dir / "out", {(dir / input).string()});
    change(spec);
    return error_of([&] { prepare(spec); });
  };
  const auto nothing = [](PrepareSpec&) {};
  EXPECT_TRUE(mentions(refused("none.txt", nothing), {"none.txt", "no file matches"}));
  EXPECT_TRUE(mentions(refused("a.json", nothing), {"a.json", "JSONL"}));
  EXPECT_TRUE(mentions(refused("a.xz", nothing), {"a.xz", "unpack"}));
  EXPECT_TRUE(mentions(refused("empty.txt", nothing), {"no text"}));
  EXPECT_TRUE(mentions(refused("a.txt", [](auto& s) { s.val_fraction = 1; }), {"[0, 1)"}));
  EXPECT_TRUE(mentions(refused("a.txt", [](auto& s) { s.eos = -1; }), {"end-of-text"}));
  EXPECT_TRUE(mentions(refused("a.txt",
                               [](auto& s) {
                                 s.vocab = 100;
                                 s.out += "2";
                               }),
                       {"a.txt:1", "100"}));
}

TEST(Prepare, RawFormatWithMetadata) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", "ab\n<|endoftext|>\nc");
  PrepareSpec spec = byte_spec(dir / "out", {(dir / "a.txt").string()});
  spec.format = TokenFormat::raw;
  prepare(spec);
  const TokenFile file(dir / "out/train.bin");
  EXPECT_EQ(file.format(), TokenFormat::raw);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{256, 'a', 'b', 257, 256, 'c', 257}));
  const auto meta = nlohmann::json::parse(get_file(dir / "out/metadata.json"));
  EXPECT_EQ(meta["vocab_size"], 258);
  EXPECT_EQ(meta["dtype"], "uint16");
  EXPECT_EQ(meta["bos_token_id"], 256);
  EXPECT_EQ(meta["eos_token_id"], 257);
  EXPECT_EQ(meta["train_tokens"], 7);
  EXPECT_EQ(meta["train_examples"], 2);
  EXPECT_EQ(meta["train_length_stats"]["token"]["max"], 4);
  EXPECT_EQ(meta["train_length_stats"]["token"]["mean"], 3.5);
}

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

TEST(Prepare, RefusesADocumentWithoutEnd) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", "short\n<|endoftext|>\n" + std::string(2000, 'x') + "\n");
  DocumentReader reader({.inputs = {dir / "a.txt"}, .longest = 1000});
  Document d;
  EXPECT_TRUE(reader.next(d));
  EXPECT_TRUE(mentions(error_of([&] { reader.next(d); }), {"a.txt:3", "1000", "longer"}));
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
