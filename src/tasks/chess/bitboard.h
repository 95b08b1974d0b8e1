// Sets of squares as 64 bits (a1 is bit 0, h8 is bit 63) and piece attacks. Slider attacks are
// computed by subtraction along a line and its mirror image, so all tables are small constants.
#pragma once

#include <array>
#include <bit>
#include <cstdint>

namespace hearth::chess {

using Bitboard = uint64_t;
using Square = int;  // file + 8 * rank

constexpr Square no_square = 64;

constexpr Bitboard bit(Square s) { return Bitboard(1) << s; }
constexpr int file_of(Square s) { return s & 7; }
constexpr int rank_of(Square s) { return s >> 3; }

constexpr Square pop(Bitboard& b) {
  const Square s = std::countr_zero(b);
  b &= b - 1;
  return s;
}

struct AttackTables {
  std::array<Bitboard, 64> knight{}, king{}, file{}, diagonal{},
      antidiagonal{};                                  // lines exclude the square
  std::array<std::array<Bitboard, 64>, 2> pawn{};      // [colour][square]: attacked squares
  std::array<std::array<uint8_t, 8>, 64> along{};      // [inner six of a rank][file]
  std::array<std::array<Bitboard, 64>, 64> between{};  // strictly between two aligned squares
  std::array<std::array<Bitboard, 64>, 64> line{};     // the whole line through both, or empty
};

constexpr AttackTables make_attack_tables() {
  AttackTables t;
  constexpr int steps[8][2] = {{0, 1},  {1, 1},   {1, 0},  {1, -1},
                               {0, -1}, {-1, -1}, {-1, 0}, {-1, 1}};
  constexpr int jumps[8][2] = {{1, 2},   {2, 1},   {2, -1}, {1, -2},
                               {-1, -2}, {-2, -1}, {-2, 1}, {-1, 2}};
  const auto at = [](int file, int rank) {
    return file < 0 || file > 7 || rank < 0 || rank > 7 ? 0 : bit(file + 8 * rank);
  };
  for (Square s = 0; s < 64; ++s) {
    const int f = file_of(s), r = rank_of(s);
    for (int d = 0; d < 8; ++d) {
      t.king[s] |= at(f + steps[d][0], r + steps[d][1]);
      t.knight[s] |= at(f + jumps[d][0], r + jumps[d][1]);
    }
    t.pawn[0][s] = at(f - 1, r + 1) | at(f + 1, r + 1);
    t.pawn[1][s] = at(f - 1, r - 1) | at(f + 1, r - 1);
    for (int d = 0; d < 4; ++d) {  // a direction and its opposite form a line
      Bitboard whole = bit(s);
      for (const int sign : {1, -1}) {
        for (int n = 1; n < 8; ++n)
          whole |= at(f + sign * n * steps[d][0], r + sign * n * steps[d][1]);
      }
      if (d == 0) t.file[s] = whole & ~bit(s);
      if (d == 1) t.diagonal[s] = whole & ~bit(s);
      if (d == 3) t.antidiagonal[s] = whole & ~bit(s);
      for (const int sign : {1, -1}) {
        Bitboard passed = 0;
        for (int n = 1; n < 8; ++n) {
          const Bitboard to = at(f + sign * n * steps[d][0], r + sign * n * steps[d][1]);
          if (to == 0) break;
          t.between[s][std::countr_zero(to)] = passed;
          t.line[s][std::countr_zero(to)] = whole;
          passed |= to;
        }
      }
    }
  }
  for (int inner = 0; inner < 64; ++inner) {
    for (int f = 0; f < 8; ++f) {
      for (int to = f + 1; to < 8; ++to) {
        t.along[inner][f] |= uint8_t(1 << to);
        if (inner << 1 & 1 << to) break;
      }
      for (int to = f - 1; to >= 0; --to) {
        t.along[inner][f] |= uint8_t(1 << to);
        if (inner << 1 & 1 << to) break;
      }
    }
  }
  return t;
}

inline constexpr AttackTables attack_tables = make_attack_tables();

// `line` is a file or diagonal through s, excluding s.
constexpr Bitboard line_attacks(Square s, Bitboard occupied, Bitboard line) {
  const Bitboard up = (occupied & line) - bit(s);
  const Bitboard down =
      __builtin_bswap64(__builtin_bswap64(occupied & line) - __builtin_bswap64(bit(s)));
  return (up ^ down) & line;
}

constexpr Bitboard bishop_attacks(Square s, Bitboard occupied) {
  return line_attacks(s, occupied, attack_tables.diagonal[s]) |
         line_attacks(s, occupied, attack_tables.antidiagonal[s]);
}

constexpr Bitboard rook_attacks(Square s, Bitboard occupied) {
  const int shift = s & 56;
  const Bitboard rank = attack_tables.along[occupied >> shift >> 1 & 63][file_of(s)];
  return line_attacks(s, occupied, attack_tables.file[s]) | rank << shift;
}

}  // namespace hearth::chess
