// Connection: the socket of one client. It repeatedly reads a request, lets a worker prepare it and
// writes the answer. Every wait has a deadline and every buffer a limit.
#pragma once

#include <utility>  // Boost 1.74 needs it and does not include it

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http/read.hpp>
#include <optional>
#include <stop_token>

#include "http/handler.h"
#include "http/http_head.h"
#include "http/request_log.h"

namespace hearth::inline http {

// Objects shared by all connections; they outlive the connections.
struct ConnectionPlace {
  const HttpConfig& config;
  HttpHandler& handler;
  Workers& workers;
  RequestLog& log;
};

// A request passes these states in order; refuse() answers from any of them before answering:
//   next_request -> read_head -> on_head -> read_body -> on_body -> prepare -> on_prepared
//   -> respond, or begin_events .. end_events -> finished -> next_request or linger
class Connection : public Client, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using ErrorCode = boost::system::error_code;

  Connection(Socket, const ConnectionPlace&);
  ~Connection() override;
  void start();
  bool answering() const { return answering_; }

  void respond(HttpResponse) override;
  void begin_events() override;
  bool send_event(const ServerEvent&) override;
  bool send_comment() override;
  void end_events() override;
  size_t unsent() const override { return out_.size() + writing_.size() - written_; }
  void note_answer(const AnswerNote&) override;

 private:
  void next_request();
  void read_head();
  void on_head(ErrorCode);
  void check_head();
  void read_body();
  void read_within(double seconds);
  void on_body();
  void prepare();
  void on_prepared(const BeginAnswer&);
  template <class F>
  void answer_with(F);
  void refuse(const HttpError&);
  void respond_preflight();
  void watch();
  void probe();
  std::string head(int status, const std::string& type) const;
  bool send_chunk(std::string_view text, bool echoes = false);
  void send(std::string_view bytes);
  void write();
  void on_written(ErrorCode, size_t count);
  void finished();
  void log_request();
  void linger();
  void discard();
  void deadline(boost::asio::steady_timer&, double seconds);
  void close();
  // Wraps a handler: keeps the connection alive and does nothing once it is closed.
  template <class F>
  auto guarded(F f);

  Socket socket_;
  const ConnectionPlace place_;
  HttpHandler& handler_;
  const HttpConfig& config_;
  // Separate, because a client may still owe its body while it is sent "100 Continue".
  boost::asio::steady_timer read_deadline_, write_deadline_;
  boost::asio::steady_timer watch_;
  boost::beast::flat_buffer buffer_;
  std::optional<RequestParser> parser_;
  HttpRequest request_;               // without the body, which stays in the parser
  ByteBudget::Share body_;            // body bytes received so far
  std::stop_source departed_;         // stops the preparation when the client leaves
  std::shared_ptr<OpenAnswer> open_;  // the answer being produced
  std::string out_, writing_;         // pending output; output being written, from written_ on
  size_t written_ = 0;
  // Unsent bytes beyond max_output_bytes that are allowed for echoes; every sent byte uses one up.
  size_t echoed_ = 0;
  RequestRecord record_;  // log record of this request
  uint64_t answers_ = 0;
  int probes_ = 0, ticks_ = 0;                 // since the client closed its half; see watch()
  bool answering_ = false, complete_ = false;  // a response is due; it is complete in out_
  bool streams_ = false;                       // the response is an event stream that has started
  bool keep_alive_ = false, closed_ = false;
  bool chunked_ = false;  // the request is HTTP/1.1, so a stream is sent in chunks
};

}  // namespace hearth::inline http
