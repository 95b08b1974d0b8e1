// Board operations: playing a move, attacks, the Zobrist key.
#include "tasks/chess/board.h"

#include <algorithm>

#include "data/permutation.h"

namespace hearth::chess {
namespace {

struct ZobristKeys {
  uint64_t piece[2][6][64], castling[16], ep_file[8], black;
};

constexpr ZobristKeys make_zobrist_keys() {
  ZobristKeys keys{};
  uint64_t n = 0;
  for (auto& color : keys.piece) {
    for (auto& piece : color) {
      for (uint64_t& k : piece) k = mix64(++n);
    }
  }
  for (uint64_t& k : keys.castling) k = mix64(++n);
  for (uint64_t& k : keys.ep_file) k = mix64(++n);
  keys.black = mix64(++n);
  return keys;
}

constexpr ZobristKeys zobrist = make_zobrist_keys();

// The castling rights that remain after a move from or to a square.
constexpr uint8_t rights_kept(Square s) {
  switch (s) {
    case 0:
      return 0b1101;
    case 4:
      return 0b1100;
    case 7:
      return 0b1110;
    case 56:
      return 0b0111;
    case 60:
      return 0b0011;
    case 63:
      return 0b1011;
    default:
      return 0b1111;
  }
}

constexpr std::string_view promotion_letters = "nbrq";  // starting with the knight

}  // namespace

std::string square_name(Square s) { return {char('a' + file_of(s)), char('1' + rank_of(s))}; }

std::optional<Square> parse_square(std::string_view s) {
  if (s.size() != 2 || s[0] < 'a' || s[0] > 'h' || s[1] < '1' || s[1] > '8') return std::nullopt;
  return s[0] - 'a' + 8 * (s[1] - '1');
}

std::string uci(Move m) {
  std::string s = square_name(m.from) + square_name(m.to);
  if (m.promotion != Piece::none) s += promotion_letters[size_t(m.promotion) - 1];
  return s;
}

std::optional<Move> parse_uci(std::string_view s) {
  if (s.size() != 4 && s.size() != 5) return std::nullopt;
  const auto from = parse_square(s.substr(0, 2)), to = parse_square(s.substr(2, 2));
  if (!from || !to || from == to) return std::nullopt;
  Move m{uint8_t(*from), uint8_t(*to), Piece::none};
  if (s.size() == 5) {
    const size_t letter = promotion_letters.find(s[4]);
    if (letter == promotion_letters.npos) return std::nullopt;
    m.promotion = Piece(letter + 1);
  }
  return m;
}

Board::Board() { *this = from_fen("rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w KQkq - 0 1"); }

Piece Board::piece_at(Square s) const {
  for (size_t p = 0; p < 6; ++p) {
    if (by_piece_[p] & bit(s)) return Piece(p);
  }
  return Piece::none;
}

void Board::flip(Color c, Piece p, Square s) {
  by_color_[size_t(c)] ^= bit(s);
  by_piece_[size_t(p)] ^= bit(s);
  key_ ^= zobrist.piece[size_t(c)][size_t(p)][s];
}

uint64_t Board::state_key() const {
  return zobrist.castling[castling_] ^ (ep_ == no_square ? 0 : zobrist.ep_file[file_of(ep_)]) ^
         (turn_ == Color::black ? zobrist.black : 0);
}

void Board::play(Move m) {
  const Color us = turn_, them = other(us);
  const Piece moved = piece_at(m.from), taken = piece_at(m.to);
  key_ ^= state_key();
  flip(us, moved, m.from);
  if (taken != Piece::none) flip(them, taken, m.to);
  flip(us, m.promotion == Piece::none ? moved : m.promotion, m.to);
  if (moved == Piece::pawn && m.to == ep_) flip(them, Piece::pawn, m.to ^ 8);
  if (moved == Piece::king && (m.from == m.to + 2 || m.to == m.from + 2)) {
    flip(us, Piece::rook, m.to > m.from ? m.from + 3 : m.from - 4);
    flip(us, Piece::rook, (m.from + m.to) / 2);
  }
  castling_ &= rights_kept(m.from) & rights_kept(m.to);
  halfmoves_ = moved == Piece::pawn || taken != Piece::none ? 0 : halfmoves_ + 1;
  fullmoves_ += us == Color::black;
  turn_ = them;
  ep_ = no_square;
  if (moved == Piece::pawn && (m.from ^ m.to) == 16) set_en_passant((m.from + m.to) / 2);
  key_ ^= state_key();
}

Bitboard Board::attackers(Square s, Color by, Bitboard occupied) const {
  const AttackTables& t = attack_tables;
  const Bitboard queens = pieces(Piece::queen);
  return pieces(by) & ((t.pawn[size_t(other(by))][s] & pieces(Piece::pawn)) |
                       (t.knight[s] & pieces(Piece::knight)) | (t.king[s] & pieces(Piece::king)) |
                       (bishop_attacks(s, occupied) & (pieces(Piece::bishop) | queens)) |
                       (rook_attacks(s, occupied) & (pieces(Piece::rook) | queens)));
}

// Two pawns leave their squares at once, which pins do not cover: check the king afterwards.
bool Board::en_passant_is_legal(Square from, Square to) const {
  const Bitboard taken = bit(to ^ 8);
  const Bitboard left = (occupied() ^ bit(from) ^ taken) | bit(to);
  return (attackers(king(turn_), other(turn_), left) & ~taken) == 0;
}

void Board::set_en_passant(Square s) {
  Bitboard from = attack_tables.pawn[size_t(other(turn_))][s] & pieces(turn_, Piece::pawn);
  while (from) {
    if (en_passant_is_legal(pop(from), s)) {
      ep_ = uint8_t(s);
      return;
    }
  }
}

bool Board::is_legal(Move m) const {
  const MoveList legal = legal_moves();
  return std::find(legal.begin(), legal.end(), m) != legal.end();
}

bool Board::cannot_mate(Color c) const {
  constexpr Bitboard dark = 0xaa55aa55aa55aa55;
  const Bitboard own = pieces(c), bishops = pieces(Piece::bishop);
  if (own & (pieces(Piece::pawn) | pieces(Piece::rook) | pieces(Piece::queen))) return false;
  // A lone knight mates only with the help of a piece that blocks the king's squares; a queen does
  // not count.
  if (own & pieces(Piece::knight))
    return std::popcount(own) <= 2 &&
           !(pieces(other(c)) & ~pieces(Piece::king) & ~pieces(Piece::queen));
  if (own & bishops)
    return (!(bishops & dark) || !(bishops & ~dark)) && !pieces(Piece::pawn) &&
           !pieces(Piece::knight);
  return true;
}

bool Board::insufficient_material() const {
  return cannot_mate(Color::white) && cannot_mate(Color::black);
}

}  // namespace hearth::chess
