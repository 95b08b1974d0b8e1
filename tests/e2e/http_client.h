// A client on plain sockets, which can be slow, break the protocol or disconnect at will.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cctype>
#include <cerrno>
#include <cstdint>
#include <map>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>

namespace hearth {

struct Reply {
  int status = 0;
  std::map<std::string, std::string> headers = {};  // names in lower case
  std::string body = {};

  nlohmann::json json() const { return nlohmann::json::parse(body); }
  std::string error(const char* field) const { return json().at("error").at(field); }
};

class HttpClient {
 public:
  explicit HttpClient(int port, int receive_buffer = 0) : fd_(socket(AF_INET, SOCK_STREAM, 0)) {
    if (receive_buffer > 0)
      setsockopt(fd_, SOL_SOCKET, SO_RCVBUF, &receive_buffer, sizeof receive_buffer);
    sockaddr_in to{};
    to.sin_family = AF_INET, to.sin_port = htons(uint16_t(port));
    to.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    if (connect(fd_, reinterpret_cast<sockaddr*>(&to), sizeof to) != 0)
      throw std::runtime_error("no connection");
  }
  ~HttpClient() { leave(); }
  HttpClient(HttpClient&& o) noexcept : fd_(std::exchange(o.fd_, -1)), held_(std::move(o.held_)) {}
  HttpClient(const HttpClient&) = delete;
  HttpClient& operator=(const HttpClient&) = delete;

  void leave() {
    if (fd_ >= 0) close(std::exchange(fd_, -1));
  }
  // Closes with a reset instead of an end of stream, like a process killed with unread bytes.
  void resets() {
    const linger at_once{.l_onoff = 1, .l_linger = 0};
    setsockopt(fd_, SOL_SOCKET, SO_LINGER, &at_once, sizeof at_once);
    leave();
  }
  void says_no_more() { shutdown(fd_, SHUT_WR); }
  // False: the server reset the connection, as it may when it rejects a request.
  bool send(const std::string& bytes) {
    for (size_t at = 0; at < bytes.size();) {
      const ssize_t n = ::send(fd_, bytes.data() + at, bytes.size() - at, MSG_NOSIGNAL);
      if (n <= 0) return false;
      at += size_t(n);
    }
    return true;
  }
  void request(const std::string& method, const std::string& path, const std::string& body = "",
               const std::string& headers = "") {
    send(method + " " + path + " HTTP/1.1\r\nHost: localhost\r\n" + headers +
         (body.empty() ? ""
                       : "Content-Type: application/json\r\nContent-Length: " +
                             std::to_string(body.size()) + "\r\n") +
         "\r\n" + body);
  }

  // Reads more bytes into held_; false at the end of the stream or after 30 s without data.
  bool fill() {
    pollfd p{.fd = fd_, .events = POLLIN, .revents = 0};
    if (poll(&p, 1, 30000) <= 0) return false;
    char bytes[65536];
    const ssize_t n = recv(fd_, bytes, sizeof bytes, 0);
    if (n <= 0) return false;
    held_.append(bytes, size_t(n));
    return true;
  }
  // Whether the server closes the connection; data that it sends before that is ignored.
  bool ends() {
    while (fill()) held_.clear();
    char byte;
    return recv(fd_, &byte, 1, MSG_DONTWAIT) == 0 || errno == ECONNRESET;
  }
  // All remaining data.
  std::string rest() {
    while (fill()) continue;
    return std::exchange(held_, {});
  }
  std::string until(const std::string& mark) {
    size_t at;
    while ((at = held_.find(mark)) == std::string::npos)
      if (!fill()) throw std::runtime_error("the stream ended before " + mark + ": " + held_);
    return take(at + mark.size());
  }
  std::string exactly(size_t count) {
    while (held_.size() < count)
      if (!fill()) throw std::runtime_error("the stream ended early");
    return take(count);
  }

  Reply reply() {
    Reply r = head();
    if (r.headers.contains("content-length")) {
      r.body = exactly(std::stoul(r.headers["content-length"]));
    } else if (r.headers.contains("transfer-encoding")) {
      for (std::string piece; !(piece = chunk()).empty();) r.body += piece;
    } else if (r.status != 204 && r.status != 304 && r.status != 100) {
      while (fill()) continue;
      r.body = std::exchange(held_, {});
    }
    return r;
  }
  Reply head() {
    std::string text = until("\r\n\r\n");
    Reply r;
    r.status = std::stoi(text.substr(9, 3));
    for (size_t at = text.find("\r\n") + 2; at + 2 < text.size();) {
      const size_t end = text.find("\r\n", at), colon = text.find(':', at);
      std::string name = text.substr(at, colon - at);
      for (char& c : name) c = char(std::tolower(static_cast<unsigned char>(c)));
      r.headers[name] = text.substr(colon + 2, end - colon - 2);
      at = end + 2;
    }
    return r;
  }
  std::string chunk() {
    const size_t size = std::stoul(until("\r\n"), nullptr, 16);
    const std::string piece = exactly(size);
    exactly(2);
    return piece;
  }

 private:
  std::string take(size_t count) {
    std::string s = held_.substr(0, count);
    held_.erase(0, count);
    return s;
  }
  int fd_;
  std::string held_;
};

}  // namespace hearth
