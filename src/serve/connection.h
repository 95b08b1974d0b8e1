// Connection: one client's socket. It reads a request, hands it to the service, writes the answer,
// and again; every wait has a deadline and every buffer a bound.
#pragma once

#include <utility>  // Boost 1.74 uses it unsaid

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/beast/core/flat_buffer.hpp>
#include <boost/beast/http.hpp>
#include <optional>

#include "serve/service.h"

namespace hearth {

class Connection : public Client, public std::enable_shared_from_this<Connection> {
 public:
  using Socket = boost::asio::ip::tcp::socket;
  using ErrorCode = boost::system::error_code;

  Connection(Socket, Service&, const ServeConfig&);
  ~Connection() override;
  void start();
  bool answering() const { return answering_; }

  void respond(HttpResponse) override;
  void begin_events() override;
  bool send_event(std::string_view data) override;
  void end_events() override;

 private:
  void next_request();
  void read_head();
  void on_head(ErrorCode);
  void on_body(ErrorCode);
  void refuse_request(const HttpError&);
  bool answers_preflight();
  void watch();
  bool departed();
  std::string head(int status, const std::string& type) const;
  void send(std::string_view bytes);
  void write();
  void on_written(ErrorCode, size_t count);
  void finished();
  void linger();
  void discard();
  void deadline(boost::asio::steady_timer&, double seconds);
  void close();
  template <class F>
  auto guarded(
      F f);  // a handler that keeps the connection alive and does nothing once it is closed

  Socket socket_;
  Service& service_;
  const ServeConfig& config_;
  // Apart, since a client may owe its body while it is sent "100 Continue".
  boost::asio::steady_timer read_deadline_, write_deadline_;
  boost::asio::steady_timer watch_;
  boost::beast::flat_buffer buffer_;
  std::optional<boost::beast::http::request_parser<boost::beast::http::string_body>> parser_;
  HttpRequest request_;
  std::shared_ptr<Exchange> exchange_;
  std::string out_, writing_;  // waits; goes out, from written_ on
  size_t written_ = 0;
  uint64_t answers_ = 0;
  bool answering_ = false, complete_ = false;  // a response is due; all of it is in out_
  bool keep_alive_ = false, chunked_ = false, closed_ = false;
};

}  // namespace hearth
