// Long texts in pieces: how they are cut, that they stay one document, and how they are divided
// between training and validation.
#include "data/holdout.h"

#include <map>
#include <random>

#include "data/prepare.h"
#include "unit/data_files.h"
#include "unit/packed_bytes.h"
#include "unit/parquet_file.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

// Lines of words, in paragraphs.
std::string prose(int lines, uint32_t seed) {
  std::mt19937 random(seed);
  std::string text;
  for (int i = 0; i < lines; ++i) {
    for (int n = 1 + int(random() % 12); n > 0; --n) {
      for (int c = 1 + int(random() % 7); c > 0; --c) text += char('a' + random() % 26);
      text += n > 1 ? ' ' : '\n';
    }
    if (random() % 5 == 0) text += '\n';
  }
  return text;
}

struct Cut {
  std::string text;
  bool begins, ends;
  SourcePosition after;
  bool operator==(const Cut& o) const {
    return text == o.text && begins == o.begins && ends == o.ends;
  }
};

std::vector<Cut> read_all(const DocumentSpec& spec, SourcePosition from = {}) {
  DocumentReader reader(spec, from);
  std::vector<Cut> all;
  for (Document d; reader.next(d);)
    all.push_back({std::string(d.raw), d.begins, d.ends, reader.position()});
  return all;
}

std::vector<std::string> joined(const std::vector<Cut>& cuts) {
  std::vector<std::string> texts;
  for (const Cut& c : cuts) {
    if (c.begins) texts.emplace_back();
    texts.back() += c.text;
  }
  return texts;
}

TEST(TextPieces, EndWithParagraphsLinesOrCharacters) {
  const TemporaryFolder dir;
  const auto cuts = [&](std::string_view text, size_t piece) {
    put_file(dir / "a.txt", text);
    std::vector<std::string> pieces;
    for (const Cut& c : read_all({.inputs = {dir / "a.txt"}, .piece = piece}))
      pieces.push_back(c.text);
    return pieces;
  };
  using Pieces = std::vector<std::string>;
  EXPECT_EQ(cuts("one\ntwo\n", 8), (Pieces{"one\ntwo\n"}));
  EXPECT_EQ(cuts("one\n\ntwo\nthree\n", 12), (Pieces{"one\n\ntwo\n", "three\n"}));
  EXPECT_EQ(cuts("one two\n\nthree\nfour\n", 15), (Pieces{"one two\n\n", "three\nfour\n"}));
  EXPECT_EQ(cuts("abcdefghij", 4), (Pieces{"abcd", "efgh", "ij"}));
  EXPECT_EQ(cuts("ab\xe2\x82\xac\xe2\x82\xac", 4), (Pieces{"ab", "\xe2\x82\xac", "\xe2\x82\xac"}));
  EXPECT_EQ(cuts("\x80\x80\x80\x80\x80\x80", 4), (Pieces{"\x80\x80\x80\x80", "\x80\x80"}));
}

// Documents, separators and line ends are the same in pieces as in one, wherever the borders fall,
// and a reader that begins behind a piece gives the rest.
TEST(TextPieces, MakeTheSameDocumentsFromAnyPlace) {
  const TemporaryFolder dir;
  std::mt19937 random(5);
  for (int round = 0; round < 30; ++round) {
    std::string text;
    const std::string_view parts[] = {"\n",
                                      "\n\n",
                                      "a",
                                      "bc de",
                                      "<|endoftext|>",
                                      "\xe2\x82\xac",
                                      "\n<|endoftext|>\n",
                                      "long word",
                                      "x<|endoftext|>\n"};
    for (int i = int(random() % 60); i >= 0; --i) text += parts[random() % std::size(parts)];
    put_file(dir / "a.txt", text);
    const auto whole = read_all({.inputs = {dir / "a.txt"}});
    for (const size_t piece : {4, 5, 13, 14, 15, 31}) {
      const DocumentSpec spec{.inputs = {dir / "a.txt"}, .piece = piece};
      const std::vector<Cut> cuts = read_all(spec);
      EXPECT_EQ(joined(cuts), joined(whole)) << text;
      for (size_t i = 0; i < cuts.size(); ++i) {
        EXPECT_LE(cuts[i].text.size(), piece);
        EXPECT_EQ(read_all(spec, cuts[i].after),
                  std::vector<Cut>(cuts.begin() + long(i) + 1, cuts.end()))
            << piece << " after " << i << " of " << text;
      }
    }
  }
}

TEST(TextPieces, StayOneDocument) {
  const TemporaryFolder dir;
  const std::string text = prose(60, 1);
  put_file(dir / "a.txt", text + "<|endoftext|>\nshort\n");
  for (const TokenFormat format : {TokenFormat::llmc, TokenFormat::raw}) {
    std::string first;
    for (const int64_t longest : {1 << 20, 100}) {
      const std::string out = fmt::format("out{}-{}", int(format), longest);
      PrepareSpec spec = byte_spec(dir / out, {(dir / "a.txt").string()});
      spec.format = format;
      spec.max_document_bytes = longest;
      spec.block_bytes = 250;
      const PrepareResult r = prepare(spec);
      EXPECT_EQ(r.train.documents, 2);
      EXPECT_EQ(r.train.longest, int64_t(text.size()) - 1 + (format == TokenFormat::llmc ? 1 : 2));
      const std::string bytes = get_file(r.files.at(0));
      EXPECT_EQ(first.empty() ? bytes : first, bytes);
      first = bytes;
    }
  }
}

TEST(LongDocuments, AreRefusedWhereTheyCannotBeCut) {
  const TemporaryFolder dir;
  put_file(dir / "a.jsonl", "{\"text\": \"x\"}\n{\"text\": \"" + std::string(2000, 'x') + "\"}\n");
  put_file(dir / "a.parquet", parquet_of({"x", std::string(2000, 'x')}));
  for (const char* name : {"a.jsonl", "a.parquet"}) {
    PrepareSpec spec = byte_spec(dir / "out", {(dir / name).string()});
    spec.max_document_bytes = 1000;
    EXPECT_TRUE(mentions(error_of([&] { prepare(spec); }),
                         {(std::string(name) + ":2").c_str(), "1000", "--max-document-bytes"}));
  }
}

// A few bytes that unpack to any number of them.
TEST(LongDocuments, APackedParquetFileIsUnpackedUpToALimit) {
  if (!can_unpack(Packing::gzip)) GTEST_SKIP() << "built without zlib";
  const TemporaryFolder dir;
  put_file(dir / "a.gz", gzip_of("PAR1" + std::string(100'000, '\0')));
  EXPECT_TRUE(mentions(
      error_of([&] { DocumentReader r({.inputs = {dir / "a.gz"}, .longest_spool = 50'000}); }),
      {"a.gz", "50000", "unpack it"}));
}

// What prepare wrote, by the names of the files.
std::map<std::string, std::string> written(const fs::path& out) {
  std::map<std::string, std::string> files;
  for (const auto& entry : fs::directory_iterator(out)) {
    const std::string name = entry.path().filename().string();
    EXPECT_EQ(name.find("tmp"), name.npos) << name;
    if (name.ends_with(".bin")) files[name] = get_file(entry.path());
  }
  return files;
}

// The pieces of a text, those that follow each other on one side as one document.
std::pair<std::vector<int32_t>, std::vector<int32_t>> expected_sides(const fs::path& input,
                                                                     double fraction) {
  std::vector<int32_t> train, val, *before = nullptr;
  for (const Cut& c : read_all({.inputs = {input}, .piece = side_piece_bytes})) {
    std::vector<int32_t>& side = is_validation(c.text, fraction) ? val : train;
    if (&side != before || c.begins) side.push_back(257);
    for (const char b : c.text) side.push_back(uint8_t(b));
    before = &side;
  }
  return {train, val};
}

TEST(Sides, OneTextIsDivided) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", prose(6000, 2));
  const PrepareResult r = [&] {
    PrepareSpec spec = byte_spec(dir / "out", {(dir / "a.txt").string()});
    spec.val_fraction = 0.1;
    return prepare(spec);
  }();
  EXPECT_TRUE(r.pieces);
  const auto [train, val] = expected_sides(dir / "a.txt", 0.1);
  EXPECT_EQ(all_tokens(TokenFile(dir / "out/train_000001.bin")), train);
  EXPECT_EQ(all_tokens(TokenFile(dir / "out/val_000000.bin")), val);
  EXPECT_NEAR(double(r.val.tokens) / double(r.train.tokens + r.val.tokens), 0.1, 0.07);

  const auto whole = written(dir / "out");
  struct Stop {};
  for (const int threads : {1, 3}) {
    for (const int64_t stop : {-1, 0, 2, 5}) {
      PrepareSpec spec =
          byte_spec(dir / fmt::format("out-{}-{}", threads, stop), {(dir / "a.txt").string()});
      spec.val_fraction = 0.1;
      spec.threads = threads;
      spec.block_bytes = 20'000 + 777 * threads;
      spec.save_blocks = 1;
      spec.on_block = [&](int64_t block) {
        if (block == stop) throw Stop();
      };
      if (stop >= 0) { EXPECT_THROW(prepare(spec), Stop); }
      spec.on_block = nullptr;
      EXPECT_EQ(prepare(spec).resumed, stop >= 0);
      EXPECT_EQ(written(spec.out), whole) << threads << " " << stop;
    }
  }
}

// Bos and eos around every run of pieces.
TEST(Sides, OneTextIsDividedInTheRawFormat) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", prose(3000, 3));
  PrepareSpec spec = byte_spec(dir / "out", {(dir / "a.txt").string()});
  spec.format = TokenFormat::raw;
  spec.val_fraction = 0.3;
  const PrepareResult r = prepare(spec);
  int64_t text = 0;
  for (const fs::path& path : r.files) {
    bool inside = false;
    for (const int32_t t : all_tokens(TokenFile(path))) {
      ASSERT_EQ(inside, t != 256) << path;
      inside = t != 257;
      text += t < 256;
    }
    EXPECT_FALSE(inside);
  }
  EXPECT_EQ(text, int64_t(fs::file_size(dir / "a.txt")));
  EXPECT_EQ(r.train.tokens + r.val.tokens, text + 2 * (r.train.documents + r.val.documents));
}

TEST(Sides, NoneIsEmptyAtAnyFraction) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", prose(300, 4));
  std::string rows;
  for (int i = 0; i < 10; ++i) rows += fmt::format("{{\"text\": \"row {}\"}}\n", i);
  put_file(dir / "a.jsonl", rows);
  for (const char* name : {"a.txt", "a.jsonl"})
    for (const double fraction : {1e-9, 0.05, 1 - 1e-9}) {
      PrepareSpec spec =
          byte_spec(dir / fmt::format("{}-{}", name, fraction), {(dir / name).string()});
      spec.val_fraction = fraction;
      const PrepareResult r = prepare(spec);
      EXPECT_GT(r.train.documents, 0);
      EXPECT_GT(r.val.documents, 0);
      if (fraction < 1e-6) { EXPECT_EQ(r.val.documents, 1); }
      if (fraction > 0.9) { EXPECT_EQ(r.train.documents, 1); }
    }
}

TEST(Sides, WhatCannotBeDividedIsRefusedBeforeAnythingIsWritten) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", "one short text\n");
  put_file(dir / "a.jsonl", "{\"text\": \"row\"}\n{\"text\": \"row\"}\n");
  for (const char* name : {"a.txt", "a.jsonl"}) {
    PrepareSpec spec = byte_spec(dir / "out", {(dir / name).string()});
    spec.val_fraction = 0.5;
    EXPECT_TRUE(mentions(error_of([&] { prepare(spec); }), {"--val-fraction", "more text"}));
    EXPECT_FALSE(fs::exists(dir / "out"));
  }
}

}  // namespace
}  // namespace hearth
