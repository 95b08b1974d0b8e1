// hearth tokenizer as a user runs it: train, then encode and decode through the shell.
#include <sys/wait.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "tokenizer_data.h"

namespace hearth {
namespace {

using namespace test;

struct Ran {
  int code;
  std::string out, err;
};

class TokenizerCli : public testing::Test {
 protected:
  Ran run(const std::string& arguments, std::string_view input = {}) const {
    spill(dir_ / "in", input);
    const auto quoted = [&](const char* name) { return "'" + (dir_ / name).string() + "'"; };
    const int status = std::system((HEARTH_BINARY " tokenizer " + arguments + " <" + quoted("in") +
                                    " >" + quoted("out") + " 2>" + quoted("err"))
                                       .c_str());
    return {WEXITSTATUS(status), slurp(dir_ / "out"), slurp(dir_ / "err")};
  }

  // A tokenizer learned from two files that one glob names.
  std::string trained() const {
    std::filesystem::create_directory(dir_ / "text");
    spill(dir_ / "text/a.txt", "the cat and the dog\n<|endoftext|>\nthe cat and the bird\n");
    spill(dir_ / "text/b.jsonl", "{\"text\": \"the cat and the mouse\"}\n");
    const Ran r = run("train --input '" + (dir_ / "text/*").string() + "' --vocab 270 --out '" +
                      (dir_ / "tok").string() + "' --threads 2 --json");
    EXPECT_EQ(r.code, 0) << r.err;
    const auto result = nlohmann::json::parse(r.out);
    EXPECT_EQ(result["vocab"], 270);
    EXPECT_EQ(result["files"], 2);
    return " --tokenizer '" + (dir_ / "tok").string() + "' ";
  }

  ScratchDir dir_;
};

TEST_F(TokenizerCli, lines_to_ids_and_back) {
  const std::string tokenizer = trained(), text = "the cat\n\nand \xff the zebra\n";
  const Ran ids = run("encode" + tokenizer, text);
  ASSERT_EQ(ids.code, 0) << ids.err;
  EXPECT_EQ(std::ranges::count(ids.out, '\n'), 3);
  EXPECT_EQ(run("decode" + tokenizer, ids.out).out, text);
  const Ran raw = run("encode --raw" + tokenizer, text);
  EXPECT_EQ(std::ranges::count(raw.out, '\n'), 1);
  EXPECT_EQ(run("decode --raw" + tokenizer, raw.out).out, text);
}

TEST_F(TokenizerCli, json_and_special_tokens) {
  const std::string tokenizer = trained();
  const Ran plain = run("encode --json" + tokenizer, "<|endoftext|>\n");
  const Ran special = run("encode --json --special" + tokenizer, "<|endoftext|>\n");
  EXPECT_GT(nlohmann::json::parse(plain.out)["count"], 1);
  EXPECT_EQ(nlohmann::json::parse(special.out)["ids"], nlohmann::json({269}));
  EXPECT_EQ(run("decode --json" + tokenizer, "269\n").out, "{\"text\":\"<|endoftext|>\"}\n");
}

TEST_F(TokenizerCli, special_tokens_of_the_user) {
  trained();
  const auto path = [&](const char* name) { return "'" + (dir_ / name).string() + "'"; };
  const std::string train = "train --input " + path("text/*") + " --vocab 272 --out ";
  const Ran r = run(train + path("more") + " --special '<|user|>' --special '[INST]'");
  ASSERT_EQ(r.code, 0) << r.err;
  const std::string tokenizer = " --tokenizer " + path("more");
  const Ran ids = run("encode --special" + tokenizer, "[INST]<|endoftext|><|user|>\n");
  EXPECT_EQ(ids.out, "271 269 270\n");
  EXPECT_EQ(run("decode" + tokenizer, ids.out).out, "[INST]<|endoftext|><|user|>\n");
  for (const char* refused : {"''", "'<|endoftext|>'", "a"}) {
    const Ran bad = run(train + path("bad") + " --special " + refused);
    EXPECT_EQ(bad.code, 2) << refused;
    EXPECT_THAT_TEXT(bad.err, "[--special] ") << refused;
  }
  EXPECT_FALSE(std::filesystem::exists(dir_ / "bad"));
}

TEST_F(TokenizerCli, chat_keeps_special_tokens_out_of_messages) {
  const std::string tokenizer = trained();
  spill(dir_ / "chat.jinja",
        "{% for m in messages %}{{ m.role }}: {{ m.content }}<|endoftext|>{% endfor %}"
        "{% if add_generation_prompt %}assistant:{% endif %}");
  const std::string chat = "chat --template '" + (dir_ / "chat.jinja").string() + "'";
  const std::string talk = R"([{"role": "user", "content": "a<|endoftext|>"}])";
  EXPECT_EQ(run(chat, talk).out, "user: a<|endoftext|><|endoftext|>");
  EXPECT_THAT_TEXT(run(chat + " --prompt", talk).out, "assistant:");
  const Ran encoded = run(chat + " --json" + tokenizer, talk);
  ASSERT_EQ(encoded.code, 0) << encoded.err;
  const std::vector<int> ids = nlohmann::json::parse(encoded.out)["ids"];
  EXPECT_EQ(std::ranges::count(ids, 269), 1);
  EXPECT_EQ(ids.back(), 269);
  EXPECT_EQ(run("chat", talk).code, 2);
  const Ran bad = run(chat, "{");
  EXPECT_EQ(bad.code, 1);
  EXPECT_THAT_TEXT(bad.err, "hearth: [stdin:1:2] expected valid JSON");
}

TEST_F(TokenizerCli, records_of_any_bytes) {
  const std::string tokenizer = trained();
  const auto record = [](std::string_view text) {
    return std::string{char(text.size()), 0, 0, 0} + std::string(text);
  };
  const std::string nul_and_lines("a\0\n\nb", 5);
  const Ran r =
      run("encode --records" + tokenizer, record(nul_and_lines) + record("") + record("the"));
  ASSERT_EQ(r.code, 0) << r.err;
  EXPECT_EQ(std::ranges::count(r.out, '\n'), 3);
  EXPECT_EQ(run("decode --raw" + tokenizer, r.out).out, nul_and_lines + "the");
  const Ran cut = run("encode --records" + tokenizer, record("the").substr(0, 6));
  EXPECT_EQ(cut.code, 1);
  EXPECT_THAT_TEXT(cut.err, "expected 3 bytes in record 1, got 2");
  EXPECT_THAT_TEXT(run("encode --records" + tokenizer, "ab").err, "record 1 in four bytes, got 2");
  EXPECT_EQ(run("encode --records --raw" + tokenizer).code, 2);
}

TEST_F(TokenizerCli, patterns_and_saving) {
  spill(dir_ / "sample", "12345 12345 12345 it's it's");
  const auto path = [&](const char* name) { return "'" + (dir_ / name).string() + "'"; };
  ASSERT_EQ(
      run("train --pattern qwen2 --vocab 270 --input " + path("sample") + " --out " + path("q"))
          .code,
      0);
  const Ran ids = run("encode --raw --tokenizer " + path("q"), "12345");
  EXPECT_EQ(std::ranges::count(ids.out, ' '), 4) << "every digit by itself";
  ASSERT_EQ(run("save --tokenizer " + path("q") + " --out " + path("again")).code, 0);
  EXPECT_EQ(slurp(dir_ / "again/tokenizer.json"), slurp(dir_ / "q/tokenizer.json"));
  EXPECT_EQ(run("encode --raw --template --tokenizer " + path("again"), "12345").out, ids.out);
  EXPECT_EQ(run("train --pattern gpt5 --input " + path("sample") + " --out " + path("x")).code, 2);
}

TEST_F(TokenizerCli, errors_are_one_line) {
  const std::string tokenizer = trained();
  const Ran word = run("decode" + tokenizer, "12\n7 x\n");
  EXPECT_EQ(word.code, 1);
  EXPECT_EQ(word.err, "hearth: [stdin] expected an id on line 2 at byte 2, got \"x\"\n");
  const Ran unknown = run("decode" + tokenizer, "270\n");
  EXPECT_EQ(unknown.code, 1);
  EXPECT_THAT_TEXT(unknown.err, "got 270");
  EXPECT_EQ(run("encode --tokenizer /nowhere", "x").code, 1);
  EXPECT_EQ(run("train --input '/nowhere/*' --out '" + (dir_ / "x").string() + "'").code, 1);
  EXPECT_EQ(run("train --vocab 5 --input '" + (dir_ / "text/*").string() + "' --out '" +
                (dir_ / "x").string() + "'")
                .code,
            2);
}

TEST_F(TokenizerCli, bench_counts_tokens) {
  const std::string tokenizer = trained();
  spill(dir_ / "sample", "the cat and the bird");
  const Ran r =
      run("bench --json --repeats 1 --input '" + (dir_ / "sample").string() + "'" + tokenizer);
  ASSERT_EQ(r.code, 0) << r.err;
  const auto result = nlohmann::json::parse(r.out);
  EXPECT_EQ(result["bytes"], 20);
  EXPECT_EQ(result["unit"], "MB/s");
}

}  // namespace
}  // namespace hearth
