// prepare: the documents of text and JSONL, and inputs that are refused.
#include "data/prepare.h"

#include <nlohmann/json.hpp>

#include "unit/data_files.h"
#include "unit/packed_bytes.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;

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
  EXPECT_TRUE(mentions(refused("a.txt", [](auto& s) { s.val_fraction = 1; }),
                       {"[--val-fraction] expected 0 to below 1, got 1"}));
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

TEST(Prepare, RefusesADocumentWithoutEnd) {
  const TemporaryFolder dir;
  put_file(dir / "a.txt", "short\n<|endoftext|>\n" + std::string(2000, 'x') + "\n");
  DocumentReader reader({.inputs = {dir / "a.txt"}, .longest = 1000});
  Document d;
  EXPECT_TRUE(reader.next(d));
  EXPECT_TRUE(mentions(error_of([&] { reader.next(d); }), {"a.txt:3", "1000", "longer"}));
}

}  // namespace
}  // namespace hearth
