// hearth chess: chess rules on the command line, and scores for completions of the chess tasks.
#include <algorithm>
#include <chrono>
#include <iostream>

#include "cli/commands.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "tasks/chess/game.h"
#include "tasks/chess/score.h"

namespace hearth::inline cli {
namespace {

using chess::Board;
using nlohmann::ordered_json;

struct ChessFlags {
  std::string fen, uci;
  int depth = 1;
  bool json = false;
};

void run_perft(const ChessFlags& flags) {
  const Board board = Board::from_fen(flags.fen);
  const auto start = std::chrono::steady_clock::now();
  const uint64_t nodes = chess::perft(board, flags.depth);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json)
    print_json(
        {{"fen", board.fen()}, {"depth", flags.depth}, {"nodes", nodes}, {"seconds", seconds}});
  else
    put(fmt::format("{}\n", nodes));
}

void print_legal(const std::string& fen, bool json) {
  const Board board = Board::from_fen(fen);
  std::vector<std::string> moves;
  for (const chess::Move m : board.legal_moves()) moves.push_back(chess::uci(m));
  std::sort(moves.begin(), moves.end());
  if (json)
    print_json({{"fen", board.fen()}, {"moves", moves}});
  else
    put(fmt::format("{}\n", fmt::join(moves, " ")));
}

void run_legal(const ChessFlags& flags) {
  if (flags.fen != "-") return print_legal(flags.fen, flags.json);
  for (std::string line; std::getline(std::cin, line);) print_legal(line, flags.json);
}

void run_move(const ChessFlags& flags) {
  const Board board = Board::from_fen(flags.fen);
  const auto move = chess::parse_uci(flags.uci);
  if (!move || !board.is_legal(*move))
    fail("uci", "expected a legal move in {}, got {}", board.fen(), flags.uci);
  const Board next = board.after(*move);
  if (flags.json)
    print_json({{"fen", next.fen()},
                {"check", next.in_check()},
                {"ending", chess::ending_name(chess::ending_of(next))},
                {"fifty_moves", chess::fifty_moves(next)}});
  else
    put(next.fen() + "\n");
}

struct ScoreFlags {
  std::string data, stockfish = "auto";
  int64_t nodes = chess::StockfishSpec().nodes;
  int threads = 0;
  bool json = false;
};

void run_score(const ScoreFlags& flags) {
  const std::unique_ptr<chess::StockfishPool> pool =
      chess::open_stockfish(flags.stockfish, {.processes = flags.threads, .nodes = flags.nodes});
  const chess::ScoredFile scored = chess::score_file(flags.data, pool.get());
  if (scored.unlabelled > 0)
    say("{} policy rows have neither a reference nor a best move, and {}; only their format is "
        "scored\n",
        scored.unlabelled, pool ? "Stockfish gave no answer" : "Stockfish is not available");
  ordered_json report = scored.scores.json();
  report["unlabelled"] = scored.unlabelled;
  report["stockfish"] = pool != nullptr;
  print_json(report);
}

template <class F>
CLI::App* add_position_command(CLI::App& app, const std::string& name, const std::string& what,
                               F run) {
  auto flags = std::make_shared<ChessFlags>();
  CLI::App* c = app.add_subcommand(name, what);
  c->add_option("--fen", flags->fen,
                name == "legal" ? "position as FEN; -: read one per line from standard input"
                                : "position as FEN")
      ->required();
  if (name == "perft")
    c->add_option("--depth", flags->depth, "depth in plies")->required()->check(between(0, 30));
  if (name == "move")
    c->add_option("--uci", flags->uci, "move in UCI notation, such as e2e4 or e7e8q")->required();
  c->add_flag("--json", flags->json, "print the result as one JSON object per position");
  c->callback([flags, run] { run(*flags); });
  return c;
}

void add_score(CLI::App& app) {
  auto flags = std::make_shared<ScoreFlags>();
  CLI::App* c =
      app.add_subcommand("score", "score completions: rates of legal, best and exact moves");
  c->add_option("--data", flags->data,
                "JSON lines with prompt and completion; prompts that begin with P: also need "
                "reference or best, unless Stockfish labels them")
      ->required();
  c->add_option("--stockfish", flags->stockfish,
                "Stockfish, which labels rows without a reference answer: a path, auto or none")
      ->capture_default_str();
  c->add_option("--nodes", flags->nodes, "Stockfish nodes per position")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--threads", flags->threads, "Stockfish processes; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_flag("--json", flags->json, "no effect: the result is always JSON");
  c->callback([flags] { run_score(*flags); });
}

}  // namespace

void add_chess(CLI::App& app) {
  CLI::App* c = app.add_subcommand("chess", "chess rules, and scores for the chess tasks");
  c->require_subcommand(1);
  add_position_command(*c, "perft", "count the leaf positions of the legal move tree", run_perft);
  add_position_command(*c, "legal", "list the legal moves, sorted", run_legal);
  add_position_command(*c, "move", "print the position after a move", run_move);
  add_score(*c);
}

}  // namespace hearth::inline cli
