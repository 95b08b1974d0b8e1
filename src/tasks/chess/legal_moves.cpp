// Generates legal moves directly: checks limit target squares, pins limit lines of movement.
#include "tasks/chess/board.h"

namespace hearth::chess {
namespace {

void push_pawn_moves(MoveList& list, Square from, Bitboard targets) {
  while (targets) {
    const Square to = pop(targets);
    if (rank_of(to) != 0 && rank_of(to) != 7) {
      list.push({uint8_t(from), uint8_t(to), Piece::none});
      continue;
    }
    for (const Piece p : {Piece::queen, Piece::rook, Piece::bishop, Piece::knight})
      list.push({uint8_t(from), uint8_t(to), p});
  }
}

Bitboard attacks_of(Piece p, Square s, Bitboard occupied) {
  switch (p) {
    case Piece::knight:
      return attack_tables.knight[s];
    case Piece::bishop:
      return bishop_attacks(s, occupied);
    case Piece::rook:
      return rook_attacks(s, occupied);
    default:
      return bishop_attacks(s, occupied) | rook_attacks(s, occupied);
  }
}

}  // namespace

void Board::add_pawn_moves(MoveList& list, Bitboard targets, Bitboard pinned) const {
  const Square k = king(turn_);
  const Bitboard empty = ~occupied(), enemies = pieces(other(turn_));
  const bool white = turn_ == Color::white;
  Bitboard pawns = pieces(turn_, Piece::pawn);
  while (pawns) {
    const Square from = pop(pawns);
    Bitboard to = (white ? bit(from) << 8 : bit(from) >> 8) & empty;
    if (to && rank_of(from) == (white ? 1 : 6)) to |= (white ? to << 8 : to >> 8) & empty;
    to |= attack_tables.pawn[size_t(turn_)][from] & enemies;
    to &= targets;
    if (pinned & bit(from)) to &= attack_tables.line[k][from];
    push_pawn_moves(list, from, to);
  }
  if (ep_ == no_square) return;
  Bitboard takers = attack_tables.pawn[size_t(other(turn_))][ep_] & pieces(turn_, Piece::pawn);
  while (takers) {
    const Square from = pop(takers);
    if (en_passant_is_legal(from, ep_)) list.push({uint8_t(from), ep_, Piece::none});
  }
}

// Castling rights imply that king and rook are on their home squares; the king is not in check
// here.
void Board::add_castling(MoveList& list) const {
  const int first = turn_ == Color::white ? 0 : 56;
  const int rights = turn_ == Color::white ? castling_ : castling_ >> 2;
  const auto safe = [&](Square s) { return !attackers(s, other(turn_), occupied()); };
  const auto clear = [&](Bitboard squares) { return !(occupied() & squares << first); };
  const auto add = [&](int file) {
    list.push({uint8_t(first + 4), uint8_t(first + file), Piece::none});
  };
  if (rights & 1 && clear(0b01100000) && safe(first + 5) && safe(first + 6)) add(6);
  if (rights & 2 && clear(0b00001110) && safe(first + 3) && safe(first + 2)) add(2);
}

MoveList Board::legal_moves() const {
  MoveList list;
  const Color them = other(turn_);
  const Square k = king(turn_);
  const Bitboard own = pieces(turn_), all = occupied();
  const Bitboard checkers = attackers(k, them, all);

  Bitboard steps = attack_tables.king[k] & ~own;
  while (steps) {
    const Square to = pop(steps);
    if (!attackers(to, them, all ^ bit(k))) list.push({uint8_t(k), uint8_t(to), Piece::none});
  }
  if (checkers & (checkers - 1)) return list;  // in double check only the king can move

  Bitboard targets = ~own;
  if (checkers) targets = checkers | attack_tables.between[k][std::countr_zero(checkers)];

  // A slider that would give check through exactly one of our pieces pins it.
  const Bitboard diagonal = pieces(Piece::bishop) | pieces(Piece::queen);
  const Bitboard straight = pieces(Piece::rook) | pieces(Piece::queen);
  Bitboard snipers =
      ((bishop_attacks(k, pieces(them)) & diagonal) | (rook_attacks(k, pieces(them)) & straight)) &
      pieces(them);
  Bitboard pinned = 0;
  while (snipers) {
    const Bitboard shield = attack_tables.between[k][pop(snipers)] & own;
    if (shield && !(shield & (shield - 1))) pinned |= shield;
  }

  for (const Piece p : {Piece::knight, Piece::bishop, Piece::rook, Piece::queen}) {
    Bitboard movers = pieces(turn_, p);
    while (movers) {
      const Square from = pop(movers);
      Bitboard to = attacks_of(p, from, all) & targets;
      if (pinned & bit(from)) to &= attack_tables.line[k][from];
      while (to) list.push({uint8_t(from), uint8_t(pop(to)), Piece::none});
    }
  }
  add_pawn_moves(list, targets, pinned);
  if (!checkers) add_castling(list);
  return list;
}

uint64_t perft(const Board& board, int depth) {
  if (depth <= 0) return 1;
  const MoveList moves = board.legal_moves();
  if (depth == 1) return moves.size();
  uint64_t leaves = 0;
  for (const Move m : moves) leaves += perft(board.after(m), depth - 1);
  return leaves;
}

}  // namespace hearth::chess
