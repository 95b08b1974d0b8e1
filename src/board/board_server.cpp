#include "board/board_server.h"

#include <pthread.h>
#include <signal.h>
#include <sys/resource.h>

#include <set>

#include "board/pages.h"
#include "board/run_board.h"
#include "board/run_events.h"
#include "formats/json.h"
#include "http/url.h"

namespace hearth::inline board {
namespace {

constexpr size_t most_streams = 256;  // of events, at once

class BoardHandler : public HttpHandler {
 public:
  BoardHandler(const HttpConfig& config, const std::filesystem::path& root, const HttpPlace& place)
      : access_(config, place.loopback),
        bodies_(config.pending_bytes()),
        place_(place),
        board_(root) {}

  const AccessCheck& access() const override { return access_; }
  HttpCounters& counters() override { return counters_; }
  ByteBudget& bodies() override { return bodies_; }

  void check_head(const HttpRequest& r) const override {
    const bool open = r.path == "/health" || is_page(r.path);
    if (!open) access_.check_key(r);  // first, so that clients without the key learn nothing
    if (!open && r.path != "/api/info") RunBoard::target_of(r);
    if (r.method != "GET" && !r.is_head())
      throw HttpError(405, fmt::format("[method] the board is read-only: expected GET, got {}",
                                       in_quotes(r.method.substr(0, 16))));
    if (closing_) throw HttpError(503, "[server] the server is shutting down");
  }

  std::optional<HttpResponse> answer(const HttpRequest& r) override {
    if (is_page(r.path)) return page_response(r);
    if (r.path == "/health") return api_response(R"({"status":"ok"})");
    if (r.path == "/api/info") return info_response({"runs"}, board_.root_name());
    return {};
  }

  BeginAnswer prepare(const HttpRequest& r, const std::stop_token&) override {
    const RunBoard::Target target = RunBoard::target_of(r);
    if (target.part == "events" && !r.is_head()) return open_events(r, board_.find(target.id));
    return [answer = board_.answer(r)](const std::shared_ptr<Client>& client) {
      client->respond(answer);
      return std::shared_ptr<OpenAnswer>();
    };
  }

  void close() override {
    closing_ = true;
    cancel_all();
  }
  bool closing() const override { return closing_; }
  void cancel_all() override {
    for (const auto& stream : std::set(streams_)) stream->finish();
  }
  int64_t running() const override { return int64_t(streams_.size()); }

 private:
  // Last-Event-ID, or the query's offsets. A stream without either begins at the ends of the files.
  static LogOffsets begin_of(const HttpRequest& r, const FoundRun& run) {
    if (const auto last = LogOffsets::parse(r.last_event_id)) return *last;
    LogOffsets o;
    constexpr const char* names[] = {"log", "perf", "samples"};
    for (size_t i = 0; i < LogOffsets::files; ++i) {
      std::error_code none;
      const auto size =
          std::filesystem::file_size(run.path / (std::string(names[i]) + ".jsonl"), none);
      const double now = none ? 0 : double(size);
      o.at[i] = uint64_t(query_number(r.query, names[i], now, 0, 1e15));
    }
    return o;
  }

  BeginAnswer open_events(const HttpRequest& r, const FoundRun& run) {
    return [this, run, from = begin_of(r, run)](
               const std::shared_ptr<Client>& client) -> std::shared_ptr<OpenAnswer> {
      if (closing_ || streams_.size() >= most_streams)
        throw HttpError(503, "[events] too many event streams are open; close some pages");
      const auto stream = std::make_shared<RunEvents>(
          RunEvents::Place{.http = place_,
                           .summary = [this, run] { return board_.summary(run); },
                           .ended = [this](const auto& s) { streams_.erase(s); }},
          run.path, from, client);
      streams_.insert(stream);
      stream->start();
      return stream;
    };
  }

  const AccessCheck access_;
  HttpCounters counters_;
  ByteBudget bodies_;
  const HttpPlace place_;
  RunBoard board_;
  std::set<std::shared_ptr<RunEvents>> streams_;
  bool closing_ = false;
};

// Threads that are started meanwhile receive no signals, which are for the thread that trains.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t all;
    sigfillset(&all);
    pthread_sigmask(SIG_BLOCK, &all, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

HttpServer::MakeHandler handler_of(const HttpConfig& config, const std::filesystem::path& root) {
  return [config, root](const HttpPlace& place) {
    return std::make_unique<BoardHandler>(config, root, place);
  };
}

}  // namespace

void run_board(const HttpConfig& config, const std::filesystem::path& root,
               const std::function<void(const std::string&)>& listening) {
  config.check();
  HttpServer server(config, {.command = "board", .exposes = "read the runs"},
                    handler_of(config, root));
  listening(server.url());
  server.run();
}

BoardThread::BoardThread(const HttpConfig& config, const std::filesystem::path& run) {
  config.check();
  const SignalsBlocked block;
  server_ = std::make_unique<HttpServer>(config,
                                         HttpServerSpec{.command = "--board",
                                                        .exposes = "read this run",
                                                        .remedy = "choose another port for --board",
                                                        .handles_signals = false},
                                         handler_of(config, run));
  url_ = server_->url();
  thread_ = std::thread([this] {
    setpriority(PRIO_PROCESS, 0, 5);  // on Linux of this thread only: training comes first
    server_->run();
  });
}

BoardThread::~BoardThread() {
  server_->stop();
  thread_.join();
}

}  // namespace hearth::inline board
