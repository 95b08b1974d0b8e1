// HTTP as hearth serve keeps it: HEAD, framing that cannot be misread, clients that close their
// half, connections beyond the limit, pages of other sites, and the log of requests.
#include <regex>

#include "e2e/serve_process.h"

namespace hearth {
namespace {

const std::string json_head = "Host: localhost\r\nContent-Type: application/json\r\n";

// The answer after the interim ones a client that has closed its half may get.
Reply final_reply(HttpClient& c) {
  Reply r = c.reply();
  while (r.status == 100) r = c.reply();
  return r;
}

std::string post_of(const std::string& path, const std::string& body,
                    const std::string& headers = "") {
  return "POST " + path + " HTTP/1.1\r\n" + json_head + headers +
         "Content-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

TEST_F(Serve, HeadIsGetWithoutItsBody) {
  start_server();
  HttpClient c(port_);
  for (const char* path : {"/health", "/v1/models", "/tokenizer_info", "/nowhere", "/tokenize"}) {
    c.request("GET", path);
    const Reply get = c.reply();
    c.request("HEAD", path);
    const Reply head = c.head();
    EXPECT_EQ(head.status, get.status) << path;
    if (get.status == 200) { EXPECT_EQ(head.headers, get.headers) << path; }
    EXPECT_TRUE(head.headers.contains("content-length")) << path;
    // A body would be taken for the beginning of the next answer.
    c.request("GET", "/health");
    EXPECT_EQ(c.reply().json()["status"], "ok") << path;
  }
}

TEST_F(Serve, FramingThatCouldBeMisreadEndsTheConnection) {
  start_server();
  const std::string smuggled = "GET /v1/models HTTP/1.1\r\nHost: localhost\r\n\r\n";
  const std::string chunks = "E\r\n{\"prompt\":\"a\"}\r\n0\r\n\r\n";
  for (const std::string framing :
       {"Transfer-Encoding: gzip, chunked\r\n", "Transfer-Encoding: chunked, identity\r\n",
        "Transfer-Encoding: identity\r\n", "Transfer-Encoding: gzip\r\n",
        "Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: gzip\r\nTransfer-Encoding: chunked\r\n",
        "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: chunked\r\n",
        "Content-Length: 5\r\nTransfer-Encoding: gzip\r\n", "Transfer-Encoding: xchunked\r\n",
        "Transfer-Encoding:\r\n", "Content-Length: 4\r\nContent-Length: 5\r\n",
        "Content-Length: 5\r\nContent-Length: 5\r\n", "Content-Length: 5, 5\r\n",
        "Content-Length: +5\r\n", "Content-Length: -1\r\n", "Content-Length: 0x5\r\n",
        "Content-Length: 99999999999999999999\r\n"}) {
    HttpClient c(port_);
    c.send("POST /tokenize HTTP/1.1\r\n" + json_head + framing + "\r\n" + chunks + smuggled);
    const Reply r = c.reply();
    EXPECT_EQ(r.status, 400) << framing;
    EXPECT_EQ(r.headers.at("connection"), "close") << framing;
    EXPECT_EQ(c.rest(), "") << framing << "nothing after it is a request";
  }
  HttpClient old(port_);
  old.send("POST /tokenize HTTP/1.0\r\n" + json_head + "Transfer-Encoding: chunked\r\n\r\n" +
           chunks);
  EXPECT_EQ(old.reply().status, 400);
  HttpClient right(port_);
  right.send("POST /tokenize HTTP/1.1\r\n" + json_head + "Transfer-Encoding: Chunked\r\n\r\n" +
             chunks + smuggled);
  EXPECT_EQ(right.reply().status, 200);
  EXPECT_EQ(right.reply().json()["object"], "list") << "here it is the next request";
  for (const char* host : {"", "Host: localhost\r\nHost: localhost\r\n"}) {
    HttpClient c(port_);
    c.send("GET /health HTTP/1.1\r\n" + std::string(host) + "\r\n");
    EXPECT_EQ(c.reply().status, 400) << host;
  }
}

TEST_F(Serve, AClientThatClosedItsHalfGetsItsAnswer) {
  write_refrain_folder(folder_ / "model");
  start_server({"--max-new-tokens", "200000"});
  const std::string some = R"("prompt":"a","max_tokens":3000,"temperature":0)";
  HttpClient whole(port_), streams(port_), tokenizes(port_), asks(port_), old(port_);
  whole.send(post_of("/v1/completions", "{" + some + "}"));
  streams.send(post_of("/v1/completions", "{" + some + R"(,"stream":true})"));
  tokenizes.send(post_of("/tokenize", R"({"prompt":"ab"})"));
  asks.request("GET", "/health");
  const std::string body = "{" + some + "}";
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  for (HttpClient* c : {&whole, &streams, &tokenizes, &asks, &old}) c->says_no_more();
  EXPECT_EQ(final_reply(tokenizes).json()["count"], 2);
  EXPECT_EQ(final_reply(asks).status, 200);
  EXPECT_EQ(final_reply(whole).json()["usage"]["completion_tokens"], 3000);
  EXPECT_TRUE(final_reply(streams).body.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(final_reply(old).json()["usage"]["completion_tokens"], 3000);
  // One that has left altogether is found out, though it waited for an answer that is far away.
  HttpClient leaves(port_), leaves_stream(port_);
  const std::string endless = R"("prompt":"a","max_tokens":200000,"temperature":0)";
  leaves.send(post_of("/v1/completions", "{" + endless + "}"));
  leaves_stream.send(post_of("/v1/completions", "{" + endless + R"(,"stream":true})"));
  eventually([&] { return metrics().value("vllm:num_requests_running") == 2; });
  leaves.leave();
  leaves_stream.leave();
  expect_all_free();
  EXPECT_TRUE(some_aborted());
}

TEST_F(Serve, BeyondItsConnectionsEveryClientIsTold) {
  start_server({"--max-connections", "2"});
  std::array<std::unique_ptr<HttpClient>, 2> held;
  for (auto& c : held)
    eventually([&] {  // the server may not have seen yet that the client before has left
      c = std::make_unique<HttpClient>(port_);
      c->request("GET", "/health");
      return c->reply().status == 200;
    });
  // What such a client still sends must not cost it the answer.
  const std::string body = R"({"prompt":")" + std::string(200000, 'a') + "\"}";
  for (int i = 0; i < 100; ++i) {
    HttpClient c(port_);
    EXPECT_TRUE(c.send(post_of("/v1/completions", body))) << i;
    const Reply r = c.reply();
    EXPECT_EQ(r.status, 503);
    EXPECT_EQ(r.headers.at("retry-after"), "1");
    EXPECT_EQ(r.error("code"), "unavailable");
    EXPECT_TRUE(c.ends());
  }
  // More at once than are turned away at a time: the others wait their turn.
  std::vector<std::unique_ptr<HttpClient>> crowd;
  for (int i = 0; i < 150; ++i) {
    crowd.push_back(std::make_unique<HttpClient>(port_));
    crowd.back()->request("GET", "/health");
  }
  for (const auto& c : crowd) {
    EXPECT_EQ(c->reply().status, 503);
    c->leave();
  }
  held[0]->leave();
  eventually([&] { return healthy(); });
}

TEST_F(Serve, HasAPageForItsModel) {
  start_server({"--api-key", "sk-page"});
  const Reply page = ask("GET", "/");
  EXPECT_EQ(page.status, 200) << "the page itself asks for the key";
  EXPECT_EQ(page.headers.at("content-type"), "text/html; charset=utf-8");
  EXPECT_NE(page.headers.at("content-security-policy").find("script-src 'self';"),
            std::string::npos);
  for (const char* path : {"/app.js", "/app.css"}) EXPECT_EQ(ask("GET", path).status, 200) << path;
  EXPECT_EQ(ask("GET", "/api/info").status, 401);
  const Reply info = ask("GET", "/api/info", "", "Authorization: Bearer sk-page\r\n");
  EXPECT_EQ(info.json()["pages"], std::vector<std::string>{"chat"});
  EXPECT_EQ(ask("GET", "/api/runs", "", "Authorization: Bearer sk-page\r\n").status, 404);
  EXPECT_EQ(ask("POST", "/", "{}").status, 405);
}

TEST_F(Serve, RefusesPagesOfOtherSites) {
  start_server({"--allowed-host", "model.example.org"});
  const auto status = [&](const std::string& headers, const std::string& method = "GET") {
    HttpClient c(port_);
    c.send(method + " /v1/models HTTP/1.1\r\n" + headers + "\r\n");
    return c.reply().status;
  };
  EXPECT_EQ(status("Host: 127.0.0.1:" + std::to_string(port_) + "\r\n"), 200);
  EXPECT_EQ(status("Host: model.example.org\r\n"), 200);
  EXPECT_EQ(status("Host: rebound.example\r\n"), 403);
  EXPECT_EQ(status("Host: localhost\r\nOrigin: https://page.example\r\n"), 403);
  EXPECT_EQ(status("Host: localhost\r\nOrigin: https://page.example\r\n", "OPTIONS"), 403);
  EXPECT_EQ(status("Host: localhost\r\nOrigin: http://localhost\r\n"), 200);
}

TEST_F(Serve, SaysWhichHeaderIsMissing) {
  start_server();
  HttpClient c(port_);
  c.send(
      "POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: "
      "application/x-www-form-urlencoded\r\nContent-Length: 14\r\n\r\n{\"prompt\":\"a\"}");
  const Reply r = c.reply();
  EXPECT_EQ(r.status, 415);
  EXPECT_EQ(r.error("code"), "unsupported_media_type");
  EXPECT_NE(r.error("message").find("Content-Type: application/json"), std::string::npos);
}

TEST_F(Serve, HoldsOnlySoManyBytesOfBodies) {
  start_server({"--max-body-bytes", "100000", "--max-pending-bytes", "150000", "--workers", "1"});
  const std::string body = R"({"prompt":")" + std::string(90000, 'a') + "\"}";
  const std::string post = post_of("/v1/completions", body);
  HttpClient holds(port_);
  holds.send(post.substr(0, post.size() - 1));
  eventually([&] { return metrics().value("hearth:pending_body_bytes") >= 90000; });
  // The next is told before it has sent its body; a body without a length, when it is too much.
  HttpClient next(port_);
  next.send(post.substr(0, post.find("\r\n\r\n") + 4));
  const Reply r = next.reply();
  EXPECT_EQ(r.status, 503);
  EXPECT_EQ(r.headers.at("retry-after"), "1");
  EXPECT_TRUE(next.ends());
  HttpClient chunked(port_);
  chunked.send("POST /v1/completions HTTP/1.1\r\n" + json_head +
               "Transfer-Encoding: chunked\r\n\r\n15f90\r\n" + body.substr(0, 70000));
  EXPECT_EQ(chunked.reply().status, 503);
  EXPECT_EQ(ask("POST", "/tokenize", R"({"prompt":"ab"})").status, 200) << "short ones still fit";
  holds.send(post.substr(post.size() - 1));
  EXPECT_EQ(holds.reply().error("code"), "context_length_exceeded");
  EXPECT_EQ(metrics().value("hearth:pending_body_bytes"), 0);
  EXPECT_EQ(complete(R"("prompt":"a","max_tokens":2)").status, 200);
}

TEST_F(Serve, ABodyOfTheLargestSizeFitsAnIdleServer) {
  start_server({"--max-body-bytes", "4194304", "--max-pending-bytes", "4194304"});
  for (const size_t bytes : {2200000, 3000000, 4100000}) {
    HttpClient c(port_);
    c.send(post_of("/v1/completions", R"({"prompt":")" + std::string(bytes, 'a') + "\"}"));
    EXPECT_EQ(c.reply().error("code"), "context_length_exceeded") << bytes;
  }
}

TEST_F(Serve, ClientsThatLeaveBeforeTheirBodyIsReadLeaveNothing) {
  start_server({"--workers", "1"});
  const std::string body =
      R"({"messages":[{"role":"user","content":")" + std::string(4000000, 'a') + "\"}]}";
  for (int i = 0; i < 8; ++i) {
    HttpClient c(port_);
    c.send(post_of("/v1/chat/completions", body));
    c.resets();  // the client's process has been killed, say
  }
  HttpClient stays(port_);
  stays.send(post_of("/v1/chat/completions", body));
  EXPECT_EQ(stays.reply().error("code"), "context_length_exceeded");
  eventually([&] { return metrics().value("hearth:pending_body_bytes") == 0; });
  eventually([&] { return metrics().value("hearth:connections") == 2; });  // stays; who asks
  EXPECT_EQ(stop(SIGTERM), 0) << log();
}

TEST_F(Serve, AServerThatStopsReadsTheBodiesItHas) {
  start_server({"--workers", "1"});
  const std::string long_body = R"({"prompt":")" + std::string(1000000, 'a') + "\"}";
  HttpClient longs[4] = {HttpClient(port_), HttpClient(port_), HttpClient(port_),
                         HttpClient(port_)};
  HttpClient last(port_);
  for (HttpClient& c : longs) c.send(post_of("/tokenize", long_body));
  last.send(post_of("/v1/completions", R"({"prompt":"a","max_tokens":3,"ignore_eos":true})"));
  eventually([&] { return metrics().value("hearth:connections") == 6; });
  kill(pid_, SIGTERM);
  for (HttpClient& c : longs) {
    const Reply r = c.reply();
    EXPECT_TRUE(r.status == 200 || r.status == 503) << r.status;  // 503: its body came too late
  }
  const Reply r = last.reply();
  EXPECT_TRUE(r.status == 200 || r.status == 503) << r.status;
  EXPECT_EQ(wait_for(std::exchange(pid_, 0)), 0) << log();
}

TEST_F(Serve, LogsRequestsWithoutTheirContents) {
  start_server({"--log-requests", "--api-key", "sk-secret"});
  const std::string key = "Authorization: Bearer sk-secret\r\n";
  EXPECT_EQ(ask("POST", "/v1/completions?q=private",
                R"({"prompt":"private","max_tokens":5,"ignore_eos":true})", key)
                .status,
            200);
  EXPECT_EQ(ask("POST", "/v1/completions",
                R"({"prompt":"abc","max_tokens":4,"ignore_eos":true,"stream":true})", key)
                .status,
            200);
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer sk-guess\r\n").status, 401);
  HttpClient junk(port_);
  junk.send("private\x1b[31m junk\r\n\r\n");
  EXPECT_EQ(junk.reply().status, 400);
  HttpClient leaves(port_);
  leaves.send("POST /tokenize HTTP/1.1\r\n" + json_head + key + "Content-Length: 50\r\n\r\n{");
  eventually([&] { return metrics_with(key).value("hearth:pending_body_bytes") > 0; });
  leaves.leave();
  const std::string start = R"(\n\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z 127\.0\.0\.1:\d+ )";
  for (const char* line :
       {R"(POST /v1/completions 200 \d+ \d+\.\d 7 5\n)",
        R"(POST /v1/completions 200 \d+ \d+\.\d 3 4\n)", R"(GET /v1/models 401 \d+ \d+\.\d - -\n)",
        R"(- - 400 \d+ \d+\.\d - -\n)", R"(POST /tokenize 499 \d+ \d+\.\d - -\n)"}) {
    const std::regex shape(start + line);
    eventually([&] { return std::regex_search(log(), shape); });
  }
  EXPECT_EQ(stop(SIGTERM), 0);
  for (const char* secret : {"private", "sk-", "\x1b"})
    EXPECT_EQ(log().find(secret), std::string::npos) << log();
}

TEST_F(Serve, WarnsWhenOthersReachItWithoutAKey) {
  write_served_folder(folder_ / "model");
  const Arguments open{"serve",  "--model", folder_ / "model", "--port", "0",
                       "--host", "0.0.0.0", "--threads",       "1",      "--device",
                       "cpu"};
  const std::string warning = "hearth: warning: listening on 0.0.0.0 without a key";
  for (const bool key : {false, true}) {
    pid_ =
        hearth::start(folder_, open + (key ? Arguments{"--api-key", "k"} : Arguments{}), "serve");
    eventually([&] { return log().find("serving ") != std::string::npos; });
    EXPECT_EQ(log().find(warning) != std::string::npos, !key) << log();
    EXPECT_EQ(stop(SIGTERM), 0);
    fs::remove(folder_ / "serve.err");
  }
  start_server();
  EXPECT_EQ(log().find("warning"), std::string::npos) << log();
}

}  // namespace
}  // namespace hearth
