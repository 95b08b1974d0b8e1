#include "infer/stop_text.h"

#include <algorithm>

#include "text/overlap.h"

namespace hearth::inline infer {

std::string StopText::push(std::string_view piece, bool armed) {
  if (stopped_) return {};
  if (!armed || stops_.empty()) {
    std::string all = std::move(held_) + std::string(piece);
    held_.clear();
    return all;
  }
  held_ += piece;
  size_t begin = std::string::npos, end = std::string::npos;
  for (const std::string& stop : stops_) {
    const size_t at = held_.find(stop);
    if (at == std::string::npos) continue;
    if (at + stop.size() < end || (at + stop.size() == end && at < begin))
      begin = at, end = at + stop.size();
  }
  stopped_ = begin != std::string::npos;
  size_t keep = 0;
  if (!stopped_)
    for (const std::string& stop : stops_) keep = std::max(keep, overlap(held_, stop));
  std::string certain = held_.substr(0, stopped_ ? begin : held_.size() - keep);
  held_.erase(0, stopped_ ? held_.size() : certain.size());
  return certain;
}

std::string StopText::finish() {
  std::string rest = std::move(held_);
  held_.clear();
  return rest;
}

TokenText::TokenText(const Tokenizer* tokenizer, std::vector<std::string> stops,
                     std::span<const int32_t> prompt)
    : tokenizer_(tokenizer), text_(std::move(stops)) {
  if (!tokenizer) return;
  // Some vocabularies write the first word, or the word after bos, without its space.
  decoder_.emplace(*tokenizer, prompt.empty() ? -1 : prompt.back());
}

std::string TokenText::push(int32_t token, bool armed) {
  if (!decoder_) return {};
  return text_.push(tokenizer_->has(token) ? decoder_->push(token) : std::string(), armed);
}

std::string TokenText::finish() {
  if (!decoder_) return {};
  // The decoder's last bytes may be an incomplete character, but they can still end a stop string.
  return text_.push(decoder_->finish()) + text_.finish();
}

}  // namespace hearth::inline infer
