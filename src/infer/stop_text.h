// StopText: the text of a completion up to the first stop string. Text that may become a stop
// string is held back, so text that was returned is never retracted.
#pragma once

#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "text/tokenizer/tokenizer.h"

namespace hearth::inline infer {

// Finds the stop string that ends first (the longest among several that end together), for any
// split of the text into pieces.
class StopText {
 public:
  explicit StopText(std::vector<std::string> stops) : stops_(std::move(stops)) {}
  // Returns the text that is final now. Not `armed`: all of it, and nothing in it can stop.
  std::string push(std::string_view piece, bool armed = true);
  std::string finish();  // the text held back; empty after a stop
  bool stopped() const { return stopped_; }

 private:
  std::vector<std::string> stops_;
  std::string held_;
  bool stopped_ = false;
};

// The same for the tokens that follow a prompt. Without a tokenizer there is no text, and neither
// do ids have one that the tokenizer does not know.
class TokenText {
 public:
  TokenText(const Tokenizer*, std::vector<std::string> stops, std::span<const int32_t> prompt);
  std::string push(int32_t token, bool armed);
  std::string finish();
  bool stopped() const { return text_.stopped(); }

 private:
  const Tokenizer* tokenizer_;
  std::optional<StreamDecoder> decoder_;
  StopText text_;
};

}  // namespace hearth::inline infer
