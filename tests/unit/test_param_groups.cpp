// Learning rates, betas and weight decay of single parameter groups.
#include "model/decoder.h"
#include "sys/error.h"
#include "train/config.h"
#include "unit/message_of.h"
#include "unit/optimizer_case.h"

namespace hearth {
namespace {

using namespace optim_test;

TEST(ParamGroups, AreParsed) {
  EXPECT_EQ(parse_groups("", "x"), GroupNumbers{});
  EXPECT_EQ(parse_groups("embedding:75,head:27.5", "x"),
            (GroupNumbers{std::nullopt, 27.5f, 75, std::nullopt}));
  for (const char* bad : {"embedding", "embedding:", "embeding:2", "vector:-1", "vector:2x",
                          "vector:inf", ":", ",", "matrix:1,,"})
    EXPECT_NE(message_of([&] { parse_groups(bad, "--lr-factors"); }).find("--lr-factors"),
              std::string::npos)
        << bad;
  EXPECT_EQ(message_of([] { parse_groups("matrix:1,head:1,matrix:2", "--lr-factors"); }),
            "[--lr-factors] expected each group once, got matrix twice");
  EXPECT_EQ(parse_groups("vector:0.5", "x", 1)[size_t(Group::vector)], 0.5f);
  EXPECT_EQ(message_of([&] { parse_groups("vector:1", "--group-beta1", 1); }),
            "[--group-beta1] expected GROUP:NUMBER,.. with groups matrix, head, embedding and "
            "vector and numbers of 0 up to below 1, such as embedding:0.5,vector:0.9, got "
            "'vector:1'");
}

// A group with settings of its own takes the steps of a run that has them for all groups; the other
// groups take the steps of a run without them.
TEST(ParamGroups, ChangeTheStepsOfTheirGroupOnly) {
  const auto backend = make_cpu_backend(1);
  UpdateSpec all, one;
  all.beta1 = 0.5f, all.beta2 = 0.7f, all.decay = 0.4f, all.decay_all = true;
  one.beta1s[size_t(Group::embedding)] = 0.5f;
  one.beta2s[size_t(Group::embedding)] = 0.7f;
  one.decays[size_t(Group::embedding)] = 0.4f;
  for (const OptimizerKind kind :
       {OptimizerKind::adamw, OptimizerKind::adamw_bf16, OptimizerKind::adamw_8bit,
        OptimizerKind::lion, OptimizerKind::muon, OptimizerKind::normuon}) {
    SCOPED_TRACE(known_optimizers[size_t(kind)].name);
    all.optimizer = one.optimizer = kind;
    Update got(*backend, DType::f32, one), want(*backend, DType::f32, all),
        plain(*backend, DType::f32, {.optimizer = kind});
    for (Update* u : {&got, &want, &plain})
      for (int step = 0; step < 3; ++step) u->run(step, 0.1f);
    const auto weights = [](Update& u, const char* name) {
      return u.store.values(Part::weight, name);
    };
    EXPECT_EQ(weights(got, "e"), weights(want, "e"));
    EXPECT_NE(weights(got, "e"), weights(plain, "e"));
    for (const char* other : {"m", "wide", "h", "v"})
      EXPECT_EQ(weights(got, other), weights(plain, other)) << other;
  }
}

TEST(ParamGroups, OfWhichTheModelHasNoneAreNoted) {
  const auto backend = make_cpu_backend(1);
  const auto odd = [&](const UpdateSpec& spec, bool tied) {
    ModelConfig c = preset("tiny");
    c.tied = tied;
    return spec.oddity(ParamStore(*backend, decoder_params(c.resolve()), DType::f32));
  };
  const UpdateSpec rate{.rates = parse_groups("embedding:2,head:3", "x")},
      beta{.beta2s = parse_groups("head:0.5", "x")};
  EXPECT_EQ(odd(rate, false), "");
  EXPECT_EQ(odd({}, true), "");
  EXPECT_EQ(odd(rate, true),
            "--lr-factors sets head, but this model trains no weights of that group: a tied head "
            "belongs to embedding, and adapters to matrix");
  EXPECT_TRUE(odd(beta, true).starts_with("--group-beta2 sets head"));
  UpdateSpec all{.rates = parse_groups("head:2", "x"), .beta1s = parse_groups("head:0.5", "x")};
  EXPECT_TRUE(odd(all, true).starts_with(
      "--lr-factors sets head, --group-beta1 sets head, but this model trains no weights of that "
      "group: "))
      << odd(all, true);
  // A model without vectors: neither norms with gains nor biases.
  ModelConfig c = preset("nocap-d12");
  c.layers = 1, c.dim = 16, c.heads = c.kv_heads = 2, c.head_dim = 8, c.hidden = 32;
  c.vocab = 32, c.context = 8;
  all.decays = parse_groups("vector:0.1,matrix:0.2", "x");
  EXPECT_TRUE(all.oddity(ParamStore(*backend, decoder_params(c.resolve()), DType::f32))
                  .starts_with("--lr-factors sets head, --group-beta1 sets head, "
                               "--group-weight-decay sets vector, but this model trains no weights "
                               "of those groups: "));
}

TEST(ParamGroups, ScaleTheLearningRate) {
  const auto backend = make_cpu_backend(1);
  UpdateSpec spec;
  spec.rates = parse_groups("vector:3", "x");
  Update got(*backend, DType::f32, spec), tripled(*backend, DType::f32, {}),
      same(*backend, DType::f32, {});
  got.run(0, 0.01f), same.run(0, 0.01f), tripled.run(0, 0.03f);
  EXPECT_EQ(got.store.values(Part::weight, "m"), same.store.values(Part::weight, "m"));
  const std::vector<float> a = got.store.values(Part::weight, "v");
  const std::vector<float> b = tripled.store.values(Part::weight, "v");
  for (size_t i = 0; i < a.size(); ++i) EXPECT_NEAR(a[i], b[i], 1e-6);
}

// A weight decay of a group counts whether or not the group decays by default.
TEST(ParamGroups, WeightDecayReplacesTheDefault) {
  UpdateSpec s;
  s.decays = parse_groups("embedding:0.02,head:0", "x");
  EXPECT_FLOAT_EQ(s.decay_of(Group::matrix), 0.1f);
  EXPECT_EQ(s.decay_of(Group::head), 0);
  EXPECT_FLOAT_EQ(s.decay_of(Group::embedding), 0.02f);
  EXPECT_EQ(s.decay_of(Group::vector), 0);
  s.decay_all = true;
  EXPECT_FLOAT_EQ(s.decay_of(Group::vector), 0.1f);
  EXPECT_EQ(s.decay_of(Group::head), 0);
}

TEST(ParamGroups, SettingsThatCannotWorkAreNamed) {
  TrainConfig c;
  c.group_beta2 = "matrix:0.99";
  EXPECT_EQ(message_of([&] { c.check_run(10); }), "no error");
  c.optimizer = OptimizerKind::normuon;
  EXPECT_EQ(message_of([&] { c.check_run(10); }),
            "[--group-beta2] normuon updates the group matrix with --momentum and has no betas for "
            "it");
  c.group_beta2 = "embedding:1.5";
  EXPECT_NE(message_of([&] { c.check_run(10); }).find("[--group-beta2] expected GROUP:NUMBER"),
            std::string::npos);
}

}  // namespace
}  // namespace hearth
