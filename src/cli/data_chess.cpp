// hearth data chess: rows of the chess tasks from self-play positions, and prompts from puzzles.
#include "cli/commands.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "tasks/chess/dataset.h"
#include "tasks/chess/split.h"

namespace hearth::inline cli {
namespace {

using nlohmann::ordered_json;

struct DataChessFlags {
  std::string out, tasks = "P,A", format = "jsonl", stockfish = "auto";
  chess::ChessDataSpec spec;
  chess::PuzzleSpec puzzles;
  int64_t nodes = chess::StockfishSpec().nodes;
  int threads = 0;
  bool json = false, force = false;
};

bool has_task(const DataChessFlags& flags, std::string_view task) {
  bool has = false;
  for (const std::string_view t : chess::split(flags.tasks, ',')) {
    if (t != "P" && t != "A") fail_usage("--tasks", "expected P, A or P,A, got {}", flags.tasks);
    has |= t == task;
  }
  return has;
}

void run_puzzles(const DataChessFlags& flags) {
  if (flags.format != "jsonl")
    fail_usage("--format", "expected jsonl for puzzles, got {}", flags.format);
  const int64_t rows = chess::write_puzzle_prompts(flags.out, flags.puzzles);
  if (flags.json)
    print_json({{"puzzles", rows}, {"out", flags.out}});
  else
    put(fmt::format("{}: {} puzzles\n", flags.out, rows));
}

ordered_json report_of(const chess::ChessDataCounts& n, const chess::StockfishPool* pool) {
  ordered_json report = {
      {"games", n.games},         {"checkmates", n.checkmates}, {"draws", n.draws},
      {"positions", n.positions}, {"policy_rows", n.policy},    {"environment_rows", n.environment},
      {"repeated", n.repeated},   {"unlabelled", n.unlabelled}, {"stockfish", nullptr}};
  if (pool) {
    const chess::StockfishCounts c = pool->counts();
    report["stockfish"] = {{"answered", c.answered}, {"failed", c.failed},
                           {"died", c.died},         {"hung", c.hung},
                           {"rubbish", c.rubbish},   {"replaced", c.replaced}};
  }
  return report;
}

void run_data_chess(const DataChessFlags& flags) {
  expect_new(flags.out, flags.force);
  if (!flags.puzzles.puzzles.empty()) return run_puzzles(flags);
  chess::ChessDataSpec spec = flags.spec;
  spec.format = flags.format == "text" ? chess::RowFormat::text : chess::RowFormat::jsonl;
  spec.environment = has_task(flags, "A");
  const std::unique_ptr<chess::StockfishPool> pool =
      has_task(flags, "P") ? chess::open_stockfish(flags.stockfish, {.processes = flags.threads,
                                                                     .nodes = flags.nodes})
                           : nullptr;
  if (has_task(flags, "P") && !pool) {
    if (!spec.environment)
      fail("data chess",
           "the P: task needs Stockfish, which was not found; install the package stockfish or "
           "pass --stockfish PATH");
    say("Stockfish was not found: the P: task is left out\n");
  }
  Threads threads(checked_threads(flags.threads));
  const chess::ChessDataCounts n = chess::write_chess_data(flags.out, spec, threads, pool.get());
  ordered_json report = report_of(n, pool.get());
  report["out"] = flags.out;
  if (flags.json) return print_json(report);
  put(fmt::format(
      "{}: {} P: rows and {} A: rows from {} games ({} repeated, {} without an answer)\n",
      flags.out, n.policy, n.environment, n.games, n.repeated, n.unlabelled));
}

}  // namespace

void add_data_chess(CLI::App& app) {
  auto flags = std::make_shared<DataChessFlags>();
  CLI::App* c =
      app.add_subcommand("chess", "generate rows of the chess tasks from self-play or puzzles");
  chess::SelfPlaySpec& play = flags->spec.play;
  c->add_option("--out", flags->out, "file to write")->required();
  add_force(*c, flags->force);
  c->add_option("--games", flags->spec.games, "number of games to play")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--seed", play.seed, "random seed of the games")->capture_default_str();
  c->add_option("--tasks", flags->tasks, "tasks to write: P, A or P,A")->capture_default_str();
  c->add_option("--format", flags->format, "format of the rows: jsonl (prompt, completion) or text")
      ->check(CLI::IsMember({"jsonl", "text"}))
      ->capture_default_str();
  c->add_option("--temperature", play.temperature, "temperature of the move choice, in pawns")
      ->check(above_zero())
      ->capture_default_str();
  c->add_option("--plies", play.max_plies, "maximum plies per game")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--openings", play.opening_share,
                "fraction of games that start from a known opening")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--illegal", flags->spec.illegal, "fraction of A: rows with an illegal move")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--keep", flags->spec.keep, "fraction of positions to keep")
      ->check(between(0.0, 1.0))
      ->capture_default_str();
  c->add_option("--stockfish", flags->stockfish, "Stockfish program: a path, auto or none")
      ->capture_default_str();
  c->add_option("--nodes", flags->nodes, "Stockfish nodes per position")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--threads", flags->threads, "CPU threads and Stockfish processes; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--puzzles", flags->puzzles.puzzles,
                "JSON lines with fen, best and rating: write these puzzles as prompts instead of "
                "playing games");
  c->add_option("--min-rating", flags->puzzles.min_rating, "lowest rating of puzzles to use");
  c->add_option("--max-rating", flags->puzzles.max_rating, "highest rating of puzzles to use");
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  c->callback([flags] { run_data_chess(*flags); });
}

}  // namespace hearth::inline cli
