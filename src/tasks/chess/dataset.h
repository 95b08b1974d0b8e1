// Training and evaluation files: both chess tasks over self-play positions, labelled by Stockfish
// and by the rules; and lichess puzzles as prompts.
#pragma once

#include <filesystem>

#include "tasks/chess/self_play.h"
#include "tasks/chess/stockfish.h"

namespace hearth::chess {

enum class RowFormat { jsonl, text };  // {"prompt", "completion"}, or one document with both

struct ChessDataSpec {
  SelfPlaySpec play;
  int64_t games = 100;
  double keep = 1;  // fraction of positions kept, drawn by seed
  bool environment = true;
  double illegal = 0.02;  // fraction of its rows with an illegal move, drawn by seed
  RowFormat format = RowFormat::jsonl;
};

struct ChessDataCounts {
  int64_t games = 0, positions = 0;      // games played; positions kept
  int64_t policy = 0, environment = 0;   // rows written
  int64_t repeated = 0, unlabelled = 0;  // rows left out: duplicates; no answer
  int64_t checkmates = 0, draws = 0;     // games that ended so
};

// Writes the policy task only with a pool. The file is written atomically; a seed determines it,
// for any number of threads and processes. No prompt is written twice.
ChessDataCounts write_chess_data(const std::filesystem::path&, const ChessDataSpec&, Threads&,
                                 StockfishPool*);

struct PuzzleSpec {
  std::filesystem::path puzzles;                        // JSON lines: fen, best, rating or null
  std::optional<int> min_rating = {}, max_rating = {};  // if set, unrated puzzles are dropped
};

// Writes rows {"prompt": "P: <FEN>", "best": <uci>, "rating"}; returns their number.
int64_t write_puzzle_prompts(const std::filesystem::path&, const PuzzleSpec&);

}  // namespace hearth::chess
