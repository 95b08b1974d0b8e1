// Token files: both formats there and back, and every way a file can be bad.
#include <cstring>

#include "data/token_stats.h"
#include "test_data.h"
#include "unit/data_files.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

std::string header(int32_t magic, int32_t version, int32_t count) {
  std::string bytes(1024, '\0');
  const int32_t words[3] = {magic, version, count};
  std::memcpy(bytes.data(), words, sizeof words);
  return bytes;
}

TEST(TokenFile, ReadsTheLayoutOfLlmc) {
  const TemporaryFolder dir;
  put_file(dir / "a.bin", header(20240520, 1, 3) + std::string("\x01\x00\x50\xc4\xff\xff", 6));
  const TokenFile file(dir / "a.bin");
  EXPECT_EQ(file.format(), TokenFormat::llmc);
  EXPECT_EQ(file.width(), 2);
  EXPECT_EQ(file.offset(), 1024);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{1, 50256, 65535}));
  EXPECT_EQ(file.max_token(), 65535);
  EXPECT_EQ(file[1], 50256);
}

TEST(TokenFile, ReadsTheLlama3Variant) {
  const TemporaryFolder dir;
  put_file(dir / "a.bin", header(20240801, 7, 2) + std::string("\x00\xf4\x01\x00\x02\0\0\0", 8));
  const TokenFile file(dir / "a.bin");
  EXPECT_EQ(file.width(), 4);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{128000, 2}));
}

TEST(TokenFile, WritesWhatItReads) {
  for (const TokenFormat format : {TokenFormat::llmc, TokenFormat::raw})
    for (const int64_t vocab : {65535, 65536})
      for (const int64_t n : {0, 4096, 10001}) {
        const TemporaryFolder dir;
        const std::vector<int32_t> tokens = counting_tokens(n, int32_t(vocab - 1 - n));
        write_tokens(dir / "t.bin", format, vocab, tokens);
        if (format == TokenFormat::raw)
          write_metadata(
              dir.path(),
              {.vocab_size = vocab, .train = {}, .val = {}, .file_tokens = {{"t.bin", n}}});
        const TokenFile file(dir / "t.bin");
        EXPECT_EQ(file.format(), format);
        EXPECT_EQ(file.width(), vocab < 65536 ? 2 : 4);
        EXPECT_EQ(all_tokens(file), tokens);
        EXPECT_EQ(file.max_token(), n ? vocab - 2 : -1);
        EXPECT_FALSE(fs::exists(dir / "t.bin.tmp"));
        file.check_tokens(vocab);
      }
}

TEST(TokenFile, MetadataOfTinyLm) {
  const TemporaryFolder dir;
  put_file(dir / "train.bin", std::string("\x01\x00\x02\x00\x03\x00", 6));
  put_file(dir / "metadata.json",
           R"({"vocab_size": 8000, "dtype": "uint16", "bos_token_id": 1, "train_tokens": 3})");
  const TokenFile file(dir / "train.bin");
  EXPECT_EQ(file.format(), TokenFormat::raw);
  EXPECT_EQ(all_tokens(file), (std::vector<int32_t>{1, 2, 3}));
  EXPECT_EQ(document_marks_of(file).open, 1);
}

TEST(TokenFile, RefusesBadHeaders) {
  const TemporaryFolder dir;
  const fs::path p = dir / "bad.bin";
  const auto open = [&](const std::string& bytes) {
    put_file(p, bytes);
    return error_of([&] { TokenFile file(p); });
  };
  EXPECT_TRUE(mentions(open(""), {"bad.bin", "20240520", "byte 0", "0 bytes"}));
  EXPECT_TRUE(mentions(open("abc"), {"bad.bin", "3 bytes"}));
  EXPECT_TRUE(mentions(open(header(12345, 1, 0)), {"bad.bin", "byte 0", "12345"}));
  EXPECT_TRUE(mentions(open(header(20240522, 1, 0)), {"bad.bin", "evaluation", "byte 0"}));
  EXPECT_TRUE(mentions(open(header(20240520, 1, 0).substr(0, 1000)), {"bad.bin", "1024", "1000"}));
  EXPECT_TRUE(mentions(open(header(20240520, 2, 0)), {"bad.bin", "version 1", "byte 4", "2"}));
  EXPECT_TRUE(mentions(open(header(20240801, 1, 0)), {"bad.bin", "version 7", "byte 4", "1"}));
  EXPECT_TRUE(mentions(open(header(20240520, 1, -5)), {"bad.bin", "byte 8", "-5"}));
  EXPECT_TRUE(mentions(open(header(20240520, 1, 4) + "abcdef"), {"bad.bin", "1032", "1030"}));
  EXPECT_TRUE(mentions(open(header(20240520, 1, 1) + "abcdef"), {"bad.bin", "1026", "1030"}));
  EXPECT_TRUE(
      mentions(open(header(20240801, 7, 2147483647)), {"bad.bin", "8589935612", "1024 bytes"}));
}

TEST(TokenFile, SaysWhatToDoWithWhatHoldsNoTokens) {
  const TemporaryFolder dir;
  const auto open = [&](const char* name, std::string_view bytes) {
    put_file(dir / name, bytes);
    return error_of([&] { TokenFile file(dir / name); });
  };
  EXPECT_TRUE(mentions(open("a.txt", "short"), {"a.txt", "hearth data prepare"}));
  EXPECT_TRUE(mentions(open("a.parquet", "PAR1\1\2"), {"a.parquet", "hearth data prepare"}));
  EXPECT_TRUE(mentions(open("a.bin", "A text under another name.\n"), {"hearth data prepare"}));
  EXPECT_TRUE(mentions(open("b.bin", std::string("\1\0\2\0\3\0", 6)),
                       {"b.bin", "20240520", "metadata.json", "\"vocab_size\"", "\"uint16\""}));
  put_file(dir / "metadata.json", R"({"vocab_size": 60000})");
  EXPECT_TRUE(mentions(open("a.txt", "a text"), {"a.txt", "hearth data prepare"}));
}

TEST(TokenFile, RefusesBadMetadata) {
  const TemporaryFolder dir;
  put_file(dir / "train.bin", "abcdef");
  const auto open = [&](const char* metadata) {
    put_file(dir / "metadata.json", metadata);
    return error_of([&] { TokenFile file(dir / "train.bin"); });
  };
  EXPECT_TRUE(mentions(open("{"), {"metadata.json"}));
  EXPECT_TRUE(mentions(open("[]"), {"metadata.json", "vocab_size"}));
  EXPECT_TRUE(mentions(open(R"({"vocab_size": -3})"), {"metadata.json", "vocab_size"}));
  EXPECT_TRUE(mentions(open(R"({"vocab_size": 9, "dtype": "int8"})"), {"metadata.json", "int8"}));
  EXPECT_TRUE(mentions(open(R"({"vocab_size": 70000})"), {"train.bin", "4 bytes", "byte 4"}));
  EXPECT_TRUE(mentions(open(R"({"vocab_size": 9, "train_tokens": 4})"), {"train.bin", "4", "3"}));
  EXPECT_TRUE(mentions(open(R"({"vocab_size": 9, "files": {"train.bin": 2}})"), {"train.bin"}));
}

TEST(TokenFile, RefusesWhatIsNoFile) {
  const TemporaryFolder dir;
  EXPECT_TRUE(mentions(error_of([&] { TokenFile f(dir / "absent.bin"); }), {"absent.bin"}));
  EXPECT_TRUE(mentions(error_of([&] { TokenFile f(dir.path()); }), {"regular file"}));
}

TEST(TokenFile, NamesTheByteOfABadToken) {
  const TemporaryFolder dir;
  for (const int64_t at : {0, 4095, 4096, 9999}) {
    for (const int64_t vocab : {1000, 70000}) {
      std::vector<int32_t> tokens(10000, 7);
      tokens[size_t(at)] = int32_t(vocab);
      tokens[9999] = int32_t(vocab);  // the first is named, not the last
      write_tokens(dir / "t.bin", TokenFormat::llmc, vocab, tokens);
      const TokenFile file(dir / "t.bin");
      file.check_tokens(vocab + 1);
      const std::string byte = fmt::format("byte {} ", 1024 + at * file.width());
      EXPECT_TRUE(mentions(error_of([&] { file.check_tokens(vocab); }), {"t.bin", byte.c_str()}));
    }
  }
}

TEST(TokenFile, RefusesTokensAboveInt32) {
  const TemporaryFolder dir;
  put_file(dir / "a.bin", header(20240801, 7, 1) + "\xff\xff\xff\xff");
  const TokenFile file(dir / "a.bin");
  EXPECT_EQ(file.max_token(), 4294967295);
  EXPECT_TRUE(mentions(error_of([&] { file.check_tokens(1 << 20); }), {"4294967295"}));
}

TEST(TokenWriter, GoesOnFromATemporaryOrFinishedFile) {
  const TemporaryFolder dir;
  const std::vector<int32_t> tokens = counting_tokens(100);
  write_tokens(dir / "whole.bin", TokenFormat::llmc, 1000, tokens);
  const auto head = std::span(tokens).first(60), tail = std::span(tokens).subspan(40);
  for (const bool finished : {false, true}) {
    {
      TokenWriter writer(dir / "t.bin", {});
      writer.append(head);
      if (finished) writer.finish();
    }
    TokenWriter writer(dir / "t.bin", {.resume_tokens = 40});
    writer.append(tail);
    writer.finish();
    EXPECT_EQ(get_file(dir / "t.bin"), get_file(dir / "whole.bin"));
  }
  EXPECT_TRUE(mentions(error_of([&] { TokenWriter w(dir / "t.bin", {.resume_tokens = 101}); }),
                       {"1226", "1224"}));
}

TEST(TokenWriter, WritesThroughNoLink) {
  const TemporaryFolder dir;
  put_file(dir / "victim", "untouched");
  fs::create_symlink(dir / "victim", dir / "t.bin.tmp");
  EXPECT_TRUE(mentions(error_of([&] { TokenWriter w(dir / "t.bin", {.resume_tokens = 0}); }),
                       {"t.bin.tmp", "symbolic links"}));
  TokenWriter(dir / "t.bin", {}).append(counting_tokens(5));
  EXPECT_EQ(get_file(dir / "victim"), "untouched");
  EXPECT_FALSE(fs::is_symlink(dir / "t.bin.tmp"));
}

TEST(ExpandGlob, SortsAndRefusesNothing) {
  const TemporaryFolder dir;
  for (const char* name : {"b_2.bin", "b_1.bin", "c.bin", "[x].bin"}) put_file(dir / name, "");
  EXPECT_EQ(expand_glob((dir / "b_*.bin").string()),
            (std::vector<fs::path>{dir / "b_1.bin", dir / "b_2.bin"}));
  EXPECT_EQ(expand_glob((dir / "{c,b_?}.bin").string()),
            (std::vector<fs::path>{dir / "c.bin", dir / "b_1.bin", dir / "b_2.bin"}));
  EXPECT_EQ(expand_glob((dir / "[x].bin").string()), (std::vector<fs::path>{dir / "[x].bin"}));
  EXPECT_TRUE(
      mentions(error_of([&] { expand_glob((dir / "z*").string()); }), {"z*", "no file matches"}));
  const std::string list = (dir / "b_1.bin").string() + "," + (dir / "c.bin").string();
  const std::string none = "] no file matches this path or pattern";
  EXPECT_EQ(error_of([&] { expand_glob(list); }),
            "[" + list + none + "; a comma does not separate files: give each file its own flag");
  EXPECT_EQ(error_of([&] { expand_glob("/{none,neither}"); }), "[/{none,neither}" + none);
}

TEST(TokenStat, CountsDocuments) {
  const TemporaryFolder dir;
  write_tokens(dir / "t.bin", TokenFormat::llmc, 60000,
               std::vector<int32_t>{5, 50256, 1, 2, 50256, 3, 50256});
  const TokenFile file(dir / "t.bin");
  const TokenStat s = stat_tokens(file, document_marks_of(file));
  EXPECT_EQ(s.counts.documents, 3);
  EXPECT_EQ(s.continued, 1);
  EXPECT_EQ(s.counts.shortest, 1);
  EXPECT_EQ(s.counts.longest, 3);
  EXPECT_DOUBLE_EQ(s.mean_length(), 2);
  EXPECT_EQ(s.max_token, 50256);
}

// As prepare writes them: one id on both sides of every document, or none before it.
TEST(TokenStat, CountsDocumentsOnceThatHaveTwoMarks) {
  const TemporaryFolder dir;
  const auto stat = [&](int32_t bos, int32_t eos, const std::vector<int32_t>& tokens) {
    write_tokens(dir / "t.bin", TokenFormat::raw, 100, tokens);
    write_metadata(
        dir.path(),
        {.vocab_size = 100, .bos = bos, .eos = eos, .train = {}, .val = {}, .file_tokens = {}});
    const TokenFile file(dir / "t.bin");
    return stat_tokens(file, document_marks_of(file));
  };
  TokenStat s = stat(9, 9, {9, 1, 2, 9, 9, 3, 9, 9, 4, 5, 6, 9});
  EXPECT_EQ(s.counts.documents, 3);
  EXPECT_EQ(s.counts.shortest, 3);
  EXPECT_EQ(s.counts.longest, 5);
  EXPECT_EQ(s.continued, 0);
  s = stat(9, 9, {2, 9, 9, 3, 9, 9, 4});  // a shard that begins and ends inside a document
  EXPECT_EQ(s.counts.documents, 2);
  EXPECT_EQ(s.continued, 2);
  s = stat(9, 9, {9, 1, 9, 2, 3});  // one id between documents, as other tools write
  EXPECT_EQ(s.counts.documents, 2);
  s = stat(8, 9, {8, 1, 2, 9, 8, 3, 9});
  EXPECT_EQ(s.counts.documents, 2);
  s = stat(-1, 9, {1, 2, 9, 3, 9});
  EXPECT_EQ(s.counts.documents, 2);
  EXPECT_EQ(s.counts.shortest, 2);
  EXPECT_EQ(s.counts.longest, 3);
}

// Three chapters of novels in GPT-2's tokens, 25432, 23497 and 17143 without their first token.
TEST(TokenStat, RealShard) {
  const TokenFile file(test::test_data("tokens/novels.bin"));
  file.check_tokens(50257);
  EXPECT_TRUE(mentions(error_of([&] { file.check_tokens(50256); }), {"byte 1024"}));
  const TokenStat s = stat_tokens(file, {50256});
  EXPECT_EQ(file.size(), 66075);
  EXPECT_EQ(s.counts.documents, 3);
  EXPECT_EQ(s.counts.shortest, 17144);
  EXPECT_EQ(s.counts.longest, 25433);
  EXPECT_EQ(s.continued, 0);
}

}  // namespace
}  // namespace hearth
