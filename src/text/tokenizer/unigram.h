// Unigram: the vocabulary of SentencePiece whose pieces have scores. A word becomes the pieces with
// the highest sum of scores.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace hearth::inline text {

class Unigram {
 public:
  Unigram() = default;
  // `scores` by id.
  Unigram(std::vector<double> scores, int32_t unknown);
  void add(std::string_view piece, int32_t id);

  // A piece of a word, by its end; id -1: no piece.
  struct Part {
    size_t end;
    int32_t id;
  };
  // The best pieces in order. Neighbouring unknown characters are one part.
  std::vector<Part> parts(std::string_view word) const;

  const std::vector<double>& scores() const { return scores_; }

 private:
  // A tree of the bytes of all pieces: (node, byte) to the next node.
  std::unordered_map<uint64_t, uint32_t> next_;
  std::vector<int32_t> ids_ = {-1};  // by node: the piece that ends here
  std::vector<double> scores_;
  double unknown_score_ = 0;
  int32_t unknown_ = -1;
};

}  // namespace hearth::inline text
