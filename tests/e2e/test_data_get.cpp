// data get against a server on this machine: every way a download goes wrong, and that it ends with
// the right bytes or one clear error and nothing under the file's name.
#include <sched.h>
#include <sys/mount.h>

#include <cstdlib>
#include <mutex>

#include "e2e/command.h"
#include "e2e/https_server.h"
#include "sys/hash/hash.h"
#include "sys/https/https.h"

namespace hearth {
namespace {

std::string some_bytes(size_t n, uint32_t seed) {
  std::mt19937 random(seed);
  std::string s;
  for (size_t i = 0; i < n; ++i) s += char(random());
  return s;
}

// The file as a server that knows ranges and tags gives it.
ServerReply ranged(const ServerRequest& r, const std::string& file, const std::string& etag) {
  ServerReply reply;
  reply.headers = {"ETag: " + etag, "Accept-Ranges: bytes"};
  reply.body = file;
  const auto range = r.headers.find("range"), same = r.headers.find("if-range");
  if (range == r.headers.end() || (same != r.headers.end() && same->second != etag)) return reply;
  const size_t from = std::stoul(range->second.substr(6));
  if (from >= file.size())
    return {.status = 416,
            .headers = {"Content-Range: bytes */" + std::to_string(file.size())},
            .body = "no"};
  reply.status = 206;
  reply.headers.push_back("Content-Range: bytes " + std::to_string(from) + "-" +
                          std::to_string(file.size() - 1) + "/" + std::to_string(file.size()));
  reply.body = file.substr(from);
  return reply;
}

class DataGet : public testing::Test {
 protected:
  using Answer = std::function<ServerReply(const ServerRequest&, int)>;

  void SetUp() override {
    if (!*https_library()) GTEST_SKIP() << "built without libcurl";
    const std::string pem = folder / "cert.pem";
    const std::string make =
        "openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=localhost "
        "-addext subjectAltName=IP:127.0.0.1 -keyout " +
        pem + " -out " + pem + ".crt 2>/dev/null && cat " + pem + ".crt >> " + pem;
    if (std::system(make.c_str()) != 0) GTEST_SKIP() << "needs the openssl command";
    server = start_https_server(pem, [this](const ServerRequest& r) {
      const std::lock_guard lock(mutex_);
      requests_.push_back(r);
      return answer_(r, int(requests_.size()));
    });
    if (!server) GTEST_SKIP() << "built without OpenSSL";
    answer_with([this](const ServerRequest& r, int) { return ranged(r, file, "\"v1\""); });
  }

  // The server's threads call f with each request and the number of requests so far. What f reads
  // must stay as it is until the test gives another one.
  void answer_with(Answer f) {
    const std::lock_guard lock(mutex_);
    answer_ = std::move(f);
  }
  // What has been asked so far.
  std::vector<ServerRequest> requests() {
    const std::lock_guard lock(mutex_);
    return requests_;
  }
  void forget_requests() {
    const std::lock_guard lock(mutex_);
    requests_.clear();
  }

  std::string url(const std::string& path = "/f") const {
    return "https://127.0.0.1:" + std::to_string(server->port()) + path;
  }

  // Runs `data get set` with a catalogue of one file.
  Ran get(const nlohmann::json& fields = {}, const Arguments& more = {}) {
    nlohmann::json f = {{"name", "f.bin"}, {"url", url()}};
    f.update(fields.is_null() ? nlohmann::json::object() : fields);
    write_file_atomic(folder / "catalogue.json",
                      nlohmann::json{{{"name", "set"}, {"files", {f}}}}.dump());
    return run(folder, Arguments{"data", "get", "set", "--out", folder / "out", "--catalogue",
                                 folder / "catalogue.json", "--ca", folder / "cert.pem.crt",
                                 "--backoff", "0.01", "--retries", "3", "--stall", "1", "--json"} +
                           more);
  }
  nlohmann::json known() const {
    return {{"sha256", sha256_hex(to_bytes(file))}, {"bytes", file.size()}};
  }
  nlohmann::json got(const Ran& r) const { return json_of(r)["files"][0]; }
  bool has(const std::string& name) const { return fs::exists(folder / "out" / name); }
  void expect_whole() const {
    EXPECT_EQ(read_file(folder / "out/f.bin"), file);
    EXPECT_FALSE(has("f.bin.part"));
    EXPECT_FALSE(has("f.bin.part.etag"));
  }
  static void expect_failure(const Ran& r, const std::string& part) {
    EXPECT_EQ(r.status, 1) << r.err;
    EXPECT_NE(r.err.find("hearth: ["), std::string::npos) << r.err;
    EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
  }

  Folder folder;
  std::string file = some_bytes(300000, 1);

 private:
  std::mutex mutex_;
  std::vector<ServerRequest> requests_;
  Answer answer_;

 protected:
  std::unique_ptr<HttpsServer> server;  // last: its threads use what stands above
};

TEST_F(DataGet, DownloadsAndChecks) {
  auto f = got(get(known()));
  EXPECT_EQ(f["bytes"], 300000);
  EXPECT_EQ(f["checked"], "catalogue");
  EXPECT_EQ(f["was_there"], false);
  expect_whole();
  EXPECT_FALSE(has("f.bin.sha256"));
  f = got(get(known()));  // nothing to do, and nothing asked
  EXPECT_EQ(f["was_there"], true);
  EXPECT_EQ(requests().size(), 1u);
  write_file_atomic(folder / "out/f.bin", "damaged");
  expect_failure(get(known()), "delete it to download it again");
}

TEST_F(DataGet, TrustsTheFirstUseAndRemembersIt) {
  EXPECT_EQ(got(get())["checked"], "first_use");
  expect_whole();
  EXPECT_TRUE(read_file(folder / "out/f.bin.sha256").starts_with(sha256_hex(to_bytes(file))));
  EXPECT_EQ(got(get())["checked"], "earlier");
  fs::remove(folder / "out/f.bin");
  std::string other = file;
  other[5] ^= 1;
  answer_with([other](const ServerRequest& r, int) { return ranged(r, other, "\"v1\""); });
  expect_failure(get(), "earlier download's sha256");
  EXPECT_FALSE(has("f.bin"));
}

TEST_F(DataGet, GoesOnWhereConnectionsBreak) {
  answer_with([this](const ServerRequest& r, int) {
    ServerReply reply = ranged(r, file, "\"v1\"");
    if (reply.body.size() > 70000) reply.cut_after = 70000;
    return reply;
  });
  got(get(known()));
  expect_whole();
  EXPECT_GE(requests().size(), 5u);
  EXPECT_EQ(requests()[1].headers["if-range"], "\"v1\"");
  EXPECT_NE(requests()[1].headers["range"], "");
}

TEST_F(DataGet, ALaterRunGoesOn) {
  answer_with([this](const ServerRequest& r, int n) {
    ServerReply reply = ranged(r, file, "\"v1\"");
    reply.cut_after = n == 1 ? 100000 : 0;
    return reply;
  });
  expect_failure(get(known()), "run the command again to continue");
  EXPECT_FALSE(has("f.bin"));
  EXPECT_TRUE(has("f.bin.part"));
  answer_with([this](const ServerRequest& r, int) { return ranged(r, file, "\"v1\""); });
  EXPECT_GT(got(get(known()))["resumed_from"], 0);
  expect_whole();
}

TEST_F(DataGet, BeginsAgainWhenTheFileChanged) {
  answer_with([this](const ServerRequest& r, int n) {
    const std::string old(file.size(), 'o');
    ServerReply reply = ranged(r, n == 1 ? old : file, n == 1 ? "\"v1\"" : "\"v2\"");
    if (n == 1) reply.cut_after = 100000;
    return reply;
  });
  EXPECT_EQ(got(get(known()))["resumed_from"], 0);
  expect_whole();
}

TEST_F(DataGet, BeginsAgainWhereRangesAreIgnored) {
  answer_with([this](const ServerRequest&, int n) {
    ServerReply reply{.status = 200, .headers = {"ETag: \"v1\""}, .body = file};
    if (n == 1) reply.cut_after = 100000;
    return reply;
  });
  got(get(known()));
  expect_whole();
}

TEST_F(DataGet, APartBeyondTheEndIsThrownAway) {
  fs::create_directories(folder / "out");
  write_file_atomic(folder / "out/f.bin.part", file + "and more");
  write_file_atomic(folder / "out/f.bin.part.etag", "\"v1\"");
  got(get(known()));
  expect_whole();
}

// As a run leaves it that ends between the last byte and the rename.
TEST_F(DataGet, ACompletePartIsNotFetchedAgain) {
  const auto leave_part = [&](const std::string& bytes) {
    fs::remove_all(folder / "out");
    fs::create_directories(folder / "out");
    write_file_atomic(folder / "out/f.bin.part", bytes);
    write_file_atomic(folder / "out/f.bin.part.etag", "\"v1\"");
    forget_requests();
  };
  leave_part(file);
  EXPECT_EQ(got(get(known()))["resumed_from"], 300000);
  expect_whole();
  EXPECT_TRUE(requests().empty());
  leave_part(file);  // the server tells the length of a file whose length is unknown
  EXPECT_EQ(got(get())["resumed_from"], 300000);
  expect_whole();
  EXPECT_EQ(requests().size(), 1u);
  std::string damaged = file;
  damaged[5] ^= 1;
  leave_part(damaged);
  EXPECT_EQ(got(get(known()))["resumed_from"], 0);
  expect_whole();
  EXPECT_EQ(requests().size(), 1u);
  leave_part(damaged);
  EXPECT_EQ(got(get({{"sha256", known()["sha256"]}}))["resumed_from"], 0);
  expect_whole();
  EXPECT_EQ(requests().size(), 2u);
}

TEST_F(DataGet, GivesUpAHungConnectionAndTriesAgain) {
  answer_with([this](const ServerRequest& r, int n) {
    ServerReply reply = ranged(r, file, "\"v1\"");
    if (n == 1) reply.cut_after = 50000, reply.hang = true;
    return reply;
  });
  got(get(known()));
  expect_whole();
  EXPECT_EQ(requests().size(), 2u);
}

TEST_F(DataGet, TriesAgainAfterTroubleOfTheServer) {
  answer_with([this](const ServerRequest& r, int n) {
    return n < 4 ? ServerReply{.status = n == 1   ? 503
                                         : n == 2 ? 500
                                                  : 429,
                               .headers = {},
                               .body = "x"}
                 : ranged(r, file, "\"v1\"");
  });
  got(get(known()));
  expect_whole();
  forget_requests();
  fs::remove_all(folder / "out");
  answer_with([](const ServerRequest&, int) {
    return ServerReply{.status = 503, .headers = {}, .body = ""};
  });
  expect_failure(get(known()), "status 503 (4 times in a row)");
  EXPECT_EQ(requests().size(), 4u);
  EXPECT_FALSE(has("f.bin.part"));
}

TEST_F(DataGet, DoesNotRepeatWhatCannotHelp) {
  answer_with([](const ServerRequest&, int) {
    return ServerReply{.status = 404, .headers = {}, .body = "no"};
  });
  expect_failure(get(known()), "status 404");
  EXPECT_EQ(requests().size(), 1u);
  answer_with([this](const ServerRequest&, int) {
    return ServerReply{.status = 302,
                       .headers = {"Location: http://127.0.0.1:" + std::to_string(server->port())},
                       .body = ""};
  });
  expect_failure(get(known()), "rotocol");
  EXPECT_EQ(requests().size(), 2u);
  expect_failure(get({{"url", "http://127.0.0.1/f"}}), "https://");
  EXPECT_EQ(requests().size(), 2u);
  EXPECT_FALSE(has("f.bin"));
}

TEST_F(DataGet, FollowsRedirectsToHttps) {
  answer_with([this](const ServerRequest& r, int) {
    if (r.path == "/elsewhere") return ranged(r, file, "\"v1\"");
    return ServerReply{
        .status = 302, .headers = {"Location: " + url("/elsewhere")}, .body = "moved"};
  });
  got(get(known()));
  expect_whole();
}

TEST_F(DataGet, RefusesWrongBytes) {
  auto wrong = known();
  wrong["sha256"] = std::string(64, 'a');
  expect_failure(get(wrong), "catalogue's sha256 aaaa");
  EXPECT_FALSE(has("f.bin"));
  EXPECT_FALSE(has("f.bin.part"));
  expect_failure(get({{"bytes", 299999}}), "expected a file of 299999 bytes");
  EXPECT_FALSE(has("f.bin"));
}

TEST_F(DataGet, WritesThroughNoLink) {
  fs::create_directories(folder / "out");
  write_file_atomic(folder / "victim", "untouched");
  fs::create_symlink(folder / "victim", folder / "out/f.bin.part");
  write_file_atomic(folder / "out/f.bin.part.etag", "\"v1\"");
  expect_failure(get(known()), "symbolic link");
  EXPECT_EQ(read_file(folder / "victim"), "untouched");
  EXPECT_TRUE(requests().empty());
}

TEST_F(DataGet, EndsAStreamWithoutLengthAtTheLimit) {
  answer_with([this](const ServerRequest&, int) {
    ServerReply reply{.status = 200, .headers = {"ETag: \"v1\""}, .body = file};
    reply.tells_length = false;
    return reply;
  });
  expect_failure(get({}, {"--max-bytes", "100000"}), "raise --max-bytes");
  EXPECT_FALSE(has("f.bin"));
  EXPECT_FALSE(has("f.bin.part"));
  EXPECT_EQ(requests().size(), 1u);
  got(get({}, {"--max-bytes", "300000"}));
  expect_whole();
}

// What a server calls its file goes back to it in a header and into a file beside the part.
TEST_F(DataGet, SendsNoTagBackThatIsNone) {
  answer_with([this](const ServerRequest&, int n) {
    ServerReply reply{.status = 200, .headers = {"ETag: \"v\x01\x1b[31m\""}, .body = file};
    if (n == 1) reply.cut_after = 100000;
    return reply;
  });
  got(get(known()));
  expect_whole();
  ASSERT_EQ(requests().size(), 2u);
  EXPECT_FALSE(requests()[1].headers.contains("if-range"));
}

TEST_F(DataGet, ChecksTheCertificate) {
  const Ran r = run(folder, {"data", "get", "tinyshakespeare", "--out", folder / "out",
                             "--base-url", url(""), "--retries", "0"});
  expect_failure(r, "certificate");
  EXPECT_TRUE(requests().empty());
}

TEST_F(DataGet, AMirrorHasTheSamePaths) {
  run(folder, {"data", "get", "tinyshakespeare", "--out", folder / "out", "--base-url", url(""),
               "--ca", folder / "cert.pem.crt"});
  ASSERT_EQ(requests().size(), 1u);
  EXPECT_TRUE(requests()[0].path.ends_with("/data/tinyshakespeare/input.txt"))
      << requests()[0].path;
}

// In a file system of its own, too small for the file.
TEST_F(DataGet, TellsWhenTheDiskIsTooSmall) {
  fs::create_directories(folder / "out");
  int status = 0;
  const pid_t child = fork();
  if (child == 0) {
    if (unshare(CLONE_NEWNS) != 0 ||
        mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0 ||
        mount("none", (folder / "out").c_str(), "tmpfs", 0, "size=65536") != 0)
      _exit(77);
    const Ran r = get(known());
    const bool told =
        r.status == 1 && r.err.find("expected 300000 more bytes of disk space") != r.err.npos;
    _exit(told ? 0 : 1);
  }
  waitpid(child, &status, 0);
  if (WIFEXITED(status) && WEXITSTATUS(status) == 77) GTEST_SKIP() << "needs the right to mount";
  EXPECT_EQ(status, 0);
}

TEST(DataGetList, ListsWhatIsKnown) {
  const Folder folder;
  const Ran r = run(folder, {"data", "get"});
  EXPECT_EQ(r.status, 0) << r.err;
  for (const char* name : {"fineweb10b-gpt2", "fineweb-sample-10bt", "tinystories",
                           "tinyshakespeare", "gpt2-tokenizer"})
    EXPECT_NE(r.out.find(name), std::string::npos) << name;
  expect_error(run(folder, {"data", "get", "tinystory", "--out", "x"}), 2, "tinystories");
  expect_error(run(folder, {"data", "get", "gpt2"}), 2, "--out");
  expect_error(run(folder, {"data", "get", "tinyshakspeare"}), 2,
               "got \"tinyshakspeare\"; the nearest is tinyshakespeare\n");
}

}  // namespace
}  // namespace hearth
