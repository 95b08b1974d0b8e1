// hearth board: a dashboard of the runs under a folder, in the browser (docs/board.md).
#include "board/board_server.h"
#include "cli/commands.h"
#include "cli/flags.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

// The fields of HttpConfig that a server without request bodies uses, with the board's defaults.
struct BoardConfig {
  HttpConfig http = {.port = 8090, .max_connections = 256, .drain_seconds = 2};

  template <class V>
  void visit(V&& v) {
    http.visit_address(v);
  }
};

struct BoardFlags {
  std::string folder = "runs";
  FieldFlags<BoardConfig> config;
  bool json = false;
};

void run_board_command(const BoardFlags& f) {
  BoardConfig config;
  f.config.apply(config);
  config.http.check();
  if (!std::filesystem::is_directory(f.folder))
    fail(f.folder, "no such folder: name the folder of your runs, as in: hearth board runs");
  run_board(config.http, f.folder, [&](const std::string& url) {
    say("hearth: the board of {} is on {}\n", f.folder, url);
    if (!f.json) return;
    print_json({{"event", "ready"}, {"url", url}, {"folder", f.folder}});
    flush();
  });
}

}  // namespace

void add_board(CLI::App& app) {
  CLI::App* c = app.add_subcommand("board", "show the runs under a folder in the browser");
  auto f = std::make_shared<BoardFlags>();
  c->add_option("folder", f->folder, "folder of runs, or one run")->capture_default_str();
  f->config.add(*c, BoardConfig(), "Server");
  c->add_flag("--json", f->json, "print one JSON object on stdout when the board is ready");
  c->callback([f] { run_board_command(*f); });
}

}  // namespace hearth::inline cli
