// Evaluations as in lm-evaluation-harness: the items to score, and the metrics of their
// log-probabilities. Reading a task and computing metrics needs no model.
#pragma once

#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "eval/score.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline eval {

// Files may be gzip or zstd; "-" is standard input.

// A question with several answers, one of them correct; each is scored after the context.
struct Choices {
  std::string context;
  std::vector<std::string> choices;
  size_t gold = 0;
};

// HellaSwag: .jsonl of the dataset's rows, or six lines per item: context, label, four endings.
std::vector<Choices> read_hellaswag(const std::filesystem::path&);
// ARC rows, or {"context", "choices": [..], "gold"}; one JSON object per line.
std::vector<Choices> read_choices(const std::filesystem::path&);
// LAMBADA: the text before the last word, and that word with a leading space.
struct LastWord {
  std::string context, word;
};
std::vector<LastWord> read_lambada(const std::filesystem::path&);
std::vector<std::string> read_documents(const std::filesystem::path&);

// HellaSwag's preprocessing: removes traces of WikiHow markup.
std::string hellaswag_text(std::string_view);

// Context and continuation as tokens: encoded together and split where the context alone ends;
// trailing spaces of the context belong to the continuation. A text that is too long loses its
// start. `bos`: the text starts with bos.
ScoreItem encode_pair(const Tokenizer&, std::string context, std::string continuation,
                      int64_t longest, bool bos = false);
// Windows over a document that predict each token once; each starts `stride` tokens after the last.
std::vector<ScoreItem> rolling_windows(const Tokenizer&, std::string_view text, int64_t longest,
                                       int64_t stride);
// The same over tokens; the first one is not predicted.
std::vector<ScoreItem> rolling_windows(std::span<const int32_t> tokens, int64_t longest,
                                       int64_t stride);

struct Metric {
  std::string name;
  double value = 0;
  std::optional<double> error;  // standard error, if defined
};

// scores[i] contains all choices of items[i], in order.
std::vector<Metric> choice_metrics(std::span<const Choices>, std::span<const Score>);
std::vector<Metric> last_word_metrics(std::span<const Score>);
// Without words and bytes, as for token files, only the perplexity per token.
std::vector<Metric> perplexity_metrics(std::span<const Score>, int64_t words = 0,
                                       int64_t bytes = 0);

int64_t count_words(std::string_view);  // counts like a split at white space, including empty ends
int64_t count_chars(std::string_view);

}  // namespace hearth::inline eval
