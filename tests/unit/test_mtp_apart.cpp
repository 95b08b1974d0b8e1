// Modules of multi-token prediction that learn beside a loss that the host computes (DPO, GRPO):
// they have the gradients that they have in pretraining, the model those that it has without them,
// and each its own update.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <map>

#include "formats/json.h"
#include "model_cases.h"
#include "train/logprob_programs.h"
#include "unit/message_of.h"
#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using namespace optim_test;
using ByName = std::map<std::string, std::vector<float>>;

bool is_module(const std::string& name) { return name.starts_with("mtp."); }

// Models whose modules read what belongs to the model: its table or a head, a bias by distance, and
// experts beside those of the model.
std::vector<ModelConfig> models() {
  ModelConfig c;
  c.vocab = 40, c.dim = 16, c.layers = 2, c.heads = 2, c.context = 16, c.hidden = 24, c.mtp = 2;
  c.init_std = 0.3f;
  std::vector<ModelConfig> all(4, c);
  all[1].tied = false, all[1].embed_scale = 2, all[1].value_residual = true;
  all[2].position = Position::relative, all[2].relative_buckets = 4, all[2].relative_distance = 5;
  all[3].moe.experts = 4, all[3].moe.top_k = 2, all[3].moe.expert_hidden = 6;
  for (ModelConfig& m : all) m = m.resolve();
  return all;
}

// Rows of two sequences that are asked about, and of which the second teaches modules nothing.
TokenBatch two_sequences() {
  TokenBatch b{.B = 2, .T = 9, .tokens = {}, .taught = {}};
  for (int32_t i = 0; i < 18; ++i) b.tokens.push_back((7 * i + 3) % 40);
  for (const int32_t row : {2, 3, 4, 5, 9, 10, 11}) {
    b.rows.push_back(row), b.targets.push_back((row * 5 + 1) % 40);
    b.taught.push_back(row < 9);
  }
  b.counts.assign(18, 1);
  return b;
}

struct Learned {
  ByName gradients;
  std::vector<float> logprob;
  nlohmann::ordered_json found = nlohmann::ordered_json::object();
};

enum class Loss : uint8_t { of_host, of_host_with_modules, of_tokens };

Learned learn(Backend& backend, const LogprobProgramsSpec& common, const TokenBatch& b, Loss loss) {
  LogprobProgramsSpec spec = common;
  spec.modules = loss != Loss::of_host;
  ParamStore params(backend, decoder_params(spec.model), spec.dtype);
  params.initialise(3);
  Memory memory(backend, &params);
  LogprobPrograms programs(spec, memory);
  const Scalars s{.inv_targets = 1 / float(b.rows.size())};
  Learned l;
  for (const bool first : {true, false}) {
    if (loss == Loss::of_tokens) {
      programs.launch_train(b, s, first);
      continue;
    }
    l.logprob = programs.forward(b, first, s).logprob;
    std::vector<float> d;
    for (size_t i = 0; i < b.rows.size(); ++i) d.push_back(0.3f * float(i) - 0.7f);
    programs.backward(d, s);
  }
  if (loss != Loss::of_tokens) programs.send_terms(), programs.report_terms(l.found);
  for (const ParamSpec& p : params.specs())
    if (p.trainable) l.gradients[p.name] = params.values(Part::grad, p.name);
  return l;
}

TEST(MtpApart, ModulesLearnAndTheModelKeepsItsGradients) {
  const auto backend = make_cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16})
    for (const Recompute recompute : {Recompute::none, Recompute::light, Recompute::block})
      for (const ModelConfig& c : models()) {
        const LogprobProgramsSpec spec{
            .model = c, .dtype = dtype, .recompute = recompute, .losses = {.mtp_loss = 0.5f}};
        TokenBatch b = two_sequences();
        const Learned without = learn(*backend, spec, b, Loss::of_host);
        const Learned with = learn(*backend, spec, b, Loss::of_host_with_modules);
        EXPECT_EQ(with.logprob, without.logprob);
        for (const auto& [name, gradient] : without.gradients)
          EXPECT_TRUE(is_module(name) || with.gradients.at(name) == gradient) << name;
        EXPECT_EQ(without.found.empty(), !c.moe);
        EXPECT_GT(with.found.at("mtp_1").get<double>(), 0.5);
        EXPECT_GT(with.found.at("mtp_2").get<double>(), 0.5);
        EXPECT_FALSE(with.found.contains("policy"));

        // Rows that are not taught change the model alone.
        b.taught.clear();
        const Learned all = learn(*backend, spec, b, Loss::of_host_with_modules);
        EXPECT_NE(all.found.at("mtp_1"), with.found.at("mtp_1"));
        LogprobProgramsSpec plain = spec;
        plain.losses.balance_loss = 0;
        const Learned tokens = learn(*backend, plain, b, Loss::of_tokens);
        int modules = 0;
        for (const auto& [name, gradient] : tokens.gradients)
          if (is_module(name)) {
            EXPECT_EQ(all.gradients.at(name), gradient) << name;
            EXPECT_NE(with.gradients.at(name), gradient) << name;
            ++modules;
          }
        EXPECT_GT(modules, 10);
      }
}

// Parameters of odd sizes, with modules or without them, and so many that the bits of their norm
// depend on where they lie.
std::vector<ParamSpec> params(bool modules) {
  std::vector<ParamSpec> all = odd_params();
  all.push_back({"large", {61, 300}, Init::uniform(1), Group::matrix});
  all.push_back({"long", {9001}, Init::uniform(1), Group::vector});
  if (!modules) return all;
  all.push_back({"mtp.0.m", {7, 13}, Init::uniform(1), Group::matrix});
  all.push_back({"mtp.0.block.m", {5, 64}, Init::uniform(1), Group::matrix});
  all.push_back({"mtp.0.v", {67}, Init::uniform(1), Group::vector});
  lay_modules_apart(all);
  return all;
}

UpdateSpec spec_of(OptimizerKind kind, bool apart) {
  UpdateSpec s{.optimizer = kind, .decay_all = true, .modules_apart = apart};
  if (const auto& betas = known_optimizers[size_t(kind)].betas)
    s.beta1 = (*betas)[0], s.beta2 = (*betas)[1];
  return s;
}

// The bytes of everything that a store keeps, by part and parameter.
std::map<std::string, std::string> bytes_by_name(Update& u) {
  std::map<std::string, std::string> all;
  std::vector<Part> parts{Part::weight};
  if (u.store.has_master()) parts.push_back(Part::master);
  for (size_t i = 0; i < u.store.slots().size(); ++i) parts.push_back(slot_part(i));
  for (const Part part : parts)
    for (const ParamSpec& p : u.store.specs())
      if (u.store.has(part, p)) {
        const Tensor t = u.store.get(part, p.name);
        all[p.name + " " + u.store.name(part)] =
            std::string(reinterpret_cast<const char*>(t.data), size_t(t.bytes()));
      }
  return all;
}

// Modules with gradients of any size do not change a bit of the model's update, which is clipped.
TEST(MtpApart, HasAnUpdateAndAClippingNormOfItsOwn) {
  const auto backend = make_cpu_backend(2);
  for (size_t kind = 0; kind < known_optimizers.size(); ++kind)
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(known_optimizers[kind].name);
      Update without(*backend, dtype, spec_of(OptimizerKind(kind), false), params(false));
      Update with(*backend, dtype, spec_of(OptimizerKind(kind), true), params(true));
      for (int step = 0; step < 4; ++step) {
        without.set_gradients(step), with.set_gradients(step);
        // Of the modules, the gradients of step 2 are not finite.
        const float scale = step == 2 ? std::numeric_limits<float>::infinity() : 1e3f;
        for (const ParamSpec& p : with.store.specs())
          if (is_module(p.name)) {
            std::vector<float> g = Update::gradient(p, step);
            for (float& x : g) x *= scale;
            with.store.set(Part::grad, p.name, g);
          }
        const auto before = bytes_by_name(with);
        const Scalars s{.lr = 0.1f, .clip = 0.5f, .step = uint32_t(step), .momentum = 0.9f};
        without.run(s), with.run(s);
        const auto now = bytes_by_name(with);
        for (const auto& [name, value] : bytes_by_name(without))
          EXPECT_TRUE(now.at(name) == value) << name;
        for (const auto& [name, value] : now)
          EXPECT_TRUE(!is_module(name) || !name.ends_with(" weights") ||
                      (value == before.at(name)) == (step == 2))
              << name << " in step " << step;
      }
      for (const ParamSpec& p : with.store.specs())
        for (const float x : with.store.values(Part::weight, p.name))
          ASSERT_TRUE(std::isfinite(x)) << p.name;
    }
}

// Alone, with the same settings and gradients, they would have taken the same steps.
TEST(MtpApart, TakesTheStepsThatModulesTakeAlone) {
  const auto backend = make_cpu_backend(1);
  std::vector<ParamSpec> alone = params(true);
  for (ParamSpec& p : alone) p.trainable = is_module(p.name);
  Update both(*backend, DType::f32, spec_of(OptimizerKind::adamw, true), params(true));
  Update own(*backend, DType::f32, spec_of(OptimizerKind::adamw, false), alone);
  for (int step = 0; step < 4; ++step) {
    both.set_gradients(step), own.set_gradients(step);
    const Scalars s{.lr = 0.1f, .clip = 0.5f, .step = uint32_t(step)};
    both.run(s), own.run(s);
  }
  for (const ParamSpec& p : own.store.specs()) {
    if (!p.trainable) continue;
    const std::vector<float> got = both.store.values(Part::weight, p.name);
    const std::vector<float> want = own.store.values(Part::weight, p.name);
    for (size_t i = 0; i < want.size(); ++i) ASSERT_NEAR(got[i], want[i], 1e-6) << p.name;
  }
}

TEST(MtpApart, IsInTheMemoryPlan) {
  for (const ModelConfig& c : models()) {
    const auto need = [&](bool modules) {
      return LogprobPrograms::need({.model = c, .modules = modules}, {.B = 2, .T = 9, .rows = 8},
                                   LogprobPrograms::Kind::first,
                                   spec_of(OptimizerKind::adamw, modules));
    };
    const MemoryNeed with = need(true), without = need(false);
    int64_t bytes = 0;
    for (const ParamSpec& p : decoder_params(c))
      if (is_module(p.name)) bytes += padded_size(p) * 4;
    EXPECT_EQ(with.weights - without.weights, bytes);
    EXPECT_EQ(with.gradients - without.gradients, bytes);
    EXPECT_EQ(with.optimizer_state - without.optimizer_state, 2 * bytes);
    EXPECT_GT(with.activations, without.activations);
  }
}

}  // namespace
}  // namespace hearth
