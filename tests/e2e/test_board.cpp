// hearth board and --board with the real program: a run is followed while it trains, browsers come,
// sleep and come back, and nothing that lies in a folder breaks the answers. hearth plot.
#include <fcntl.h>
#include <stdlib.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <set>
#include <thread>

#include "e2e/command.h"
#include "e2e/http_client.h"

namespace hearth {
namespace {

using nlohmann::json;

struct Sse {
  std::string id, event, data;
};

// An event stream, read event by event.
class Events {
 public:
  Events(int port, const std::string& path, const std::string& headers = "", int buffer = 0)
      : client_(port, buffer) {
    client_.request("GET", path, "", headers);
  }
  Reply head() { return client_.head(); }
  // The next event that is no comment. Throws after 30 s without one.
  Sse next() {
    for (;;) {
      size_t end;
      while ((end = text_.find("\n\n")) == text_.npos) {
        const std::string piece = client_.chunk();
        if (piece.empty()) throw std::runtime_error("the stream has ended");
        text_ += piece;
      }
      Sse e;
      for (size_t at = 0; at < end;) {
        const size_t stop = text_.find('\n', at);
        const std::string line = text_.substr(at, stop - at);
        if (line.starts_with("id: ")) e.id = line.substr(4);
        if (line.starts_with("event: ")) e.event = line.substr(7);
        if (line.starts_with("data: ")) e.data = line.substr(6);
        at = stop + 1;
      }
      text_.erase(0, end + 2);
      if (!e.data.empty()) return e;
    }
  }

 private:
  HttpClient client_;
  std::string text_;
};

class Board : public testing::Test {
 protected:
  void SetUp() override { fs::create_directories(runs_); }
  ~Board() override {
    for (const pid_t pid : {board_, training_})
      if (pid > 0) kill(pid, SIGKILL), wait_for(pid);
  }

  void start_board(const Arguments& flags = {}) {
    board_ = start(folder_, Arguments{"board", runs_.string(), "--port", "0"} + flags, "board");
    port_ = port_in("board");
  }
  // The port that a program has said in its stderr.
  int port_in(const std::string& name) {
    const std::string mark = " is on http://127.0.0.1:";
    int port = 0;
    eventually([&] {
      const fs::path file = folder_ / (name + ".err");
      const std::string err = fs::exists(file) ? read_file(file) : "";
      const size_t at = err.find(mark);
      if (at == err.npos || err.find('\n', at) == err.npos) return false;
      port = std::stoi(err.substr(at + mark.size()));
      return true;
    });
    return port;
  }
  template <class F>
  void eventually(F done) {
    for (int i = 0; i < 6000; ++i) {
      if (done()) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    }
    FAIL() << "never came";
  }
  Reply ask(const std::string& path, const std::string& headers = "",
            const std::string& method = "GET") const {
    HttpClient c(port_);
    c.request(method, path, "", headers);
    return c.reply();
  }
  json get(const std::string& path) const {
    const Reply r = ask(path);
    EXPECT_EQ(r.status, 200) << r.body;
    return r.json();
  }
  json run_named(const std::string& id) const {
    const json list = get("/api/runs");
    for (const json& r : list["runs"])
      if (r["id"] == id) return r;
    return json::object();
  }
  void write_run(const std::string& id, const std::string& log) const {
    fs::create_directories(runs_ / id);
    write_file_atomic(runs_ / id / "config.toml", "steps = 10\n");
    write_file_atomic(runs_ / id / "log.jsonl", log);
  }
  void append(const std::string& id, const std::string& text) const {
    std::ofstream(runs_ / id / "log.jsonl", std::ios::app | std::ios::binary) << text;
  }
  pid_t train(const std::string& id, int64_t steps, const Arguments& more = {}) {
    write_chain(folder_ / "train.bin", 20000, 1);
    return start(folder_, tiny_run(folder_ / "train.bin", runs_ / id, steps) + more, "train");
  }

  Folder folder_;
  const fs::path runs_ = folder_ / "runs";
  pid_t board_ = 0, training_ = 0;
  int port_ = 0;
};

std::vector<json> lines_of(const fs::path& file) {
  std::vector<json> lines;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) lines.push_back(json::parse(line));
  return lines;
}

TEST_F(Board, FollowsARunAndMissesNothing) {
  start_board();
  EXPECT_TRUE(get("/api/runs")["runs"].empty());
  training_ = train("tiny", 400);
  eventually([&] { return run_named("tiny").value("step", 0) >= 5; });
  const json begun = get("/api/runs/tiny/series?keys=loss,ms");
  std::vector<double> steps = begun["series"]["loss"]["x"];
  std::vector<double> losses = begun["series"]["loss"]["mean"];
  size_t timed = begun["series"]["ms"]["x"].size();
  std::string id = begun["offset"]["log"].dump() + "," + begun["offset"]["perf"].dump();
  // A browser that leaves again and again, and says where it was.
  for (int visit = 0; steps.size() < 400 || timed < 400; ++visit) {
    ASSERT_LT(visit, 1000);
    const bool by_query = visit == 0;
    const size_t comma = id.find(',');
    Events events(
        port_,
        "/api/runs/tiny/events" +
            (by_query ? "?log=" + id.substr(0, comma) + "&perf=" + id.substr(comma + 1) : ""),
        by_query ? "" : "Last-Event-ID: " + id + "\r\n");
    ASSERT_EQ(events.head().headers.at("content-type"), "text/event-stream; charset=utf-8");
    for (int i = 0; i < 40 && (steps.size() < 400 || timed < 400); ++i) {
      const Sse e = events.next();
      if (!e.event.empty()) continue;  // the run's state
      id = e.id;
      const json data = json::parse(e.data), line = data["line"];
      if (data["file"] == "log" && line.contains("loss"))
        steps.push_back(line["step"]), losses.push_back(line["loss"]);
      timed += data["file"] == "perf" && line.contains("ms");
    }
  }
  EXPECT_EQ(wait_for(std::exchange(training_, 0)), 0);
  std::vector<double> logged_steps, logged;
  for (const json& line : lines_of(runs_ / "tiny" / "log.jsonl"))
    if (line.contains("loss")) logged_steps.push_back(line["step"]), logged.push_back(line["loss"]);
  EXPECT_EQ(steps, logged_steps);
  EXPECT_EQ(losses, logged);
  EXPECT_EQ(timed, 400u);
  const json whole = get("/api/runs/tiny/series?keys=loss&points=20000")["series"]["loss"];
  EXPECT_EQ(whole["x"], logged_steps);
  EXPECT_EQ(whole["mean"], logged);
  // The list of runs may be a moment old.
  for (int i = 0; i < 100 && run_named("tiny")["state"] == "running"; ++i)
    std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_EQ(run_named("tiny")["state"], "finished");
  EXPECT_EQ(run_named("tiny")["task"], "pretrain");
  const json details = get("/api/runs/tiny");
  EXPECT_EQ(details["config"]["steps"], 400);
  EXPECT_TRUE(details["checkpoints"].back()["latest"].get<bool>());
  kill(board_, SIGTERM);
  EXPECT_EQ(wait_for(std::exchange(board_, 0)), 0);
}

TEST_F(Board, TellsOfALogThatWasCut) {
  write_run("r", "{\"step\":1,\"loss\":1}\n{\"step\":2,\"loss\":2}\n");
  start_board();
  Events events(port_, "/api/runs/r/events");
  EXPECT_EQ(events.head().status, 200);
  append("r", "{\"step\":3,\"loss\":3}\n");
  Sse e = events.next();
  while (!e.event.empty()) e = events.next();
  EXPECT_EQ(json::parse(e.data)["line"]["step"], 3);
  fs::resize_file(runs_ / "r" / "log.jsonl", 20);
  while (e.event != "reset") e = events.next();
  EXPECT_EQ(json::parse(e.data)["file"], "log");
  EXPECT_THROW(events.next(), std::runtime_error) << "the browser reads the series again";
  EXPECT_EQ(get("/api/runs/r/series?keys=loss")["series"]["loss"]["x"], std::vector<int>{1});
  // An offset beyond the end of the file is the same.
  Events late(port_, "/api/runs/r/events", "Last-Event-ID: 1000,0\r\n");
  late.head();
  EXPECT_EQ(late.next().event, "reset");
}

TEST_F(Board, AsksForItsKey) {
  write_run("r", "{\"step\":1,\"loss\":1}\n");
  start_board({"--api-key", "sk-board"});
  for (const char* page : {"/", "/app.js", "/app.css", "/health"})
    EXPECT_EQ(ask(page).status, 200) << page;
  for (const char* path : {"/api/info", "/api/runs", "/api/runs/r", "/api/runs/r/series",
                           "/api/runs/r/events", "/api/nowhere", "/nowhere"}) {
    EXPECT_EQ(ask(path).status, 401) << path;
    EXPECT_EQ(ask(path, "Authorization: Bearer wrong\r\n").status, 401) << path;
  }
  const std::string key = "Authorization: Bearer sk-board\r\n";
  EXPECT_EQ(ask("/api/info", key).json()["pages"], std::vector<std::string>{"runs"});
  EXPECT_EQ(ask("/api/runs", key).json()["runs"].size(), 1u);
  EXPECT_EQ(ask("/nowhere", key).status, 404);
  Events events(port_, "/api/runs/r/events", key);
  EXPECT_EQ(events.head().status, 200);
}

TEST_F(Board, IsReadOnlyAndForItsOwnPages) {
  write_run("r", "{\"step\":1,\"loss\":1}\n");
  start_board();
  for (const char* method : {"POST", "PUT", "DELETE", "PATCH"})
    EXPECT_EQ(ask("/api/runs/r", "", method).status, 405) << method;
  EXPECT_EQ(ask("/api/runs", "Origin: https://page.example\r\n").status, 403);
  const Reply page = ask("/");
  EXPECT_NE(page.headers.at("content-security-policy").find("default-src 'none'"),
            std::string::npos);
  EXPECT_EQ(page.headers.at("x-content-type-options"), "nosniff");
  const Reply again = ask("/", "If-None-Match: " + page.headers.at("etag") + "\r\n");
  EXPECT_EQ(again.status, 304);
  EXPECT_EQ(ask("/api/runs").headers.at("x-content-type-options"), "nosniff");
  HttpClient head(port_);
  head.request("HEAD", "/api/runs");
  EXPECT_EQ(head.head().status, 200);
  head.request("GET", "/health");
  EXPECT_EQ(head.reply().json()["status"], "ok");
}

TEST_F(Board, HostileFoldersStayText) {
  const std::vector<std::string> names = {"<img src=x onerror=alert(1)>", "\"},{\"id\":\"x",
                                          "line\nbreak", "a b/%2e%2e", "ünï/код"};
  for (const std::string& name : names)
    write_run(name, "{\"step\":1,\"loss\":1,\"<b>\\\"\":2}\n\xff\xfe\n{\"step\":\n" +
                        std::string(3000000, '[') + "\n{\"step\":2,\"loss\":NaN}\n");
  fs::create_directory_symlink("/", runs_ / "root");
  start_board();
  std::set<std::string> ids;
  const json list = get("/api/runs");
  for (const json& r : list["runs"]) ids.insert(r["id"].get<std::string>());
  EXPECT_EQ(ids, std::set(names.begin(), names.end()));
  for (const std::string& name : names) {
    std::string path = "/api/runs/";
    for (const char c : name) {
      char hex[4];
      snprintf(hex, sizeof hex, "%%%02X", static_cast<unsigned char>(c));
      path += hex;
    }
    const json j = get(path);
    EXPECT_EQ(j["run"]["id"], name);
    EXPECT_EQ(j["run"]["trouble"], "log.jsonl has 3 lines that cannot be read");
    EXPECT_EQ(get(path + "/series?keys=loss")["series"]["loss"]["mean"], json::parse("[1,null]"));
  }
  for (const char* path : {"/api/runs/root", "/api/runs/root%2Fetc", "/api/runs/..",
                           "/api/runs/..%2F..%2Fetc", "/api/runs/%00", "/api/runs/%zz"})
    EXPECT_EQ(ask(path).status, 404) << path;
}

// The browser gets a bounded number of bytes however long the run is, and exact ones when it zooms.
TEST_F(Board, AMillionStepsAreAFewKilobytes) {
  constexpr int64_t steps = 1000000;
  std::string log;
  for (int64_t i = 1; i <= steps; ++i)
    log += "{\"step\":" + std::to_string(i) +
           ",\"loss\":" + (i == 654321 ? "-7" : std::to_string(i % 1000)) + "}\n";
  write_run("long", log);
  start_board();
  const Reply r = ask("/api/runs/long/series?keys=loss&points=2000");
  EXPECT_LT(r.body.size(), 200000u);
  const json s = r.json()["series"]["loss"];
  EXPECT_TRUE(s["decimated"].get<bool>());
  EXPECT_EQ(s["x"].size(), 2000u);
  EXPECT_EQ(s["x"].back(), steps);
  EXPECT_EQ(*std::ranges::min_element(s["min"]), -7);
  EXPECT_EQ(*std::ranges::max_element(s["max"]), 999);
  const json near = get("/api/runs/long/series?keys=loss&from=654300&to=654399")["series"]["loss"];
  EXPECT_FALSE(near["decimated"].get<bool>());
  EXPECT_EQ(near["x"].size(), 100u);
  EXPECT_EQ(near["mean"][21], -7);
  append("long", "{\"step\":1000001,\"loss\":1}\n");
  const json more = get("/api/runs/long/series?keys=loss&points=50");
  EXPECT_EQ(more["series"]["loss"]["x"].back(), steps + 1);
  EXPECT_EQ(more["offset"]["log"], fs::file_size(runs_ / "long" / "log.jsonl"));
  EXPECT_LT(ask("/api/runs/long").body.size(), 20000u);
}

// One browser reads, another sleeps and later reads too: both get every line, and the board holds
// little of it for the one that sleeps.
TEST_F(Board, ABrowserThatSleepsGetsEveryLineLater) {
  write_run("r", "{\"step\":0,\"loss\":0}\n");
  start_board({"--write-seconds", "600"});
  Events awake(port_, "/api/runs/r/events"), asleep(port_, "/api/runs/r/events", "", 4096);
  awake.head();
  asleep.head();
  constexpr int64_t count = 20000;
  std::string lines;
  for (int64_t i = 1; i <= count; ++i)  // the short ones make many events of few bytes
    lines += "{\"step\":" + std::to_string(i) +
             (i % 2 ? "}\n" : ",\"text\":\"" + std::string(400, 'x') + "\"}\n");
  append("r", lines);
  for (Events* events : {&awake, &asleep}) {
    int64_t expected = 1;
    while (expected <= count) {
      const Sse e = events->next();
      if (!e.event.empty()) continue;
      ASSERT_EQ(json::parse(e.data)["line"]["step"], expected);
      ++expected;
    }
  }
  std::ifstream status("/proc/" + std::to_string(board_) + "/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:") && !HEARTH_SANITIZED) {
      EXPECT_LT(std::stol(line.substr(6)), 200000) << "KiB";
    }
}

TEST_F(Board, BesideTrainingItIsOneFlag) {
  training_ = train("mine", 100000000, {"--board", "0"});
  port_ = port_in("train");
  eventually([&] { return run_named("mine").value("step", 0) >= 3; });
  EXPECT_EQ(run_named("mine")["state"], "running");
  Events events(port_, "/api/runs/mine/events");
  EXPECT_EQ(events.head().status, 200);
  Sse e = events.next();
  while (!e.event.empty()) e = events.next();
  EXPECT_EQ(json::parse(e.data).at("line").contains("step"), true);
  kill(training_, SIGTERM);
  EXPECT_EQ(wait_for(std::exchange(training_, 0)), 128 + SIGTERM);
  EXPECT_THROW(ask("/health"), std::runtime_error);
}

TEST_F(Board, ChangesNothingThatIsTrained) {
  EXPECT_EQ(wait_for(train("with", 20, {"--board", "0"})), 0);
  EXPECT_EQ(wait_for(train("without", 20)), 0);
  EXPECT_EQ(read_file(runs_ / "with" / "log.jsonl"), read_file(runs_ / "without" / "log.jsonl"));
  EXPECT_EQ(read_file(runs_ / "with" / "latest" / "model.safetensors"),
            read_file(runs_ / "without" / "latest" / "model.safetensors"));
}

TEST_F(Board, SaysWhatItCannotDo) {
  expect_error(run(folder_, {"board", (folder_ / "nowhere").string()}), 1, "no such folder");
  expect_error(run(folder_, {"board", runs_.string(), "--port", "70000"}), 2, "--port");
  start_board();
  expect_error(run(folder_, {"board", runs_.string(), "--port", std::to_string(port_)}), 1,
               "choose another --port");
  const Ran r = run(folder_, tiny_run(folder_ / "none.bin", runs_ / "r", 1) +
                                 Arguments{"--board", std::to_string(port_)});
  EXPECT_NE(r.status, 0);
}

// --- plots ---

TEST_F(Board, PlotsRuns) {
  EXPECT_EQ(wait_for(train("a", 20)), 0);
  EXPECT_EQ(wait_for(train("b", 20, {"--seed", "2"})), 0);
  const std::string a = (runs_ / "a").string(), b = (runs_ / "b").string();
  const fs::path file = folder_ / "x.svg";
  Ran r = run(folder_, {"plot", a, b, "--out", file.string(), "--x", "tokens", "--log"});
  EXPECT_EQ(r.status, 0) << r.err;
  const std::string svg = read_file(file);
  EXPECT_TRUE(svg.starts_with("<svg"));
  EXPECT_NE(svg.find("a: loss"), svg.npos);
  EXPECT_NE(svg.find("b: loss"), svg.npos);
  EXPECT_NE(svg.find(">tokens<"), svg.npos);
  EXPECT_EQ(r.out, "wrote " + file.string() + " with 2 curves\n");
  expect_error(run(folder_, {"plot", a, "--out", file.string()}), 1, "--force");
  expect_error(run(folder_, {"plot", folder_ / "none", "--out", file.string()}), 1,
               "none] expected a run folder with a log.jsonl, got none");
  expect_error(run(folder_, {"plot", a, "--out", folder_ / "no/a.svg"}), 1,
               "the folder " + (folder_ / "no").string() + " does not exist");
  expect_error(run(folder_, {"plot", a, "--out", "x.png"}), 2, ".svg");
  expect_error(run(folder_, {"plot", a, "--keys", "nothing"}), 1, "loss, lr");
  expect_error(run(folder_, {"plot", a, "--x", "day"}), 2, "step, tokens or time");
  expect_error(run(folder_, {"plot", folder_.path().string()}), 1, "log.jsonl");
  r = run(folder_, {"plot", a, "--keys", "loss,gradnorm"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.err.find("has not logged gradnorm"), r.err.npos) << r.err;
  r = run(folder_, {"plot", a, "--keys", "loss,grad_norm,ms", "--x", "time"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(">grad_norm<"), r.out.npos);
  EXPECT_NE(r.out.find(">ms<"), r.out.npos);
  r = run(folder_, {"plot", a, "--terminal"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find("\xe2\xa0"), r.out.npos) << "braille";
}

// What a command writes to stderr if that is a terminal.
std::string on_terminal(const Arguments& args) {
  const int terminal = posix_openpt(O_RDWR | O_NOCTTY);
  grantpt(terminal);
  unlockpt(terminal);
  const std::string name = ptsname(terminal);
  std::vector<char*> argv{const_cast<char*>(HEARTH_BINARY)};
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    dup2(open(name.c_str(), O_RDWR | O_NOCTTY), 2);
    dup2(open("/dev/null", O_RDWR), 1);
    setenv("HEARTH_DEVICE", "cpu", 0);
    setenv("LC_ALL", "C.UTF-8", 1);
    execv(HEARTH_BINARY, argv.data());
    _exit(127);
  }
  std::string text;
  char bytes[4096];
  for (ssize_t n; (n = read(terminal, bytes, sizeof bytes)) > 0;) text.append(bytes, size_t(n));
  close(terminal);
  EXPECT_EQ(wait_for(pid), 0) << text;
  return text;
}

TEST_F(Board, ARunEndsWithItsCurve) {
  write_chain(folder_ / "train.bin", 20000, 1);
  const Arguments args = tiny_run(folder_ / "train.bin", runs_ / "r", 30);
  const std::string text = on_terminal(args);
  EXPECT_NE(text.find("\xe2\xa0"), text.npos) << text;
  EXPECT_NE(text.find("loss"), text.npos);
  // Not where stderr is a file.
  const Ran r = run(folder_, tiny_run(folder_ / "train.bin", runs_ / "s", 30));
  EXPECT_EQ(r.err.find("\xe2\xa0"), r.err.npos);
}

}  // namespace
}  // namespace hearth
