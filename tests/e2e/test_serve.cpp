// hearth serve as clients meet it: routes, limits, keys, the slow, the rude and the absent.
#include <fcntl.h>

#include <csignal>
#include <optional>

#include "e2e/serve_process.h"

namespace hearth {
namespace {

using nlohmann::json;

const std::string json_head = "Host: localhost\r\nContent-Type: application/json\r\n";

// Goes on to the end of the context.
const char* endless = R"("prompt":"a","max_tokens":250,"ignore_eos":true)";

TEST_F(Serve, Routes) {
  start_server({"--name", "tiny"});
  EXPECT_EQ(ask("GET", "/v1/models").json()["data"][0]["id"], "tiny");
  EXPECT_EQ(ask("POST", "/tokenize", R"({"prompt":"ab"})").json()["tokens"], (json{97, 98}));
  EXPECT_EQ(ask("POST", "/detokenize", R"({"tokens":[97,98]})").json()["prompt"], "ab");
  EXPECT_EQ(ask("GET", "/tokenizer_info").json()["eos_token"], "<|end|>");
  const Reply done = complete(R"("model":"tiny","prompt":"abc","max_tokens":5,"seed":1)");
  EXPECT_EQ(done.status, 200);
  EXPECT_EQ(done.headers.at("content-type"), "application/json");
  EXPECT_FALSE(done.headers.contains("access-control-allow-origin"));
  EXPECT_EQ(done.json()["usage"]["total_tokens"], 8);
  EXPECT_EQ(complete(R"("prompt":"abc","max_tokens":5,"seed":1)").json()["choices"],
            done.json()["choices"]);
  EXPECT_EQ(ask("GET", "/nowhere").error("code"), "not_found");
  EXPECT_EQ(ask("GET", "/v1/completions").status, 405);
  EXPECT_EQ(ask("POST", "/v1/completions", "{").error("type"), "invalid_request_error");
  EXPECT_EQ(ask("POST", "/v1/chat/completions",
                R"({"messages":[{"role":"user","content":"x"}],"tools":[{}]})")
                .error("param"),
            "tools[0].type");
  const Prometheus m = metrics();
  EXPECT_GE(m.value("vllm:time_to_first_token_seconds_count"), 2);
  EXPECT_GE(m.value("vllm:inter_token_latency_seconds_count"), 8);
  EXPECT_EQ(m.value("hearth:http_responses_total", "status=\"405\""), 1);
  expect_all_free();
  EXPECT_EQ(stop(SIGTERM), 0);
}

TEST_F(Serve, StreamsEventsOnAConnectionThatStays) {
  start_server();
  HttpClient c(port_);
  for (int round = 0; round < 3; ++round) {
    c.request("POST", "/v1/chat/completions",
              R"({"messages":[{"role":"user","content":"hi"}],"max_tokens":6,"stream":true,
                  "stream_options":{"include_usage":true},"ignore_eos":true})");
    const Reply r = c.reply();
    EXPECT_EQ(r.status, 200);
    EXPECT_TRUE(r.headers.at("content-type").starts_with("text/event-stream"));
    EXPECT_TRUE(r.body.ends_with("data: [DONE]\n\n")) << r.body;
    EXPECT_NE(r.body.find("\"completion_tokens\":6"), std::string::npos) << r.body;
    c.request("GET", "/health");
    EXPECT_EQ(c.reply().status, 200);
  }
  // Two requests at once are answered in their order.
  const std::string first = R"({"prompt":"a","max_tokens":30,"ignore_eos":true})";
  c.request("POST", "/v1/completions", first);
  c.request("GET", "/v1/models");
  EXPECT_EQ(c.reply().json()["usage"]["completion_tokens"], 30);
  EXPECT_EQ(c.reply().json()["object"], "list");
  // HTTP/1.0: the connection's end is the stream's.
  HttpClient old(port_);
  const std::string body = R"({"prompt":"a","max_tokens":3,"stream":true})";
  old.send("POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: " +
           std::to_string(body.size()) + "\r\n\r\n" + body);
  EXPECT_TRUE(old.reply().body.ends_with("data: [DONE]\n\n"));
}

TEST_F(Serve, SamplesAsTheModelsFileSays) {
  write_served_folder(folder_ / "model", false);
  write_file_atomic(folder_ / "model/generation_config.json", R"({"do_sample": false})");
  start_server();
  EXPECT_NE(log().find(" has no chat template; "), std::string::npos) << log();
  const auto text = [&](const std::string& fields) {
    const Reply r = complete(R"("prompt":"abc","max_tokens":40,)" + fields);
    EXPECT_EQ(r.status, 200) << r.body;
    return nlohmann::json::parse(r.body)["choices"][0]["text"].get<std::string>();
  };
  EXPECT_EQ(text(R"("seed":1)"), text(R"("seed":2)"));
  EXPECT_NE(text(R"("seed":1,"temperature":2)"), text(R"("seed":2,"temperature":2)"));
}

TEST_F(Serve, KeepsItsLimits) {
  start_server({"--max-body-bytes", "2000", "--max-json-depth", "8", "--max-prompt-tokens", "50",
                "--max-new-tokens", "300", "--max-stop-strings", "2", "--max-header-bytes", "1024",
                "--max-choices", "4"});
  EXPECT_EQ(complete("\"prompt\":\"" + std::string(3000, 'a') + "\"").status, 413);
  EXPECT_EQ(complete("\"prompt\":\"" + std::string(60, 'a') + "\"").error("code"),
            "context_length_exceeded");
  EXPECT_EQ(complete("\"prompt\":" + std::string(20, '[') + std::string(20, ']')).error("code"),
            "invalid_json");
  EXPECT_EQ(complete(R"("n":3,"max_tokens":101)").error("param"), "max_tokens");
  EXPECT_EQ(complete(R"("n":5)").error("param"), "n");
  EXPECT_EQ(complete(R"("stop":["a","b","c"])").error("param"), "stop");
  EXPECT_EQ(ask("GET", "/health", "", "X: " + std::string(5000, 'x') + "\r\n").status, 431);
  HttpClient junk(port_);
  junk.send("what is this\r\n\r\n");
  EXPECT_EQ(junk.reply().status, 400);
  EXPECT_TRUE(junk.ends());
  // A chunked body has no length to refuse it by.
  HttpClient chunked(port_);
  chunked.send("POST /v1/completions HTTP/1.1\r\n" + json_head +
               "Transfer-Encoding: chunked\r\n\r\n1000\r\n" + std::string(4096, 'a'));
  EXPECT_EQ(chunked.reply().status, 413);
  // Who asks first is told to go on.
  HttpClient polite(port_);
  polite.send("POST /tokenize HTTP/1.1\r\n" + json_head +
              "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
  EXPECT_EQ(polite.reply().status, 100);
  polite.send(R"({"prompt":"a"})");
  EXPECT_EQ(polite.reply().status, 200);
  expect_all_free();
}

TEST_F(Serve, WaitsOnlySoLong) {
  start_server({"--header-seconds", "0.3", "--body-seconds", "0.3", "--idle-seconds", "0.3"});
  HttpClient idle(port_), head(port_), body(port_);
  head.send("GET /health HTTP/1.1\r\nX: ");
  body.send("POST /tokenize HTTP/1.1\r\n" + json_head + "Content-Length: 14\r\n\r\n{");
  for (const auto& [client, part] : {std::pair(&head, "header"), {&body, "body"}}) {
    const Reply r = client->reply();
    EXPECT_EQ(r.status, 408);
    EXPECT_EQ(r.error("code"), "timeout");
    EXPECT_TRUE(r.error("message").ends_with(std::string("--") + part + "-seconds")) << r.body;
    EXPECT_EQ(r.headers.at("connection"), "close");
    EXPECT_TRUE(client->ends());
  }
  EXPECT_EQ(idle.rest(), "");  // without a request there is nothing to answer
  EXPECT_TRUE(idle.ends());
  // Told to go on, it says no more. On a starved machine it may be too late to be told.
  std::optional<HttpClient> polite;
  eventually([&] {
    polite.emplace(port_);
    polite->send("POST /tokenize HTTP/1.1\r\n" + json_head +
                 "Expect: 100-continue\r\nContent-Length: 14\r\n\r\n");
    try {
      return polite->reply().status == 100;
    } catch (const std::runtime_error&) { return false; }
  });
  EXPECT_EQ(polite->reply().status, 408);
  EXPECT_TRUE(polite->ends());
  eventually([&] { return healthy(); });
}

TEST_F(Serve, TakesOnlySoManyConnections) {
  start_server({"--max-connections", "3"});
  eventually([&] { return metrics().value("hearth:connections") == 1; });
  HttpClient a(port_), b(port_);
  a.request("GET", "/health");
  b.request("GET", "/health");
  EXPECT_EQ(a.reply().status + b.reply().status, 400);
  HttpClient c(port_);
  c.request("GET", "/health");
  EXPECT_EQ(c.reply().status, 200);
  HttpClient one_more(port_);
  EXPECT_EQ(one_more.reply().status, 503);
  a.leave();
  eventually([&] { return healthy(); });
}

TEST_F(Serve, AsksForItsKey) {
  start_server({"--api-key", "sk-secret"});
  EXPECT_EQ(ask("GET", "/health").status, 200);
  for (const char* path : {"/metrics", "/v1/models", "/nowhere"}) {
    EXPECT_EQ(ask("GET", path).status, 401) << path;
    EXPECT_EQ(ask("GET", path, "", "Authorization: Bearer sk-secre\r\n").status, 401) << path;
  }
  // The body of a stranger is not waited for.
  HttpClient c(port_);
  c.send("POST /v1/completions HTTP/1.1\r\n" + json_head + "Content-Length: 1000000\r\n\r\n");
  EXPECT_EQ(c.reply().error("code"), "invalid_api_key");
  EXPECT_EQ(ask("GET", "/v1/models", "", "Authorization: Bearer sk-secret\r\n").status, 200);
}

TEST_F(Serve, AllowsOneOriginWhenTold) {
  start_server({"--cors-origin", "https://example.org"});
  const Reply r = ask("OPTIONS", "/v1/completions", "", "Origin: https://example.org\r\n");
  EXPECT_EQ(r.status, 204);
  EXPECT_EQ(r.headers.at("access-control-allow-origin"), "https://example.org");
}

TEST_F(Serve, FullQueueIs429) {
  write_refrain_folder(folder_ / "model");
  start_server({"--batch", "1", "--queue", "1", "--max-new-tokens", "200000"});
  const char* endless = R"("prompt":"a","max_tokens":200000,"temperature":0)";
  HttpClient a(port_), b(port_);
  for (HttpClient* c : {&a, &b})
    c->request("POST", "/v1/completions", "{" + std::string(endless) + R"(,"stream":true})");
  EXPECT_EQ(a.head().status, 200);
  EXPECT_EQ(b.head().status, 200);
  for (int i = 0; i < 100; ++i) {
    const Reply refused = complete(endless);
    EXPECT_EQ(refused.status, 429);
    EXPECT_EQ(refused.headers.at("retry-after"), "1");
  }
  a.leave();
  b.leave();
  // What has left is noticed in time, and may stand in the queue until then.
  eventually([&] { return complete(R"("max_tokens":1)").status == 200; });
  expect_all_free();
}

TEST_F(Serve, ClientsThatLeaveFreeTheirBlocks) {
  start_server({"--queue", "1000"});  // those that left may still wait when the next come
  for (int round = 0; round < 20; ++round) {
    HttpClient waits(port_), streams(port_), begins(port_);
    const std::string body = "{" + std::string(endless) + R"(,"n":8)";
    waits.request("POST", "/v1/completions", body + "}");
    streams.request("POST", "/v1/completions", body + R"(,"stream":true})");
    begins.send("POST /v1/completions HTTP/1.1\r\n" + json_head +
                "Content-Length: 100\r\n\r\n{\"pro");
    EXPECT_EQ(streams.head().status, 200);
  }
  eventually([&] { return some_aborted(); });
  expect_all_free();
  eventually([&] { return metrics().value("hearth:connections") == 1; });
}

TEST_F(Serve, SlowReadersAreLeftBehind) {
  start_server({"--max-output-bytes", "8192"});
  HttpClient slow(port_, 2048);
  slow.request("POST", "/v1/completions",
               "{" + std::string(endless) + R"(,"n":32,"logprobs":20,"stream":true})");
  // It reads nothing; others are answered, and its request ends without it.
  EXPECT_EQ(complete(R"("max_tokens":3)").status, 200);
  eventually([&] { return some_aborted(); });
  expect_all_free();
  // One that reads nothing but is owed little keeps its stream.
  HttpClient patient(port_);
  patient.request("POST", "/v1/completions", R"({"max_tokens":5,"stream":true})");
  expect_all_free();
  EXPECT_TRUE(patient.reply().body.ends_with("data: [DONE]\n\n"));
}

// A client cannot have read what was queued for it a moment ago, however long the event is.
TEST_F(Serve, LongEchoesAreNotTakenForSlowReading) {
  write_refrain_folder(folder_ / "model");
  start_server({"--max-output-bytes", "4096"});
  std::string prompt;
  for (int i = 0; i < 1000; ++i) prompt += "\\u0001";  // six bytes of JSON for one token
  HttpClient c(port_);
  c.request("POST", "/v1/completions",
            R"({"max_tokens":1,"n":8,"echo":true,"stream":true,"prompt":")" + prompt + "\"}");
  const std::string body = c.reply().body;
  EXPECT_TRUE(body.ends_with("data: [DONE]\n\n")) << body;
  size_t echoes = 0;
  for (size_t at = 0; (at = body.find(prompt, at)) != body.npos; at += prompt.size()) ++echoes;
  EXPECT_EQ(echoes, 8);
}

TEST_F(Serve, DrainsOnSigterm) {
  start_server();
  HttpClient streams(port_), waits(port_), keeps(port_);
  const std::string body = "{" + std::string(endless) + R"(,"n":8)";
  streams.request("POST", "/v1/completions", body + R"(,"stream":true})");
  waits.request("POST", "/v1/completions", body + "}");
  EXPECT_EQ(streams.head().status, 200);
  keeps.request("GET", "/metrics");
  EXPECT_EQ(keeps.reply().status, 200);
  kill(pid_, SIGTERM);
  eventually([&] { return log().find("shutting down") != std::string::npos; });
  keeps.request("POST", "/v1/completions", body + "}");
  try {
    EXPECT_EQ(keeps.reply().status, 503);
  } catch (const std::runtime_error&) {}  // all had ended, and the server with them
  EXPECT_EQ(waits.reply().json()["usage"]["completion_tokens"], 8 * 250);
  std::string all;
  for (std::string piece; !(piece = streams.chunk()).empty();) all += piece;
  EXPECT_TRUE(all.ends_with("data: [DONE]\n\n"));
  EXPECT_EQ(wait_for(std::exchange(pid_, 0)), 0);
}

TEST_F(Serve, AMissingModelIsNamedBeforeItListens) {
  const Ran r = run(folder_, {"serve", "--model", folder_ / "none", "--port", "0"});
  expect_error(r, 1, "none] no such model folder or file");
  EXPECT_EQ(r.err.find("listening"), r.err.npos) << r.err;
}

TEST_F(Serve, StopsWithoutAWordOfRequestsWhereThereAreNone) {
  start_server();
  EXPECT_EQ(stop(SIGTERM), 0);
  EXPECT_TRUE(log().ends_with("hearth: shutting down\n")) << log();
}

TEST_F(Serve, EndsWhatDoesNotDrain) {
  write_refrain_folder(folder_ / "model");
  start_server({"--drain-seconds", "0.05", "--max-new-tokens", "200000"});
  HttpClient c(port_);
  c.request("POST", "/v1/completions", R"({"prompt":"a","max_tokens":200000,"temperature":0})");
  eventually([&] { return metrics().value("vllm:num_requests_running") > 0; });
  EXPECT_EQ(stop(SIGTERM), 0);
  EXPECT_EQ(c.reply().status, 503);
}

// A lease makes everybody else's open() wait until it is given back: loading takes for ever.
TEST_F(Serve, ASignalEndsLoading) {
  fs::create_directories(folder_ / "model");
  write_file_atomic(folder_ / "model/config.json", "{}");
  const auto handler = std::signal(SIGIO, SIG_IGN);  // the kernel asks for the lease by it
  const Fd lease = open_file(folder_ / "model/config.json", O_RDWR, "open the file");
  if (fcntl(lease.get(), F_SETLEASE, F_WRLCK) != 0) GTEST_SKIP() << "needs file leases";
  for (const int signal : {SIGTERM, SIGINT}) {
    pid_ = start(folder_, {"serve", "--model", folder_ / "model", "--port", "0", "--device", "cpu"},
                 "serve");
    eventually([&] { return log().find("listening on") != std::string::npos; });
    kill(pid_, signal);
    eventually([&] { return has_ended(pid_); });
    EXPECT_EQ(stop(SIGKILL), 0) << log();  // it has ended by itself
    EXPECT_NE(log().find("before the model was loaded"), std::string::npos) << log();
    fs::remove(folder_ / "serve.err");
  }
  std::signal(SIGIO, handler);
}

TEST_F(Serve, EndsWhereNobodyCanBeToldThatItIsReady) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  write_served_folder(folder_ / "model");
  const Ran r = run_into_full_disk(folder_, {"serve", "--model", folder_ / "model", "--port", "0",
                                             "--threads", "1", "--device", "cpu", "--json"});
  EXPECT_EQ(r.status, 1) << r.err;
  const size_t at = r.err.find("hearth: [");
  ASSERT_NE(at, r.err.npos) << r.err;
  EXPECT_TRUE(r.err.substr(at).starts_with("hearth: [stdout] writing failed")) << r.err;
  EXPECT_EQ(r.err.find('\n', at), r.err.size() - 1) << r.err;
}

TEST_F(Serve, SaysWhatItCannotDo) {
  write_served_folder(folder_ / "model");
  start_server();
  const Arguments serve{"serve", "--model", folder_ / "model", "--threads", "1", "--device", "cpu"};
  const Ran taken = run(folder_, serve + Arguments{"--port", std::to_string(port_)});
  EXPECT_EQ(taken.status, 1);
  EXPECT_NE(taken.err.find("[serve] cannot listen on"), std::string::npos) << taken.err;
  expect_error(run(folder_, serve + Arguments{"--port", "70000"}), 2, "--port");
  expect_error(run(folder_, serve + Arguments{"--max-body-bytes", "0"}), 2, "--max-body-bytes");
  const Ran none = run(folder_, {"serve", "--model", folder_ / "none", "--port", "0"});
  EXPECT_EQ(none.status, 1);
  EXPECT_NE(none.err.find("none"), std::string::npos) << none.err;
  const Ran wide = run(folder_, serve + Arguments{"--port", "0", "--context", "100000"});
  EXPECT_EQ(wide.status, 2) << wide.err;
  EXPECT_NE(wide.err.find("[--context] expected 1 to 256, the context of"), std::string::npos)
      << wide.err;
}

TEST_F(Serve, SeveralModelsFromOneProcess) {
  // Two checkpoints of one name in different runs.
  write_served_folder(folder_ / "a/step-1");
  write_served_folder(folder_ / "b/step-1", false);
  write_served_folder(folder_ / "model");
  start_server({"--model", folder_ / "a/step-1", "--model", folder_ / "b/step-1"});
  const json list = ask("GET", "/v1/models").json()["data"];
  ASSERT_EQ(list.size(), 3u);
  EXPECT_EQ(list[0]["id"], "model") << "no other model has this name";
  EXPECT_EQ(list[1]["id"], "a/step-1");
  EXPECT_EQ(list[2]["id"], "b/step-1");
  EXPECT_EQ(list[1]["chat_template"], true);
  EXPECT_EQ(list[2]["chat_template"], false);
  EXPECT_EQ(ask("GET", "/v1/models/a%2Fstep-1").json()["id"], "a/step-1");
  EXPECT_EQ(ask("GET", "/tokenizer_info?model=b%2Fstep-1").json()["eos_token"], "<|end|>");
  EXPECT_EQ(ask("GET", "/tokenizer_info?model=c").status, 404);
  EXPECT_EQ(complete(R"("model":"step-1","max_tokens":1)").error("code"), "model_not_found");
  // They answer at the same time.
  const std::string both[] = {"a/step-1", "b/step-1"};
  HttpClient a(port_), b(port_);
  for (HttpClient* c : {&a, &b})
    c->request("POST", "/v1/completions",
               "{" + std::string(endless) + R"(,"seed":1,"stream":true,"model":")" + both[c == &b] +
                   "\"}");
  for (HttpClient* c : {&a, &b}) {
    const Reply r = c->reply();
    EXPECT_EQ(r.status, 200);
    EXPECT_NE(r.body.find("\"model\":\"" + both[c == &b] + "\""), r.body.npos);
    EXPECT_TRUE(r.body.ends_with("data: [DONE]\n\n"));
  }
  for (const std::string& name : both)
    EXPECT_EQ(metrics().value("vllm:generation_tokens_total", "model_name=\"" + name + "\""), 250);
  EXPECT_EQ(metrics().types().contains("hearth:device_watts"), false) << "a CPU has no sensors";
  EXPECT_NE(log().find("hearth: memory for model steps and KV caches: "), std::string::npos)
      << log();
  for (const std::string& name : both)
    EXPECT_NE(log().find("hearth: serving " + name + " on "), std::string::npos) << log();
  expect_all_free();
  EXPECT_EQ(stop(SIGTERM), 0);
}

TEST_F(Serve, NamesOfSeveralModels) {
  write_served_folder(folder_ / "a");
  write_served_folder(folder_ / "b");
  const Arguments two{"serve", "--model",   folder_ / "a", "--model",  folder_ / "b", "--port",
                      "0",     "--threads", "1",           "--device", "cpu"};
  expect_error(run(folder_, two + Arguments{"--name", "x"}), 2,
               "[--name] expected a name for each of 2 models or none, got 1");
  expect_error(run(folder_, two + Arguments{"--name", "x", "--name", "x"}), 2,
               "[--name] expected different names, got x twice");
  expect_error(run(folder_, two + Arguments{"--adapter", folder_ / "a"}), 2,
               "[--adapter] expected one --model beside it, got 2");
  expect_error(run(folder_, two + Arguments{"--model", folder_ / "a"}), 2,
               "[--model] expected different models, got " + (folder_ / "a").string() + " twice");
  const Ran full = run(folder_, two + Arguments{"--cache-gib", "0.0000001"});
  EXPECT_EQ(full.status, 1);
  for (const char* line : {"hearth: computing a in ", "hearth: computing b in "})
    EXPECT_NE(full.err.find(line), full.err.npos) << full.err;
  const size_t at =
      full.err.find("hearth: [a] this model does not fit beside the others: [engine]");
  ASSERT_NE(at, full.err.npos) << full.err;
  EXPECT_EQ(full.err.find('\n', at), full.err.size() - 1) << full.err;
  EXPECT_NE(full.err.find("expected a KV cache of at least 0.01 GiB for a context of 256 tokens, "
                          "got 0.00 GiB: use a larger --cache-gib or a shorter --context"),
            full.err.npos)
      << full.err;
}

}  // namespace
}  // namespace hearth
