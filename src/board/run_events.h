// RunEvents: the stream of one run's new log lines to one browser. Its place in each file is part
// of every event's id, so a browser that connects again continues where it was.
#pragma once

#include <array>
#include <chrono>
#include <memory>

#include "board/line_tail.h"
#include "http/handler.h"

namespace hearth::inline board {

// Offsets in log.jsonl, perf.jsonl and samples.jsonl.
struct LogOffsets {
  static constexpr size_t files = 3;
  std::array<uint64_t, files> at = {};

  std::string id() const;  // "120,64,0"
  // Reads "120,64" or "120,64,0"; nothing if it is something else.
  static std::optional<LogOffsets> parse(std::string_view);
};

// Used on the network thread, except for the reading of files, which workers do.
class RunEvents : public OpenAnswer, public std::enable_shared_from_this<RunEvents> {
 public:
  struct Place {  // must outlive the stream
    HttpPlace http;
    std::function<std::string()> summary;  // of the run, as JSON; called by workers
    std::function<void(const std::shared_ptr<RunEvents>&)> ended;
  };
  RunEvents(Place, const std::filesystem::path& run, const LogOffsets&, std::weak_ptr<Client>);

  void start();
  void leave() override;
  void finish();  // the server shuts down

 private:
  struct Event {
    std::string id, name, data;
  };
  struct Batch {
    std::vector<Event> events;
    bool more = false, reset = false;
  };
  void tick();
  Batch read();  // on a worker
  void read_file(size_t file, Batch&);
  void deliver(const std::shared_ptr<const Batch>&, size_t from);
  void end();

  const Place place_;
  std::weak_ptr<Client> client_;
  std::array<LineTail, LogOffsets::files> tails_;  // used by one worker at a time
  LogOffsets offsets_;                             // of the events read so far
  std::string summary_;                            // last one sent
  std::chrono::steady_clock::time_point sent_, looked_;
  bool ended_ = false;
};

}  // namespace hearth::inline board
