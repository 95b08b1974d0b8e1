#include "train/losses.h"

#include <algorithm>
#include <array>
#include <cmath>

#include "model/router_loads.h"
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

void LossConfig::expect_effect(const ModelConfig& model, const LossConfig& usual) const {
  const auto refuse = [](const char* flag, float x, float usual, const char* why) {
    if (*why && x != 0 && x != usual) fail_usage(flag, "has no effect: {}; leave it out", why);
  };
  const char* why = !model.moe   ? "the model has no experts"
                    : model.lora ? "adapters leave routers as they are"
                                 : "";
  refuse("--balance-loss", balance_loss, usual.balance_loss, why);
  refuse("--router-z-loss", router_z_loss, usual.router_z_loss, why);
  if (!*why && !model.moe.router_bias) why = "the routers have no selection biases (--router-bias)";
  refuse("--balance-rate", balance_rate, usual.balance_rate, why);
  refuse("--mtp-loss", mtp_loss, usual.mtp_loss,
         model.mtp    ? ""
         : model.lora ? "adapters leave modules as they are"
                      : "the model has no mtp modules");
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

void LossQueue::send(const StateRef<float>& values, std::span<const LossTerm> terms,
                     const std::vector<double>& shares, const StateRef<int32_t>& load) {
  queue_.push_back({{terms.begin(), terms.end()}, shares, load ? load.tensor().cols() : 0});
  if (terms.size() > 1) sent_.send(values.tensor());
  if (load) loads_.send(load.tensor());
}

std::vector<LossValue> LossQueue::take() {
  if (queue_.empty()) fail("losses", "no terms of a loss were sent");
  const Sent sent = std::move(queue_.front());
  queue_.pop_front();
  std::vector<LossValue> found;
  size_t i = 0;
  if (sent.terms.size() > 1)
    for (const LossValue& l : named_losses(sent.terms, sent_.take_as<float>()))
      if (sent.shares[++i] > 0) found.push_back({l.name, l.value / sent.shares[i]});
  expert_load_.clear();
  if (!sent.experts) return found;
  const std::span<const int32_t> load = loads_.take_as<int32_t>();
  found.push_back({"expert_violation", load_violation(load, sent.experts)});
  expert_load_ = relative_loads(load, sent.experts);
  return found;
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
