#include "train/sft.h"

#include <numeric>

#include "formats/fields.h"
#include "train/examples/batches.h"

namespace hearth {
namespace {

using Row = std::vector<const Example*>;  // examples that share a row of a batch

// All of the data as rows: packed, or an example each.
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
  SftTask(const SftConfig& c, AlignModel& model, std::vector<Row> train, std::vector<Row> held)
      : ExampleTask(c, model, {.items = train.size(), .documents = packs(c), .nll = true}),
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
    const std::vector<TokenBatch> batches = batches_of(rows);
    StepReport r;
    int64_t targets = 0, examples = 0;
    for (const TokenBatch& b : batches) targets += int64_t(b.rows.size());
    for (const Row& row : rows)
      for (const Example* e : row) {
        r.tokens += places_of(*e), ++examples;
        r.flops += double(places_of(*e)) * train_flops_per_token(model_.config, places_of(*e));
      }
    Scalars s = c.scalars;
    s.inv_targets = 1 / float(targets);
    for (size_t i = 0; i < batches.size(); ++i) {
      s.micro = uint32_t(i);
      for (const float nll : programs_.train(batches[i], s, i == 0)) r.loss += double(nll);
    }
    r.loss /= double(targets);
    c.guard.update(update(), c.scalars, r.loss);
    r.examples = examples;
    r.more = {{"examples", examples}, {"targets", targets}};
    return r;
  }

  bool evaluates() const override { return !held_.empty(); }
  std::optional<EvalReport> evaluate(const RunState&,
                                     const std::function<void(const std::string&)>&) override {
    double sum = 0;
    int64_t targets = 0;
    for (const TokenBatch& b : batches_of(held_)) {
      for (const float logprob : programs_.score(b).logprob) sum -= double(logprob);
      targets += int64_t(b.rows.size());
    }
    return loss_report(sum / double(targets));
  }

 private:
  static bool packs(const SftConfig& c) { return c.packing != SftPacking::none; }

  std::vector<TokenBatch> batches_of(std::span<const Row> rows) const {
    std::vector<TokenBatch> all;
    each_micro_batch(rows.size(), [&](size_t begin, size_t end) {
      const auto part = rows.subspan(begin, end - begin);
      all.push_back(lay_out(
          part, packed_ ? model_.max_length : common_length(part, model_.max_length), packed_));
    });
    return all;
  }

  bool packed_;
  std::vector<Row> rows_, held_;
  std::string digest_;
};

}  // namespace

RunResult sft(const SftConfig& c, const RunSpec& spec, Backend& backend) {
  const nlohmann::ordered_json settings = fields_to_json(c);
  check_config(c, spec, settings);
  AlignModel model(c, spec, backend);
  const ExampleEncoder encoder = encoder_of(model, c);
  const Examples<Example> data = read_examples(c.data, encoder);
  expect_examples(spec, data, "data", model.max_length);
  model.carry_template(data.rendered > 0);
  Examples<Example> val;
  if (!c.val.empty()) {
    val = read_examples(c.val, encoder);
    expect_examples(spec, val, "val", model.max_length);
  }
  const Split split = split_off(data.kept.size(), c.holdout, c.seed);
  std::vector<const Example*> train, held;
  for (const size_t i : split.rest) train.push_back(&data.kept[i]);
  for (const size_t i : split.held) held.push_back(&data.kept[i]);
  for (const Example& e : val.kept) held.push_back(&e);
  SftTask task(c, model, rows_of(train, c.packing, model.max_length),
               rows_of(held, c.packing, model.max_length));
  return run_task(spec, c, settings, model, task);
}

}  // namespace hearth
