// One plain text file, as users have them: the README's example, and how much memory it takes.
#include <sys/resource.h>
#include <sys/stat.h>

#include "e2e/command.h"
#include "unit/packed_bytes.h"

namespace hearth {
namespace {

// Stories without anything between them.
void write_one_text(const Folder& folder, const fs::path& to, const char* stories) {
  json_of(run(folder, {"data", "stories", "--out", folder / "stories.txt", "--stories", stories,
                       "--json"}));
  std::string text = read_file(folder / "stories.txt");
  const std::string separator = "<|endoftext|>\n";
  for (size_t at; (at = text.find(separator)) != text.npos;) text.erase(at, separator.size());
  write_file_atomic(to, text);
}

// The README's "From text to a story", with a smaller model and fewer steps.
TEST(OneText, GoesThroughTheExampleOfTheReadme) {
  const Folder folder;
  fs::create_directories(folder / "my");
  write_one_text(folder, folder / "my/book.txt", "400");
  for (const std::string fraction : {"0.01", "0.05"}) {
    const std::string input = folder / "my/*.txt", tok = folder / ("tok" + fraction),
                      tokens = folder / ("tokens" + fraction), out = folder / ("run" + fraction);
    const Ran learned =
        run(folder, {"tokenizer", "train", "--input", input, "--vocab", "512", "--out", tok});
    ASSERT_EQ(learned.status, 0) << learned.err;
    const auto made = json_of(run(folder, {"data", "prepare", "--tokenizer", tok, "--input", input,
                                           "--out", tokens, "--val-fraction", fraction, "--json"}));
    EXPECT_TRUE(made["pieces"].get<bool>());
    EXPECT_GT(made["val_tokens"], 0);
    const Ran trained = run(folder, {"pretrain",
                                     "--preset",
                                     "tiny",
                                     "--tokenizer",
                                     tok,
                                     "--run",
                                     out,
                                     "--data",
                                     tokens + "/train_*.bin",
                                     "--val",
                                     tokens + "/val_*.bin",
                                     "--dtype",
                                     "bf16",
                                     "--batch",
                                     "16",
                                     "--seq",
                                     "256",
                                     "--steps",
                                     "2",
                                     "--lr",
                                     "2e-3",
                                     "--warmup",
                                     "1",
                                     "--layers",
                                     "1",
                                     "--dim",
                                     "32",
                                     "--heads",
                                     "2",
                                     "--hidden",
                                     "64",
                                     "--eval-every",
                                     "1",
                                     "--json"});
    EXPECT_EQ(trained.status, 0) << trained.err;
    EXPECT_NE(read_file(fs::path(out) / "log.jsonl").find("val_loss"), std::string::npos)
        << read_file(fs::path(out) / "log.jsonl");
  }
}

// A member of gzip that unpacks to a run of one letter: a block of fixed Huffman codes, the letter
// once and copies of 258 bytes from one byte before.
std::string packed_run(char letter, size_t n) {
  std::string out("\x1f\x8b\x08\0\0\0\0\0\0\xff", 10);
  uint32_t bits = 0;
  int count = 0;
  const auto put = [&](uint32_t code, int size) {  // its highest bit first
    for (int i = size - 1; i >= 0; --i) {
      bits |= (code >> i & 1) << count;
      if (++count == 8) out += char(bits), bits = 0, count = 0;
    }
  };
  const auto put_letter = [&] { put(0x30 + uint8_t(letter), 8); };
  put(6, 3);  // the last block; fixed codes
  put_letter();
  size_t left = n - 1;
  for (; left >= 258; left -= 258) put(0xc5, 8), put(0, 5);  // a length of 258, a distance of 1
  for (; left > 0; --left) put_letter();
  put(0, 7);  // the end
  if (count > 0) out += char(bits);
  return out + little(crc32_of(std::string(n, letter)), 4) + little(n, 4);
}

// A line without an end is read in pieces: 96 MB of it in 630 kB of gzip take no more memory than
// --max-document-bytes and the blocks need. Held in memory as one document it took 1.6 GB.
TEST(OneText, AnEndlessLineTakesBoundedMemory) {
  if (!can_unpack(Packing::gzip)) GTEST_SKIP() << "built without zlib";
  const Folder folder;
  write_one_text(folder, folder / "book.txt", "50");
  const Ran learned = run(folder, {"tokenizer", "train", "--input", folder / "book.txt", "--vocab",
                                   "300", "--out", folder / "tok"});
  ASSERT_EQ(learned.status, 0) << learned.err;
  const std::string member = packed_run('x', 1'000'000);
  std::string packed;
  for (int i = 0; i < 96; ++i) packed += member;
  ASSERT_LT(packed.size(), 1'000'000u);
  write_file_atomic(folder / "line.txt.gz", packed);
  const pid_t pid =
      start(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input",
                     folder / "line.txt.gz", "--out", folder / "out", "--threads", "2", "--json"});
  int status = 0;
  rusage use{};
  ASSERT_EQ(wait4(pid, &status, 0, &use), pid);
  ASSERT_EQ(status, 0) << read_file(folder / "run.err");
  const auto report = nlohmann::json::parse(read_file(folder / "run.out"));
  EXPECT_EQ(report["bytes"], 96'000'000);
  EXPECT_EQ(report["documents"], 1);
  // A sanitizer keeps freed memory for a while and shadows all of it.
  const long most = HEARTH_SANITIZED ? 4096 : 640;
  EXPECT_LT(use.ru_maxrss, most << 10) << "KiB resident";
}

TEST(OneText, IsRefusedInPlainWordsWhereItDoesNotBelong) {
  const Folder folder;
  write_one_text(folder, folder / "book.txt", "20");
  expect_error(run(folder, tiny_run(folder / "book.txt", folder / "run", 2)), 1,
               "hearth data prepare");
  write_file_atomic(folder / "bare.bin", std::string(4000, '\1') + std::string(4000, '\0'));
  expect_error(run(folder, tiny_run(folder / "bare.bin", folder / "run", 2)), 1, "metadata.json");
  write_file_atomic(folder / "table.csv", "text\nhello\n");
  const Ran learned = run(folder, {"tokenizer", "train", "--input", folder / "book.txt", "--vocab",
                                   "300", "--out", folder / "tok"});
  ASSERT_EQ(learned.status, 0) << learned.err;
  const Arguments prepare{"data",         "prepare", "--tokenizer",
                          folder / "tok", "--out",   folder / "out"};
  expect_error(run(folder, prepare + Arguments{"--input", folder / "table.csv"}), 1, ".jsonl");
  ASSERT_EQ(mkfifo((folder / "fifo").c_str(), 0600), 0);
  expect_error(run(folder, prepare + Arguments{"--input", folder / "fifo"}), 1, "regular file");
  expect_error(run(folder, {"pretrain", "--config", folder / "fifo"}), 1, "got a FIFO");
}

}  // namespace
}  // namespace hearth
