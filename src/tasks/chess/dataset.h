// Files to train and to evaluate on: both tasks over self-played positions, labelled by Stockfish
// and by the rules; and lichess puzzles as prompts.
#pragma once

#include <filesystem>

#include "tasks/chess/self_play.h"
#include "tasks/chess/stockfish.h"

namespace hearth::chess {

enum class RowFormat { jsonl, text };  // {"prompt", "completion"}; or both joined, a document each

struct ChessDataSpec {
  SelfPlaySpec play;
  int64_t games = 100;
  double keep = 1;  // share of positions taken, drawn by seed
  bool environment = true;
  double illegal = 0.02;  // share of its rows whose move is not legal, drawn by seed
  RowFormat format = RowFormat::jsonl;
};

struct ChessDataCounts {
  int64_t games = 0, positions = 0;      // played; taken from them
  int64_t policy = 0, environment = 0;   // rows written
  int64_t repeated = 0, unlabelled = 0;  // rows left out: there already; no answer was had
  int64_t checkmates = 0, draws = 0;     // games
};

// With a pool also the policy task. The file appears whole or not at all; one seed gives one file,
// whatever the number of threads and processes. No prompt is written twice.
ChessDataCounts write_chess_data(const std::filesystem::path&, const ChessDataSpec&, Threads&,
                                 StockfishPool*);

struct PuzzleSpec {
  std::filesystem::path puzzles;                        // JSON lines: fen, best, rating or null
  std::optional<int> min_rating = {}, max_rating = {};  // given, they drop the unrated
};

// Rows {"prompt": "P: <FEN>", "best": <uci>, "rating"}; returns how many.
int64_t write_puzzle_prompts(const std::filesystem::path&, const PuzzleSpec&);

}  // namespace hearth::chess
