// Evaluations as lm-evaluation-harness computes them: what is asked of the model, and what its
// log-probabilities come to. No model is needed to read a task or to sum it up.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/score.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth {

// A question with several answers, one of them right; each is scored after the context.
struct Choices {
  std::string context;
  std::vector<std::string> choices;
  size_t gold = 0;
};

// HellaSwag as .jsonl of the dataset's rows, or six lines an item: context, label, four endings.
std::vector<Choices> read_hellaswag(const std::filesystem::path&);
// ARC's rows, or {"context", "choices": [..], "gold"}, a JSON object a line.
std::vector<Choices> read_choices(const std::filesystem::path&);
// LAMBADA: the text before the last word, and a space and that word.
struct LastWord {
  std::string context, word;
};
std::vector<LastWord> read_lambada(const std::filesystem::path&);
std::vector<std::string> read_documents(const std::filesystem::path&);

// What HellaSwag's texts go through: the traces of WikiHow's markup removed.
std::string hellaswag_text(std::string_view);

// Context and continuation as tokens: encoded together and cut where the context alone ends, spaces
// that end it counted to the continuation. What is too long loses its front.
ScoreItem encode_pair(const Tokenizer&, std::string context, std::string continuation,
                      int64_t longest);
// Windows over a document that predict each token once, each but the first `stride` further.
std::vector<ScoreItem> rolling_windows(const Tokenizer&, std::string_view text, int64_t longest,
                                       int64_t stride);
// The same over tokens, of which the first is given.
std::vector<ScoreItem> rolling_windows(std::span<const int32_t> tokens, int64_t longest,
                                       int64_t stride);

struct Metric {
  std::string name;
  double value = 0;
  std::optional<double> error;  // standard, where it is defined
};

// scores[i] are of all choices of items[i], in order.
std::vector<Metric> choice_metrics(std::span<const Choices>, std::span<const Score>);
std::vector<Metric> last_word_metrics(std::span<const Score>);
// Without words and bytes, as of token files, perplexity a token alone.
std::vector<Metric> perplexity_metrics(std::span<const Score>, int64_t words = 0,
                                       int64_t bytes = 0);

int64_t count_words(std::string_view);  // as splitting at white space does, empty ends included
int64_t count_chars(std::string_view);

}  // namespace hearth
