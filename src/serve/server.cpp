#include "serve/server.h"

#include <unistd.h>

#include <atomic>
#include <thread>

#include "http/http_server.h"
#include "serve/sensor_watch.h"
#include "serve/service.h"
#include "sys/terminal.h"

namespace hearth::inline serve {
namespace {

// Connects the service to the HTTP server.
class ServeHandler : public HttpHandler {
 public:
  ServeHandler(const ServeConfig& config, const HttpPlace& place)
      : service_(config, place.post, place.work, place.loopback) {}

  Service& service() { return service_; }

  const AccessCheck& access() const override { return service_.admission.access(); }
  HttpCounters& counters() override { return service_.counters; }
  ByteBudget& bodies() override { return service_.bodies; }
  void check_head(const HttpRequest& r) const override { service_.check_head(r); }
  std::optional<HttpResponse> answer(const HttpRequest& r) override {
    const Route& route = service_.check_head(r);
    if (!route.reads_body()) return service_.answer(route, r);
    service_.check_queue(route);
    return {};
  }
  BeginAnswer prepare(const HttpRequest& r, const std::stop_token& stop) override {
    auto ready = std::make_shared<Prepared>(service_.prepare(service_.admission.route(r), r, stop));
    return [this, ready = std::move(ready)](const std::shared_ptr<Client>& client) {
      return service_.begin(std::move(*ready), client);
    };
  }
  void close() override { service_.close(); }
  bool closing() const override { return service_.closing(); }
  void cancel_all() override { service_.cancel_all(); }
  int64_t running() const override { return service_.running(); }

 private:
  Service service_;
};

// Loading cannot be interrupted, and no request was accepted yet: all were answered with 503.
[[noreturn]] void leave_while_loading() {
  say("hearth: shutting down before the model was loaded\n");
  _exit(0);  // the exit code of any shutdown by signal
}

}  // namespace

void run_server(const ServeConfig& config, const ServeJob& job) {
  config.check();
  std::vector<NamedModel> models;  // before the server, whose workers use them until they end
  const SensorWatch sensors(job.sensors);
  std::atomic<bool> loading = true;
  ServeHandler* handler = nullptr;
  HttpPlace place;
  HttpServer server(config.http,
                    {.command = "serve",
                     .exposes = "use the model",
                     .signalled =
                         [&] {
                           if (loading) leave_while_loading();
                         }},
                    [&](const HttpPlace& at) {
                      place = at;
                      auto made = std::make_unique<ServeHandler>(config, at);
                      made->service().set_sensors([&] { return sensors.last(); });
                      handler = made.get();
                      return made;
                    });
  job.listening(server.url());
  std::thread loop([&] { server.run(); });
  try {
    models = job.load();
    loading = false;
    std::vector<Engine*> engines;
    for (const NamedModel& m : models) engines.push_back(&m.model->engine());
    const EngineThread stepping(std::move(engines));
    job.ready(models);
    place.post([&] { handler->service().open(models); });
    loop.join();
  } catch (...) {
    server.stop();
    loop.join();
    throw;
  }
}

}  // namespace hearth::inline serve
