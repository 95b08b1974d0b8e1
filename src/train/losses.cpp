#include "train/losses.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "sys/error.h"

namespace hearth::inline train {

void LossConfig::check() const {
  LossConfig(*this).visit([](const char* name, float weight, const char*) {
    if (weight >= 0 && std::isfinite(weight)) return;
    std::string flag = fmt::format("--{}", name);
    std::ranges::replace(flag, '_', '-');
    fail_usage(flag, "expected a weight of 0 or more, got {}", weight);
  });
}

std::vector<LossValue> named_losses(std::span<const LossTerm> terms, std::span<const float> values,
                                    LossTerms which) {
  std::vector<LossValue> found;
  for (size_t i = 1; i < terms.size(); ++i)
    if (which == LossTerms::all || terms[i].validate)
      found.push_back({terms[i].name, double(values[i])});
  return found;
}

std::vector<LossValue> read_losses(const StateRef<float>& values, std::span<const LossTerm> terms,
                                   LossTerms which) {
  if (terms.size() < 2) return {};
  std::array<float, size_t(most_loss_terms)> read = {};
  values.download(read);
  return named_losses(terms, read, which);
}

void LossQueue::send(const StateRef<float>& values, std::span<const LossTerm> terms) {
  terms_.emplace_back(terms.begin(), terms.end());
  if (terms.size() > 1) sent_.send(values.tensor());
}

std::vector<LossValue> LossQueue::take() {
  if (terms_.empty()) fail("losses", "no terms of a loss were sent");
  const std::vector<LossTerm> terms = std::move(terms_.front());
  terms_.pop_front();
  return terms.size() > 1 ? named_losses(terms, sent_.take_as<float>()) : std::vector<LossValue>();
}

void LossMeans::add(const std::vector<LossValue>& of_batch, int64_t targets) {
  if (sums_.empty())
    for (const LossValue& l : of_batch) sums_.push_back({l.name, 0});
  for (size_t i = 0; i < of_batch.size(); ++i)
    sums_[i].value += of_batch[i].value * double(targets);
  targets_ += targets;
}

std::vector<LossValue> LossMeans::means() const {
  std::vector<LossValue> all = sums_;
  for (LossValue& l : all) l.value /= double(targets_);
  return all;
}

}  // namespace hearth::inline train
