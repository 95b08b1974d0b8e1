#include "serve/connection.h"

#include <poll.h>

namespace hearth {
namespace {

namespace net = boost::asio;
namespace http = boost::beast::http;

constexpr size_t read_size = 16 << 10;  // bytes asked of a socket at a time
constexpr int send_buffer = 128 << 10;  // bytes the system holds for a slow reader

std::chrono::steady_clock::duration as_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::string text_of(boost::beast::string_view s) { return {s.data(), s.size()}; }

HttpError read_error(const boost::system::error_code& e) {
  if (e == http::error::body_limit)
    return HttpError(413, "[body] expected fewer bytes than --max-body-bytes, got more");
  if (e == http::error::header_limit || e == http::error::buffer_overflow)
    return HttpError(431, "[header] expected fewer bytes than --max-header-bytes, got more");
  return HttpError(400, "[http] expected a request, got: " + e.message());
}

}  // namespace

Connection::Connection(Socket socket, Service& service, const ServeConfig& config)
    : socket_(std::move(socket)),
      service_(service),
      config_(config),
      read_deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      watch_(socket_.get_executor()),
      buffer_(size_t(config.max_header_bytes) + read_size) {
  ++service_.metrics.connections;
}

Connection::~Connection() { --service_.metrics.connections; }

template <class F>
auto Connection::guarded(F f) {
  return [self = shared_from_this(), f = std::move(f)](auto... args) mutable {
    if (!self->closed_) f(args...);
  };
}

void Connection::start() {
  ErrorCode ignored;
  socket_.set_option(net::ip::tcp::no_delay(true), ignored);
  socket_.set_option(net::socket_base::send_buffer_size(send_buffer), ignored);
  next_request();
}

// --- reading ---

void Connection::next_request() {
  if (buffer_.size() > 0) return read_head();
  deadline(read_deadline_, config_.idle_seconds);
  socket_.async_read_some(buffer_.prepare(read_size), guarded([this](ErrorCode e, size_t count) {
                            if (e) return close();
                            buffer_.commit(count);
                            read_head();
                          }));
}

void Connection::read_head() {
  parser_.emplace();
  parser_->header_limit(uint32_t(config_.max_header_bytes));
  parser_->body_limit(uint64_t(config_.max_body_bytes));
  deadline(read_deadline_, config_.header_seconds);
  http::async_read_header(socket_, buffer_, *parser_,
                          guarded([this](ErrorCode e, size_t) { on_head(e); }));
}

void Connection::on_head(ErrorCode e) {
  read_deadline_.cancel();
  if (e == http::error::end_of_stream || e == net::error::connection_reset) return close();
  answering_ = true, complete_ = false, keep_alive_ = false;
  if (e) return refuse_request(read_error(e));
  const auto& head = parser_->get();
  const std::string target = text_of(head.target());
  request_ = {.method = text_of(head.method_string()),
              .path = target.substr(0, target.find('?')),
              .authorization = text_of(head[http::field::authorization])};
  chunked_ = head.version() >= 11;
  try {
    if (answers_preflight()) return;
    service_.check_head(request_);
  } catch (const HttpError& error) { return refuse_request(error); }
  if (boost::beast::iequals(head[http::field::expect], "100-continue"))
    send("HTTP/1.1 100 Continue\r\n\r\n");
  deadline(read_deadline_, config_.body_seconds);
  http::async_read(socket_, buffer_, *parser_,
                   guarded([this](ErrorCode error, size_t) { on_body(error); }));
}

void Connection::on_body(ErrorCode e) {
  read_deadline_.cancel();
  if (e == http::error::partial_message || e == net::error::connection_reset) return close();
  if (e) return refuse_request(read_error(e));
  keep_alive_ = parser_->get().keep_alive();
  request_.body = std::move(parser_->get().body());
  parser_.reset();
  ++answers_;
  watch();
  try {
    exchange_ = service_.handle(request_, shared_from_this());
  } catch (const HttpError& error) {
    respond(error_response(error));
  } catch (const std::exception& error) {
    respond(error_response(HttpError(500, fmt::format("[server] {}", error.what()))));
  }
  request_.body = {};
}

// The rest of the request is not read: the connection ends with the answer.
void Connection::refuse_request(const HttpError& e) {
  keep_alive_ = keep_alive_ || (parser_ && parser_->is_done() && parser_->get().keep_alive());
  respond(error_response(e));
}

bool Connection::answers_preflight() {
  if (config_.cors_origin.empty() || request_.method != "OPTIONS") return false;
  respond({.status = 204,
           .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                       {"Access-Control-Allow-Headers", "*, Authorization, Content-Type"},
                       {"Access-Control-Max-Age", "600"}}});
  return true;
}

// While a request is answered: a client that leaves cancels it.
void Connection::watch() {
  socket_.async_wait(Socket::wait_read, guarded([this, answer = answers_](ErrorCode e) {
                       if (e || !answering_ || answer != answers_) return;
                       if (departed()) return close();
                       // It sends its next request already, so look again by the clock.
                       watch_.expires_after(std::chrono::milliseconds(250));
                       watch_.async_wait(guarded([this, answer](ErrorCode stopped) {
                         if (!stopped && answering_ && answer == answers_) watch();
                       }));
                     }));
}

bool Connection::departed() {
  pollfd p{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
  return poll(&p, 1, 0) > 0;
}

// --- writing ---

std::string Connection::head(int status, const std::string& type) const {
  const auto reason = http::obsolete_reason(http::int_to_status(unsigned(status)));
  std::string h = fmt::format("HTTP/1.1 {} {}\r\nServer: hearth\r\n", status, text_of(reason));
  if (!type.empty()) h += "Content-Type: " + type + "\r\n";
  if (!config_.cors_origin.empty())
    h += "Access-Control-Allow-Origin: " + config_.cors_origin + "\r\n";
  return h + (keep_alive_ && !service_.closing() ? "" : "Connection: close\r\n");
}

void Connection::respond(HttpResponse r) {
  ++service_.metrics.responses[r.status];
  std::string h = head(r.status, r.body.empty() ? "" : r.type);
  for (const auto& [name, value] : r.headers) h += name + ": " + value + "\r\n";
  if (r.status != 204) h += fmt::format("Content-Length: {}\r\n", r.body.size());
  complete_ = true;
  send(h + "\r\n" + r.body);
}

void Connection::begin_events() {
  ++service_.metrics.responses[200];
  if (!chunked_) keep_alive_ = false;  // the end of the connection is the end of the stream
  send(head(200, "text/event-stream; charset=utf-8") + "Cache-Control: no-cache\r\n" +
       (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
}

bool Connection::send_event(std::string_view data) {
  if (closed_) return false;
  const size_t held = out_.size() + writing_.size() - written_;
  if (held + data.size() > size_t(config_.max_output_bytes)) {
    close();  // it reads more slowly than it is written to
    return false;
  }
  const std::string event = fmt::format("data: {}\n\n", data);
  send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", event.size(), event) : event);
  return true;
}

void Connection::end_events() {
  if (closed_) return;
  complete_ = true;
  send(chunked_ ? "0\r\n\r\n" : "");
}

void Connection::send(std::string_view bytes) {
  out_ += bytes;
  if (writing_.empty()) write();
}

void Connection::write() {
  if (written_ == writing_.size()) {
    writing_.clear();
    written_ = 0;
    std::swap(writing_, out_);
    if (writing_.empty()) {
      write_deadline_.cancel();
      if (complete_) finished();
      return;
    }
  }
  deadline(write_deadline_, config_.write_seconds);
  socket_.async_write_some(net::buffer(writing_.data() + written_, writing_.size() - written_),
                           guarded([this](ErrorCode e, size_t count) { on_written(e, count); }));
}

void Connection::on_written(ErrorCode e, size_t count) {
  if (e) return close();
  written_ += count;
  write();
}

void Connection::finished() {
  answering_ = complete_ = false;
  exchange_.reset();
  watch_.cancel();
  out_ = {}, writing_ = {};  // a long answer's memory goes back
  if (!keep_alive_ || service_.closing()) return linger();
  next_request();
}

// Closing with bytes unread would take the answer back from a client that is still sending.
void Connection::linger() {
  ErrorCode ignored;
  socket_.shutdown(Socket::shutdown_send, ignored);
  deadline(read_deadline_, 2);
  discard();
}

void Connection::discard() {
  buffer_.consume(buffer_.size());
  socket_.async_read_some(buffer_.prepare(read_size),
                          guarded([this](ErrorCode e, size_t) { e ? close() : discard(); }));
}

void Connection::deadline(net::steady_timer& timer, double seconds) {
  timer.expires_after(as_duration(seconds));
  timer.async_wait(guarded([this](ErrorCode stopped) {
    if (!stopped) close();
  }));
}

void Connection::close() {
  if (std::exchange(closed_, true)) return;
  if (exchange_) std::exchange(exchange_, nullptr)->leave();
  ErrorCode ignored;
  socket_.close(ignored);
  read_deadline_.cancel();
  write_deadline_.cancel();
  watch_.cancel();
}

}  // namespace hearth
