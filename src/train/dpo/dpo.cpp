#include "train/dpo/dpo_loss.h"

#include "sys/clock.h"
#include "sys/files/files.h"
#include "sys/hash/hash.h"
#include "train/dpo/reference_sums.h"
#include "train/examples/example_task.h"
#include "train/reference_model.h"

namespace hearth::inline train {
namespace {

using Pairs = std::vector<const Preference*>;

// Sums over pairs, for the report.
struct DpoTotals {
  double loss = 0, chosen = 0, rejected = 0, right = 0;
  int64_t pairs = 0;

  void add(const DpoPair& p) {
    loss += p.loss, chosen += p.reward_chosen, rejected += p.reward_rejected, ++pairs;
    // A tie counts as half right: before the first step every pair is a tie.
    right += p.reward_chosen > p.reward_rejected    ? 1
             : p.reward_chosen == p.reward_rejected ? 0.5
                                                    : 0;
  }
  double mean(double sum) const { return sum / double(pairs); }
  nlohmann::ordered_json json() const {
    return {{"reward_chosen", mean(chosen)},
            {"reward_rejected", mean(rejected)},
            {"margin", mean(chosen - rejected)},
            {"accuracy", mean(right)}};
  }
};

// `train`: how many of the pairs are trained on; the others are held out.
std::string digest_of(const std::vector<Preference>& data, size_t train) {
  Sha256 hash;
  hash.update(to_bytes(fmt::format("{} ", train)));
  for (const Preference& p : data) add_to(hash, p.chosen), add_to(hash, p.rejected);
  return hash.hex();
}

class DpoTask : public ExampleTask {
 public:
  DpoTask(const DpoConfig& c, const RunSpec& spec, ExampleModel& model,
          const ExampleData<Preference>& data)
      : ExampleTask(c, spec, model,
                    {.items = data.split.rest.size(),
                     .rows_per_item = 2,
                     .losses = {.mtp_loss = c.modules.mtp_loss},
                     .reference = c.reference == DpoReference::live}),
        config_(c),
        data_(data.all),
        held_(data.split.held),
        train_(data.split.rest),
        digest_(digest_of(data_, train_.size())),
        max_length_(model.max_length) {}

  std::string_view kind() const override { return "dpo"; }
  std::string data_digest() const override { return digest_; }

  // Prepares the reference: a live model that runs beside the policy, or its cached sums.
  bool prepare() override {
    ReferenceFile file(spec_.run / "reference.json",
                       reference_key(model_.base.digest, data_, storage_dtype(config_.dtype)));
    if (config_.reference == DpoReference::live) {
      file.save();
      live_.emplace(reference_model());
      return true;
    }
    if (file.sums.size() > data_.size())
      fail("reference.json", "expected {} pairs, got {}", data_.size(), file.sums.size());
    const bool complete = file.sums.size() == data_.size() || ask_reference(file);
    reference_ = std::move(file.sums);
    return complete;
  }

  std::optional<StepReport> step(StepContext& c) override {
    const std::vector<size_t> places = chosen(c.data_step);
    const double share = 1 / double(places.size());  // weight of a pair in the mean
    int64_t taught = 0;  // tokens of chosen answers, which modules learn
    for (const size_t i : places) taught += learned_tokens(data_[train_[i]].chosen);
    c.scalars.inv_targets = 1 / float(taught);
    StepReport r;
    DpoTotals totals;
    each_micro_batch(places.size(), [&](size_t begin, size_t end) {
      std::vector<size_t> chosen;
      for (size_t i = begin; i < end; ++i) chosen.push_back(train_[places[i]]);
      const std::vector<PairSums> reference = reference_of(chosen);
      const Pairs pairs = pairs_of(chosen);
      const Logprobs policy = programs_.forward(lay_out(pairs), begin == 0, c.scalars);
      std::vector<float> d;
      each_pair(pairs, policy, reference, [&](const Preference& p, const DpoPair& l) {
        totals.add(l);
        d.insert(d.end(), size_t(learned_tokens(p.chosen)), float(l.d_chosen * share));
        d.insert(d.end(), size_t(learned_tokens(p.rejected)), float(l.d_rejected * share));
        for (const Example* e : {&p.chosen, &p.rejected}) count(r, *e);
      });
      programs_.backward(d, c.scalars);
    });
    r.loss = totals.mean(totals.loss), r.examples = totals.pairs;
    programs_.send_terms();
    c.guard.update(update(), c.scalars, r.loss);
    r.more = totals.json();
    if (programs_.has_terms())
      r.complete = [this](StepReport& report) { programs_.report_terms(report.more); };
    return r;
  }

  bool evaluates() const override { return !held_.empty(); }
  std::optional<EvalReport> evaluate(const RunState&, const ShowProgress&) override {
    DpoTotals totals;
    const bool complete =
        each_micro_batch_until_stopped(held_.size(), [&](size_t begin, size_t end) {
          const auto chosen = std::span(held_).subspan(begin, end - begin);
          const std::vector<PairSums> reference = reference_of(chosen);
          const Pairs pairs = pairs_of(chosen);
          each_pair(pairs, programs_.score(lay_out(pairs)), reference,
                    [&](const Preference&, const DpoPair& l) { totals.add(l); });
        });
    if (!complete) return {};
    return loss_report(totals.mean(totals.loss), {}, totals.json());
  }

 private:
  ReferenceModel reference_model() {
    return {programs_spec(model_, config_), model_.memory,
            [this](ParamStore& to) { open_base(model_.base.path, config_.lora).load(to); }};
  }
  std::vector<PairSums> sums_by(ReferenceModel& reference, const Pairs& pairs) const {
    return sums_of(pairs, reference.programs().score(lay_out(pairs)).logprob);
  }

  // Computes the sums of the pairs that the file does not have yet. False: interrupted by a signal;
  // the file keeps the sums computed so far.
  bool ask_reference(ReferenceFile& file) {
    constexpr double seconds_between_saves = 30;
    ReferenceModel once = reference_model();
    auto saved = Clock::now();
    while (file.sums.size() < data_.size()) {
      const bool stopped = spec_.stop && *spec_.stop;
      if (stopped || seconds_since(saved) > seconds_between_saves)
        file.save(), saved = Clock::now();
      if (stopped) return false;
      const size_t at = file.sums.size(), n = std::min(data_.size() - at, micro_batch());
      Pairs pairs;
      for (size_t i = at; i < at + n; ++i) pairs.push_back(&data_[i]);
      for (const PairSums& p : sums_by(once, pairs)) file.sums.push_back(p);
    }
    file.save();
    return true;
  }

  TokenBatch lay_out(const Pairs& pairs) const {
    return lay_out_pairs(pairs, max_length_, model_.memory.backend.prefers_few_programs());
  }

  Pairs pairs_of(std::span<const size_t> chosen) const {
    Pairs pairs;
    for (const size_t i : chosen) pairs.push_back(&data_[i]);
    return pairs;
  }

  // Called before the policy's forward pass, because a live reference may share the GPU's scratch
  // memory.
  std::vector<PairSums> reference_of(std::span<const size_t> chosen) {
    if (live_) return sums_by(*live_, pairs_of(chosen));
    std::vector<PairSums> sums;
    for (const size_t i : chosen) sums.push_back(reference_[i]);
    return sums;
  }

  template <class Use>
  void each_pair(const Pairs& pairs, const Logprobs& policy, std::span<const PairSums> reference,
                 Use use) const {
    const std::vector<PairSums> sums = sums_of(pairs, policy.logprob);
    const DpoSpec spec{config_.loss, config_.beta, config_.label_smoothing};
    for (size_t i = 0; i < pairs.size(); ++i) {
      const Preference& p = *pairs[i];
      use(p, dpo_pair({sums[i].chosen, reference[i].chosen, learned_tokens(p.chosen)},
                      {sums[i].rejected, reference[i].rejected, learned_tokens(p.rejected)}, spec));
    }
  }

  const DpoConfig& config_;
  const std::vector<Preference>& data_;
  const std::vector<size_t>&held_, &train_;  // indices into it
  std::string digest_;                       // of the data
  int64_t max_length_;
  std::vector<PairSums> reference_;  // of all data; empty with a live reference
  std::optional<ReferenceModel> live_;
};

void check_loss(const DpoConfig& c) {
  if (!(c.beta > 0)) fail_usage("--beta", "expected a number above 0, got {}", c.beta);
  const bool smoothed = c.loss == DpoLoss::cdpo || c.loss == DpoLoss::robust;
  if (!(c.label_smoothing >= 0 && c.label_smoothing < 0.5) || (smoothed && c.label_smoothing == 0))
    fail_usage("--label-smoothing", "expected a share {} below 0.5 for --loss {}, got {}",
               smoothed ? "above 0 and" : "from 0 to", enum_name(c.loss), c.label_smoothing);
  if (c.label_smoothing > 0 && !smoothed)
    fail_usage("--label-smoothing", "expected it with --loss cdpo or robust, got {}",
               enum_name(c.loss));
}

}  // namespace

RunResult dpo(const DpoConfig& c, const RunSpec& spec, Backend& backend) {
  const auto settings = RunSettings::of(free_settings_of_examples, c);
  check_config(c, spec, settings, backend);
  check_loss(c);
  c.lora.expect_no_dropout("DPO");
  ExampleModel model(c, spec, backend, c.modules ? Modules::apart : Modules::stay);
  c.modules.check(model.config);
  // A checkpoint identifies its reference model by this. With adapters it is their base.
  if (!model.base) model.base = hold_model(open_base(base_in_run(spec.run, c.model), c.lora));
  spec.phases->mark("model");
  const ExampleData<Preference> data = read_data(c, spec, model, read_preferences);
  DpoTask task(c, spec, model, data);
  spec.phases->mark("plan");
  return run_task(spec, c, settings, model, task);
}

}  // namespace hearth::inline train
