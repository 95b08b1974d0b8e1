// The routes without sockets: a model folder behind a Service whose loop is this test.
#include "serve/service.h"

#include <gtest/gtest.h>

#include <deque>

#include "cpu/backend.h"
#include "prometheus.h"
#include "served_folder.h"
#include "unit/test_io_support.h"
#include "unit/troubled_backend.h"

namespace hearth {
namespace {

using nlohmann::json;

struct FakeClient : Client {
  void respond(HttpResponse r) override {
    response = std::move(r);
    done = true;
  }
  void begin_events() override { streams = true; }
  bool send_event(std::string_view data) override {
    if (room == 0) return false;
    --room;
    events.emplace_back(data);
    return true;
  }
  void end_events() override { done = true; }
  void note_usage(int64_t prompt, int64_t completion) override {
    prompt_tokens = prompt, completion_tokens = completion;
  }

  HttpResponse response = {};
  std::vector<std::string> events = {};
  size_t room = 100000;
  int64_t prompt_tokens = -1, completion_tokens = -1;
  bool streams = false, done = false;
};

// The engine is stepped by the test, so every order of events can be had.
class Serving : public testing::Test {
 protected:
  void open(ServeConfig config = {}, bool chat_template = true,
            std::unique_ptr<Backend> backend = make_cpu_backend(1)) {
    write_served_folder(dir_.path(), chat_template);
    service_.reset();
    model_.reset();  // before its backend
    backend_ = std::move(backend);
    model_ = std::make_unique<ServedModel>(ModelPaths{dir_.path()}, *backend_, ServedWeights{},
                                           EngineSpec{.max_batch = config.batch});
    const auto post = [this](std::function<void()> task) { tasks_.push_back(std::move(task)); };
    service_ = std::make_unique<Service>(config, post, post);
    service_->open(*model_, "m");
  }

  void run_tasks() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  void settle() {
    while (model_->engine().step() || !tasks_.empty()) run_tasks();
  }

  std::shared_ptr<Exchange> begin(const std::string& path, const std::string& body,
                                  const std::shared_ptr<FakeClient>& client) {
    const HttpRequest r{.method = body.empty() ? "GET" : "POST",
                        .path = path,
                        .body = body,
                        .content_type = "application/json"};
    const Route& route = service_->check_head(r);
    if (route.reads_body()) return service_->begin(service_->prepare(route, r), client);
    client->respond(service_->answer(route, r));
    return {};
  }
  std::shared_ptr<FakeClient> ask(const std::string& path, const std::string& body) {
    const auto client = std::make_shared<FakeClient>();
    begin(path, body, client);
    settle();
    EXPECT_TRUE(client->done);
    return client;
  }
  json answer(const std::string& path, const std::string& body = "") {
    return json::parse(ask(path, body)->response.body);
  }
  HttpError error(const std::string& path, const std::string& body = "") {
    try {
      ask(path, body);
    } catch (const HttpError& e) { return e; }
    return HttpError(0, "");
  }
  Prometheus metrics() { return Prometheus(ask("/metrics", "")->response.body); }

  test::TempDir dir_;
  std::unique_ptr<Backend> backend_;
  std::unique_ptr<ServedModel> model_;
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<Service> service_;
};

TEST_F(Serving, ScoresAsTheEngineDoes) {
  open();
  const json j = answer("/v1/completions",
                        R"({"prompt":[[65,66,67],[68]],"max_tokens":1,"logprobs":1,"echo":true,
                            "temperature":0})");
  ASSERT_EQ(j["choices"].size(), 2u);
  Request r{.prompt = {65, 66, 67}, .prompt_logprobs = true};
  r.sampling.temperature = 0, r.sampling.max_tokens = 1, r.sampling.logprobs = 1;
  const Completion want = model_->engine().run(std::vector{r})[0][0];
  const json l = j["choices"][0]["logprobs"];
  ASSERT_EQ(l["tokens"].size(), 4u);
  EXPECT_TRUE(l["token_logprobs"][0].is_null());
  EXPECT_EQ(l["token_logprobs"][1].get<float>(), want.prompt_logprobs[0].logprob);
  EXPECT_EQ(l["token_logprobs"][3].get<float>(), want.logprobs[0].logprob);
  // Greedy: the last token is the likeliest, and prints the same in both places.
  const std::string token = l["tokens"][3];
  EXPECT_EQ(l["top_logprobs"][3][token].dump(), l["token_logprobs"][3].dump());
  EXPECT_EQ(j["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(j["usage"]["completion_tokens"], 2);
}

TEST_F(Serving, StreamsWhatItWouldAnswer) {
  open();
  for (const std::string fields : {R"("prompt":"abc","max_tokens":20,"seed":3,"n":2)",
                                   R"("prompt":["a","b"],"max_tokens":9,"seed":4,"echo":true)",
                                   R"("prompt":"q","max_tokens":12,"seed":5,"logprobs":2)",
                                   R"("prompt":"abc","max_tokens":0,"echo":true)"}) {
    SCOPED_TRACE(fields);
    const json whole = answer("/v1/completions", "{" + fields + "}");
    const auto client =
        ask("/v1/completions",
            "{" + fields + R"(,"stream":true,"stream_options":{"include_usage":true}})");
    ASSERT_TRUE(client->streams);
    ASSERT_GE(client->events.size(), 3u);
    EXPECT_EQ(client->events.back(), "[DONE]");
    client->events.pop_back();
    std::map<int, std::string> texts, ends;
    std::map<int, json> logprobs;
    for (const std::string& e : client->events) {
      const json j = json::parse(e);
      if (j["choices"].empty()) continue;
      const json& c = j["choices"][0];
      texts[c["index"]] += c["text"];
      if (!c["finish_reason"].is_null()) ends[c["index"]] = c["finish_reason"];
      if (!c["logprobs"].is_null())
        for (const json& t : c["logprobs"]["tokens"]) logprobs[c["index"]].push_back(t);
    }
    for (const json& c : whole["choices"]) {
      EXPECT_EQ(json(texts[c["index"]]), c["text"]);
      EXPECT_EQ(json(ends[c["index"]]), c["finish_reason"]);
      if (!c["logprobs"].is_null()) { EXPECT_EQ(logprobs[c["index"]], c["logprobs"]["tokens"]); }
    }
    EXPECT_EQ(json::parse(client->events.back())["usage"], whole["usage"]);
  }
}

TEST_F(Serving, SamplesAsTheModelsDefaultsSay) {
  open();
  SamplingSpec d;
  d.temperature = 0, d.max_tokens = 6;
  model_->set_defaults(d);
  const auto chat = [&](const std::string& fields) {
    return answer(
        "/v1/chat/completions",
        R"({"messages":[{"role":"user","content":"hi"}],"ignore_eos":true)" + fields + "}");
  };
  const json j = chat("");
  EXPECT_EQ(j["usage"]["completion_tokens"], 6);
  EXPECT_EQ(j["choices"][0]["finish_reason"], "length");
  // Greedy: no seed matters.
  EXPECT_EQ(chat(R"(,"seed":1)")["choices"], chat(R"(,"seed":2)")["choices"]);
  EXPECT_NE(chat(R"(,"seed":1,"temperature":2)")["choices"],
            chat(R"(,"seed":2,"temperature":2)")["choices"]);
  EXPECT_EQ(chat(R"(,"max_tokens":9)")["usage"]["completion_tokens"], 9);
  EXPECT_EQ(chat(R"(,"min_tokens":8)")["usage"]["completion_tokens"], 8);
  // A default larger than the room is cut to it, where a request for as much would be refused.
  d.max_tokens = 100000;
  model_->set_defaults(d);
  const json all = chat("");
  EXPECT_EQ(all["usage"]["total_tokens"], served_context);
}

TEST_F(Serving, EndsTextsAsTheModelsConfigSays) {
  open();
  const auto greedy = [&](const std::string& more) {
    return answer("/v1/completions",
                  R"({"prompt":"abc","max_tokens":20,"temperature":0)" + more + "}");
  };
  const json whole = greedy(R"(,"ignore_eos":true)");
  const std::string text = whole["choices"][0]["text"];
  const int end = uint8_t(text.at(4));
  write_file_atomic(dir_ / "generation_config.json",
                    json{{"eos_token_id", {served_eos, end}}}.dump());
  service_.reset();
  model_ = std::make_unique<ServedModel>(ModelPaths{dir_.path()}, *backend_, ServedWeights{});
  const auto post = [this](std::function<void()> task) { tasks_.push_back(std::move(task)); };
  service_ = std::make_unique<Service>(ServeConfig(), post, post);
  service_->open(*model_, "m");
  const json cut = greedy("");
  EXPECT_EQ(cut["choices"][0]["finish_reason"], "stop");
  EXPECT_LT(std::string(cut["choices"][0]["text"]).size(), 5u);
  EXPECT_EQ(greedy(R"(,"ignore_eos":true)")["choices"][0]["text"], text);
}

TEST_F(Serving, ChatsByTemplateAndWithout) {
  const std::string body =
      R"({"messages":[{"role":"user","content":"hi<|end|>"}],"max_tokens":5,"seed":1})";
  open();
  const json j = answer("/v1/chat/completions", body);
  EXPECT_EQ(j["choices"][0]["message"]["role"], "assistant");
  // <|user|>, nine bytes that are no special token, <|end|>, <|assistant|>
  EXPECT_EQ(j["usage"]["prompt_tokens"], 1 + 9 + 1 + 1);
  const auto client =
      ask("/v1/chat/completions", body.substr(0, body.size() - 1) + ",\"stream\":true}");
  std::string text;
  for (const std::string& e : client->events)
    if (e != "[DONE]") text += json::parse(e)["choices"][0]["delta"].value("content", "");
  EXPECT_EQ(json(text), j["choices"][0]["message"]["content"]);

  std::filesystem::remove(dir_ / "chat_template.jinja");
  open({}, false);
  EXPECT_FALSE(model_->chat().has_template());
  EXPECT_EQ(answer("/v1/chat/completions", body)["usage"]["prompt_tokens"],
            int(std::string("User: hi<|end|>\nAssistant:").size()));
}

TEST_F(Serving, Tokenizes) {
  open();
  const json ids = answer("/tokenize", R"({"model":"m","prompt":"ab<|end|>"})");
  EXPECT_EQ(ids["count"], 9);
  EXPECT_EQ(ids["max_model_len"], served_context);
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"<|end|>"})")["tokens"], json{served_eos});
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"a<|end|>","parse_special":true})")["tokens"],
            (json{97, 256}));
  EXPECT_EQ(answer("/tokenize", R"({"messages":[{"role":"user","content":"a"}]})")["tokens"],
            (json{257, 97, 256, 258}));
  EXPECT_EQ(answer("/detokenize", R"({"tokens":[97,98]})")["prompt"], "ab");
  EXPECT_EQ(error("/detokenize", R"({"tokens":[99999]})").status, 400);
  const json info = answer("/tokenizer_info");
  EXPECT_EQ(info["eos_token"], "<|end|>");
  EXPECT_EQ(info["chat_template"], served_template());
  EXPECT_EQ(answer("/v1/models")["data"][0]["id"], "m");
  EXPECT_EQ(answer("/v1/models/m")["object"], "model");
}

TEST_F(Serving, RefusesWhatDoesNotFit) {
  open({.max_prompt_tokens = 100, .max_new_tokens = 200});
  const std::string long_text(101, 'a'), huge_text(100000, 'a');
  EXPECT_EQ(error("/v1/completions", R"({"prompt":")" + long_text + "\"}").code,
            "context_length_exceeded");
  EXPECT_EQ(error("/v1/completions", R"({"prompt":")" + huge_text + "\"}").code,
            "context_length_exceeded");
  const HttpError chat = error("/v1/chat/completions",
                               R"({"messages":[{"role":"user","content":")" + huge_text + "\"}]}");
  EXPECT_EQ(chat.code, "context_length_exceeded");
  EXPECT_EQ(chat.param, "messages");
  EXPECT_NE(std::string(chat.what()).find("bytes of text"), std::string::npos)
      << "it is not encoded first: " << chat.what();
  EXPECT_EQ(error("/v1/completions", R"({"prompt":"abc","max_tokens":254})").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":[9999]})").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":["a",[1]]})").param, "prompt");
  EXPECT_EQ(error("/v1/completions", R"({"model":"other"})").status, 404);
  EXPECT_EQ(error("/v1/models/other").code, "model_not_found");
  EXPECT_EQ(error("/nowhere").status, 404);
  EXPECT_EQ(error("/v1/completions").status, 405);
  EXPECT_EQ(error("/v1/completions", "{").status, 400);
  EXPECT_EQ(error("/v1/completions", R"({"prompt":"a","stop_token_ids":[5000]})").status, 400);
  // A chat that names no length gets what the limit leaves.
  EXPECT_LE(answer("/v1/chat/completions",
                   R"({"messages":[{"role":"user","content":"a"}],"n":4,"ignore_eos":true})")
                ["usage"]["completion_tokens"],
            200);
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
}

TEST_F(Serving, AnAnswerListsOnlySoMuch) {
  open({.max_answer_entries = 100});
  const auto param = [&](const std::string& fields) {
    return error("/v1/completions", "{" + fields + "}").param;
  };
  const std::string ten = R"("prompt":"aaaaaaaaaa")";
  EXPECT_EQ(param(ten + R"(,"max_tokens":10,"echo":true,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":11,"echo":true,"logprobs":4)"), "logprobs");
  EXPECT_EQ(param(ten + R"(,"max_tokens":20,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":21,"logprobs":4)"), "logprobs");
  // Every choice and every prompt is echoed.
  EXPECT_EQ(param(ten + R"(,"n":2,"max_tokens":0,"echo":true,"logprobs":4)"), "");
  EXPECT_EQ(param(ten + R"(,"n":2,"max_tokens":1,"echo":true,"logprobs":4)"), "logprobs");
  EXPECT_EQ(param(R"("prompt":[[1,2],[3,4,5]],"max_tokens":0,"echo":true,"logprobs":19)"), "");
  EXPECT_EQ(param(R"("prompt":[[1,2],[3,4,5,6]],"max_tokens":0,"echo":true,"logprobs":19)"),
            "logprobs");
  // Without log-probabilities a token is one entry.
  EXPECT_EQ(param(ten + R"(,"max_tokens":90,"echo":true)"), "");
  EXPECT_EQ(param(ten + R"(,"max_tokens":91,"echo":true)"), "echo");
  EXPECT_EQ(param(ten + R"(,"n":5,"max_tokens":21,"stream":true)"), "max_tokens");
  const HttpError e = error("/v1/completions", "{" + ten + R"(,"max_tokens":30,"logprobs":4})");
  EXPECT_EQ(e.status, 400);
  EXPECT_STREQ(e.what(),
               "[logprobs] expected (echoed + new tokens of all choices) x (logprobs + 1) of at "
               "most 100, got (0 + 30) x 5");
  // A chat that names no length gets what the limit leaves.
  const std::string chat =
      R"({"messages":[{"role":"user","content":"a"}],"min_tokens":20,"logprobs":true,)";
  EXPECT_EQ(
      answer("/v1/chat/completions", chat + R"("top_logprobs":4})")["usage"]["completion_tokens"],
      20);
  EXPECT_EQ(error("/v1/chat/completions", chat + R"("top_logprobs":19,"n":6})").param, "logprobs");
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
}

TEST_F(Serving, AFullQueueIs429) {
  open({.batch = 1, .queue = 2});
  const std::string body = R"({"prompt":"a","max_tokens":50,"ignore_eos":true})";
  std::vector<std::shared_ptr<FakeClient>> clients;
  for (int i = 0; i < 3; ++i) {
    clients.push_back(std::make_shared<FakeClient>());
    begin("/v1/completions", body, clients.back());
  }
  try {
    begin("/v1/completions", body, std::make_shared<FakeClient>());
    FAIL();
  } catch (const HttpError& e) { EXPECT_EQ(e.status, 429); }
  settle();
  for (const auto& c : clients) EXPECT_TRUE(c->done);
  ask("/v1/completions", body);  // there is room again
}

TEST_F(Serving, AClientThatLeavesFreesItsBlocks) {
  open();
  const std::string body =
      R"({"prompt":"abc","max_tokens":200,"n":3,"ignore_eos":true,"stream":true})";
  const auto client = std::make_shared<FakeClient>();
  const auto exchange = begin("/v1/completions", body, client);
  for (int i = 0; i < 5; ++i) model_->engine().step();
  EXPECT_GT(model_->engine().stats().used_blocks, 0);
  exchange->leave();
  settle();
  EXPECT_FALSE(client->done);
  EXPECT_EQ(service_->running(), 0);
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
  EXPECT_EQ(metrics().value("vllm:request_success_total", "finished_reason=\"abort\""), 3);

  // One that takes no more is the same.
  const auto slow = std::make_shared<FakeClient>();
  slow->room = 4;
  begin("/v1/completions", body, slow);
  settle();
  EXPECT_EQ(slow->events.size(), 4u);
  EXPECT_EQ(service_->running(), 0);
  EXPECT_EQ(model_->engine().stats().used_blocks, 0);
  EXPECT_LT(model_->engine().stats().generated_tokens, 60);
}

TEST_F(Serving, AsksForItsKey) {
  open({.api_key = "sk-secret"});
  const auto status = [&](const std::string& path, const std::string& authorization) {
    try {
      service_->check_head({.method = "GET", .path = path, .authorization = authorization});
    } catch (const HttpError& e) { return e.status; }
    return 200;
  };
  for (const char* path : {"/metrics", "/v1/models", "/tokenizer_info", "/nowhere"}) {
    EXPECT_EQ(status(path, ""), 401) << path;
    EXPECT_EQ(status(path, "Bearer sk-other"), 401) << path;
    EXPECT_EQ(status(path, "sk-secret"), 401) << path;
  }
  EXPECT_EQ(status("/v1/models", "Bearer sk-secret"), 200);
  EXPECT_EQ(status("/health", ""), 200);
}

TEST_F(Serving, IsUnavailableWhileLoadingAndClosing) {
  open();
  const auto nowhere = [](std::function<void()>) {};
  Service loading({}, nowhere, nowhere);
  const auto status = [](Service& s, const char* path) {
    try {
      s.check_head({.method = "GET", .path = path});
    } catch (const HttpError& e) { return e.status; }
    return 200;
  };
  EXPECT_EQ(status(loading, "/health"), 503);
  EXPECT_EQ(status(loading, "/v1/models"), 503);
  EXPECT_EQ(status(loading, "/metrics"), 200);
  const auto client = std::make_shared<FakeClient>();
  begin("/v1/completions", R"({"prompt":"a","max_tokens":30,"ignore_eos":true})", client);
  service_->close();
  EXPECT_EQ(status(*service_, "/health"), 503);
  settle();
  EXPECT_EQ(client->response.status, 200) << "what runs goes on";
  EXPECT_EQ(json::parse(client->response.body)["usage"]["completion_tokens"], 30);
}

TEST_F(Serving, IsUnwellWhileTheEngineFails) {
  auto owned = std::make_unique<TroubledBackend>();
  TroubledBackend& backend = *owned;
  open({}, true, std::move(owned));
  EXPECT_EQ(answer("/health")["status"], "ok");
  backend.fail_with("an illegal address");
  const std::string body = R"({"prompt":"a","max_tokens":3})";
  const auto client = std::make_shared<FakeClient>();
  begin("/v1/completions", body, client);
  EXPECT_THROW(model_->engine().step(), Error);
  run_tasks();
  EXPECT_EQ(client->response.status, 500);
  for (int i = 0; i < 2; ++i) {  // a step without work changes nothing
    const HttpError e = error("/health");
    EXPECT_EQ(e.status, 503);
    EXPECT_NE(std::string(e.what()).find("[card] an illegal address"), std::string::npos)
        << e.what();
    EXPECT_FALSE(model_->engine().step());
  }
  backend.fail_with("");
  EXPECT_EQ(ask("/v1/completions", body)->response.status, 200);
  EXPECT_EQ(answer("/health")["status"], "ok");
}

// Only a worker renders it, so the thread of the connections is free meanwhile.
TEST_F(Serving, ALongAnswerIsRenderedByAWorker) {
  ServeConfig config;
  open(config);
  std::deque<std::function<void()>> work;
  service_ = std::make_unique<Service>(
      config, [this](std::function<void()> task) { tasks_.push_back(std::move(task)); },
      [&](std::function<void()> task) { work.push_back(std::move(task)); });
  service_->open(*model_, "m");
  const std::string fields = R"({"prompt":"abc","seed":1,"ignore_eos":true,"max_tokens":)";
  const auto brief = ask("/v1/completions", fields + "20}");
  EXPECT_TRUE(work.empty()) << "a short one is not worth the way";
  EXPECT_EQ(brief->prompt_tokens, 3);
  EXPECT_EQ(brief->completion_tokens, 20);

  const auto client = std::make_shared<FakeClient>(), left = std::make_shared<FakeClient>();
  begin("/v1/completions", fields + R"(100,"logprobs":20})", client);
  const auto exchange = begin("/v1/completions", fields + R"(100,"logprobs":20})", left);
  settle();
  ASSERT_EQ(work.size(), 2u);
  EXPECT_FALSE(client->done);
  EXPECT_EQ(service_->running(), 2) << "a server that stops waits for it";
  EXPECT_EQ(metrics().value("hearth:kv_blocks_used"), 0);
  exchange->leave();
  for (const auto& task : work) task();
  run_tasks();
  EXPECT_EQ(service_->running(), 0);
  EXPECT_TRUE(client->done && !left->done);
  EXPECT_EQ(client->completion_tokens, 100);
  const json j = json::parse(client->response.body);
  EXPECT_EQ(j["choices"][0]["logprobs"]["tokens"].size(), 100u);
  EXPECT_EQ(j["usage"]["total_tokens"], 103);
}

TEST_F(Serving, WhatHasLeftIsNotPrepared) {
  open();
  std::stop_source departed;
  departed.request_stop();
  const HttpRequest r{.method = "POST",
                      .path = "/v1/completions",
                      .body = R"({"prompt":"a"})",
                      .content_type = "application/json"};
  const Route& route = service_->check_head(r);
  EXPECT_THROW(service_->prepare(route, r, departed.get_token()), HttpError);
  // What was prepared while the server's time ran out is told so.
  Prepared p = service_->prepare(route, r);
  service_->cancel_all();
  try {
    service_->begin(std::move(p), std::make_shared<FakeClient>());
    FAIL();
  } catch (const HttpError& e) { EXPECT_EQ(e.status, 503); }
  EXPECT_EQ(service_->running(), 0);
}

TEST_F(Serving, AFullQueueIs429BeforeTheBodyIsRead) {
  open({.batch = 1, .queue = 0});
  const auto client = std::make_shared<FakeClient>();
  begin("/v1/completions", R"({"prompt":"a","max_tokens":5})", client);
  for (const Route& route : routes()) {
    int status = 200;
    try {
      service_->check_queue(route);
    } catch (const HttpError& e) { status = e.status; }
    EXPECT_EQ(status, route.id == Route::completions || route.id == Route::chat ? 429 : 200)
        << route.path;
  }
  settle();
  EXPECT_TRUE(client->done);
}

// A completion that the context ends is one that its length ended, as OpenAI's clients know it.
TEST_F(Serving, TheEndOfTheContextIsFinishReasonLength) {
  open();
  const json chat = answer("/v1/chat/completions",
                           R"({"messages":[{"role":"user","content":"a"}],"ignore_eos":true})");
  EXPECT_EQ(chat["choices"][0]["finish_reason"], "length");
  EXPECT_EQ(chat["usage"]["prompt_tokens"], 4);
  EXPECT_EQ(chat["usage"]["completion_tokens"], served_context - 4);
  EXPECT_EQ(chat["usage"]["total_tokens"], served_context);
  // More than fits, when asked for, is refused and not cut.
  const HttpError e = error("/v1/completions", R"({"prompt":"abc","max_tokens":254})");
  EXPECT_EQ(e.code, "context_length_exceeded");
  EXPECT_EQ(e.param, "max_tokens");
  EXPECT_EQ(
      answer("/v1/completions",
             R"({"prompt":"abc","max_tokens":253,"ignore_eos":true})")["usage"]["total_tokens"],
      served_context);
}

TEST_F(Serving, LimitsWhatIsTokenized) {
  open({.max_messages = 3, .max_tokenize_bytes = 10, .max_detokenize_ids = 4});
  const auto messages = [](int count, const std::string& text) {
    std::string s;
    for (int i = 0; i < count; ++i)
      s += (i ? "," : "") + (R"({"role":"user","content":")" + text + "\"}");
    return R"({"messages":[)" + s + "]}";
  };
  EXPECT_EQ(answer("/tokenize", R"({"prompt":"0123456789"})")["count"], 10);
  EXPECT_EQ(error("/tokenize", R"({"prompt":"0123456789a"})").param, "prompt");
  EXPECT_EQ(error("/tokenize", messages(3, "abc")).status, 0);
  EXPECT_EQ(error("/tokenize", messages(3, "abcd")).param, "messages");
  EXPECT_EQ(error("/tokenize", messages(4, "")).param, "messages");
  EXPECT_EQ(error("/tokenize", messages(4, "")).status, 400);
  EXPECT_EQ(error("/v1/chat/completions", messages(4, "")).param, "messages");
  EXPECT_EQ(answer("/detokenize", R"({"tokens":[97,98,97,98]})")["prompt"], "abab");
  EXPECT_EQ(error("/detokenize", R"({"tokens":[97,98,97,98,97]})").param, "tokens");
}

TEST_F(Serving, CancelledAtTheEndSaysSo) {
  open();
  const auto whole = std::make_shared<FakeClient>(), stream = std::make_shared<FakeClient>();
  begin("/v1/completions", R"({"prompt":"a","max_tokens":200,"ignore_eos":true})", whole);
  begin("/v1/completions", R"({"prompt":"a","max_tokens":200,"ignore_eos":true,"stream":true})",
        stream);
  for (int i = 0; i < 3; ++i) model_->engine().step();
  service_->cancel_all();
  settle();
  EXPECT_EQ(whole->response.status, 503);
  ASSERT_TRUE(stream->done);
  EXPECT_TRUE(json::parse(stream->events.back()).contains("error"));
}

}  // namespace
}  // namespace hearth
