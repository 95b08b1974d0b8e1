// A server process for tests, on its own port, and the requests they send to it.
#pragma once

#include <chrono>
#include <thread>

#include "e2e/command.h"
#include "e2e/http_client.h"
#include "prometheus.h"
#include "served_folder.h"

namespace hearth {

class Serve : public testing::Test {
 protected:
  ~Serve() override {
    if (pid_ > 0) stop(SIGKILL);
  }

  void start_server(const Arguments& flags = {}) {
    if (!fs::exists(folder_ / "model")) write_served_folder(folder_ / "model");
    pid_ = start(folder_,
                 Arguments{"serve", "--model", folder_ / "model", "--port", "0", "--threads", "1",
                           "--device", "cpu", "--dtype", "fp32"} +
                     flags,
                 "serve");
    const std::string mark = "listening on http://127.0.0.1:";
    eventually([&] {
      const std::string err = log();
      const size_t at = err.find(mark);
      if (at == err.npos || err.find('\n', at) == err.npos) return false;
      port_ = std::stoi(err.substr(at + mark.size()));
      return true;
    });
    eventually([&] { return healthy(); });
  }
  std::string log() const {
    return fs::exists(folder_ / "serve.err") ? read_file(folder_ / "serve.err") : "";
  }
  int stop(int signal) {
    kill(pid_, signal);
    return wait_for(std::exchange(pid_, 0));
  }
  // Waits for something that another process does asynchronously; fails after half a minute.
  template <class F>
  void eventually(F done) {
    for (int i = 0; i < 3000; ++i) {
      if (done()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "never came: " << log();
  }

  Reply ask(const std::string& method, const std::string& path, const std::string& body = "",
            const std::string& headers = "") const {
    HttpClient c(port_);
    c.request(method, path, body, headers);
    return c.reply();
  }
  Reply complete(const std::string& fields) const {
    return ask("POST", "/v1/completions", "{" + fields + "}");
  }
  // Also false if the connection is closed, by the server or by its timeouts on a slow machine.
  bool healthy() const {
    try {
      return ask("GET", "/health").status == 200;
    } catch (const std::runtime_error&) { return false; }
  }
  Prometheus metrics() const { return metrics_with(""); }
  Prometheus metrics_with(const std::string& headers) const {
    return Prometheus(ask("GET", "/metrics", "", headers).body);
  }
  // The series exists once a request has been aborted.
  bool some_aborted() const {
    return ask("GET", "/metrics").body.find("finished_reason=\"abort\"") != std::string::npos;
  }
  void expect_all_free() {
    eventually([&] { return metrics().value("hearth:kv_blocks_used") == 0; });
    eventually([&] { return metrics().value("vllm:num_requests_running") == 0; });
  }

  Folder folder_;
  pid_t pid_ = 0;
  int port_ = 0;
};

}  // namespace hearth
