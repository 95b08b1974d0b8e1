// The fast reading of a JSONL line against the strict one: it takes no line the other refuses, and
// gives the same text for those it takes.
#include "data/jsonl.h"

#include <random>

#include "unit/data_files.h"

namespace hearth {
namespace {

std::string strict(const std::string& line) {
  try {
    return "ok " + jsonl_text(line, "f:1");
  } catch (const Error&) { return "refused"; }
}

// Whether the fast way took the line; it must agree then.
bool agrees(const std::string& line) {
  std::string text = "left from before";
  if (!flat_text(text, line)) return false;
  EXPECT_EQ("ok " + text, strict(line)) << line;
  return true;
}

TEST(Jsonl, TakesTheCommonLine) {
  EXPECT_TRUE(agrees(R"({"text": "plain", "id": 7, "url": "x", "score": -0.25, "ok": true})"));
  EXPECT_TRUE(
      agrees("{\"id\":null,\"text\":\"a\\n\\t\\u00e9\\ud83d\\ude00\\\"\\\\\\/ \xc3\xa9\"}\n"));
  EXPECT_TRUE(agrees(" { \"text\" : \"\" , \"n\" : 0 } \r\n"));
  EXPECT_TRUE(agrees("{\"text\": \"" + std::string(100000, 'x') + "\"}"));
}

TEST(Jsonl, InstructionsMayHaveNoInput) {
  for (const char* input : {"", R"("input":null,)", R"("input":"",)"})
    EXPECT_EQ(strict(std::string("{\"instruction\":\"a\",") + input + "\"output\":\"b\"}"),
              "ok a\nb");
}

TEST(Jsonl, ShareGptsMessagesAreJoined) {
  EXPECT_EQ(
      strict(R"({"conversations":[{"from":"human","value":"a"},{"from":"gpt","value":"b"}]})"),
      "ok a\nb");
  EXPECT_EQ(strict(R"({"conversations":[{"role":"user","content":"a"}]})"), "ok a");
  EXPECT_EQ(strict(R"({"conversations":[{"from":"human"}]})"), "refused");
  EXPECT_EQ(strict(R"({"messages":[{"role":"user","value":"a"}]})"), "refused");
  // A table with a column for every kind of row.
  EXPECT_EQ(strict(R"({"prompt":"a","completion":"b","conversations":null})"), "ok ab");
  EXPECT_EQ(strict(R"({"text":null,"messages":[],"conversations":[{"from":"gpt","value":"b"}]})"),
            "ok b");
  EXPECT_EQ(strict(R"({"instruction":"a","output":"b","conversations":[]})"), "ok a\nb");
  for (const char* key : {"text", "messages", "conversations"})
    EXPECT_EQ(strict(std::string("{\"") + key + "\":null}"), "ok ") << "no text";
  EXPECT_EQ(error_of([] { jsonl_text(R"({"prompt":null,"completion":"a"})", "f:1"); }),
            "[f:1] expected a string or a list of messages in \"prompt\", got null");
}

TEST(Jsonl, AnotherKeyMayBeTheText) {
  const TextKey key{"body", "--column"};
  const auto text = [&](const char* line) {
    std::string fast;
    const std::string slow = jsonl_text(line, "f:1", key);
    if (flat_text(fast, line, key.name)) { EXPECT_EQ(fast, slow); }
    return slow;
  };
  EXPECT_EQ(text(R"({"body": "a\n", "text": "b"})"), "a\n");
  EXPECT_EQ(text(R"({"id": {"x": 1}, "body": "a"})"), "a");
  EXPECT_EQ(text(R"({"body": [{"content": "a"}, {"content": "b"}]})"), "a\nb");
  EXPECT_EQ(text(R"({"body": null})"), "");
  std::string fast;
  EXPECT_TRUE(flat_text(fast, R"({"text": "b", "body": "a"})", "body"));
  EXPECT_EQ(fast, "a");
  EXPECT_EQ(error_of([&] { text(R"({"text": "a"})"); }),
            "[f:1] expected the key \"body\" of --column, got keys: \"text\"");
  EXPECT_TRUE(mentions(error_of([&] { text(R"({"body": 3})"); }), {"f:1", "\"body\""}));
  EXPECT_TRUE(mentions(error_of([] {
                         jsonl_text(R"({"body": ""})", "f:1", {"text", "--column"});
                       }),
                       {"got keys: \"body\"; --column NAME reads another key"}));
}

TEST(Jsonl, LeavesTheRestToTheStrictWay) {
  for (const char* line : {"",
                           "{}",
                           "[]",
                           "{\"text\": 3}",
                           "{\"text\": \"a\"",
                           "{\"text\": \"a\"} x",
                           "{\"text\": \"a\",}",
                           "{\"text\": \"a\", \"text\": \"b\"}",
                           "{\"id\": 1, \"id\": 2, \"text\": \"\"}",
                           "{\"text\": \"\\ud800\"}",
                           "{\"text\": \"\\udc00\\ud800\"}",
                           "{\"text\": \"\\x\"}",
                           "{\"text\": \"a\nb\"}",
                           "{\"text\": \"\xff\"}",
                           "{\"text\": \"\xed\xa0\x80\"}",
                           "{\"text\": \"\xc0\x80\"}",
                           "{\"text\": \"\xf4\x90\x80\x80\"}",
                           "{\"text\": \"a\", \"n\": 01}",
                           "{\"text\": \"a\", \"n\": 1e999}",
                           "{\"text\": \"a\", \"n\": -}",
                           "{\"text\": \"a\", \"n\": 1.}",
                           "{\"text\": \"a\", \"n\": nul}",
                           "{\"te\\u0078t\": \"a\"}",
                           "{\"messages\": []}",
                           "{\"text\": \"a\", \"meta\": {\"x\": 1}}",
                           "{\"text\": \"a\" \"b\": 1}",
                           "{text: \"a\"}"})
    EXPECT_FALSE(agrees(line)) << line;
}

TEST(Jsonl, AgreesOnDamagedLines) {
  std::mt19937 random(7);
  const std::vector<std::string> lines = {
      R"({"text": "a \"quoted\" word\n\u00e9", "id": "<x>", "n": -12.5, "b": false, "z": null})",
      "{\"n\":0,\"text\":\"caf\xc3\xa9 \xe2\x82\xac \xf0\x9f\x98\x80 \\ud83d\\ude00 and on it "
      "goes\"}"};
  const std::string spice = "\"\\{}[],:u0dD8e-. \n\t\x80\xff\xc3";
  int taken = 0;
  for (int i = 0; i < 60000; ++i) {
    std::string line = lines[random() % lines.size()];
    for (uint32_t n = 1 + random() % 2; n > 0; --n) {
      const size_t at = random() % line.size();
      switch (random() % 3) {
        case 0:
          line[at] = spice[random() % spice.size()];
          break;
        case 1:
          line.erase(at, 1 + random() % 2);
          break;
        default:
          line.insert(at, 1, spice[random() % spice.size()]);
      }
    }
    taken += agrees(line);
  }
  EXPECT_GT(taken, 3000);
}

}  // namespace
}  // namespace hearth
