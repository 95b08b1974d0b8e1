// HttpServer with a handler of the test, whose streams the test writes.
#include "http/http_server.h"

#include <gtest/gtest.h>

#include <atomic>
#include <deque>
#include <future>
#include <thread>

#include "e2e/http_client.h"

namespace hearth {
namespace {

class Streams : public HttpHandler {
 public:
  explicit Streams(const HttpConfig& config) : access_(config, true) {}
  const AccessCheck& access() const override { return access_; }
  HttpCounters& counters() override {
    if (const int kind = failure.exchange(0)) {
      if (kind == 1) throw std::bad_alloc();
      throw std::runtime_error("this connection fails");
    }
    return counters_;
  }
  ByteBudget& bodies() override { return bodies_; }
  void check_head(const HttpRequest&) const override {}
  std::optional<HttpResponse> answer(const HttpRequest& r) override {
    if (r.path == "/stream") return {};
    return HttpResponse{.body = "{}"};
  }
  BeginAnswer prepare(const HttpRequest&, const std::stop_token&) override {
    return [this](const std::shared_ptr<Client>& c) {
      c->begin_events();
      client = c;
      begun.set_value();
      return std::shared_ptr<OpenAnswer>();
    };
  }
  void close() override {}
  bool closing() const override { return false; }
  void cancel_all() override {}
  int64_t running() const override { return 0; }

  std::atomic<int> failure = 0;  // of the next call of counters(): 1 no memory, 2 another error
  std::shared_ptr<Client> client;
  std::promise<void> begun;

 private:
  const AccessCheck access_;
  HttpCounters counters_;
  ByteBudget bodies_{1 << 20};
};

class HttpServerTest : public testing::Test {
 protected:
  void start(HttpConfig config = {}) {
    config.port = 0;
    const auto make = [&](const HttpPlace& place) {
      post_ = place.post;
      auto h = std::make_unique<Streams>(config);
      handler = h.get();
      return h;
    };
    try {
      server_ = std::make_unique<HttpServer>(
          config, HttpServerSpec{.command = "test", .exposes = "use it", .handles_signals = false},
          make);
    } catch (const std::exception& e) {
      if (std::string(e.what()).find("Boost.Beast") != std::string::npos)
        GTEST_SKIP() << "built without Boost.Beast";
      throw;
    }
    const std::string url = server_->url();
    port = std::stoi(url.substr(url.rfind(':') + 1));
    loop_ = std::jthread([this] { server_->run(); });
  }
  void TearDown() override {
    if (!server_) return;
    on_loop([&] { handler->client.reset(); });
    server_->stop();
    loop_.join();
  }
  // Runs a task on the network thread and waits for it.
  void on_loop(const std::function<void()>& task) {
    std::promise<void> done;
    post_([&] { task(), done.set_value(); });
    done.get_future().wait();
  }
  // False: the stream was ended.
  bool send(size_t bytes, bool echoes) {
    bool sent = false;
    const std::string text(bytes, 'x');
    on_loop([&] { sent = handler->client->send_event({.data = text, .echoes = echoes}); });
    return sent;
  }

  Streams* handler = nullptr;
  int port = 0;

 private:
  Post post_;
  std::unique_ptr<HttpServer> server_;
  std::jthread loop_;
};

TEST_F(HttpServerTest, AnyErrorOfAConnectionLeavesTheServerAccepting) {
  start();
  if (IsSkipped()) return;
  std::deque<HttpClient> held;  // the end of a connection calls counters() too
  for (const int failure : {1, 2}) {
    handler->failure = failure;
    EXPECT_TRUE(HttpClient(port).ends());
    held.emplace_back(port).request("GET", "/");
    EXPECT_EQ(held.back().reply().status, 200) << failure;
  }
}

TEST_F(HttpServerTest, TellsOldClientsWhetherTheConnectionStaysOpen) {
  start();
  if (IsSkipped()) return;
  HttpClient old(port), now(port);
  for (int i = 0; i < 2; ++i) {
    old.send("GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n");
    EXPECT_EQ(old.reply().headers["connection"], "keep-alive");
    now.request("GET", "/");
    EXPECT_FALSE(now.reply().headers.contains("connection"));
  }
  old.send("GET / HTTP/1.0\r\n\r\n");
  EXPECT_EQ(old.reply().headers["connection"], "close");
  EXPECT_TRUE(old.ends());
}

// The client reads as fast as the stream grows and so never reaches the end of its echo. What it
// has read of the echo makes no room for other events.
TEST_F(HttpServerTest, TheAllowanceForAnEchoIsUsedUp) {
  constexpr size_t echo = 32 << 20, piece = 64 << 10, most = 1 << 20;
  start({.max_output_bytes = most});
  if (IsSkipped()) return;
  HttpClient c(port, 64 << 10);
  c.request("GET", "/stream");
  handler->begun.get_future().wait();
  ASSERT_TRUE(send(echo, true));
  size_t queued = 0;
  while (queued < echo / 2 && send(piece, false)) {
    queued += piece;
    c.exactly(piece);
  }
  EXPECT_GE(queued, most);
  EXPECT_LE(queued, most + 2 * piece);
}

// A client that reads all of its echo keeps its stream.
TEST_F(HttpServerTest, AnEchoIsNotSlowReading) {
  constexpr size_t echo = 4 << 20;
  start({.max_output_bytes = 4096});
  if (IsSkipped()) return;
  HttpClient c(port);
  c.request("GET", "/stream");
  handler->begun.get_future().wait();
  EXPECT_TRUE(send(echo, true));
  EXPECT_TRUE(send(1000, false));
  c.exactly(echo + 1000);
  EXPECT_TRUE(send(1000, false));
  EXPECT_TRUE(send(1000, false));
}

}  // namespace
}  // namespace hearth
