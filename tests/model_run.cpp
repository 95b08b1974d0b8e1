#include "model_cases.h"

namespace hearth::cases {

Batch make_batch(const ModelConfig& c, int64_t B, int64_t T, bool documents, int32_t salt) {
  Batch b;
  for (int64_t i = 0; i < B; ++i)
    for (int64_t j = 0; j < T; ++j) {
      const int64_t n = i * T + j, length = 3 + i % 2;
      b.tokens.push_back(int32_t((n * n * 7 + n * 3 + salt * 5) % c.vocab));
      b.targets.push_back(n % 5 == 3 ? -100 : int32_t((n * n * 3 + n + 2 + salt) % c.vocab));
      b.count += b.targets.back() >= 0;
      b.positions.push_back(int32_t(documents ? j % length : j));
      if (documents) b.documents.push_back(int32_t(j / length));
    }
  return b;
}

ModelRun::ModelRun(Backend& b, const ModelCase& m, const ModelRunSpec& s)
    : backend_(b),
      params_(b, decoder_params(m.config), s.dtype),
      memory_(b, &params_),
      loss_scale_(s.loss_scale) {
  params_.initialise(21);
  for (const ParamSpec& p : params_.specs()) {  // so that no gain is 1 and no bias is 0
    std::vector<float> x = params_.values(Part::weight, p.name), shift(x.size());
    draw(shift, Init::uniform(s.shift), 22, p.name);
    for (size_t i = 0; i < x.size(); ++i) x[i] += shift[i];
    params_.set(p.name, x);
  }
  Tape t(s.dtype, "model");
  const DecoderInputs in = declare_inputs(t, s.B, s.T, m.documents);
  const Var targets = t.input("targets", {s.B, s.T}, DType::i32);
  std::vector<Var> further;
  const bool modules = m.config.mtp && !m.config.lora;
  const Var x = decoder(
      t, m.config, in,
      {.recompute = s.recompute, .dropout = s.dropout, .further = modules ? &further : nullptr});
  const HeadSpec head{.scale = m.config.logit_scale,
                      .softcap = m.config.logit_softcap,
                      .chunk_rows = 5,
                      .grad = true};
  head_loss(t, x, head_weight(t, m.config), targets, head);
  if (modules) record_mtp_losses(t, m.config, {further, targets, in.positions}, 0.3f, head);
  terms_ = t.losses;
  differentiate(t);
  exec_ = std::make_unique<Exec>(std::move(t), memory_);
  feed(make_batch(m.config, s.B, s.T, m.documents));
}

void ModelRun::feed(const Batch& b) {
  memory_.state.write<int32_t>("model.tokens", b.tokens);
  memory_.state.write<int32_t>("model.targets", b.targets);
  if (memory_.state.has("model.positions"))
    memory_.state.write<int32_t>("model.positions", b.positions);
  if (memory_.state.has("model.documents"))
    memory_.state.write<int32_t>("model.documents", b.documents);
  Scalars s;
  s.inv_targets = 1 / float(b.count), s.seed_lo = 3, s.step = 2;
  s.loss_scale = loss_scale_;
  memory_.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
}

void ModelRun::run() {
  exec_->run();
  backend_.synchronize();
}

double ModelRun::loss() {
  const Numbers values = read(backend_, memory_.state.find("model.losses"));
  double sum = 0;
  for (size_t i = 0; i < terms_.size(); ++i) sum += double(terms_[i].weight) * values[i];
  return sum;
}
Numbers ModelRun::nll() { return read(backend_, memory_.state.find("model.nll")); }

Named ModelRun::gradient(const std::string& param) {
  Named g{param, read(backend_, params_.get(Part::grad, param))};
  for (double& x : g.values) x /= double(loss_scale_);
  return g;
}

std::vector<Named> ModelRun::gradients() {
  std::vector<Named> r;
  for (const ParamSpec& p : params_.specs())
    if (p.trainable) r.push_back(gradient(p.name));
  return r;
}

std::vector<Named> ModelRun::joined_gradients() { return with_numbers_joined(gradients()); }

}  // namespace hearth::cases
