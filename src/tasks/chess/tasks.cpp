#include "tasks/chess/tasks.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>

#include "formats/json.h"
#include "sys/error.h"
#include "sys/trimmed.h"
#include "tasks/chess/game.h"
#include "tasks/chess/split.h"

namespace hearth::chess {
namespace {

constexpr size_t longest_answer = 512;  // in characters; the longest valid answer has about 110

bool all_of(std::string_view text, std::string_view allowed) {
  return !text.empty() && text.find_first_not_of(allowed) == text.npos;
}

// Digits with an optional sign and fraction; no exponents, inf or nan.
std::optional<double> read_decimal(std::string_view text) {
  if (!all_of(text, "-.0123456789") || text.size() > 10) return std::nullopt;
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return std::nullopt;
  return value;
}

// Six fields of valid characters; the score checks whether they form a position.
bool looks_like_fen(std::string_view text) {
  const auto f = split(text, ' ');
  return f.size() == 6 && all_of(f[0], "pnbrqkPNBRQK12345678/") && (f[1] == "w" || f[1] == "b") &&
         (f[2] == "-" || all_of(f[2], "KQkq")) && (f[3] == "-" || parse_square(f[3])) &&
         all_of(f[4], "0123456789") && all_of(f[5], "0123456789");
}

std::string joined(std::span<const Move> moves) {
  std::string text;
  for (const Move m : moves) text += (text.empty() ? "" : " ") + uci(m);
  return text;
}

}  // namespace

size_t candidates_in(const Board& b) { return std::min(most_candidates, b.legal_moves().size()); }

std::string policy_prompt(const Board& b) { return "P: " + b.fen(); }

std::string policy_completion(const Label& label) {
  std::string moves, pawns;
  for (const Candidate& c : label.candidates) {
    moves += " " + uci(c.move);
    pawns += fmt::format(" {:.2f}", c.pawns);
  }
  return fmt::format(" M:{} E:{} B: {}", moves, pawns, uci(label.best.value()));
}

std::string environment_prompt(const Board& b, std::span<const Move> played) {
  if (played.empty()) fail("chess", "the prompt needs the move that was played");
  const auto last = played.last(std::min(played.size(), longest_history));
  return fmt::format("A: {}+{}+{}+", b.fen(), uci(played.back()), joined(last));
}

EnvironmentAnswer environment_answer(const Board& b, Move m) {
  if (!b.is_legal(m)) return {b.fen(), 0.001, false, true};
  const Board next = b.after(m);
  const Ending e = ending_of(next);
  const double reward = e == Ending::none ? 0.001 : e == Ending::checkmate ? 1 : 0.5;
  return {next.fen(), reward, e != Ending::none, false};
}

std::string environment_completion(const Board& b, Move m) {
  const EnvironmentAnswer a = environment_answer(b, m);
  return fmt::format("{}+{}+{:d}+{:d}", a.fen, a.reward, a.terminated, a.truncated);
}

Prompt parse_prompt(std::string_view text) {
  const std::string_view body = trimmed(text.substr(std::min<size_t>(text.size(), 2)));
  if (text.starts_with("P: "))
    return {Prompt::Task::policy, Board::from_fen(body), Move{0, 0, Piece::none}};
  if (!text.starts_with("A: "))
    fail("prompt", "expected \"P: \" or \"A: \" at the start, got {}", in_quotes(text));
  const auto parts = split(body, '+');
  if (parts.size() != 4 || !parts[3].empty())
    fail("prompt", "expected \"A: FEN+move+history+\", got {}", in_quotes(text));
  const auto history = split(parts[2], ' ');
  const auto is_move = [](std::string_view m) { return parse_uci(m).has_value(); };
  if (history.size() > longest_history || !std::all_of(history.begin(), history.end(), is_move) ||
      history.back() != parts[1])
    fail("prompt", "expected a history of 1 to {} moves that ends with the move, got {}",
         longest_history, in_quotes(parts[2]));
  return {Prompt::Task::environment, Board::from_fen(parts[0]), *parse_uci(parts[1])};
}

std::optional<PolicyAnswer> parse_policy(std::string_view completion, size_t candidates) {
  completion = trimmed(completion);
  if (completion.size() > longest_answer) return std::nullopt;
  const auto words = split(completion, ' ');
  const size_t n = candidates;
  if (n == 0 || words.size() != 2 * n + 4 || words[0] != "M:" || words[n + 1] != "E:" ||
      words[2 * n + 2] != "B:")
    return std::nullopt;
  PolicyAnswer answer;
  for (size_t i = 0; i < n; ++i) {
    const auto move = parse_uci(words[1 + i]);
    const auto pawns = read_decimal(words[n + 2 + i]);
    if (!move || !pawns) return std::nullopt;
    answer.candidates.push_back({*move, *pawns});
  }
  const auto best = parse_uci(words[2 * n + 3]);
  if (!best) return std::nullopt;
  answer.best = *best;
  return answer;
}

std::optional<EnvironmentAnswer> parse_environment(std::string_view completion) {
  completion = trimmed(completion);
  if (completion.size() > longest_answer) return std::nullopt;
  const auto parts = split(completion, '+');
  const auto is_flag = [](std::string_view s) { return s == "0" || s == "1"; };
  if (parts.size() != 4 || !looks_like_fen(parts[0]) || !is_flag(parts[2]) || !is_flag(parts[3]))
    return std::nullopt;
  const auto reward = read_decimal(parts[1]);
  if (!reward) return std::nullopt;
  return EnvironmentAnswer{std::string(parts[0]), *reward, parts[2] == "1", parts[3] == "1"};
}

}  // namespace hearth::chess
