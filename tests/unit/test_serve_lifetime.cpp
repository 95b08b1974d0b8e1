// A service over time: loading, closing, failing engines, clients that leave, work that moves to a
// worker.
#include <gtest/gtest.h>

#include "serve/sensor_watch.h"
#include "serving.h"
#include "unit/troubled_backend.h"

namespace hearth {
namespace {

using nlohmann::json;

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

TEST_F(Serving, MetricsHaveTheLastReadingOfTheSensors) {
  open();
  EXPECT_FALSE(metrics().types().contains("hearth:device_watts")) << "a CPU has none";
  std::optional<DeviceState> reading = DeviceState{.watts = 300};
  service_->set_sensors([&] { return reading; });
  EXPECT_EQ(metrics().value("hearth:device_watts"), 300);
  reading.reset();
  EXPECT_FALSE(metrics().types().contains("hearth:device_watts"));
}

TEST(SensorWatch, ReadsAgainAndAgainWhereThereAreSensors) {
  std::atomic<int> reads = 0;
  {
    const SensorWatch watch([&] { return DeviceState{.watts = double(++reads)}; },
                            std::chrono::milliseconds(1));
    EXPECT_TRUE(watch.last());
    while (watch.last()->watts < 3) std::this_thread::yield();
  }
  int asked = 0;
  const SensorWatch none([&]() -> std::optional<DeviceState> {
    ++asked;
    return {};
  });
  EXPECT_FALSE(none.last());
  EXPECT_EQ(asked, 1);
  EXPECT_FALSE(SensorWatch({}).last());
}

// Only a worker renders it, so the thread of the connections is free meanwhile.
TEST_F(Serving, ALongAnswerIsRenderedByAWorker) {
  ServeConfig config;
  open(config);
  std::deque<std::function<void()>> work;
  service_ = std::make_unique<Service>(
      config, [this](std::function<void()> task) { tasks_.push_back(std::move(task)); },
      [&](std::function<void()> task) { work.push_back(std::move(task)); });
  service_->open(models_);
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

}  // namespace
}  // namespace hearth
