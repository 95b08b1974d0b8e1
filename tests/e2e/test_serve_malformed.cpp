// Ten thousand malformed requests over HTTP, changed from the seeds of the fuzz target for bodies
// and from whole requests: each gets a 4xx, and the server goes on as if none had come.
#include <algorithm>

#include "e2e/serve_process.h"
#include "fuzz.h"

namespace hearth {
namespace {

TEST_F(Serve, TenThousandMalformedBodiesAre4xx) {
  start_server();
  constexpr int wanted = 10000;
  constexpr const char* paths[] = {"/v1/completions", "/v1/chat/completions", "/tokenize",
                                   "/detokenize"};
  const fuzz::Seeds seeds = seeds_http_body();
  HttpClient c(port_);
  std::map<int, int> statuses;
  for (uint64_t i = 0, sent = 0; sent < wanted; ++i) {
    const std::string input =
        fuzz::mutated(seeds[i % seeds.size()], seeds[(i + 1) % seeds.size()], i);
    if (input.size() < 2 ||
        fuzz_http_body(reinterpret_cast<const uint8_t*>(input.data()), input.size()) == 1)
      continue;  // what is still a request is not malformed
    c.request("POST", paths[uint8_t(input[0]) % 4], input.substr(1));
    const Reply r = c.reply();
    ASSERT_TRUE(r.status >= 400 && r.status < 500) << r.status << " for " << input;
    ASSERT_EQ(r.error("type"), "invalid_request_error") << r.body;
    ASSERT_FALSE(r.error("message").empty());
    ++statuses[r.status], ++sent;
  }
  const Prometheus m = metrics();
  for (const auto& [status, count] : statuses)
    EXPECT_EQ(m.value("hearth:http_responses_total", "status=\"" + std::to_string(status) + "\""),
              count);
  EXPECT_EQ(complete(R"("prompt":"a","max_tokens":3)").status, 200);
  expect_all_free();
  EXPECT_EQ(stop(SIGTERM), 0) << log();
}

// The function that is fuzzed decides as the connection does.
TEST_F(Serve, HeadsTheFuzzTargetRefusesAreRefused) {
  const auto all = fuzz::targets();
  const auto target = std::ranges::find(all, "http_head", &fuzz::Target::name);
  if (target == all.end()) GTEST_SKIP() << "built without Boost.Beast";
  start_server();
  const fuzz::Seeds seeds = target->seeds();
  std::map<int, int> refused;
  for (uint64_t i = 0; i < 3000; ++i) {
    std::string input = fuzz::mutated(seeds[i % seeds.size()], seeds[(i + 1) % seeds.size()], i);
    if (input.empty()) continue;
    input[0] = 0;  // the settings of this server
    const bool taken = target->run(reinterpret_cast<const uint8_t*>(input.data()), input.size());
    HttpClient c(port_);
    c.send(input.substr(1));
    c.says_no_more();
    int status = 0;  // cut off: it ends before its end
    try {
      status = c.head().status;
    } catch (const std::runtime_error&) {}
    ASSERT_LT(status, 500) << input;
    if (taken) continue;
    ASSERT_TRUE(status == 0 || status >= 400) << status << " for " << input;
    ++refused[status];
  }
  for (const int status : {400, 403, 404, 405, 415}) EXPECT_GT(refused[status], 5) << status;
  expect_all_free();
}

TEST_F(Serve, MalformedRequestsAreAnsweredOrCutOff) {
  start_server();
  const std::string body = R"({"prompt":"a","max_tokens":2})";
  const fuzz::Seeds seeds = {
      "POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
      "Content-Length: 29\r\n\r\n" +
          body,
      "POST /tokenize HTTP/1.1\r\nHost: [::1]:80\r\nContent-Type: application/json\r\n"
      "Transfer-Encoding: chunked\r\n\r\nE\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n",
      "GET /v1/models HTTP/1.0\r\nAuthorization: Bearer x\r\nConnection: keep-alive\r\n\r\n",
      "OPTIONS * HTTP/1.1\r\nHost: localhost\r\nOrigin: x\r\nExpect: 100-continue\r\nUpgrade: "
      "h2c\r\n\r\n"};
  std::map<int, int> statuses;
  for (uint64_t i = 0; i < 2000; ++i) {
    HttpClient c(port_);
    c.send(fuzz::mutated(seeds[i % seeds.size()], seeds[(i + 1) % seeds.size()], i));
    c.says_no_more();
    int status = 0;  // cut off
    try {
      status = c.head().status;
    } catch (const std::runtime_error&) {}
    ASSERT_LT(status, 500) << i;
    ++statuses[status];
  }
  EXPECT_GT(statuses[400], 1000);
  EXPECT_GT(statuses[200], 10);  // some changes change nothing
  EXPECT_EQ(complete(R"("prompt":"a","max_tokens":3)").status, 200);
  expect_all_free();
  eventually([&] { return metrics().value("hearth:connections") == 1; });
  EXPECT_EQ(stop(SIGTERM), 0) << log();
}

}  // namespace
}  // namespace hearth
