// Data through the command line: sources through a pipe, mixed sources in training.
#include <algorithm>
#include <cmath>
#include <cstdlib>

#include "e2e/command.h"
#include "served_folder.h"
#include "unit/parquet_file.h"

namespace hearth {
namespace {

TEST(DataArithmetic, IsOverwrittenOnlyOnRequest) {
  const Folder folder;
  const Arguments make{"data", "arithmetic", "--digits", "1", "--out", folder / "sums"};
  EXPECT_EQ(run(folder, make).status, 0);
  write_file_atomic(folder / "sums/pretrain.txt", std::string_view("mine"));
  expect_error(run(folder, make), 1, "pretrain.txt] this file exists: choose another place");
  EXPECT_EQ(read_file(folder / "sums/pretrain.txt"), "mine");
  fs::remove(folder / "sums/pretrain.txt");  // the other files count too
  expect_error(run(folder, make), 1, "sft.jsonl] this file exists: choose another place");
  EXPECT_EQ(run(folder, make + Arguments{"--force"}).status, 0);
  EXPECT_TRUE(fs::exists(folder / "sums/pretrain.txt"));
}

// Packed data that comes through standard input gives what the plain file gives.
TEST(DataPrepare, TakesPackedDataFromAPipe) {
  const Folder folder;
  json_of(
      run(folder, {"data", "stories", "--out", folder / "text.txt", "--stories", "50", "--json"}));
  const Ran learned = run(folder, {"tokenizer", "train", "--input", folder / "text.txt", "--vocab",
                                   "300", "--out", folder / "tok"});
  ASSERT_EQ(learned.status, 0) << learned.err;
  const std::string text = read_file(folder / "text.txt");
  std::string lines;
  Rows rows;
  for (size_t at = 0; at + 500 <= text.size(); at += 500) {
    rows.push_back(text.substr(at, 500));
    lines += nlohmann::json{{"text", *rows.back()}}.dump() + "\n";
    rows.push_back(std::nullopt);
  }
  const auto through_pipe = [&](const std::string& name, const std::string& bytes) {
    write_file_atomic(folder / name, bytes);
    const std::string command = "cat '" + (folder / name).string() +
                                "' | " HEARTH_BINARY " data prepare --input - --tokenizer '" +
                                (folder / "tok").string() + "' --source " +
                                (name.starts_with("p") ? "auto" : "jsonl") + " --out '" +
                                (folder / (name + ".out")).string() + "' >/dev/null 2>&1";
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return read_file(folder / (name + ".out") / "train_000001.bin");
  };
  const std::string expected = through_pipe("lines", lines);
  ASSERT_GT(expected.size(), 2000u);
  for (const Packing p : {Packing::gzip, Packing::zstd}) {
    if (!can_unpack(p)) continue;
    EXPECT_EQ(through_pipe(std::string("lines.") + name(p), packed_of(p, lines)), expected);
    EXPECT_EQ(through_pipe(std::string("p.") + name(p), packed_of(p, parquet_of(rows))), expected);
  }
  EXPECT_EQ(through_pipe("p", parquet_of(rows)), expected);
  expect_error(run(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input",
                            folder / "p", "--column", "body", "--out", folder / "o"}),
               1, "\"body\"");
}

TEST(DataPrepare, TakesNamesThatAreNoUtf8) {
  const Folder folder;
  write_served_folder(folder / "tok");
  const std::string file = folder / "caf\xe9.txt", out = folder / "out";
  write_file_atomic(file, std::string(3000, 'a'));
  const Arguments call{"data",    "prepare", "--tokenizer", folder / "tok",
                       "--input", file,      "--out",       out};
  const Ran first = run(folder, call);
  EXPECT_EQ(first.status, 0) << first.err;
  EXPECT_EQ(run(folder, call).status, 0);  // it knows the file again
  write_file_atomic(file, std::string(3001, 'a'));
  EXPECT_NE(run(folder, call).status, 0);
}

// A mix trains, tells what it read, and a resumed run is the same run, also where the length
// changes.
TEST(DataMix, TrainsAndResumesToTheBit) {
  const Folder folder;
  write_chain(folder / "a.bin", 5000, 1);
  write_chain(folder / "b.bin", 700, 2);
  const std::string mix = (folder / "a.bin").string() + ":3," + (folder / "b.bin").string() + ":1";
  for (const char* seq : {"16", "0:8,5:16"}) {
    const auto words = [&](const std::string& name) {
      Arguments w = tiny_run(mix, folder / (name + seq), 12);
      *(std::find(w.begin(), w.end(), "--seq") + 1) = seq;
      return w;
    };
    json_of(run(folder, words("straight")));
    json_of(run(folder, words("stopped") + Arguments{"--stop-after-step", "7"}));
    json_of(run(folder, words("stopped") + Arguments{"--resume"}));
    const std::string log = read_file(folder / (std::string("straight") + seq) / "log.jsonl");
    EXPECT_EQ(read_file(folder / (std::string("stopped") + seq) / "log.jsonl"), log);
    const std::string last = log.substr(log.rfind('\n', log.size() - 2) + 1);
    const auto entry = nlohmann::json::parse(last);
    ASSERT_EQ(entry["source_tokens"].size(), 2u) << last;
    const int64_t a = entry["source_tokens"][0], b = entry["source_tokens"][1];
    EXPECT_EQ(a + b, 12 * 64);
    EXPECT_LE(std::abs(a - 3 * b), 4 * 16);
  }
  Arguments bad = tiny_run(mix, folder / "bad", 2) + Arguments{"--val", mix};
  expect_error(run(folder, bad), 2, "without weights");
}

}  // namespace
}  // namespace hearth
