// --json-schema and --regex of generate and chat, and the server's log of requests in a file.
#include <regex>

#include "e2e/serve_process.h"

namespace hearth {
namespace {

using nlohmann::json;

const char* schema =
    R"({"type":"object","properties":{"a":{"type":"string","maxLength":4},"n":{"type":"integer",
    "minimum":0,"maximum":99}},"required":["a","n"]})";

TEST(ConstrainedCommands, GenerateAndChat) {
  Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "schema.json", schema);
  const Arguments common{"--model", folder / "model", "--threads", "1", "--device",
                         "cpu",     "--dtype",        "fp32"};
  const auto out = [&](const Arguments& args) { return run(folder, args + common); };
  for (int seed = 0; seed < 4; ++seed) {
    const auto r = out({"generate", "--prompt", "x", "--json", "--max-tokens", "200", "--seed",
                        std::to_string(seed), "--json-schema", folder / "schema.json"});
    ASSERT_EQ(r.status, 0) << r.err;
    const json value = json::parse(std::string(json::parse(r.out)["text"]));
    EXPECT_LE(value["n"], 99);
    EXPECT_TRUE(value["a"].is_string());
  }
  const auto word = out({"generate", "--prompt", "x", "--regex", "[a-c]{3}-\\d{2}", "--n", "2"});
  EXPECT_TRUE(std::regex_search(word.out, std::regex("[a-c]{3}-\\d\\d"))) << word.out;
  // Only a text that was cut before it matched is not complete.
  for (const auto& [regex, cut] : {std::pair{"a*", false}, {"a{9}", true}}) {
    const auto r = out(
        {"generate", "--prompt", "x", "--regex", regex, "--max-tokens", "5", "--min-tokens", "5"});
    EXPECT_EQ(r.out, "aaaaa\n");
    EXPECT_EQ(r.err.find("not complete") != std::string::npos, cut) << r.err;
  }
  const auto bad = out({"generate", "--prompt", "x", "--regex", "(?=a)b"});
  EXPECT_EQ(bad.status, 2);
  EXPECT_NE(bad.err.find("lookahead"), std::string::npos) << bad.err;
  const auto both = out({"generate", "--regex", "a", "--json-schema", folder / "schema.json"});
  EXPECT_EQ(both.status, 2);
  for (const char* flag : {"--regex", "--json-schema"}) {
    const auto empty = out({"generate", "--prompt", "x", flag, ""});
    EXPECT_EQ(empty.status, 2) << flag;
    EXPECT_NE(empty.err.find(flag), std::string::npos) << empty.err;
  }
  expect_error(out({"generate", "--prompt", "x", "--json-schema", "{\"type\":\"object\"}"}), 2,
               "[--json-schema] expected a file, got a schema: write it to a file");
}

// A wrong schema is one line that names its file once.
TEST(ConstrainedCommands, NameTheSchemaOnce) {
  Folder folder;
  write_served_folder(folder / "model");
  const std::string file = folder / "s.json";
  for (const auto& [text, said] : std::vector<std::pair<std::string, std::string>>{
           {R"({"type")", ":1:8] expected valid JSON"},
           {R"({"uniqueItems":true})", "] at \"#\": the keyword \"uniqueItems\" is not"},
           {R"({"items":{"format":"url"}})", "] at \"#/items\": expected a format among"},
           {R"x({"pattern":"(?=a)"})x", "] at \"#\": at byte 0 of \"(?=a)\": lookahead"},
           {R"({"minimum":5,"maximum":2})",
            "] at \"#\": no number lies between the minimum and"}}) {
    write_file_atomic(file, text);
    const auto r = run(folder, {"generate", "--model", folder / "model", "--prompt", "x",
                                "--device", "cpu", "--dtype", "fp32", "--json-schema", file});
    EXPECT_EQ(r.status, 2);
    EXPECT_NE(r.err.find("hearth: [" + file + said), std::string::npos) << r.err;
    EXPECT_EQ(r.err.find("s.json"), r.err.rfind("s.json")) << r.err;
  }
}

TEST_F(Serve, LogsRequestsToAFile) {
  const std::string path = folder_ / "requests.jsonl";
  start_server({"--request-log", path, "--api-key", "sk-secret"});
  const std::string key = "Authorization: Bearer sk-secret\r\n";
  const std::string body = R"({"prompt":"private","max_tokens":5,"ignore_eos":true)";
  EXPECT_EQ(ask("POST", "/v1/completions?q=private", body + "}", key).status, 200);
  EXPECT_EQ(ask("POST", "/v1/completions", body + R"(,"stream":true})", key).status, 200);
  EXPECT_EQ(ask("POST", "/v1/completions", body, key).status, 400);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer sk-guess\r\n").status, 401);
  const auto lines = [&](const std::string& file) {
    std::vector<json> all;
    std::istringstream in(fs::exists(file) ? read_file(file) : "");
    for (std::string line; std::getline(in, line);) all.push_back(json::parse(line));
    std::erase_if(all, [](const json& j) { return j["route"] == "GET /health"; });
    return all;
  };
  eventually([&] { return lines(path).size() >= 4; });
  const std::string text = read_file(path);
  for (const char* secret : {"private", "sk-secret", "sk-guess"})
    EXPECT_EQ(text.find(secret), std::string::npos) << secret;
  const std::vector<json> all = lines(path);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(all[i]["route"], "POST /v1/completions");
    EXPECT_EQ(all[i]["status"], 200);
    EXPECT_EQ(all[i]["prompt_tokens"], 7);
    EXPECT_EQ(all[i]["completion_tokens"], 5);
    EXPECT_EQ(all[i]["finish_reason"], "length");
    EXPECT_LE(all[i]["queue_ms"], all[i]["first_token_ms"]);
    EXPECT_LE(all[i]["first_token_ms"], all[i]["total_ms"]);
  }
  EXPECT_EQ(all[2]["status"], 400);
  EXPECT_EQ(all[3]["status"], 401);
  fs::rename(path, path + ".1");  // as log rotation does
  EXPECT_EQ(ask("POST", "/v1/completions", body + "}", key).status, 200);
  eventually([&] { return lines(path).size() == 1; });
  EXPECT_EQ(lines(path + ".1").size(), 4u);
  EXPECT_EQ(stop(SIGTERM), 0);
}

}  // namespace
}  // namespace hearth
