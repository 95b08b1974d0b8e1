#include "http/connection.h"

#include <poll.h>

#include <algorithm>
#include <boost/asio/post.hpp>

namespace hearth::inline http {
namespace {

namespace net = boost::asio;
namespace beast_http = boost::beast::http;

constexpr size_t read_size = 16 << 10;  // bytes per socket read
constexpr int send_buffer = 128 << 10;  // kernel buffer for a slow reader, in bytes
constexpr auto watch_tick = std::chrono::milliseconds(250);
constexpr double cancel_again = 0.05;             // seconds; see read_within()
constexpr int first_probe = 4, most_probes = 10;  // ticks until the first probe; maximum number

std::chrono::steady_clock::duration as_duration(double seconds) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(
      std::chrono::duration<double>(seconds));
}

std::string address_of(const Connection::Socket& socket) {
  boost::system::error_code e;
  const auto at = socket.remote_endpoint(e);
  if (e) return "";
  const std::string host = at.address().to_string();
  return fmt::format("{}:{}", at.address().is_v6() ? "[" + host + "]" : host, at.port());
}

HttpError too_many_bytes() {
  return HttpError(
      503,
      "[body] the server already holds --max-pending-bytes of request bodies; try again later");
}

HttpError too_late(const char* part) {
  return HttpError(
      408,
      fmt::format("[{0}] the {0} did not arrive within the server's limit, --{0}-seconds", part));
}

bool is_gone(const boost::system::error_code& e) {
  return e == beast_http::error::end_of_stream || e == beast_http::error::partial_message ||
         e == net::error::connection_reset;
}

}  // namespace

Connection::Connection(Socket socket, const ConnectionPlace& place)
    : socket_(std::move(socket)),
      place_(place),
      handler_(place.handler),
      config_(place.config),
      read_deadline_(socket_.get_executor()),
      write_deadline_(socket_.get_executor()),
      watch_(socket_.get_executor()),
      buffer_(size_t(config_.max_header_bytes) + read_size) {
  ++handler_.counters().connections;
  record_.client = address_of(socket_);
}

Connection::~Connection() { --handler_.counters().connections; }

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
  set_limits(*parser_, config_);
  read_within(config_.header_seconds);
  beast_http::async_read_header(socket_, buffer_, *parser_,
                                guarded([this](ErrorCode e, size_t) { on_head(e); }));
}

void Connection::on_head(ErrorCode e) {
  read_deadline_.cancel();
  if (e == beast_http::error::end_of_stream || e == net::error::connection_reset) return close();
  ++answers_;
  answering_ = true, complete_ = keep_alive_ = streams_ = false;
  probes_ = ticks_ = 0;
  const auto method = parser_->get().method_string();
  request_ = {.method = std::string(method.data(), method.size()), .path = ""};
  record_ = {.client = std::move(record_.client)};
  if (e == net::error::operation_aborted) return refuse(too_late("header"));
  if (e) return refuse(read_error(e));
  try {
    check_head();
  } catch (const HttpError& error) {
    // A request without a body is complete, so another may follow, unless its end is ambiguous.
    keep_alive_ = error.status != 400 && parser_->is_done() && parser_->get().keep_alive();
    respond(error_response(error));
  }
}

void Connection::check_head() {
  RequestHead head = hearth::read_head(*parser_);
  request_ = std::move(head.request);
  chunked_ = head.http11;
  handler_.access().check_browser(request_);
  if (handler_.access().is_preflight(request_)) return respond_preflight();
  handler_.check_head(request_);
  // Reject before the body is sent; the bytes are counted as they arrive.
  if (head.length && !handler_.bodies().fits(*head.length)) throw too_many_bytes();
  if (head.expects_continue) send("HTTP/1.1 100 Continue\r\n\r\n");
  read_within(config_.body_seconds);
  body_ = ByteBudget::Share(handler_.bodies());
  parser_->eager(true);
  read_body();
}

void Connection::read_body() {
  const std::string& body = parser_->get().body();
  // A string grows by doubling; a body within the limits must not be refused for it.
  const int64_t held =
      body.empty() ? 0 : std::min(int64_t(body.capacity()), config_.max_body_bytes);
  if (!body_.grow_to(held)) return refuse(too_many_bytes());
  if (parser_->is_done()) return on_body();
  beast_http::async_read_some(socket_, buffer_, *parser_, guarded([this](ErrorCode e, size_t) {
                                if (is_gone(e)) return close();
                                if (e == net::error::operation_aborted)
                                  return refuse(too_late("body"));
                                e ? refuse(read_error(e)) : read_body();
                              }));
}

// After this time the read in flight is cancelled, and its handler answers with 408. A read whose
// bytes have just arrived starts another one instead, so this repeats until the request is read.
void Connection::read_within(double seconds) {
  read_deadline_.expires_after(as_duration(seconds));
  read_deadline_.async_wait(guarded([this](ErrorCode stopped) {
    if (stopped || complete_ || !parser_ || parser_->is_done()) return;
    ErrorCode ignored;
    socket_.cancel(ignored);
    read_within(cancel_again);
  }));
}

void Connection::on_body() {
  read_deadline_.cancel();
  keep_alive_ = parser_->get().keep_alive();
  request_.arrived = std::chrono::steady_clock::now();
  answer_with([this] {
    handler_.check_head(request_);
    std::optional<HttpResponse> now = handler_.answer(request_);
    now ? respond(std::move(*now)) : prepare();
  });
}

// A worker gets copies of all inputs and posts the result back to the connection's thread.
void Connection::prepare() {
  struct Job {
    HttpRequest request;
    ByteBudget::Share bytes;
    std::stop_token departed;
  };
  departed_ = std::stop_source();
  auto job = std::make_shared<Job>(Job{request_, std::move(body_), departed_.get_token()});
  job->request.body = std::move(parser_->get().body());
  parser_.reset();
  watch();
  place_.workers.post([self = shared_from_this(), job = std::move(job), &handler = handler_,
                       executor = socket_.get_executor()]() mutable {
    const auto told = [](const HttpError& e) -> BeginAnswer {
      return [r = error_response(e)](const std::shared_ptr<Client>& client) {
        client->respond(r);
        return std::shared_ptr<OpenAnswer>();
      };
    };
    BeginAnswer result;
    try {
      result = handler.prepare(job->request, job->departed);
    } catch (const HttpError& e) { result = told(e); } catch (const std::exception& e) {
      result = told(HttpError(500, fmt::format("[server] {}", e.what())));
    }
    job.reset();  // free the body here, not on the network thread
    net::post(executor, [self = std::move(self), result = std::move(result)]() mutable {
      if (!self->closed_) self->on_prepared(result);
    });
  });
}

void Connection::on_prepared(const BeginAnswer& begin) {
  answer_with([&] { open_ = begin(shared_from_this()); });
}

// The whole request was read: an error is a normal answer, and the connection stays open.
template <class F>
void Connection::answer_with(F f) {
  try {
    f();
  } catch (const HttpError& e) { respond(error_response(e)); } catch (const std::exception& e) {
    respond(error_response(HttpError(500, fmt::format("[server] {}", e.what()))));
  }
}

// The rest of the request is not read: the connection closes after the answer.
void Connection::refuse(const HttpError& e) {
  read_deadline_.cancel();
  keep_alive_ = false;
  respond(error_response(e));
}

void Connection::respond_preflight() {
  keep_alive_ = parser_->is_done() && parser_->get().keep_alive();
  respond({.status = 204,
           .headers = {{"Access-Control-Allow-Methods", "GET, POST, OPTIONS"},
                       {"Access-Control-Allow-Headers", "*, Authorization, Content-Type"},
                       {"Access-Control-Max-Age", "600"}}});
}

// --- while a request is answered ---

// A client that disconnects cancels its request. The end of its stream alone does not mean that it
// has left: it may have closed its sending half and wait for the answer. So after a second the
// server sends a few meaningless bytes; the system of a client that has left answers with a reset.
void Connection::watch() {
  socket_.async_wait(Socket::wait_read, guarded([this, answer = answers_](ErrorCode e) {
                       if (e || !answering_ || answer != answers_) return;
                       pollfd p{.fd = socket_.native_handle(), .events = POLLRDHUP, .revents = 0};
                       poll(&p, 1, 0);
                       if (p.revents & (POLLERR | POLLHUP | POLLNVAL)) return close();
                       if (p.revents & POLLRDHUP) probe();
                       // More bytes or the end of the stream are there: check again after a delay.
                       watch_.expires_after(watch_tick);
                       watch_.async_wait(guarded([this, answer](ErrorCode stopped) {
                         if (!stopped && answering_ && answer == answers_) watch();
                       }));
                     }));
}

// The delay doubles with each probe. HTTP/1.0 has no bytes that can serve as a probe.
void Connection::probe() {
  if (complete_ || !chunked_ || probes_ == most_probes || ++ticks_ < first_probe << probes_) return;
  ++probes_, ticks_ = 0;
  if (streams_)
    send_comment();
  else
    send("HTTP/1.1 100 Continue\r\n\r\n");
}

void Connection::note_answer(const AnswerNote& note) { record_.answer = note; }

// --- writing ---

std::string Connection::head(int status, const std::string& type) const {
  const auto reason = beast_http::obsolete_reason(beast_http::int_to_status(unsigned(status)));
  std::string h = fmt::format("HTTP/1.1 {} {}\r\nServer: hearth\r\n", status,
                              std::string(reason.data(), reason.size()));
  if (!type.empty()) h += "Content-Type: " + type + "\r\n";
  if (!config_.cors_origin.empty())
    h += "Access-Control-Allow-Origin: " + config_.cors_origin + "\r\n";
  if (!keep_alive_ || handler_.closing()) return h + "Connection: close\r\n";
  return h + (chunked_ ? "" : "Connection: keep-alive\r\n");  // HTTP/1.0 closes without it
}

void Connection::respond(HttpResponse r) {
  ++handler_.counters().responses[r.status];
  record_.status = r.status;
  std::string h = head(r.status, r.body.empty() ? "" : r.type);
  for (const auto& [name, value] : r.headers) h += name + ": " + value + "\r\n";
  if (r.status != 204 && r.status != 304) h += fmt::format("Content-Length: {}\r\n", r.body.size());
  complete_ = true;
  send(h + "\r\n" + (request_.is_head() ? std::string() : r.body));
}

void Connection::begin_events() {
  ++handler_.counters().responses[200];
  record_.status = 200;
  streams_ = true;
  if (!chunked_) keep_alive_ = false;  // closing the connection ends the stream
  send(head(200, "text/event-stream; charset=utf-8") + "Cache-Control: no-cache\r\n" +
       (chunked_ ? "Transfer-Encoding: chunked\r\n\r\n" : "\r\n"));
}

bool Connection::send_event(const ServerEvent& e) {
  std::string text;
  if (!e.id.empty()) text += fmt::format("id: {}\n", e.id);
  if (!e.name.empty()) text += fmt::format("event: {}\n", e.name);
  return send_chunk(text + fmt::format("data: {}\n\n", e.data), e.echoes);
}

bool Connection::send_comment() { return send_chunk(": waiting\n\n"); }

bool Connection::send_chunk(std::string_view text, bool echoes) {
  if (closed_) return false;
  if (unsent() - echoed_ > size_t(config_.max_output_bytes)) {
    close();  // the client reads too slowly
    return false;
  }
  if (echoes) echoed_ += text.size();
  send(chunked_ ? fmt::format("{:x}\r\n{}\r\n", text.size(), text) : std::string(text));
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
    std::string().swap(writing_);  // frees the memory of a long echo; an assignment would keep it
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
  echoed_ -= std::min(echoed_, count);
  record_.bytes += int64_t(count);
  write();
}

void Connection::finished() {
  log_request();
  answering_ = complete_ = false;
  open_.reset();
  parser_.reset();
  body_ = {};
  watch_.cancel();
  if (!keep_alive_ || handler_.closing()) return linger();
  next_request();
}

void Connection::log_request() {
  if (!place_.log.enabled()) return;
  record_.method = request_.method;
  record_.path = request_.path;
  record_.milliseconds =
      std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - request_.arrived)
          .count();
  place_.log.add(record_);
}

// Closing with unread bytes would discard the answer for a client that is still sending.
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
  if (answering_) {
    if (record_.status == 0) record_.status = 499;
    log_request();
  }
  answering_ = false;
  departed_.request_stop();
  body_ = {};
  if (open_) std::exchange(open_, nullptr)->leave();
  ErrorCode ignored;
  socket_.close(ignored);
  read_deadline_.cancel();
  write_deadline_.cancel();
  watch_.cancel();
}

}  // namespace hearth::inline http
