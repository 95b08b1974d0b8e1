#include "tasks/chess/dataset.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <unordered_set>

#include "data/permutation.h"
#include "formats/json.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "tasks/chess/rows.h"
#include "tasks/chess/tasks.h"

namespace hearth::chess {
namespace {

constexpr int64_t games_a_block = 64;

struct Row {
  std::string prompt, completion;
  size_t label;  // index of the position to label, or no_label
};
constexpr size_t no_label = size_t(-1);

// 64 bits of the prompt. Among a million rows a collision, which loses one row, has odds of 1 in 37
// million.
uint64_t fingerprint(std::string_view text) {
  uint64_t h = text.size();
  for (const char c : text) h = mix64(h ^ uint8_t(c));
  return h;
}

std::string row_text(const Row& row, RowFormat format) {
  if (format == RowFormat::text) return row.prompt + row.completion + "\n<|endoftext|>\n";
  return nlohmann::ordered_json{{"prompt", row.prompt}, {"completion", row.completion}}.dump() +
         "\n";
}

class ChessDataWriter {
 public:
  ChessDataWriter(const std::filesystem::path& path, const ChessDataSpec& spec, Threads& threads,
                  StockfishPool* pool)
      : out_(path), spec_(spec), threads_(threads), pool_(pool) {}

  ChessDataCounts write() {
    for (int64_t first = 0; first < spec_.games; first += games_a_block)
      write_block(first, std::min(games_a_block, spec_.games - first));
    out_.commit();
    return counts_;
  }

 private:
  void write_block(int64_t first, int64_t count) {
    std::vector<Game> games(static_cast<size_t>(count));
    threads_.run(count, [&](int64_t i, int) {
      games[size_t(i)] = play_game(spec_.play, uint64_t(first + i));
    });
    rows_.clear();
    to_label_.clear();
    for (int64_t i = 0; i < count; ++i) add_game(games[size_t(i)], uint64_t(first + i));
    const std::vector<Label> labels = pool_ ? pool_->label(to_label_) : std::vector<Label>();
    std::string text;
    for (Row& row : rows_) {
      if (row.label == no_label) {
        ++counts_.environment;
      } else if (const Label& label = labels[row.label]; label.best) {
        row.completion = policy_completion(label);
        ++counts_.policy;
      } else {
        ++counts_.unlabelled;
        continue;
      }
      text += row_text(row, spec_.format);
    }
    out_.write(to_bytes(text));
  }

  void add_game(const Game& game, uint64_t number) {
    const std::span<const Move> moves = game.moves();
    for (size_t ply = 0; ply < moves.size(); ++ply) {
      const uint64_t draw = mix64(mix64(mix64(~spec_.play.seed) ^ number) + ply);
      if (double(draw >> 11) * 0x1p-53 >= spec_.keep) continue;
      const Board& board = game.board(ply);
      ++counts_.positions;
      if (pool_ && add(policy_prompt(board), "", to_label_.size())) to_label_.push_back(board);
      if (spec_.environment) add_environment(board, moves.first(ply + 1), mix64(draw));
    }
    const Ending e = game.ending();
    ++counts_.games;
    counts_.checkmates += e == Ending::checkmate;
    counts_.draws += e != Ending::none && e != Ending::checkmate;
  }

  // Adds a row for a move that was played or, occasionally, for an illegal one.
  void add_environment(const Board& board, std::span<const Move> played, uint64_t draw) {
    std::vector<Move> moves(played.begin(), played.end());
    if (double(draw >> 11) * 0x1p-53 < spec_.illegal) moves.back() = illegal_move(board, draw);
    add(environment_prompt(board, moves), environment_completion(board, moves.back()), no_label);
  }

  // Starts from a piece of the side to move, so that only the rules of movement are broken.
  static Move illegal_move(const Board& board, uint64_t draw) {
    for (;;) {
      draw = mix64(draw);
      const Move m{uint8_t(draw & 63), uint8_t(draw >> 6 & 63), Piece::none};
      const bool own = board.pieces(board.turn()) & bit(m.from);
      if (own && m.from != m.to && !board.is_legal(m)) return m;
    }
  }

  bool add(std::string prompt, std::string completion, size_t label) {
    if (!seen_.insert(fingerprint(prompt)).second) {
      ++counts_.repeated;
      return false;
    }
    rows_.push_back({std::move(prompt), std::move(completion), label});
    return true;
  }

  AtomicFile out_;
  const ChessDataSpec& spec_;
  Threads& threads_;
  StockfishPool* pool_;
  std::unordered_set<uint64_t> seen_;
  std::vector<Row> rows_;
  std::vector<Board> to_label_;
  ChessDataCounts counts_;
};

std::optional<int64_t> rating_of(const nlohmann::json& puzzle) {
  if (!puzzle.contains("rating") || puzzle["rating"].is_null()) return std::nullopt;
  if (!puzzle["rating"].is_number_integer())
    fail("rating", "expected a whole number or null, got {}", in_quotes(puzzle["rating"].dump()));
  return puzzle["rating"].get<int64_t>();
}

bool within(const PuzzleSpec& spec, std::optional<int64_t> rating) {
  if (spec.min_rating && (!rating || *rating < *spec.min_rating)) return false;
  return !spec.max_rating || (rating && *rating <= *spec.max_rating);
}

}  // namespace

ChessDataCounts write_chess_data(const std::filesystem::path& path, const ChessDataSpec& spec,
                                 Threads& threads, StockfishPool* pool) {
  return ChessDataWriter(path, spec, threads, pool).write();
}

int64_t write_puzzle_prompts(const std::filesystem::path& path, const PuzzleSpec& spec) {
  AtomicFile out(path);
  int64_t rows = 0;
  for_each_row(spec.puzzles, [&](const nlohmann::json& puzzle) {
    const Board board = Board::from_fen(text_in(puzzle, "fen"));
    const std::string& best = text_in(puzzle, "best");
    const auto move = parse_uci(best);
    if (!move || !board.is_legal(*move))
      fail("best", "expected a legal move in {}, got {}", board.fen(), in_quotes(best));
    const std::optional<int64_t> rating = rating_of(puzzle);
    if (!within(spec, rating)) return;
    nlohmann::ordered_json row = {
        {"prompt", policy_prompt(board)}, {"best", best}, {"rating", nullptr}};
    if (rating) row["rating"] = *rating;
    out.write(to_bytes(row.dump() + "\n"));
    ++rows;
  });
  out.commit();
  return rows;
}

}  // namespace hearth::chess
