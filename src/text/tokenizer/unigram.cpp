#include "text/tokenizer/unigram.h"

#include <algorithm>

#include "text/tokenizer/unicode.h"

namespace hearth::inline text {
namespace {

constexpr double unknown_penalty = 10;  // below the lowest score, as in SentencePiece

uint64_t edge(uint32_t node, char byte) { return uint64_t(node) << 8 | uint8_t(byte); }

}  // namespace

Unigram::Unigram(std::vector<double> scores, int32_t unknown)
    : scores_(std::move(scores)), unknown_(unknown) {
  if (!scores_.empty()) unknown_score_ = *std::ranges::min_element(scores_) - unknown_penalty;
}

void Unigram::add(std::string_view piece, int32_t id) {
  uint32_t node = 0;
  for (const char c : piece) {
    const auto [it, fresh] = next_.emplace(edge(node, c), uint32_t(ids_.size()));
    if (fresh) ids_.push_back(-1);
    node = it->second;
  }
  ids_[node] = id;
}

std::vector<Unigram::Part> Unigram::parts(std::string_view word) const {
  struct Best {
    double score = 0;
    size_t begin = 0;
    int32_t id = -1;
    bool reached = false;
  };
  std::vector<Best> best(word.size() + 1);  // by end
  const auto offer = [&](size_t begin, size_t end, int32_t id, double score) {
    Best& b = best[end];
    score += best[begin].score;
    if (!b.reached || score > b.score) b = {score, begin, id, true};
  };
  const char* end = word.data() + word.size();
  for (size_t at = 0; at < word.size();) {
    const size_t character = size_t(read_utf8(word.data() + at, end).length);
    bool single = false;
    uint32_t node = 0;
    for (size_t i = at; i < word.size(); ++i) {
      const auto it = next_.find(edge(node, word[i]));
      if (it == next_.end()) break;
      node = it->second;
      const int32_t id = ids_[node];
      if (id < 0) continue;
      offer(at, i + 1, id, scores_[size_t(id)]);
      single = single || i + 1 - at == character;
    }
    if (!single) offer(at, at + character, unknown_, unknown_score_);
    at += character;
  }
  std::vector<Part> parts;
  bool unknown = false;  // the part that follows
  for (size_t at = word.size(); at > 0; at = best[at].begin) {
    const bool own = best[at].id == unknown_;
    if (!(own && unknown)) parts.push_back({at, best[at].id});
    unknown = own;
  }
  std::ranges::reverse(parts);
  return parts;
}

}  // namespace hearth::inline text
