// Strict parser for a UCI engine's output during the search of one position: info lines with a
// score per candidate, then bestmove. Accepts any text and rejects invalid replies.
#pragma once

#include <map>
#include <string_view>

#include "tasks/chess/label.h"

namespace hearth::chess {

class UciReply {
 public:
  enum class State { more, done, bad };

  // `candidates` is MultiPV; a position with fewer legal moves has fewer candidates.
  UciReply(const Board&, int candidates);

  State feed(std::string_view line);
  const Label& label() const { return label_; }  // valid when done

 private:
  bool read_info(std::string_view rest);
  bool read_best(std::string_view rest);

  Board board_;
  size_t wanted_;
  std::map<int, Candidate> found_;  // by rank; the last line of a rank wins
  Label label_;
};

}  // namespace hearth::chess
