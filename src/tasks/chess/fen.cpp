// Reads and writes FEN. Input must be a valid position; output equals that of python-chess.
#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "formats/json.h"
#include "sys/error.h"
#include "tasks/chess/board.h"
#include "tasks/chess/split.h"

namespace hearth::chess {
namespace {

constexpr std::string_view piece_letters = "PNBRQKpnbrqk", castling_letters = "KQkq";
constexpr int largest_counter = 9999;

int read_counter(std::string_view text, int least, std::string_view what) {
  int n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || end != text.data() + text.size() || n < least || n > largest_counter)
    fail("fen", "expected {} from {} to {}, got {}", what, least, largest_counter, in_quotes(text));
  return n;
}

// One rank as eight letters, with spaces for empty squares.
std::string read_rank(std::string_view text, int rank) {
  std::string row;
  bool after_digit = false;
  for (const char c : text) {
    const bool digit = c >= '1' && c <= '8';
    if (!digit && piece_letters.find(c) == piece_letters.npos)
      fail("fen", "expected pieces and digits in rank {}, got {}", rank + 1, in_quotes(text));
    if (digit && after_digit)
      fail("fen", "expected one digit per gap in rank {}, got {}", rank + 1, in_quotes(text));
    row.append(digit ? size_t(c - '0') : 1, digit ? ' ' : c);
    after_digit = digit;
  }
  if (row.size() != 8)
    fail("fen", "expected 8 squares in rank {}, got {} in {}", rank + 1, row.size(),
         in_quotes(text));
  return row;
}

}  // namespace

void Board::read_placement(std::string_view text) {
  const auto slashes = std::count(text.begin(), text.end(), '/');
  if (slashes != 7) fail("fen", "expected 8 ranks separated by /, got {}", slashes + 1);
  for (int rank = 7; rank >= 0; --rank) {
    const size_t end = std::min(text.find('/'), text.size());
    const std::string row = read_rank(text.substr(0, end), rank);
    for (int file = 0; file < 8; ++file) {
      if (row[size_t(file)] == ' ') continue;
      const size_t letter = piece_letters.find(row[size_t(file)]);
      flip(Color(letter / 6), Piece(letter % 6), file + 8 * rank);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
  }
}

void Board::check_pieces() const {
  for (const Color c : {Color::white, Color::black}) {
    const std::string_view name = c == Color::white ? "white" : "black";
    const auto count = [&](Bitboard b) { return std::popcount(b & pieces(c)); };
    if (count(pieces(Piece::king)) != 1)
      fail("fen", "expected one {} king, got {}", name, count(pieces(Piece::king)));
    if (count(~Bitboard(0)) > 16)
      fail("fen", "expected at most 16 {} pieces, got {}", name, count(~Bitboard(0)));
    if (count(pieces(Piece::pawn)) > 8)
      fail("fen", "expected at most 8 {} pawns, got {}", name, count(pieces(Piece::pawn)));
  }
  if (pieces(Piece::pawn) & 0xff000000000000ff)
    fail("fen", "expected no pawn on the first or last rank, got one");
  if (attackers(king(other(turn_)), turn_, occupied()))
    fail("fen", "the side to move gives check, so the other king could be captured");
}

void Board::read_castling(std::string_view text) {
  if (text == "-") return;
  size_t at = 0;
  for (size_t i = 0; i < castling_letters.size(); ++i) {
    if (at == text.size() || text[at] != castling_letters[i]) continue;
    const Color c = i < 2 ? Color::white : Color::black;
    const Square home = c == Color::white ? 4 : 60, rook = i % 2 == 0 ? home + 3 : home - 4;
    if (!(pieces(c, Piece::king) & bit(home)) || !(pieces(c, Piece::rook) & bit(rook)))
      fail("fen",
           "expected king and rook on their home squares for the castling right {}, got other "
           "squares",
           text[at]);
    castling_ |= uint8_t(1 << i);
    ++at;
  }
  if (at != text.size() || text.empty())
    fail("fen", "expected castling rights as KQkq or -, got {}", in_quotes(text));
}

void Board::read_en_passant(std::string_view text) {
  if (text == "-") return;
  const auto s = parse_square(text);
  const bool white = turn_ == Color::white;
  if (!s || rank_of(*s) != (white ? 5 : 2))
    fail("fen", "expected - or an en passant square on rank {}, got {}", white ? 6 : 3,
         in_quotes(text));
  const Bitboard passed = bit(*s) | bit(white ? *s + 8 : *s - 8);
  if (!(pieces(other(turn_), Piece::pawn) & bit(*s ^ 8)) || (occupied() & passed))
    fail("fen", "expected a pawn that has just moved past {}, got none", text);
  set_en_passant(*s);
}

Board Board::from_fen(std::string_view fen) {
  const std::vector<std::string_view> fields = split(fen, ' ');
  if (fields.size() != 6)
    fail("fen", "expected 6 fields, got {} in {}", fields.size(), in_quotes(fen));
  Board b{Empty()};
  b.read_placement(fields[0]);
  if (fields[1] != "w" && fields[1] != "b")
    fail("fen", "expected w or b to move, got {}", in_quotes(fields[1]));
  b.turn_ = fields[1] == "w" ? Color::white : Color::black;
  b.check_pieces();
  b.read_castling(fields[2]);
  b.read_en_passant(fields[3]);
  b.halfmoves_ = read_counter(fields[4], 0, "a halfmove clock");
  // Some writers number moves from 0; python-chess also reads that as the first move.
  b.fullmoves_ = std::max(read_counter(fields[5], 0, "a move number"), 1);
  b.key_ ^= b.state_key();
  return b;
}

std::string Board::fen() const {
  std::string s;
  for (int rank = 7; rank >= 0; --rank) {
    int gap = 0;
    const auto close_gap = [&] {
      if (gap > 0) s += char('0' + gap);
      gap = 0;
    };
    for (int file = 0; file < 8; ++file) {
      const Square at = file + 8 * rank;
      const Piece p = piece_at(at);
      if (p == Piece::none) {
        ++gap;
        continue;
      }
      close_gap();
      s += piece_letters[size_t(p) + (pieces(Color::black) & bit(at) ? 6 : 0)];
    }
    close_gap();
    if (rank > 0) s += '/';
  }
  s += turn_ == Color::white ? " w " : " b ";
  for (size_t i = 0; i < castling_letters.size(); ++i) {
    if (castling_ & 1 << i) s += castling_letters[i];
  }
  if (castling_ == 0) s += '-';
  return s + fmt::format(" {} {} {}", ep_ == no_square ? "-" : square_name(ep_), halfmoves_,
                         fullmoves_);
}

}  // namespace hearth::chess
