// Runs under a folder, whatever is in it; the answers about them; and the pages of the app.
#include <gtest/gtest.h>
#include <sys/file.h>

#include <regex>
#include <set>

#include "board/pages.h"
#include "board/run_board.h"
#include "formats/run_folder.h"
#include "http/url.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

const std::string pretrain_toml =
    "steps = 10\nseq = \"16\"\ntokens_per_step = 64\nlr = 0.01\ndim = 32\nlayers = 2\nheads = 2\n"
    "vocab = 64\ncontext = 16\nhidden = 64\nnames = [\"a\", \"b\"]\n";

class Boards : public testing::Test {
 protected:
  fs::path run(const std::string& id, const std::string& log = "{\"step\":3,\"loss\":2.5}\n",
               const std::string& config = pretrain_toml) {
    const fs::path at = dir_ / id;
    make_dirs(at);
    if (!config.empty()) write_file_atomic(at / "config.toml", config);
    if (!log.empty()) write_file_atomic(at / "log.jsonl", log);
    return at;
  }
  json ask(const std::string& path, const std::string& query = "") {
    return json::parse(board_.answer({.method = "GET", .path = path, .query = query}).body);
  }
  int status(const std::string& path, const std::string& query = "") {
    try {
      ask(path, query);
    } catch (const HttpError& e) { return e.status; }
    return 200;
  }
  json summary(const std::string& id) {
    return json::parse(board_.summary({id, *run_path(dir_.path(), id)}));
  }
  std::vector<std::string> ids() const {
    std::vector<std::string> all;
    for (const FoundRun& r : find_runs(dir_.path()).runs) all.push_back(r.id);
    return all;
  }

  test::TempDir dir_;
  RunBoard board_{dir_.path()};
};

TEST_F(Boards, FindsRunsOfAnyNameAndNothingElse) {
  const std::vector<std::string> names = {"<script>alert(1)<",
                                          "a b",
                                          "a/b/c",
                                          "quote\"d",
                                          "new\nline",
                                          "ünï",
                                          "%2e%2e",
                                          "back\\slash",
                                          "x.y",
                                          std::string(200, 'n')};
  for (const std::string& name : names) run(name);
  run("only-log", "{\"step\":1}\n", "");
  run(".hidden/run");
  run("deep/1/2/3/4/5/6/7");
  make_dirs(dir_ / "empty");
  run("a/b/c/checkpoints/step-1");  // runs are not searched
  test::TempDir outside;
  make_dirs(outside / "run");
  write_file_atomic(outside / "run/config.toml", pretrain_toml);
  fs::create_directory_symlink(outside.path(), dir_ / "link");
  fs::create_directory_symlink(dir_.path(), dir_ / "loop");
  std::vector<std::string> expected = names;
  expected.push_back("only-log");
  std::ranges::sort(expected);
  EXPECT_EQ(ids(), expected);
  for (const std::string& id : expected) EXPECT_TRUE(run_path(dir_.path(), id)) << id;
  for (const std::string id :
       {"", ".", "..", "../x", "a/../a/b/c", "a//b/c", "/a/b/c", "a/b/c/", "link/run",
        ".hidden/run", "empty", "a/b", "loop/a b", "deep/1/2/3/4/5/6/7", "a b\\0", "/etc"})
    EXPECT_FALSE(run_path(dir_.path(), id)) << id;
  // Their names are JSON strings and nothing else.
  std::set<std::string> listed;
  const json answer = ask("/api/runs");
  for (const json& r : answer["runs"]) listed.insert(r.at("id").get<std::string>());
  EXPECT_EQ(listed, std::set(expected.begin(), expected.end()));
}

TEST_F(Boards, CountsNamesThatAreNoText) {
  run("bad\xff");
  run("good");
  const json j = ask("/api/runs");
  EXPECT_EQ(j["runs"].size(), 1u);
  EXPECT_EQ(j["unnamed"], 1);
}

TEST_F(Boards, KeepsToItsLimits) {
  for (int i = 0; i < 30; ++i) run("r" + std::to_string(i));
  const FoundRuns few = find_runs(dir_.path(), {.runs = 7});
  EXPECT_EQ(few.runs.size(), 7u);
  EXPECT_TRUE(few.truncated);
  const FoundRuns scan = find_runs(dir_.path(), {.folders = 5});
  EXPECT_LE(scan.runs.size(), 5u);
  EXPECT_TRUE(scan.truncated);
  EXPECT_FALSE(find_runs(dir_.path()).truncated);
  // Files beside the runs do not count.
  for (int i = 0; i < 50; ++i) write_file_atomic(dir_ / ("file" + std::to_string(i)), "x");
  EXPECT_EQ(find_runs(dir_.path(), {.folders = 40}).runs.size(), 30u);
}

// A model that no decoder accepts hides neither its own run nor the others.
TEST_F(Boards, ListsARunWhoseModelIsRefused) {
  run("good", "{\"step\":1,\"loss\":1}\n");
  run("odd", "{\"step\":1,\"loss\":1}\n", pretrain_toml + "position = \"rope\"\nrotary = 0.01\n");
  const json j = ask("/api/runs");
  EXPECT_EQ(j["runs"].size(), 2u) << j;
}

TEST_F(Boards, ARunIsItsOwnBoard) {
  const fs::path at = run("mine");
  const FoundRuns found = find_runs(at);
  ASSERT_EQ(found.runs.size(), 1u);
  EXPECT_EQ(found.runs[0].id, "mine");
  EXPECT_EQ(run_path(at, "mine"), at);
  EXPECT_FALSE(run_path(at, "other"));
  EXPECT_TRUE(find_runs(dir_ / "nowhere").runs.empty()) << "it may appear later";
}

TEST_F(Boards, TellsTheStateOfARun) {
  const fs::path at = run("r");
  EXPECT_EQ(summary("r")["state"], "stopped");
  EXPECT_EQ(summary("r")["task"], "pretrain");
  EXPECT_EQ(summary("r")["step"], 3);
  EXPECT_EQ(summary("r")["steps"], 10);
  EXPECT_EQ(summary("r")["loss"], 2.5);
  EXPECT_EQ(summary("r")["reward"], nullptr);
  EXPECT_GT(summary("r")["params"], 1000);
  {
    const Fd lock = lock_run(at);
    EXPECT_EQ(summary("r")["state"], "running");
    EXPECT_NE(test::error_of([&] { lock_run(at); }), "");
  }
  EXPECT_EQ(summary("r")["state"], "stopped");
  write_file_atomic(at / "log.jsonl", "{\"step\":10,\"loss\":1}\n{\"step\":10,\"val_loss\":1.5}\n");
  EXPECT_EQ(summary("r")["state"], "finished");
  EXPECT_EQ(summary("r")["val_loss"], 1.5);
  write_file_atomic(at / "log.jsonl", "\xff garbage\n");
  EXPECT_EQ(summary("r")["state"], "damaged");
  run("no-config", "{\"step\":1}\n", "");
  EXPECT_EQ(summary("no-config")["state"], "damaged");
  EXPECT_NE(summary("no-config")["trouble"], nullptr);
  run("bad-config", "{\"step\":1}\n", "steps = = 3\n\xff");
  EXPECT_EQ(summary("bad-config")["state"], "damaged");
  run("huge-model", "{\"step\":1}\n",
      "seq = \"1\"\ntokens_per_step = 1\ndim = 9000000000000000000\nlayers = 1000000000\n");
  EXPECT_EQ(summary("huge-model")["params"], nullptr);
  run("target", "{\"step\":4,\"val_loss\":1.2}\n", pretrain_toml + "target_loss = 1.3\n");
  EXPECT_EQ(summary("target")["state"], "finished");
}

// A probe of the lock must not keep a run from starting.
TEST_F(Boards, LookingDoesNotDisturbARunThatStarts) {
  const fs::path at = run("r");
  { const Fd lock = lock_run(at); }
  std::atomic<bool> stop = false;
  std::thread looks([&] {
    while (!stop) is_running(at);
  });
  for (int i = 0; i < 300; ++i) EXPECT_EQ(test::error_of([&] { lock_run(at); }), "");
  stop = true;
  looks.join();
}

TEST_F(Boards, AnswersAboutARun) {
  const fs::path at = run("a/b",
                          "{\"step\":1,\"loss\":3,\"lr\":0.1}\n{\"step\":2,\"loss\":2}\nbad\n"
                          "{\"step\":2,\"val_loss\":2.5}\n");
  write_file_atomic(at / "perf.jsonl",
                    "{\"step\":1,\"ms\":5,\"memory_bytes\":10,\"peak_memory_bytes\":20}\n"
                    "{\"step\":2,\"seconds\":{\"load\":1.5}}\n");
  make_dirs(at / "checkpoints/step-00000002");
  write_file_atomic(at / "checkpoints/step-00000002/model", "12345");
  fs::create_symlink("checkpoints/step-00000002", at / "latest");
  const json d = ask("/api/runs/a%2Fb");
  EXPECT_EQ(d["run"]["id"], "a/b");
  EXPECT_EQ(d["run"]["trouble"], "log.jsonl has 1 lines that cannot be read");
  EXPECT_EQ(d["config"]["lr"], 0.01);
  EXPECT_EQ(d["config"]["seq"], 16);
  EXPECT_EQ(d["config"]["names"], (std::vector<std::string>{"a", "b"}));
  EXPECT_EQ(d["config_text"], pretrain_toml);
  EXPECT_EQ(d["keys"]["log"], (std::vector<std::string>{"loss", "lr", "val_loss"}));
  EXPECT_EQ(d["best"], json({{"step", 2.0}, {"value", 2.5}, {"key", "val_loss"}}));
  EXPECT_EQ(d["checkpoints"], json::parse(R"([{"step":2,"bytes":5,"latest":true,"best":false}])"));
  EXPECT_EQ(d["memory"], json::parse(R"({"used":10,"peak":20})"));
  EXPECT_EQ(d["seconds"]["load"], 1.5);
  const json s = ask("/api/runs/a%2Fb/series", "keys=loss,ms,nothing&x=step&from=2");
  EXPECT_EQ(s["series"]["loss"]["x"], std::vector<int>{2});
  EXPECT_TRUE(s["series"]["ms"]["x"].empty()) << "step 1 is before the range";
  EXPECT_TRUE(s["series"]["nothing"]["x"].empty());
  EXPECT_EQ(s["offset"]["log"], fs::file_size(at / "log.jsonl"));
  EXPECT_EQ(s["offset"]["perf"], fs::file_size(at / "perf.jsonl"));
  for (const char* query : {"x=other", "points=0", "points=x", "from=nan", "keys=%zz", "points=1e9",
                            "points=20000&keys=a,b,c,d,e,f,g"})
    EXPECT_EQ(status("/api/runs/a%2Fb/series", query), 400) << query;
  for (const char* path : {"/api/runs/none", "/api/runs/..%2F..", "/api/runs/a%2Fb/other",
                           "/api/runs/", "/api/runs/a%00b", "/api/runs/a/b", "/api/other"})
    EXPECT_EQ(status(path), 404) << path;
}

TEST_F(Boards, ComparesSettings) {
  run("a");
  run("b", "", pretrain_toml + "extra = true\n");
  write_file_atomic(dir_ / "a/config.toml", std::string("steps = 20\n" + pretrain_toml.substr(11)));
  const json j = ask("/api/runs/a/compare", "with=b");
  EXPECT_EQ(j["different"], json::parse(R"([{"key":"steps","a":20,"b":10},)"
                                        R"({"key":"extra","a":null,"b":true}])"));
  EXPECT_EQ(j["same"], 10);
  EXPECT_EQ(status("/api/runs/a/compare", "with=../x"), 404);
}

TEST_F(Boards, ShowsSamplesAndRollouts) {
  const fs::path at = run("r");
  EXPECT_TRUE(ask("/api/runs/r/samples")["samples"].empty());
  EXPECT_EQ(ask("/api/runs/r/rollouts"), json::parse(R"({"steps":[],"step":null,"rollouts":[]})"));
  write_file_atomic(at / "samples.jsonl", "{\"step\":1,\"text\":\"<b>\"}\nbroken\n{\"step\":2}\n");
  EXPECT_EQ(ask("/api/runs/r/samples")["samples"].size(), 2u);
  EXPECT_EQ(ask("/api/runs/r/samples", "last=1")["samples"][0]["step"], 2);
  write_file_atomic(
      at / "rollouts.jsonl",
      "{\"step\":1,\"reward\":0}\n{\"step\":1,\"reward\":1}\n{\"step\":3,\"reward\":2}\n"
      "{\"step\":3,\"rew\n");
  json j = ask("/api/runs/r/rollouts", "step=1");
  EXPECT_EQ(j["steps"], (std::vector<int>{1, 3}));
  EXPECT_EQ(j["rollouts"].size(), 2u);
  j = ask("/api/runs/r/rollouts");
  EXPECT_EQ(j["step"], 3);
  EXPECT_EQ(j["rollouts"].size(), 1u);
}

// Deeply nested lines must not exhaust the stack of whoever copies them.
TEST_F(Boards, SurvivesHostileLogs) {
  std::string deep = "{\"step\":1,\"seconds\":";
  for (int i = 0; i < 200000; ++i) deep += "{\"a\":";
  deep += "1" + std::string(200001, '}') + "\n";
  const fs::path at = run("r", deep + "{\"step\":1,\"loss\":1}\n");
  write_file_atomic(at / "perf.jsonl", deep);
  write_file_atomic(at / "samples.jsonl", deep);
  EXPECT_EQ(ask("/api/runs/r")["run"]["step"], 1);
  EXPECT_EQ(status("/api/runs/r/samples"), 200);
  EXPECT_EQ(status("/api/runs/r/series", "keys=loss,ms"), 200);
}

TEST(Url, DecodesStrictly) {
  EXPECT_EQ(percent_decoded("a%2Fb%20c"), "a/b c");
  for (const char* wrong : {"%", "%2", "%zz", "%00", "a%"}) EXPECT_FALSE(percent_decoded(wrong));
  EXPECT_EQ(query_value("a=1&b=x+y%2C&c", "b"), "x y,");
  EXPECT_EQ(query_value("a=1&c", "c"), "");
  EXPECT_FALSE(query_value("ab=1", "b"));
  EXPECT_EQ(query_number("n=1e3", "n", 0, 0, 1e9), 1000);
}

// --- pages ---

std::string header(const HttpResponse& r, const std::string& name) {
  for (const auto& [n, value] : r.headers)
    if (n == name) return value;
  return "";
}

TEST(Pages, ForbidEverythingThatIsNotTheirs) {
  for (const PageFile& f : page_files()) {
    const HttpResponse r = page_response({.method = "GET", .path = f.path});
    EXPECT_EQ(r.status, 200);
    EXPECT_EQ(r.body, f.bytes);
    EXPECT_FALSE(r.body.empty()) << f.path;
    const std::string policy = header(r, "Content-Security-Policy");
    for (const char* part : {"default-src 'none'", "script-src 'self';", "connect-src 'self'",
                             "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'"})
      EXPECT_NE(policy.find(part), policy.npos) << part;
    EXPECT_EQ(policy.find("unsafe-eval"), policy.npos);
    EXPECT_EQ(policy.find("script-src 'self' 'unsafe"), policy.npos);
    EXPECT_EQ(header(r, "X-Content-Type-Options"), "nosniff");
    EXPECT_EQ(header(r, "Referrer-Policy"), "no-referrer");
    const std::string etag = header(r, "ETag");
    const HttpResponse again =
        page_response({.method = "GET", .path = f.path, .if_none_match = etag});
    EXPECT_EQ(again.status, 304);
    EXPECT_TRUE(again.body.empty());
    const HttpResponse packed =
        page_response({.method = "GET", .path = f.path, .accept_encoding = "gzip, br"});
    if (header(packed, "Content-Encoding") == "gzip") {
      EXPECT_LT(packed.body.size(), r.body.size());
    }
  }
  EXPECT_FALSE(is_page("/app.js/"));
  EXPECT_FALSE(is_page("/../app.js"));
}

// The policy would block a script or a handler in the page, so the app must not rely on one.
TEST(Pages, HaveNoScriptInThePage) {
  const std::string page(page_files()[0].bytes);
  const std::regex inline_script("<script(?![^>]*\\bsrc=)[^>]*>", std::regex::icase);
  const std::regex handler("<[^>]*\\son[a-z]+\\s*=", std::regex::icase);
  const std::regex elsewhere("(src|href)\\s*=\\s*[\"']?(https?:)?//", std::regex::icase);
  EXPECT_FALSE(std::regex_search(page, inline_script));
  EXPECT_FALSE(std::regex_search(page, handler));
  EXPECT_FALSE(std::regex_search(page, elsewhere));
  EXPECT_EQ(page.find("javascript:"), page.npos);
}

}  // namespace
}  // namespace hearth
