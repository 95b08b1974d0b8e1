#include "serve/server.h"

#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <csignal>
#include <cstdio>
#include <thread>

#include "serve/connection.h"
#include "sys/error.h"
#include "sys/terminal.h"

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>

namespace hearth::inline serve {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto last_words = std::chrono::seconds(2);  // for answers of cancelled requests
constexpr int64_t most_turned_away = 64;              // at once; further ones are not accepted yet

tcp::endpoint resolve(const ServeConfig& c) {
  asio::io_context io;
  boost::system::error_code e;
  const auto found = tcp::resolver(io).resolve(c.host, std::to_string(c.port), e);
  if (e || found.empty())
    fail_usage("--host", "expected an address of this machine, got {}: {}", c.host, e.message());
  return found.begin()->endpoint();
}

// The number of connections that the system's limits allow, at most `wanted`.
int64_t allowed_connections(int64_t wanted) {
  constexpr int64_t others = 64 + most_turned_away;  // files and the event loop's descriptors
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0) return wanted;
  if (limit.rlim_cur < rlim_t(wanted + others)) {
    limit.rlim_cur = std::min(limit.rlim_max, rlim_t(wanted + others));
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const int64_t allowed = std::max<int64_t>(1, int64_t(limit.rlim_cur) - others);
  if (allowed < wanted)
    say("hearth: accepting at most {} connections instead of {}: raise ulimit -n\n", allowed,
        wanted);
  return std::min(wanted, allowed);
}

// A connection beyond the limit gets an error and is closed. Its input is read until it closes, for
// at most a second: closing with unread bytes would reset the connection, and the answer could be
// lost.
class TurnedAway : public std::enable_shared_from_this<TurnedAway> {
 public:
  TurnedAway(tcp::socket socket, std::function<void()> ended)
      : socket_(std::move(socket)), deadline_(socket_.get_executor()), ended_(std::move(ended)) {}

  void start(std::string answer) {
    answer_ = std::move(answer);
    deadline_.expires_after(std::chrono::seconds(1));
    deadline_.async_wait([self = shared_from_this()](boost::system::error_code) { self->close(); });
    asio::async_write(socket_, asio::buffer(answer_),
                      [self = shared_from_this()](boost::system::error_code e, size_t) {
                        boost::system::error_code ignored;
                        self->socket_.shutdown(tcp::socket::shutdown_send, ignored);
                        e ? self->close() : self->discard();
                      });
  }

 private:
  void discard() {
    socket_.async_read_some(asio::buffer(bytes_),
                            [self = shared_from_this()](boost::system::error_code e, size_t) {
                              e ? self->close() : self->discard();
                            });
  }
  void close() {
    const auto ended = std::exchange(ended_, nullptr);
    if (!ended) return;
    boost::system::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    ended();
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  std::function<void()> ended_;  // empty after it was called
  std::string answer_;
  std::array<char, 4096> bytes_;
};

class Server {
 public:
  explicit Server(const ServeConfig& config)
      : config_(config),
        most_connections_(allowed_connections(config.max_connections)),
        address_(resolve(config)),
        log_(config.log_requests),
        service_(
            config, [this](std::function<void()> task) { asio::post(io_, std::move(task)); },
            [this](std::function<void()> task) { workers_.post(std::move(task)); },
            address_.address().is_loopback()),
        acceptor_(io_),
        signals_(io_, SIGINT, SIGTERM),
        drain_(io_),
        pause_(io_),
        workers_(config.workers) {
    listen(address_);
    warn_if_open_to_all();
    accept();
    await_signal();
  }

  std::string url() const {
    const tcp::endpoint at = acceptor_.local_endpoint();
    const std::string host = at.address().to_string();
    return fmt::format("http://{}:{}", at.address().is_v6() ? "[" + host + "]" : host, at.port());
  }

  void run() {
    for (;;) try {
        io_.run();
        return;
      } catch (const std::exception& e) {
        // The error of one connection; the others continue.
        say_problem(fmt::format("[serve] {}", e.what()));
      }
  }
  void stop() { io_.stop(); }  // thread-safe, as are loaded() and open()
  void loaded() { loading_ = false; }
  void open(ServedModel& model, const std::string& name) {
    asio::post(io_, [this, &model, name] { service_.open(model, name); });
  }

 private:
  void listen(const tcp::endpoint& at) {
    try {
      acceptor_.open(at.protocol());
      acceptor_.set_option(tcp::acceptor::reuse_address(true));
      acceptor_.bind(at);
      acceptor_.listen();
    } catch (const boost::system::system_error& e) {
      fail("serve", "cannot listen on {} port {}: {}; choose another --port or --host",
           config_.host, config_.port, e.code().message());
    }
  }

  void warn_if_open_to_all() const {
    if (address_.address().is_loopback() || !config_.api_key.empty()) return;
    say("hearth: warning: listening on {} without a key: every machine that can reach this one, "
        "and every web page open on it, can use the model; set HEARTH_API_KEY, or listen on "
        "127.0.0.1\n",
        config_.host);
  }

  void accept() {
    if (turned_away_ >= most_turned_away) return;  // resumes when one of them has closed
    acceptor_.async_accept([this](boost::system::error_code e, tcp::socket socket) {
      if (e == asio::error::operation_aborted) return;
      if (e) {  // for example no descriptors left: retry later
        pause_.expires_after(std::chrono::milliseconds(100));
        return pause_.async_wait([this](boost::system::error_code) { accept(); });
      }
      if (service_.metrics.connections >= most_connections_)
        turn_away(std::move(socket));
      else
        welcome(std::move(socket));
      accept();
    });
  }

  void welcome(tcp::socket socket) {
    const auto c = std::make_shared<Connection>(std::move(socket),
                                                ConnectionPlace{config_, service_, workers_, log_});
    std::erase_if(connections_, [](const auto& w) { return w.expired(); });
    connections_.push_back(c);
    c->start();
  }

  void turn_away(tcp::socket socket) {
    const HttpResponse r = error_response(
        HttpError(503, "[connections] the server has reached --max-connections; try again later"));
    ++service_.metrics.responses[r.status];
    boost::system::error_code ignored;
    const auto client = socket.remote_endpoint(ignored);
    log_.add({.client = fmt::format("{}:{}", client.address().to_string(), client.port()),
              .status = r.status,
              .bytes = int64_t(r.body.size())});
    ++turned_away_;
    const auto gone = [this] {
      if (turned_away_-- == most_turned_away) accept();
    };
    std::make_shared<TurnedAway>(std::move(socket), gone)
        ->start(fmt::format("HTTP/1.1 503 Service Unavailable\r\nServer: hearth\r\n"
                            "Connection: close\r\nRetry-After: 1\r\nContent-Type: {}\r\n"
                            "Content-Length: {}\r\n\r\n{}",
                            r.type, r.body.size(), r.body));
  }

  void await_signal() {
    signals_.async_wait([this](boost::system::error_code e, int) {
      if (e) return;
      if (loading_) leave();
      const auto now = std::chrono::steady_clock::now();
      // A launcher may forward a signal that the terminal already sent: both are one request.
      if (service_.closing())
        return now - asked_ > std::chrono::seconds(1) ? stop() : await_signal();
      service_.close();
      if (const auto running = service_.running(); running > 0)
        say("hearth: shutting down; {} running requests have {} s to finish\n", running,
            config_.drain_seconds);
      else
        say("hearth: shutting down\n");
      asked_ = now;
      end_ = now + std::chrono::milliseconds(int64_t(config_.drain_seconds * 1000));
      await_signal();
      drain();
    });
  }

  // Loading cannot be interrupted, and no request was accepted yet: all were answered with 503.
  [[noreturn]] void leave() {
    say("hearth: shutting down before the model was loaded\n");
    _exit(0);  // the exit code of any shutdown by signal
  }

  // Checks periodically whether all output has been sent.
  void drain() {
    const bool busy = service_.running() > 0 ||
                      std::any_of(connections_.begin(), connections_.end(), [](const auto& w) {
                        const auto c = w.lock();
                        return c && c->answering();
                      });
    const auto now = std::chrono::steady_clock::now();
    if (!busy || now >= end_ + last_words) return stop();
    if (now >= end_ && !std::exchange(cancelled_, true)) service_.cancel_all();
    drain_.expires_after(std::chrono::milliseconds(20));
    drain_.async_wait([this](boost::system::error_code) { drain(); });
  }

  const ServeConfig config_;
  const int64_t most_connections_;
  const tcp::endpoint address_;
  RequestLog log_;
  int64_t turned_away_ = 0;  // currently open
  Service service_;          // before the event loop, whose pending handlers refer to it
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  asio::signal_set signals_;
  asio::steady_timer drain_, pause_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::chrono::steady_clock::time_point asked_,
      end_;  // time of the stop request; deadline for all output
  bool cancelled_ = false;
  std::atomic<bool> loading_ = true;
  Workers workers_;  // last, because their tasks refer to other members
};

}  // namespace

void run_server(const ServeConfig& config, const ServeJob& job) {
  config.check();
  std::unique_ptr<ServedModel> model;  // before the server, whose workers use it until they end
  Server server(config);
  job.listening(server.url());
  std::thread loop([&] { server.run(); });
  try {
    model = job.load();
    server.loaded();
    const EngineThread engine(model->engine());
    job.ready(*model);
    server.open(*model, job.name);
    loop.join();
  } catch (...) {
    server.stop();
    loop.join();
    throw;
  }
}

}  // namespace hearth::inline serve
