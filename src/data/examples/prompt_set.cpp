#include "data/examples/prompt_set.h"

#include <algorithm>

#include "data/permutation.h"
#include "formats/json.h"
#include "sys/error.h"
#include "sys/hash/hash.h"

namespace hearth::inline data {

PromptSet::PromptSet(const std::string& file, const PromptSpec& spec, const Tokenizer& tokenizer,
                     const PromptLimits& limits, const Warn& warn)
    : rows_(read_prompts(file, spec)), rows_digest_(digest_of(rows_)) {
  if (limits.rows > 0 && int64_t(rows_.size()) > limits.rows) rows_.resize(size_t(limits.rows));
  encode(file, tokenizer, limits.context, warn);
}

void PromptSet::encode(const std::string& file, const Tokenizer& tokenizer, int64_t context,
                       const Warn& warn) {
  std::vector<std::vector<int32_t>> tokens;
  const size_t read = rows_.size();
  std::string first;
  std::erase_if(rows_, [&](const PromptRow& row) {
    std::vector<int32_t> ids = prompt_tokens(row, tokenizer);
    const bool fits = !ids.empty() && int64_t(ids.size()) < context;
    if (!fits && first.empty()) first = fmt::format("{}, has {}", row.where, ids.size());
    if (fits) tokens.push_back(std::move(ids));
    return !fits;
  });
  const int64_t most = context - 1;
  if (rows_.empty())
    fail(file, "expected a prompt of 1 to {} tokens, got none: the first, {}", most, first);
  if (rows_.size() < read && warn)
    warn(fmt::format("{}: {} of {} prompts left out, not of 1 to {} tokens: the first, {}", file,
                     read - rows_.size(), read, most, first));
  for (size_t i = 0; i < rows_.size(); ++i) {
    longest_ = std::max(longest_, int64_t(tokens[i].size()));
    prompts_.push_back({&rows_[i], std::move(tokens[i])});
  }
}

// Rows with equal values keep their order in the shuffled pass.
void PromptSet::order_by(const std::string& curriculum, uint64_t seed) {
  const auto number = [&](size_t i) {
    const nlohmann::json& row = prompts_[i].row->row;
    const auto it = row.find(curriculum);
    if (it == row.end() || !it->is_number())
      fail(prompts_[i].row->where, "expected a number as {} for --curriculum, got {}",
           in_quotes(curriculum), it == row.end() ? "none" : it->dump().substr(0, 40));
    return it->get<double>();
  };
  const Permutation pass(prompts_.size(), seed, 0);
  std::vector<std::pair<double, size_t>> all;
  for (size_t k = 0; k < prompts_.size(); ++k) {
    const size_t place = size_t(pass(k));
    all.emplace_back(number(place), place);
  }
  std::ranges::stable_sort(all, {}, &std::pair<double, size_t>::first);
  for (const auto& [value, place] : all) easy_first_.push_back(place);
}

std::vector<EncodedPrompt> PromptSet::of_step(int64_t data_step, int64_t count,
                                              uint64_t seed) const {
  std::vector<EncodedPrompt> chosen;
  const uint64_t n = prompts_.size();
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t k = uint64_t(data_step * count + i);
    const bool by_curriculum = k < easy_first_.size();
    chosen.push_back(prompts_[by_curriculum ? easy_first_[size_t(k)]
                                            : size_t(Permutation(n, seed, k / n)(k % n))]);
  }
  return chosen;
}

std::string PromptSet::tokens_digest(const std::vector<int32_t>& ends) const {
  Sha256 hash;
  const auto add = [&](const std::vector<int32_t>& ids) {
    const uint64_t size = ids.size();
    hash.update(std::as_bytes(std::span(&size, 1)));
    hash.update(std::as_bytes(std::span(ids)));
  };
  for (const EncodedPrompt& p : prompts_) add(p.tokens);
  add(ends);
  return hash.hex();
}

}  // namespace hearth::inline data
