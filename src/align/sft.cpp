#include "align/sft.h"

#include <numeric>

#include "align/batches.h"
#include "io/fields.h"

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

class SftTask : public AlignTask {
 public:
  SftTask(const SftConfig& c, AlignModel& model, std::vector<const Example*> train,
          std::vector<const Example*> held)
      : config_(c),
        max_length_(model.max_length),
        programs_(programs_spec(model, c), model.memory),
        rows_(rows_of(train, c.packing, model.max_length)),
        held_(rows_of(held, c.packing, model.max_length)),
        order_{rows_.size(), uint64_t(c.batch * c.accumulate), c.seed} {
    Sha256 hash;
    for (const auto* rows : {&rows_, &held_})
      for (const Row& row : *rows)
        for (const Example* e : row) add_to(hash, *e);
    digest_ = hash.hex();
  }

  int64_t steps_per_epoch() const override { return order_.steps_per_epoch(); }
  std::string data_digest() const override { return digest_; }

  StepReport train(int64_t step, Scalars s) override {
    std::vector<Row> rows;
    for (const size_t i : order_.of(step)) rows.push_back(rows_[i]);
    const std::vector<TokenBatch> batches = batches_of(rows);
    StepReport r;
    int64_t targets = 0;
    for (const TokenBatch& b : batches) targets += int64_t(b.rows.size());
    for (const Row& row : rows)
      for (const Example* e : row) r.tokens += places_of(*e), ++r.examples;
    s.inv_targets = 1 / float(targets);
    for (size_t i = 0; i < batches.size(); ++i) {
      s.micro = uint32_t(i);
      for (const float nll : programs_.train(batches[i], s, i == 0)) r.loss += double(nll);
    }
    r.loss /= double(targets);
    r.more = {{"examples", r.examples}, {"targets", targets}};
    return r;
  }

  std::optional<EvalReport> evaluate() override {
    if (held_.empty()) return {};
    double sum = 0;
    int64_t targets = 0;
    for (const TokenBatch& b : batches_of(held_)) {
      for (const float logprob : programs_.score(b).logprob) sum -= double(logprob);
      targets += int64_t(b.rows.size());
    }
    return EvalReport{sum / double(targets)};
  }

 private:
  std::vector<TokenBatch> batches_of(std::span<const Row> rows) const {
    std::vector<TokenBatch> all;
    for (size_t at = 0; at < rows.size(); at += size_t(config_.batch)) {
      const auto part = rows.subspan(at, std::min(rows.size() - at, size_t(config_.batch)));
      const bool packed = config_.packing != SftPacking::none;
      all.push_back(lay_out(part, packed ? max_length_ : common_length(part, max_length_), packed));
    }
    return all;
  }

  const SftConfig& config_;
  int64_t max_length_;
  LogprobPrograms programs_;
  std::vector<Row> rows_, held_;
  StepOrder order_;
  std::string digest_;
};

}  // namespace

RunResult sft(const SftConfig& c, const AlignRunSpec& spec, Backend& backend) {
  check_config(c, spec);
  AlignModel model(c, spec, backend);
  const ExampleEncoder encoder = encoder_of(model, c);
  const Examples<Example> data = read_examples(c.data, encoder);
  expect_examples(spec, data, "data", model.max_length);
  carry_template(model, data.rendered > 0);
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
  SftTask task(c, model, std::move(train), std::move(held));
  return align(spec, c, fields_to_json(c), model, task);
}

}  // namespace hearth
