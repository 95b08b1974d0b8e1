// Adapters in alignment: training moves them and nothing else, and a reference with adapters off is
// the base to the bit.
#include <gtest/gtest.h>

#include "formats/run_settings.h"
#include "infer_model.h"
#include "optim/update_program.h"
#include "served_folder.h"
#include "train/dpo/reference_sums.h"
#include "train/reference_model.h"
#include "train/run_state.h"
#include "train/trained_model.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

using test::error_of;
using test::expect_error;
using test::TempDir;

ModelConfig with_adapters() {
  ModelConfig c = tiny_config();
  c.lora = {.rank = 3, .alpha = 6, .dropout = 0.2f};
  return c.resolve();
}

// Adapters that do something.
void draw_adapters(ParamStore& params) {
  for (const ParamSpec& p : params.specs()) {
    if (!is_adapter(p.name)) continue;
    std::vector<float> v(size_t(p.shape.numel()));
    draw(v, Init::normal(0.3f), 9, p.name);
    params.set(p.name, v);
  }
}

TokenBatch small_batch() {
  TokenBatch b{.B = 2, .T = 9};
  b.tokens = tiny_prompt(18);
  for (int32_t t = 3; t < 8; ++t)
    for (const int32_t row : {t, 9 + t}) {
      b.rows.push_back(row);
      b.targets.push_back(b.tokens[size_t(row + 1)]);
    }
  return b;
}

std::map<std::string, std::vector<float>> weights_of(ParamStore& params) {
  std::map<std::string, std::vector<float>> all;
  for (const ParamSpec& p : params.specs()) all[p.name] = params.values(Part::weight, p.name);
  return all;
}

TEST(AlignLora, TrainingMovesAdaptersAndTheReferenceStaysTheBase) {
  for (const auto& backend : exact_backends()) {
    SCOPED_TRACE(backend->describe());
    TinyModel m(*backend, with_adapters());
    ModelConfig plain = m.config;
    plain.lora = {};
    TinyModel base(*backend, plain);  // parameters are drawn by name: the same ones
    draw_adapters(m.params);
    Memory memory(*backend, &m.params), own(*backend, &base.params);
    LogprobPrograms policy({.model = m.config, .name = "policy"}, memory);
    LogprobPrograms off({.model = m.config, .name = "reference", .adapters = false}, memory);
    LogprobPrograms alone({.model = plain}, own);
    UpdateProgram update("examples", memory, {});
    update.set_state({});

    const TokenBatch batch = small_batch();
    const auto before = weights_of(m.params);
    const std::vector<float> reference = alone.score(batch).logprob;
    EXPECT_NE(policy.score(batch).logprob, reference);
    double first = 0, last = 0;
    for (uint32_t step = 0; step < 30; ++step) {
      EXPECT_EQ(off.score(batch).logprob, reference);
      Scalars s;
      s.lr = 0.01f, s.clip = 1, s.inv_targets = 1 / float(batch.rows.size()), s.step = step;
      last = 0;
      if (step % 2) {  // both ways to a gradient: SFT's, and that of DPO and GRPO
        for (const float logprob : policy.forward(batch, true).logprob) last -= double(logprob);
        policy.backward(std::vector<float>(batch.rows.size(), -s.inv_targets));
      } else {
        policy.launch_train(batch, s, true);
        for (const float nll : policy.take_nll()) last += double(nll);
      }
      if (step == 0) first = last;
      update.set_loss(last);
      update.run(s);
    }
    EXPECT_LT(last, 0.7 * first);
    for (const ParamSpec& p : m.params.specs())
      EXPECT_EQ(before.at(p.name) == m.params.values(Part::weight, p.name), !p.trainable) << p.name;
  }
}

// The same pairs under a reference with weights of its own, and under the policy's without its
// adapters.
TEST(AlignLora, BothReferencesOfPreferencesAreOne) {
  const TempDir dir;
  write_served_folder(dir / "model");
  const ModelSource source = ModelSource::open(dir / "model");
  const auto backend = make_cpu_backend(2);
  TrainedModel model(source, {"4,8"}, *backend, DType::f32, false, Modules::stay);
  model.begin(5);
  draw_adapters(model.params);
  std::vector<Preference> pairs(5);
  for (size_t i = 0; i < pairs.size(); ++i)
    for (Example* e : {&pairs[i].chosen, &pairs[i].rejected}) {
      for (size_t t = 0; t < 6 + i; ++t) {
        e->tokens.push_back(int32_t((t * 7 + i * 3 + (e == &pairs[i].chosen)) % 200));
        e->learned.push_back(t > 2);
      }
    }
  const std::vector<const Preference*> asked{&pairs[0], &pairs[1], &pairs[2], &pairs[3], &pairs[4]};
  const auto load = [&](ParamStore& to) { source.load(to); };
  ReferenceModel shared({.model = model.config}, model.memory, load);
  ReferenceModel own({.model = source.config().resolve()}, model.memory, load);
  EXPECT_EQ(shared.bytes(), 0);
  EXPECT_GT(own.bytes(), 0);
  const auto sums = [&](LogprobPrograms& programs) {
    return sums_of(asked, programs.score(lay_out_pairs(asked, 32)).logprob);
  };
  LogprobPrograms policy({.model = model.config}, model.memory);
  const std::vector<PairSums> a = sums(shared.programs()), b = sums(own.programs());
  const std::vector<PairSums> adapted = sums(policy);
  for (size_t i = 0; i < asked.size(); ++i) {
    EXPECT_EQ(a[i].chosen, b[i].chosen);
    EXPECT_EQ(a[i].rejected, b[i].rejected);
    EXPECT_NE(a[i].chosen, adapted[i].chosen);
  }
}

TEST(AlignLora, ABaseIsKnownAgain) {
  const TempDir dir;
  write_served_folder(dir / "model");
  write_served_folder(dir / "same");
  const auto held = [&](const char* name, const LoraConfig& lora) {
    const auto backend = make_cpu_backend(1);
    return TrainedModel(ModelSource::open(dir / name), lora, *backend, DType::f32, false,
                        Modules::stay)
        .base;
  };
  EXPECT_FALSE(held("model", {}));
  const auto digest = [&](const char* name, const LoraConfig& lora) {
    return held(name, lora).json();
  };
  const nlohmann::json known = digest("model", {"4"});
  make_dirs(dir / "step" / "state");
  write_file_atomic(
      dir / "step" / "state" / "trainer.json",
      nlohmann::json{
          {"version", trainer_version}, {"sft", {{"lr", 1}}}, {"base", known}, {"data", "rows"}}
          .dump());
  const auto same = [&](const char* kind, int lr, const nlohmann::json& base, const char* data) {
    return error_of([&] {
      const RunSettings settings{.values = {{"lr", lr}}};
      expect_same_run(dir / "step",
                      {.kind = kind, .settings = settings, .base = base, .data = data});
    });
  };
  EXPECT_EQ(same("sft", 1, digest("same", {"4"}), "rows"), "");
  expect_error(same("grpo", 1, known, "rows"), "expected a checkpoint of hearth grpo");
  expect_error(same("sft", 2, known, "rows"), "lr = 1, not 2");
  expect_error(same("sft", 1, known, "others"), "expected the data that the run began with");
  std::string bytes = read_file(dir / "same" / "model.safetensors");
  bytes.back() = char(bytes.back() ^ 1);
  write_file_atomic(dir / "same" / "model.safetensors", bytes);
  expect_error(same("sft", 1, digest("same", {"4"}), "rows"),
               "expected the model that the run began from");
}

// The base goes on while the run that began from it is stopped.
TEST(AlignLora, TheCheckpointOfABaseIsFoundAgain) {
  namespace fs = std::filesystem;
  const TempDir dir;
  const fs::path base = dir / "base", run = dir / "run";
  const fs::path began = base / "checkpoints/step-00000001",
                 later = base / "checkpoints/step-00000002";
  make_dirs(began), make_dirs(later), make_dirs(run / "latest/state");
  fs::create_directory_symlink("checkpoints/step-00000002", base / "latest");
  EXPECT_EQ(base_in_run(run, base), base) << "a new run";
  const auto note = [&](std::string_view text) {
    write_file_atomic(run / "latest/state/trainer.json", text);
  };
  note(R"({"base_path": "../base/checkpoints/step-00000001"})");
  const fs::path found = fs::canonical(began);
  EXPECT_EQ(base_in_run(run, base), found);
  EXPECT_EQ(base_in_run(run, base / "latest"), found);
  EXPECT_EQ(base_in_run(run, base / "latest" / ""), found);
  EXPECT_EQ(base_in_run(run, later), later) << "another checkpoint, by its own name";
  EXPECT_EQ(base_in_run(run, dir / "other"), dir / "other");
  note("{ damaged");  // the run goes on from an earlier checkpoint
  EXPECT_EQ(base_in_run(run, base), base);
}

}  // namespace
}  // namespace hearth
