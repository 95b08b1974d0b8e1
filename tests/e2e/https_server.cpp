#include "e2e/https_server.h"

#include <netinet/in.h>
#include <openssl/ssl.h>
#include <poll.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <thread>

namespace hearth {
namespace {

class OpensslServer : public HttpsServer {
 public:
  OpensslServer(const std::filesystem::path& certificate,
                std::function<ServerReply(const ServerRequest&)> answer)
      : answer_(std::move(answer)), context_(SSL_CTX_new(TLS_server_method())) {
    signal(SIGPIPE, SIG_IGN);  // clients leave when they like
    const bool loaded =
        SSL_CTX_use_certificate_file(context_, certificate.c_str(), SSL_FILETYPE_PEM) == 1 &&
        SSL_CTX_use_PrivateKey_file(context_, certificate.c_str(), SSL_FILETYPE_PEM) == 1;
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof address;
    if (!loaded || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        listen(listener_, 16) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0)
      throw std::runtime_error("the test's server does not start");
    port_ = ntohs(address.sin_port);
    loop_ = std::thread([this] { serve(); });
  }

  ~OpensslServer() override {
    stop_ = true;
    loop_.join();
    for (std::thread& t : connections_) t.join();
    close(listener_);
    SSL_CTX_free(context_);
  }

  int port() const override { return port_; }

 private:
  void serve() {
    while (!stop_) {
      pollfd waiting{listener_, POLLIN, 0};
      if (poll(&waiting, 1, 50) <= 0) continue;
      const int fd = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
      if (fd >= 0) connections_.emplace_back([this, fd] { connection(fd); });
    }
  }

  void connection(int fd) {
    SSL* tls = SSL_new(context_);
    SSL_set_fd(tls, fd);
    if (SSL_accept(tls) == 1) {
      std::string text;
      char piece[4096];
      for (int n;
           text.find("\r\n\r\n") == text.npos && (n = SSL_read(tls, piece, sizeof piece)) > 0;)
        text.append(piece, size_t(n));
      ServerReply reply;
      {
        std::lock_guard lock(mutex_);
        reply = answer_(parse(text));
      }
      send(tls, reply);
      // A client that waits is left waiting, until it goes or the test ends.
      for (pollfd gone{fd, POLLIN, 0}; reply.hang && !stop_ && poll(&gone, 1, 50) == 0;) {}
      if (reply.cut_after < 0) SSL_shutdown(tls);
    }
    SSL_free(tls);
    close(fd);
  }

  static ServerRequest parse(const std::string& text) {
    ServerRequest r;
    std::istringstream lines(text);
    std::string method, line;
    lines >> method >> r.path;
    std::getline(lines, line);
    while (std::getline(lines, line) && line.size() > 1) {
      const size_t colon = line.find(": ");
      if (colon == line.npos) continue;
      std::string key = line.substr(0, colon);
      std::transform(key.begin(), key.end(), key.begin(),
                     [](unsigned char c) { return tolower(c); });
      r.headers[key] = line.substr(colon + 2, line.size() - colon - 3);  // less the \r
    }
    return r;
  }

  static void send(SSL* tls, const ServerReply& reply) {
    std::string text =
        "HTTP/1.1 " + std::to_string(reply.status) + " Reply\r\nConnection: close\r\n";
    if (reply.tells_length) text += "Content-Length: " + std::to_string(reply.body.size()) + "\r\n";
    for (const std::string& h : reply.headers) text += h + "\r\n";
    text += "\r\n" +
            reply.body.substr(0, reply.cut_after < 0 ? std::string::npos : size_t(reply.cut_after));
    for (size_t at = 0; at < text.size();) {
      const int n = SSL_write(tls, text.data() + at, int(text.size() - at));
      if (n <= 0) return;
      at += size_t(n);
    }
  }

  std::function<ServerReply(const ServerRequest&)> answer_;
  SSL_CTX* context_;
  int listener_ = -1, port_ = 0;
  std::atomic<bool> stop_{false};
  std::mutex mutex_;
  std::thread loop_;
  std::vector<std::thread> connections_;  // of loop_ alone, until it has ended
};

}  // namespace

std::unique_ptr<HttpsServer> start_https_server(
    const std::filesystem::path& certificate,
    std::function<ServerReply(const ServerRequest&)> answer) {
  return std::make_unique<OpensslServer>(certificate, std::move(answer));
}

}  // namespace hearth
