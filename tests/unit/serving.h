// A model folder behind a Service without sockets: the test runs the service's loop, and a fake
// client records what it is sent.
#pragma once

#include <gtest/gtest.h>

#include <deque>

#include "cpu/backend.h"
#include "prometheus.h"
#include "serve/service.h"
#include "served_folder.h"
#include "unit/test_io_support.h"

namespace hearth {

struct FakeClient : Client {
  void respond(HttpResponse r) override {
    response = std::move(r);
    done = true;
  }
  void begin_events() override { streams = true; }
  bool send_event(const ServerEvent& e) override {
    if (room == 0) return false;
    --room;
    events.emplace_back(e.data);
    return true;
  }
  bool send_comment() override { return room > 0; }
  size_t unsent() const override { return 0; }
  void end_events() override { done = true; }
  void note_answer(const AnswerNote& a) override {
    note = a;
    prompt_tokens = a.prompt_tokens, completion_tokens = a.completion_tokens;
  }

  HttpResponse response = {};
  std::vector<std::string> events = {};
  size_t room = 100000;
  AnswerNote note = {};
  int64_t prompt_tokens = -1, completion_tokens = -1;
  bool streams = false, done = false;
};

// The test steps the engine, so it can produce any order of events.
class Serving : public testing::Test {
 protected:
  void open(ServeConfig config = {}, bool chat_template = true,
            std::unique_ptr<Backend> backend = make_cpu_backend(1)) {
    write_served_folder(dir_.path(), chat_template);
    service_.reset();
    models_.clear();  // before their backend
    backend_ = std::move(backend);
    serve(config);
  }
  // Loads the folder again, under each of these names.
  void serve(ServeConfig config, const std::vector<std::string>& names = {"m"}) {
    service_.reset();
    models_.clear();
    for (const std::string& name : names)
      models_.push_back(
          {name, std::make_unique<ServedModel>(ModelPaths{dir_.path()}, *backend_, WeightsSpec{},
                                               EngineSpec{.max_batch = config.batch})});
    model_ = models_[0].model.get();
    const auto post = [this](std::function<void()> task) { tasks_.push_back(std::move(task)); };
    service_ = std::make_unique<Service>(config, post, post);
    service_->open(models_);
  }

  void run_tasks() {
    while (!tasks_.empty()) {
      const auto task = std::move(tasks_.front());
      tasks_.pop_front();
      task();
    }
  }
  void settle() {
    const auto step_all = [&] {
      bool worked = false;
      for (const NamedModel& m : models_) worked |= m.model->engine().step();
      return worked;
    };
    while (step_all() || !tasks_.empty()) run_tasks();
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
  nlohmann::json answer(const std::string& path, const std::string& body = "") {
    return nlohmann::json::parse(ask(path, body)->response.body);
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
  std::vector<NamedModel> models_;
  ServedModel* model_ = nullptr;  // the first of them
  std::deque<std::function<void()>> tasks_;
  std::unique_ptr<Service> service_;
};

}  // namespace hearth
