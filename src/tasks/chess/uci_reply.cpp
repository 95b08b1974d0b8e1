#include "tasks/chess/uci_reply.h"

#include <algorithm>
#include <array>
#include <charconv>

namespace hearth::chess {
namespace {

constexpr size_t longest_reply_line = 1 << 16;

// The next word, separated by one or more spaces; empty at the end.
std::string_view next_word(std::string_view& text) {
  text.remove_prefix(std::min(text.find_first_not_of(" \t"), text.size()));
  const std::string_view word = text.substr(0, text.find_first_of(" \t"));
  text.remove_prefix(word.size());
  return word;
}

std::optional<int64_t> read_whole(std::string_view word) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), n);
  if (error != std::errc() || end != word.data() + word.size() || word.empty()) return std::nullopt;
  return n;
}

std::optional<double> read_score(std::string_view& rest) {
  const std::string_view unit = next_word(rest);
  const auto n = read_whole(next_word(rest));
  constexpr int64_t largest = 1'000'000;
  if (!n || *n < -largest || *n > largest) return std::nullopt;
  if (unit == "mate") return *n > 0 ? largest_evaluation : -largest_evaluation;  // 0: mated
  if (unit != "cp") return std::nullopt;
  return std::clamp(double(*n) / 100, -largest_evaluation, largest_evaluation);
}

constexpr std::array numbered = {"depth",  "seldepth", "nodes",          "nps",    "hashfull",
                                 "tbhits", "time",     "currmovenumber", "cpuload"};

}  // namespace

UciReply::UciReply(const Board& board, int candidates)
    : board_(board), wanted_(std::min(size_t(candidates), board.legal_moves().size())) {}

bool UciReply::read_info(std::string_view rest) {
  std::optional<double> pawns;
  int64_t rank = 1;
  for (std::string_view word; !(word = next_word(rest)).empty();) {
    if (word == "string") return true;
    if (word == "lowerbound" || word == "upperbound") continue;
    if (word == "score") {
      if (!(pawns = read_score(rest))) return false;
    } else if (word == "multipv") {
      const auto n = read_whole(next_word(rest));
      if (!n || *n < 1 || size_t(*n) > std::max<size_t>(wanted_, 1)) return false;
      rank = *n;
    } else if (word == "wdl") {
      for (int i = 0; i < 3; ++i) {
        if (!read_whole(next_word(rest))) return false;
      }
    } else if (word == "currmove") {
      if (!parse_uci(next_word(rest))) return false;
    } else if (word == "pv") {
      const auto move = parse_uci(next_word(rest));
      if (!pawns || !move || !board_.is_legal(*move)) return false;
      found_[int(rank)] = {*move, *pawns};
      return true;  // the rest is the expected line of play
    } else if (std::find(numbered.begin(), numbered.end(), word) == numbered.end() ||
               !read_whole(next_word(rest))) {
      return false;
    }
  }
  return true;
}

bool UciReply::read_best(std::string_view rest) {
  const auto best = parse_uci(next_word(rest));
  if (!best || found_.size() != wanted_ || found_.empty()) return false;
  if (found_.begin()->second.move != *best) return false;
  for (const auto& found : found_) {
    const Candidate& candidate = found.second;
    const auto same = [&](const Candidate& c) { return c.move == candidate.move; };
    if (std::any_of(label_.candidates.begin(), label_.candidates.end(), same)) return false;
    label_.candidates.push_back(candidate);
  }
  label_.best = best;
  return true;
}

UciReply::State UciReply::feed(std::string_view line) {
  if (line.size() > longest_reply_line || label_.best) return State::bad;
  const std::string_view first = next_word(line);
  if (first == "info") return read_info(line) ? State::more : State::bad;
  if (first != "bestmove" || !read_best(line)) return State::bad;
  return State::done;
}

}  // namespace hearth::chess
