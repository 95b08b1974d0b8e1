// What a UCI engine says while it searches one position, read strictly: info lines with a score per
// candidate, then bestmove. Any text may be fed; what is no such reply is refused, never guessed
// at.
#pragma once

#include <map>
#include <string_view>

#include "tasks/chess/label.h"

namespace hearth::chess {

class UciReply {
 public:
  enum class State { more, done, bad };

  // `candidates` is MultiPV; a position with fewer legal moves has as many candidates.
  UciReply(const Board&, int candidates);

  State feed(std::string_view line);
  const Label& label() const { return label_; }  // when done

 private:
  bool read_info(std::string_view rest);
  bool read_best(std::string_view rest);

  Board board_;
  size_t wanted_;
  std::map<int, Candidate> found_;  // by rank; the last line of a rank counts
  Label label_;
};

}  // namespace hearth::chess
