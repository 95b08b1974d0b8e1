// The HTTP server of the dashboard: as a command of its own (`hearth board`), or as a thread beside
// a training run (--board).
#pragma once

#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <thread>

#include "http/http_server.h"

namespace hearth::inline board {

// Serves the runs under `root` until SIGTERM or SIGINT. `listening` is called once with the URL.
void run_board(const HttpConfig&, const std::filesystem::path& root,
               const std::function<void(const std::string& url)>& listening);

// Serves the run in a folder, which need not exist yet, while the object lives.
class BoardThread {
 public:
  BoardThread(const HttpConfig&, const std::filesystem::path& run);
  ~BoardThread();
  BoardThread(const BoardThread&) = delete;
  BoardThread& operator=(const BoardThread&) = delete;

  const std::string& url() const { return url_; }

 private:
  std::unique_ptr<HttpServer> server_;
  std::string url_;
  std::thread thread_;
};

}  // namespace hearth::inline board
