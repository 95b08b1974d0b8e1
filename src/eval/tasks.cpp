#include "eval/tasks.h"

#include <cmath>
#include <numbers>

#include "formats/json.h"
#include "sys/error.h"
#include "text/tokenizer/unicode.h"

namespace hearth::inline eval {
namespace {

// White space as in Python's str: Unicode's, plus the four ASCII separators.
bool is_white(uint32_t code) {
  return char_class(code) == CharClass::space || (code >= 0x1c && code <= 0x1f);
}

// The size of the text without trailing white space.
size_t trimmed_size(std::string_view text) {
  size_t end = 0;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = read_utf8(text.data() + at, text.data() + text.size());
    at += size_t(c.length);
    if (!is_white(c.code)) end = at;
  }
  return end;
}

int32_t prefix_token(const Tokenizer& t) {
  const int32_t id = t.bos() >= 0 ? t.bos() : t.eos();
  if (id < 0) fail("eval", "the tokenizer has neither bos nor eos to start a text with");
  return id;
}

// A mean and its standard error, from the sample's standard deviation.
struct Mean {
  double value = 0;
  std::optional<double> error;
};
Mean mean_of(double sum, double squares, int64_t n) {
  const double mean = sum / double(n);
  if (n < 2) return {mean, {}};
  const double variance = std::max(0.0, (squares - sum * mean) / double(n - 1));
  return {mean, std::sqrt(variance / double(n))};
}

Metric share(std::string name, int64_t hits, int64_t n) {
  const Mean m = mean_of(double(hits), double(hits), n);
  return {std::move(name), m.value, m.error};
}

// exp(-mean); its error to first order.
Metric perplexity(std::string name, const Mean& logprob) {
  const double value = std::exp(-logprob.value);
  return {std::move(name), value,
          logprob.error ? std::optional(value * *logprob.error) : std::nullopt};
}

// The index of the first maximum.
template <class F>
size_t best_of(std::span<const Score> scores, F value) {
  size_t best = 0;
  for (size_t i = 1; i < scores.size(); ++i)
    if (value(i) > value(best)) best = i;
  return best;
}

}  // namespace

int64_t count_words(std::string_view text) {
  int64_t gaps = 0;
  bool in_gap = false;
  for (size_t at = 0; at < text.size();) {
    const Utf8Char c = read_utf8(text.data() + at, text.data() + text.size());
    at += size_t(c.length);
    const bool white = is_white(c.code);
    gaps += white && !in_gap;
    in_gap = white;
  }
  return gaps + 1;
}

int64_t count_chars(std::string_view text) {
  int64_t n = 0;
  for (size_t at = 0; at < text.size(); ++n)
    at += size_t(read_utf8(text.data() + at, text.data() + text.size()).length);
  return n;
}

ScoreItem encode_pair(const Tokenizer& t, std::string context, std::string continuation,
                      int64_t longest, bool bos) {
  ScoreItem item;
  if (context.empty()) {
    item.tokens = t.encode(continuation);
    const int32_t prefix = prefix_token(t);
    if (item.tokens.empty() || item.tokens[0] != prefix)
      item.tokens.insert(item.tokens.begin(), prefix);
  } else {
    const size_t end = trimmed_size(context);
    continuation.insert(0, context, end);
    context.resize(end);
    item.tokens = t.encode(context + continuation);
    item.first = int64_t(t.encode(context).size());
    if (item.first == 0 ||  // only spaces
        (bos && item.tokens[0] != t.bos())) {
      item.tokens.insert(item.tokens.begin(), prefix_token(t));
      ++item.first;
    }
  }
  const int64_t n = int64_t(item.tokens.size());
  if (item.first >= n)
    fail("eval", "expected a continuation of at least one token, got none in {}",
         in_quotes(continuation));
  if (const int64_t cut = n - (longest + 1); cut > 0) {
    item.tokens.erase(item.tokens.begin(), item.tokens.begin() + cut);
    item.first = std::max<int64_t>(1, item.first - cut);
  }
  return item;
}

std::vector<ScoreItem> rolling_windows(const Tokenizer& t, std::string_view text, int64_t longest,
                                       int64_t stride) {
  std::vector<int32_t> tokens = t.encode(text);
  if (tokens.empty()) return {};
  // A tokenizer that adds bos to every text has already added the prefix.
  if (const int32_t prefix = prefix_token(t); tokens[0] != prefix)
    tokens.insert(tokens.begin(), prefix);
  return rolling_windows(tokens, longest, stride);
}

std::vector<ScoreItem> rolling_windows(std::span<const int32_t> tokens, int64_t longest,
                                       int64_t stride) {
  if (stride < 1 || stride > longest)
    fail_usage("--stride", "expected 1 to {}, got {}", longest, stride);
  std::vector<ScoreItem> windows;
  const int64_t n = int64_t(tokens.size());
  for (int64_t done = 1; done < n;) {  // tokens[0] is not predicted
    const int64_t end = std::min(n, done + (done == 1 ? longest : stride));
    const int64_t begin = std::max<int64_t>(0, end - longest - 1);
    windows.push_back({{tokens.begin() + begin, tokens.begin() + end}, done - begin});
    done = end;
  }
  return windows;
}

std::vector<Metric> choice_metrics(std::span<const Choices> items, std::span<const Score> scores) {
  int64_t plain = 0, by_chars = 0, by_bytes = 0;
  for (const Choices& item : items) {
    const auto own = scores.first(item.choices.size());
    scores = scores.subspan(item.choices.size());
    plain += best_of(own, [&](size_t i) { return own[i].logprob; }) == item.gold;
    by_chars += best_of(own, [&](size_t i) {
                  return own[i].logprob / double(count_chars(item.choices[i]));
                }) == item.gold;
    by_bytes += best_of(own, [&](size_t i) {
                  return own[i].logprob / double(item.choices[i].size());
                }) == item.gold;
  }
  const int64_t n = int64_t(items.size());
  return {share("acc", plain, n), share("acc_norm", by_chars, n), share("acc_bytes", by_bytes, n)};
}

std::vector<Metric> last_word_metrics(std::span<const Score> scores) {
  double sum = 0, squares = 0;
  int64_t hits = 0;
  for (const Score& s : scores) {
    sum += s.logprob, squares += s.logprob * s.logprob;
    hits += s.greedy;
  }
  const int64_t n = int64_t(scores.size());
  return {perplexity("perplexity", mean_of(sum, squares, n)), share("acc", hits, n)};
}

std::vector<Metric> perplexity_metrics(std::span<const Score> scores, int64_t words,
                                       int64_t bytes) {
  Score all;
  for (const Score& s : scores)
    all.logprob += s.logprob, all.squares += s.squares, all.tokens += s.tokens;
  const Metric by_token = perplexity("perplexity", mean_of(all.logprob, all.squares, all.tokens));
  if (bytes == 0) return {by_token};
  const double by_byte = all.logprob / double(bytes);
  return {by_token,
          perplexity("word_perplexity", {all.logprob / double(words), {}}),
          perplexity("byte_perplexity", {by_byte, {}}),
          {"bits_per_byte", -by_byte / std::numbers::ln2, {}}};
}

}  // namespace hearth::inline eval
