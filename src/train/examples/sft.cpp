#include "train/examples/example_task.h"

#include "data/examples/batches.h"

namespace hearth::inline train {
namespace {

using Row = std::vector<const Example*>;  // examples that share a row of a batch

// All of the data as rows, either packed or one example per row.
std::vector<Row> rows_of(const std::vector<const Example*>& examples, SftPacking packing,
                         int64_t room) {
  std::vector<Row> rows;
  if (packing == SftPacking::none) {
    for (const Example* e : examples) rows.push_back({e});
    return rows;
  }
  std::vector<int64_t> sizes;
  for (const Example* e : examples) sizes.push_back(places_of(*e));
  for (const std::vector<size_t>& chosen : pack_best_fit(sizes, room)) {
    Row& row = rows.emplace_back();
    for (const size_t i : chosen) row.push_back(examples[i]);
  }
  return rows;
}

class SftTask : public ExampleTask {
 public:
  SftTask(const SftConfig& c, const RunSpec& spec, ExampleModel& model, std::vector<Row> train,
          std::vector<Row> held)
      : ExampleTask(c, spec, model,
                    {.items = train.size(),
                     .documents = packs(c),
                     .kind = LogprobPrograms::Kind::nll_first,
                     .losses = c.losses}),
        packed_(packs(c)),
        rows_(std::move(train)),
        held_(std::move(held)) {
    Sha256 hash;
    for (const auto* rows : {&rows_, &held_})
      for (const Row& row : *rows)
        for (const Example* e : row) add_to(hash, *e);
    digest_ = hash.hex();
  }

  std::string_view kind() const override { return "sft"; }
  std::string data_digest() const override { return digest_; }

  std::optional<StepReport> step(StepContext& c) override {
    std::vector<Row> rows;
    for (const size_t i : chosen(c.data_step)) rows.push_back(rows_[i]);
    std::vector<TokenBatch> batches;
    each_micro_batch(rows.size(), [&](size_t begin, size_t end) {
      batches.push_back(batch_of(std::span(rows).subspan(begin, end - begin), rows_.size()));
    });
    StepReport r;
    int64_t targets = 0, examples = 0;
    for (const TokenBatch& b : batches) targets += int64_t(b.rows.size());
    for (const Row& row : rows)
      for (const Example* e : row) count(r, *e), ++examples;
    Scalars s = c.scalars;
    s.inv_targets = 1 / float(targets);
    s.share = 1 / float(batches.size());
    for (size_t i = 0; i < batches.size(); ++i) {
      s.micro = uint32_t(i);
      programs_.launch_train(batches[i], s, i == 0);
    }
    r.examples = examples;
    r.more = {{"examples", examples}, {"targets", targets}};
    const auto read_loss = [this, launches = batches.size(), targets](StepReport& report) {
      double sum = 0;
      for (size_t i = 0; i < launches; ++i) {
        for (const float nll : programs_.take_nll()) sum += double(nll);
        report.terms = programs_.take_terms();  // the last launch has the terms of the whole step
      }
      if (!programs_.expert_load().empty()) report.more["expert_load"] = programs_.expert_load();
      report.loss = sum / double(targets);
    };
    if (c.guard.waits()) {
      read_loss(r);
      c.guard.update(update(), c.scalars, r.loss);
    } else {
      c.guard.update(update(), c.scalars);
      r.complete = read_loss;
    }
    return r;
  }

  bool evaluates() const override { return !held_.empty(); }
  std::optional<EvalReport> evaluate(const RunState&, const ShowProgress&) override {
    double sum = 0;
    int64_t targets = 0;
    LossMeans terms;
    const bool complete =
        each_micro_batch_until_stopped(held_.size(), [&](size_t begin, size_t end) {
          const TokenBatch b = batch_of(std::span(held_).subspan(begin, end - begin), held_.size());
          for (const float nll : programs_.evaluate(b)) sum += double(nll);
          targets += int64_t(b.rows.size());
          terms.add(programs_.evaluated_terms(), int64_t(b.rows.size()));
        });
    if (!complete) return {};
    return loss_report(sum / double(targets), terms.means());
  }

 private:
  static bool packs(const SftConfig& c) { return c.packing != SftPacking::none; }

  // A micro-batch of `rows` out of `all` rows. On a backend that prefers few programs, a short
  // batch is padded with empty rows, and one program serves batches with different numbers of
  // learned tokens.
  TokenBatch batch_of(std::span<const Row> rows, size_t all) {
    const bool few = model_.memory.backend.prefers_few_programs();
    if (few) programs_.set_rows(most_targets());
    return lay_out(rows, packed_ ? model_.max_length : common_length(rows, model_.max_length, few),
                   packed_, int64_t(few ? std::min(micro_batch(), all) : rows.size()));
  }

  // The largest number of learned tokens in a micro-batch of the first epochs. It follows only from
  // the data, the seed and the micro-batch size, so that a resumed run has the same programs.
  int64_t most_targets() {
    constexpr int64_t epochs = 4;
    constexpr uint64_t most_rows = 1 << 20;
    if (most_targets_) return most_targets_;
    std::vector<int64_t> targets;
    for (const Row& row : rows_) {
      int64_t n = 0;
      for (const Example* e : row) n += learned_tokens(*e);
      targets.push_back(n);
    }
    uint64_t seen = 0;
    for (int64_t step = 0; step < epochs * steps_per_epoch() && seen < most_rows; ++step) {
      const std::vector<size_t> rows = chosen(step);
      each_micro_batch(rows.size(), [&](size_t begin, size_t end) {
        int64_t n = 0;
        for (size_t i = begin; i < end; ++i) n += targets[rows[i]];
        most_targets_ = std::max(most_targets_, n);
      });
      seen += rows.size();
    }
    return most_targets_;
  }

  bool packed_;
  std::vector<Row> rows_, held_;
  std::string digest_;
  int64_t most_targets_ = 0;  // 0: not known yet
};

}  // namespace

RunResult sft(const SftConfig& c, const RunSpec& spec, Backend& backend) {
  const auto settings = RunSettings::of(free_settings_of_examples, c);
  check_config(c, spec, settings, backend);
  // The digest of their base identifies adapters, so that their base may be moved.
  if (spec.resume && !c.lora.spec()) expect_model_of_run(spec.run, c.model);
  c.losses.check();
  ExampleModel model(c, spec, backend, c.losses.mtp_loss > 0 ? Modules::learn : Modules::stay);
  if (!spec.goes_on()) c.losses.expect_effect(model.config, {});
  spec.phases->mark("model");
  const ExampleData<Example> data = read_data(c, spec, model, read_examples);
  const auto rows = [&](const std::vector<size_t>& chosen) {
    std::vector<const Example*> examples;
    for (const size_t i : chosen) examples.push_back(&data.all[i]);
    return rows_of(examples, c.packing, model.max_length);
  };
  SftTask task(c, spec, model, rows(data.split.rest), rows(data.split.held));
  spec.phases->mark("plan");
  return run_task(spec, c, settings, model, task);
}

}  // namespace hearth::inline train
