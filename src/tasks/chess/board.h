// A chess position as a value: copied to try a move, compared by content. Rules and notation follow
// python-chess; the en passant square is kept only while such a capture is legal.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "tasks/chess/bitboard.h"

namespace hearth::chess {

enum class Color : uint8_t { white, black };
enum class Piece : uint8_t { pawn, knight, bishop, rook, queen, king, none };

constexpr Color other(Color c) { return c == Color::white ? Color::black : Color::white; }

struct Move {
  uint8_t from, to;
  Piece promotion;  // none unless promoting; castling is a king move by two
  bool operator==(const Move&) const = default;
};

std::string uci(Move);                            // e2e4, e7e8q, e1g1
std::optional<Move> parse_uci(std::string_view);  // checks only the notation

// Legal moves in no particular order. The capacity covers any position with 16 pieces a side.
class MoveList {
 public:
  void push(Move m) { moves_[size_++] = m; }
  const Move* begin() const { return moves_; }
  const Move* end() const { return moves_ + size_; }
  size_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  Move operator[](size_t i) const { return moves_[i]; }

 private:
  size_t size_ = 0;
  Move moves_[512];
};

class Board {
 public:
  Board();  // the start position
  // Parses six fields of a valid position; throws an error that names the problem.
  static Board from_fen(std::string_view);
  std::string fen() const;

  Color turn() const { return turn_; }
  Bitboard pieces(Color c) const { return by_color_[size_t(c)]; }
  Bitboard pieces(Piece p) const { return by_piece_[size_t(p)]; }
  Bitboard pieces(Color c, Piece p) const { return pieces(c) & pieces(p); }
  Bitboard occupied() const { return by_color_[0] | by_color_[1]; }
  Piece piece_at(Square) const;
  int halfmove_clock() const { return halfmoves_; }
  uint64_t key() const { return key_; }  // Zobrist key: equal for repeated positions

  Bitboard attackers(Square, Color by, Bitboard occupied) const;
  bool in_check() const { return attackers(king(turn_), other(turn_), occupied()) != 0; }
  MoveList legal_moves() const;
  bool is_legal(Move) const;
  void play(Move);  // must be legal
  Board after(Move m) const {
    Board next = *this;
    next.play(m);
    return next;
  }
  bool insufficient_material() const;  // neither side can mate, as in python-chess

  bool operator==(const Board&) const = default;

 private:
  struct Empty {};
  explicit Board(Empty) {}

  Square king(Color c) const { return std::countr_zero(pieces(c, Piece::king)); }
  void flip(Color, Piece, Square);
  uint64_t state_key() const;
  bool en_passant_is_legal(Square from, Square to) const;
  void set_en_passant(Square);
  bool cannot_mate(Color) const;
  void add_pawn_moves(MoveList&, Bitboard targets, Bitboard pinned) const;
  void add_castling(MoveList&) const;

  void read_placement(std::string_view);
  void read_castling(std::string_view);
  void read_en_passant(std::string_view);
  void check_pieces() const;

  Bitboard by_color_[2] = {}, by_piece_[6] = {};
  uint64_t key_ = 0;
  Color turn_ = Color::white;
  uint8_t castling_ = 0;  // bits K Q k q
  uint8_t ep_ = no_square;
  int halfmoves_ = 0, fullmoves_ = 1;
};

// The number of leaves in the tree of legal moves.
uint64_t perft(const Board&, int depth);

std::string square_name(Square);
std::optional<Square> parse_square(std::string_view);

}  // namespace hearth::chess
