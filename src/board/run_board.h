// RunBoard: the answers of the dashboard's API about the runs under a folder. No sockets;
// read-only.
#pragma once

#include <chrono>
#include <filesystem>
#include <memory>
#include <string>

#include "board/run_list.h"
#include "board/run_store.h"
#include "http/http.h"

namespace hearth::inline board {

// Thread-safe. Errors are thrown as HttpError.
class RunBoard {
 public:
  explicit RunBoard(std::filesystem::path root) : root_(std::move(root)) {}

  // GET /api/runs and what is below it, except events.
  HttpResponse answer(const HttpRequest&);

  // "events" for /api/runs/ID/events.
  struct Target {
    std::string id;    // empty: the list of runs
    std::string part;  // "", "series", "events", ..
  };
  static Target target_of(const HttpRequest&);  // 404 for any other path
  FoundRun find(const std::string& id) const;   // 404 if there is none
  std::string summary(const FoundRun&);
  std::string root_name() const;

 private:
  std::string list();
  std::string details(const FoundRun&);
  std::string series(const FoundRun&, const HttpRequest&);
  std::string compare(const FoundRun&, const HttpRequest&);

  const std::filesystem::path root_;
  RunStores stores_;
  RunSummaries summaries_;
  std::mutex list_mutex_;
  std::string list_;  // the last list, which several browsers may get
  std::chrono::steady_clock::time_point listed_;
};

}  // namespace hearth::inline board
