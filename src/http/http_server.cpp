#include "http/http_server.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <csignal>
#include <utility>

#include "http/connection.h"
#include "sys/error.h"
#include "sys/terminal.h"

#include <boost/asio/post.hpp>
#include <boost/asio/signal_set.hpp>
#include <boost/asio/write.hpp>

namespace hearth::inline http {
namespace {

namespace asio = boost::asio;
using asio::ip::tcp;

constexpr auto last_words = std::chrono::seconds(2);  // for answers of cancelled requests
constexpr int64_t most_turned_away = 64;              // at once; further ones are not accepted yet

tcp::endpoint resolve(const HttpConfig& c) {
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

// One of the connections that `*count` counts; the count drops when it is destroyed.
struct Uncount {
  void operator()(int64_t* count) const { --*count; }
};
using Counted = std::unique_ptr<int64_t, Uncount>;

// A connection beyond the limit gets an error and is closed. Its input is read until it closes, for
// at most a second: closing with unread bytes would reset the connection, and the answer could be
// lost.
class TurnedAway : public std::enable_shared_from_this<TurnedAway> {
 public:
  TurnedAway(tcp::socket socket, Counted counted, std::function<void()> ended)
      : socket_(std::move(socket)),
        deadline_(socket_.get_executor()),
        counted_(std::move(counted)),
        ended_(std::move(ended)) {}

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
    if (!counted_) return;
    counted_.reset();
    boost::system::error_code ignored;
    socket_.close(ignored);
    deadline_.cancel();
    ended_();
  }

  tcp::socket socket_;
  asio::steady_timer deadline_;
  Counted counted_;  // until it is closed
  std::function<void()> ended_;
  std::string answer_;
  std::array<char, 4096> bytes_;
};

// Otherwise programs that this process starts would keep the port or the connection open.
template <class S>
void close_on_exec(S& socket) {
  fcntl(socket.native_handle(), F_SETFD, FD_CLOEXEC);
}

}  // namespace

class HttpServer::Loop {
 public:
  Loop(const HttpConfig& config, const HttpServerSpec& spec, const MakeHandler& make)
      : config_(config),
        spec_(spec),
        most_connections_(allowed_connections(config.max_connections)),
        address_(resolve(config)),
        log_(config.log_requests, config.request_log),
        handler_(make(place())),
        acceptor_(io_),
        drain_(io_),
        pause_(io_),
        workers_(config.workers) {
    listen(address_);
    warn_if_open_to_all();
    if (!spec_.handles_signals) return;
    signals_.emplace(io_, SIGINT, SIGTERM);
    await_signal();
  }

  std::string url() const {
    const tcp::endpoint at = acceptor_.local_endpoint();
    const std::string host = at.address().to_string();
    return fmt::format("http://{}:{}", at.address().is_v6() ? "[" + host + "]" : host, at.port());
  }

  void run() {
    for (;;) try {
        accept();  // again after an error, which may have ended the accepting
        io_.run();
        return;
      } catch (const std::exception& e) {
        // The error of one connection; the others continue.
        say_problem(fmt::format("[{}] {}", spec_.command, e.what()));
      }
  }
  void stop() { io_.stop(); }

 private:
  HttpPlace place() {
    return {.post = [this](std::function<void()> task) { asio::post(io_, std::move(task)); },
            .work = [this](std::function<void()> task) { workers_.post(std::move(task)); },
            .after =
                [this](double seconds, std::function<void()> task) {
                  const auto timer = std::make_shared<asio::steady_timer>(
                      io_, std::chrono::milliseconds(int64_t(seconds * 1000)));
                  timer->async_wait([timer, task = std::move(task)](boost::system::error_code e) {
                    if (!e) task();
                  });
                },
            .loopback = address_.address().is_loopback()};
  }

  void listen(const tcp::endpoint& at) {
    try {
      acceptor_.open(at.protocol());
      close_on_exec(acceptor_);
      acceptor_.set_option(tcp::acceptor::reuse_address(true));
      acceptor_.bind(at);
      acceptor_.listen();
    } catch (const boost::system::system_error& e) {
      fail(spec_.command, "cannot listen on {} port {}: {}; {}", config_.host, config_.port,
           e.code().message(), spec_.remedy);
    }
  }

  void warn_if_open_to_all() const {
    if (address_.address().is_loopback() || !config_.api_key.empty()) return;
    say("hearth: warning: listening on {} without a key: every machine that can reach this one, "
        "and every web page open on it, can {}; set HEARTH_API_KEY, or listen on 127.0.0.1\n",
        config_.host, spec_.exposes);
  }

  void accept() {
    // With too many turned away it resumes when one of them has closed.
    if (accepting_ || turned_away_ >= most_turned_away) return;
    acceptor_.async_accept([this](boost::system::error_code e, tcp::socket socket) {
      accepting_ = false;
      if (e == asio::error::operation_aborted) return;
      if (e) {  // for example no descriptors left: retry later
        pause_.expires_after(std::chrono::milliseconds(100));
        return pause_.async_wait([this](boost::system::error_code stopped) {
          if (!stopped) accept();
        });
      }
      close_on_exec(socket);
      try {
        if (handler_->counters().connections >= most_connections_)
          turn_away(std::move(socket));
        else
          welcome(std::move(socket));
      } catch (const std::exception& e) {  // closes this socket; later clients may find memory
        say_problem(fmt::format("[{}] cannot serve a connection: {}", spec_.command, e.what()));
      }
      accept();
    });
    accepting_ = true;
  }

  void welcome(tcp::socket socket) {
    const auto c = std::make_shared<Connection>(
        std::move(socket), ConnectionPlace{config_, *handler_, workers_, log_});
    std::erase_if(connections_, [](const auto& w) { return w.expired(); });
    connections_.push_back(c);
    c->start();
  }

  void turn_away(tcp::socket socket) {
    const HttpResponse r = error_response(
        HttpError(503, "[connections] the server has reached --max-connections; try again later"));
    ++handler_->counters().responses[r.status];
    boost::system::error_code ignored;
    const auto client = socket.remote_endpoint(ignored);
    log_.add({.client = fmt::format("{}:{}", client.address().to_string(), client.port()),
              .status = r.status,
              .bytes = int64_t(r.body.size())});
    std::make_shared<TurnedAway>(std::move(socket), Counted(&++turned_away_), [this] { accept(); })
        ->start(fmt::format("HTTP/1.1 503 Service Unavailable\r\nServer: hearth\r\n"
                            "Connection: close\r\nRetry-After: 1\r\nContent-Type: {}\r\n"
                            "Content-Length: {}\r\n\r\n{}",
                            r.type, r.body.size(), r.body));
  }

  void await_signal() {
    signals_->async_wait([this](boost::system::error_code e, int) {
      if (e) return;
      if (spec_.signalled) spec_.signalled();
      const auto now = std::chrono::steady_clock::now();
      // A launcher may forward a signal that the terminal already sent: both are one request.
      if (handler_->closing())
        return now - asked_ > std::chrono::seconds(1) ? stop() : await_signal();
      handler_->close();
      if (const auto running = handler_->running(); running > 0)
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

  // Checks periodically whether all output has been sent.
  void drain() {
    const bool busy = handler_->running() > 0 ||
                      std::any_of(connections_.begin(), connections_.end(), [](const auto& w) {
                        const auto c = w.lock();
                        return c && c->answering();
                      });
    const auto now = std::chrono::steady_clock::now();
    if (!busy || now >= end_ + last_words) return stop();
    if (now >= end_ && !std::exchange(cancelled_, true)) handler_->cancel_all();
    drain_.expires_after(std::chrono::milliseconds(20));
    drain_.async_wait([this](boost::system::error_code) { drain(); });
  }

  const HttpConfig config_;
  const HttpServerSpec spec_;
  const int64_t most_connections_;
  const tcp::endpoint address_;
  RequestLog log_;
  int64_t turned_away_ = 0;  // currently open
  bool accepting_ = false;   // an accept is pending
  // Before the event loop, whose pending tasks refer to it.
  std::unique_ptr<HttpHandler> handler_;
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  std::optional<asio::signal_set> signals_;
  asio::steady_timer drain_, pause_;
  std::vector<std::weak_ptr<Connection>> connections_;
  std::chrono::steady_clock::time_point asked_,
      end_;  // time of the stop request; deadline for all output
  bool cancelled_ = false;
  Workers workers_;  // last, because their tasks refer to other members
};

HttpServer::HttpServer(const HttpConfig& config, const HttpServerSpec& spec,
                       const MakeHandler& make)
    : loop_(std::make_unique<Loop>(config, spec, make)) {}
HttpServer::~HttpServer() = default;
std::string HttpServer::url() const { return loop_->url(); }
void HttpServer::run() { loop_->run(); }
void HttpServer::stop() { loop_->stop(); }

}  // namespace hearth::inline http
