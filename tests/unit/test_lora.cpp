// Adapters: where they stand, what they add, and that nothing else moves.
#include <cmath>

#include "lora_model.h"
#include "model/files/adapter.h"
#include "model/files/folder.h"
#include "model_cases.h"
#include "train/checkpoint/checkpoint.h"
#include "train/pretrain/programs.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_error;
using test::TempDir;

TEST(Lora, TargetsAreTheFilesNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(lora_target_names(gpt2_shape()), (Names{"c_attn", "c_proj", "c_fc"}));
  const Names llama{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  EXPECT_EQ(lora_target_names(tiny_config()), llama);
  EXPECT_EQ(lora_target_names(qwen3_shape()), llama);
  EXPECT_EQ(lora_target_names(neox_shape()),
            (Names{"query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"}));
  EXPECT_EQ(lora_target_names(phi3_shape()),
            (Names{"qkv_proj", "o_proj", "gate_up_proj", "down_proj"}));
  EXPECT_EQ(lora_target_names(tiny_configs()[3]), (Names{"qkv", "gate", "out", "up", "down"}));

  const auto matrices = [](const ModelConfig& c, Names targets) {
    Names out;
    for (const auto& [matrix, modules] :
         lora_matrices(with_lora(c, {.rank = 2, .alpha = 2, .targets = std::move(targets)})))
      out.push_back(fmt::format("{} {}", matrix, modules.size()));
    return out;
  };
  EXPECT_EQ(matrices(gpt2_shape(), {"attn.c_proj"}),
            (Names{"blocks.0.attn.out 1", "blocks.1.attn.out 1"}));
  EXPECT_EQ(matrices(tiny_config(), {"q_proj", "layers.1.mlp.up_proj", "v_proj"}),
            (Names{"blocks.0.attn.qkv 2", "blocks.1.attn.qkv 2", "blocks.1.mlp.up 1"}));
  expect_error(error_of([&] {
                 matrices(tiny_config(), {"q_proj", "c_attn"});
               }),
               "[lora] expected targets among q_proj, k_proj, v_proj, o_proj, gate_proj, up_proj, "
               "down_proj or all-linear, got \"c_attn\"");
}

TEST(Lora, IsReadFromFlags) {
  const LoraSpec s = LoraConfig{"8,12.5,0.1", {"q_proj,v_proj", "o_proj"}}.spec();
  EXPECT_EQ(
      s,
      (LoraSpec{
          .rank = 8, .alpha = 12.5f, .dropout = 0.1f, .targets = {"q_proj", "v_proj", "o_proj"}}));
  EXPECT_EQ((LoraConfig{"4"}.spec()), (LoraSpec{.rank = 4, .alpha = 8}));
  EXPECT_EQ(s.scale(), 12.5f / 8);
  EXPECT_FALSE(LoraConfig{}.spec());
  for (const char* bad : {"x", "4,", "4,,1", "4,8,0.1,2", "4 8", ","})
    expect_error(error_of([&] { LoraConfig{bad}.spec(); }),
                 "[--lora] expected rank[,alpha[,dropout]], got");
  for (const char* bad : {"0", "-1", "9000", "4,nan", "4,8,1", "4,8,-0.5"})
    expect_error(error_of([&] { LoraConfig{bad}.spec(); }), "[--lora] expected a");
  expect_error(error_of([&] { LoraConfig{"4", {","}}.spec(); }), "expected at least one target");
}

// Fresh adapters change nothing, and A starts as PEFT's does.
TEST(Lora, StartsAtTheBase) {
  const auto backend = make_cpu_backend(2);
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    Adapted m(*backend, s.config);
    start_adapters(m.params, 5);
    EXPECT_EQ(m.all_logits(tiny_prompt(12)), base_of(m)->all_logits(tiny_prompt(12)));
    for (const ParamSpec& p : m.params.specs()) {
      EXPECT_EQ(p.trainable, is_adapter(p.name));
      if (!p.name.ends_with(".lora_A")) continue;
      const float bound = 1 / std::sqrt(float(p.shape[1]));
      double square = 0, top = 0;
      const std::vector<float> a = m.params.values(Part::weight, p.name);
      for (const float x : a) square += x * x, top = std::max(top, double(std::abs(x)));
      EXPECT_LE(top, bound);
      EXPECT_NEAR(std::sqrt(square / double(a.size())), bound / std::sqrt(3.0), 0.3 * bound);
    }
  }
}

TEST(Lora, SwitchedOffIsTheBase) {
  const auto backend = make_cpu_backend(1);
  Adapted m(*backend, shapes()[2].config);
  const int64_t T = 9;
  const auto hidden = [&](bool adapters) {
    Memory memory(*backend, &m.params);
    Tape t(DType::f32);
    t.trains = false;
    const Var x = decoder(t, m.config, declare_inputs(t, 1, T, false), {.adapters = adapters});
    const Var out = t.result("out", t.shape(x), DType::f32);
    t.push(kernel_op<&Kernels::copy>(
               "copy", [](auto* f, Stream& s, In in, Out out) { f(s, {.y = out[0], .x = in[0]}); }),
           {x}, {out});
    Exec exec(std::move(t), memory);
    std::vector<int32_t> positions{0, 1, 2, 3, 4, 5, 6, 7, 8};
    memory.state.write<int32_t>("main.tokens", tiny_prompt(T));
    memory.state.write<int32_t>("main.positions", positions);
    exec.run();
    std::vector<float> r(size_t(T * m.config.dim));
    memory.state.read<float>("main.out", r);
    return r;
  };
  const std::vector<float> off = hidden(false), on = hidden(true);
  EXPECT_NE(off, on);
  m.config.lora = {};
  EXPECT_EQ(hidden(true), off);
}

double norm_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i)
    square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]), size += double(b[i]) * b[i];
  return std::sqrt(square / size);
}
TEST(Lora, MergedIsUnmergedWithinRounding) {
  const auto backend = make_cpu_backend(2);
  const std::vector<int32_t> tokens = tiny_prompt(20);
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    for (const DType dtype : {DType::f32, DType::bf16}) {
      Adapted m(*backend, s.config, dtype);
      const std::vector<float> before = base_of(m)->all_logits(tokens);
      const std::vector<float> unmerged = m.all_logits(tokens);
      merge_adapters(m.config, m.params);
      const std::vector<float> merged = base_of(m)->all_logits(tokens);
      const double size = largest(merged);
      if (dtype == DType::bf16) {
        // The merged weight is rounded once more, by up to 2^-9 of itself.
        EXPECT_LT(norm_difference(unmerged, merged), 0.08);
        continue;
      }
      EXPECT_GT(worst_difference(before, merged), 0.05 * size);  // they do matter
      EXPECT_LT(worst_difference(unmerged, merged), 3e-5 * size);
    }
  }
}

// The engine's paged programs give the bits of the forward pass of training.
TEST(Lora, EngineIsTheTrainingForward) {
  for (const auto& backend : exact_backends())
    for (const NamedShape& s : shapes()) {
      SCOPED_TRACE(s.name);
      Adapted m(*backend, s.config);
      Engine engine = m.engine({.max_batch = 3});
      std::vector<Request> requests(3);
      for (int32_t i = 0; i < 3; ++i) {
        requests[size_t(i)].prompt = tiny_prompt(3 + i, i);
        requests[size_t(i)].sampling.temperature = 0;
        requests[size_t(i)].sampling.max_tokens = 10;
        requests[size_t(i)].sampling.logprobs = 0;
        requests[size_t(i)].sampling.ignore_eos = true;
      }
      const auto done = engine.run(requests);
      for (size_t i = 0; i < requests.size(); ++i) {
        const Completion& c = done[i][0];
        ASSERT_EQ(c.tokens.size(), 10u);
        std::vector<int32_t> all = requests[i].prompt;
        for (size_t k = 0; k < c.tokens.size(); ++k) {
          const std::vector<float> row = m.logits(all);
          EXPECT_EQ(c.tokens[k], std::ranges::max_element(row) - row.begin());
          EXPECT_EQ(c.logprobs[k].logprob, m.logprob(row, c.tokens[k], 0).logprob);
          all.push_back(c.tokens[k]);
        }
      }
    }
}

// --- training ---

struct LoraTraining {
  LoraTraining(Backend& b, const ProgramSpec& s)
      : params(b, decoder_params(s.model), s.dtype), memory(b, &params) {
    params.initialise(21);
    programs = std::make_unique<Programs>(s, memory);
  }
  double step(const Batch& batch) {
    Scalars s;
    s.lr = 0.02f, s.clip = 1, s.inv_targets = 0.5f / float(batch.count), s.step = steps++;
    programs->micro(batch, s, true);
    s.micro = 1;
    programs->micro(batch, s, false);
    programs->update().run(s);
    return programs->loss();
  }
  ParamStore params;
  Memory memory;
  std::unique_ptr<Programs> programs;
  uint32_t steps = 0;
};

ProgramSpec lora_spec(DType dtype, Recompute recompute = Recompute::none) {
  ModelConfig c = with_lora(tiny_config(), {.rank = 4, .alpha = 8, .dropout = 0.1f});
  c.init_std = 0.05f;
  return {.model = c, .dtype = dtype, .B = 2, .T = 7, .recompute = recompute, .accumulates = true};
}

TEST(Lora, TrainingMovesAdaptersAndNothingElse) {
  const auto backend = make_cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ProgramSpec s = lora_spec(dtype);
    LoraTraining run(*backend, s);
    const Batch batch = cases::make_batch(s.model, s.B, s.T, false);
    std::map<std::string, std::vector<float>> before;
    for (const ParamSpec& p : run.params.specs())
      before[p.name] = run.params.values(Part::weight, p.name);
    const double first = run.step(batch);
    double last = first;
    for (int i = 0; i < 40; ++i) last = run.step(batch);
    EXPECT_LT(last, 0.8 * first);
    for (const ParamSpec& p : run.params.specs())
      EXPECT_EQ(before[p.name] == run.params.values(Part::weight, p.name), !p.trainable) << p.name;
    // The norm that clipping sees is the adapters' alone.
    double square = 0;
    for (const ParamSpec& p : run.params.specs())
      if (p.trainable)
        for (const float g : run.params.values(Part::grad, p.name)) square += double(g) * g;
    EXPECT_NEAR(run.programs->update().state().grad_norm / std::sqrt(square), 1, 1e-4);
    expect_error(error_of([&] { run.params.get(slot_part(0), "embed.weight"); }),
                 "[params] expected a parameter that is trained for moment1, got embed.weight, "
                 "which is frozen");
  }
}

TEST(Lora, FrozenWeightsHaveNothingBesideThem) {
  const auto backend = make_cpu_backend(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ProgramSpec s = lora_spec(dtype);
    ProgramSpec full = s;
    full.model.lora = {};
    LoraTraining run(*backend, s);
    run.step(cases::make_batch(s.model, s.B, s.T, false));
    int64_t adapters = 0;
    for (const ParamSpec& p : run.params.specs()) adapters += p.trainable ? padded_size(p) : 0;
    const MemoryNeed need = memory_need(s), whole = memory_need(full);
    EXPECT_EQ(need.weights, whole.weights + adapters * size_of(dtype));
    EXPECT_EQ(need.gradients, adapters * 4);
    EXPECT_EQ(need.optimizer_state, adapters * 8);
    EXPECT_EQ(need.masters, dtype == DType::f32 ? 0 : adapters * 4);
    EXPECT_EQ(run.params.part_bytes(Part::grad), need.gradients);
    EXPECT_EQ(run.params.part_bytes(Part::weight), need.weights);
    EXPECT_EQ(run.memory.arena_bytes(), need.activations);
    EXPECT_EQ(run.params.made(Part::master), dtype == DType::bf16);
    // No product makes the gradient of a frozen matrix, and no gradient is one of a frozen vector.
    const Tape& t = run.programs->first_program().tape();
    std::set<std::string> trained;
    for (const Node& n : t.nodes)
      for (const Var v : n.out)
        if (v && t[v].role == Role::grad) trained.insert(t.values[size_t(t[v].storage)].name);
    EXPECT_EQ(trained.size(), 16u);  // A and B of qkv, out, up, down in two blocks
    for (const std::string& name : trained)
      EXPECT_TRUE(is_adapter(name.substr(0, name.rfind(grad_suffix)))) << name;
    for (const Node& n : t.nodes) {
      if (n.op->name != std::string("gemm")) continue;
      for (const ParamSpec& p : run.params.specs())
        EXPECT_TRUE(p.trainable || t.shape(n.out[0]) != p.shape) << n.where << " " << p.name;
    }
  }
}

// What stands before the first adapter is not walked back through.
TEST(Lora, NothingIsKeptForWhatIsNotTrained) {
  ProgramSpec s = lora_spec(DType::f32);
  s.model.lora.targets = {"layers.1.mlp.down_proj"};
  ProgramSpec all = lora_spec(DType::f32);
  EXPECT_LT(memory_need(s).activation_bound, memory_need(all).activation_bound);
  const auto backend = make_cpu_backend(1);
  LoraTraining run(*backend, s);
  for (const Node& n : run.programs->first_program().tape().nodes)
    EXPECT_FALSE(n.op->name == std::string("attention_bwd")) << n.where;
}

TEST(Lora, ResumesToTheBit) {
  const auto backend = make_cpu_backend(2);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    TempDir dir;
    const ProgramSpec s = lora_spec(dtype);
    const Batch batch = cases::make_batch(s.model, s.B, s.T, false);
    LoraTraining run(*backend, s);
    for (int i = 0; i < 5; ++i) run.step(batch);
    RunState state;
    state.step = state.data_step = 5, state.update = run.programs->update().state();
    const nlohmann::json trainer{{"version", trainer_version}, {"run", state.to_json()}};
    const fs::path saved = save_model_checkpoint(
        dir.path(),
        {.model = s.model, .base = "somewhere/base", .trainer = trainer, .step = state.step},
        run.params);
    EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
    EXPECT_FALSE(fs::exists(saved / "config.json"));
    EXPECT_EQ(AdapterSource::base_of(dir.path()), "somewhere/base");

    LoraTraining again(*backend, s);  // the base comes as it came the first time
    const nlohmann::json read = load_model_checkpoint(saved, s.model, again.params);
    const RunState back = RunState::from_json(trainer_fields(read, "test").object("run"));
    EXPECT_EQ(back.step, 5);
    again.programs->update().set_state(back.update);
    again.steps = run.steps;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(run.step(batch), again.step(batch));
    for (const ParamSpec& p : run.params.specs())
      EXPECT_EQ(run.params.values(Part::weight, p.name), again.params.values(Part::weight, p.name));

    ModelConfig other = s.model;
    other.lora.alpha = 9;
    expect_error(error_of([&] { load_model_checkpoint(saved, other, again.params); }),
                 "expected adapters of rank 4 and alpha 9, got 4 and 8");
  }
}

}  // namespace
}  // namespace hearth
