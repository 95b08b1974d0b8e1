// Adapters: where they stand, what they add, that nothing else moves, and their files.
#include "model/lora.h"

#include <cmath>

#include "infer_model.h"
#include "io/checkpoint_dir.h"
#include "io/json.h"
#include "model/adapter.h"
#include "model/convert.h"
#include "model/folder.h"
#include "model_cases.h"
#include "train/checkpoint.h"
#include "train/programs.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::expect_error;
using test::TempDir;

ModelConfig with_lora(ModelConfig c, LoraSpec lora) {
  c.lora = std::move(lora);
  return c.resolve();
}

ModelConfig gpt2_shape() { return tiny_configs()[1]; }
ModelConfig qwen3_shape() {
  ModelConfig c = tiny_config();
  c.qk_norm = QkNorm::before_rope, c.head_dim = 6;
  return c;
}
ModelConfig interleaved_shape() {  // as llama2.c has them: files hold q and k the other way
  ModelConfig c = tiny_config();
  c.rope_pairs = RopePairs::interleaved;
  return c;
}

struct NamedShape {
  const char* name;
  ModelConfig config;
};
std::vector<NamedShape> shapes() {
  const LoraSpec all{.rank = 3, .alpha = 5};
  return {{"gpt2", with_lora(gpt2_shape(), all)},
          {"gpt2_some", with_lora(gpt2_shape(), {.rank = 2, .alpha = 4, .targets = {"c_attn"}})},
          {"llama", with_lora(tiny_config(), all)},
          {"llama_some",
           with_lora(tiny_config(),
                     {.rank = 4, .alpha = 2, .rslora = true, .targets = {"q_proj", "v_proj"}})},
          {"qwen3", with_lora(qwen3_shape(), all)},
          {"interleaved", with_lora(interleaved_shape(), all)},
          {"hearth", with_lora(tiny_configs()[3], all)}};
}

// A model whose adapters do something.
struct Adapted : TinyModel {
  Adapted(Backend& b, const ModelConfig& c, DType dtype = DType::f32) : TinyModel(b, c, 7, dtype) {
    for (const ParamSpec& p : params.specs()) {
      if (!is_adapter(p.name)) continue;
      std::vector<float> v(size_t(p.shape.numel()));
      draw(v, Init::normal(0.3f), 9, p.name);
      params.set(p.name, v);
    }
  }
};

ModelConfig base_of(ModelConfig c) {
  c.lora = {};
  return c;
}

// The base of `m` alone, in a store of its own.
std::unique_ptr<TinyModel> base_of(TinyModel& m) {
  auto base = std::make_unique<TinyModel>(m.backend, base_of(m.config), 7, m.params.dtype());
  for (const ParamSpec& p : base->params.specs())
    base->params.set(p.name, m.params.values(Part::weight, p.name));
  return base;
}

TEST(Lora, TargetsAreTheFilesNames) {
  using Names = std::vector<std::string>;
  EXPECT_EQ(lora_target_names(gpt2_shape()), (Names{"c_attn", "c_proj", "c_fc"}));
  const Names llama{"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"};
  EXPECT_EQ(lora_target_names(tiny_config()), llama);
  EXPECT_EQ(lora_target_names(qwen3_shape()), llama);
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
               "copy", [](auto* f, Stream& s, In in, Out out) { f(s, out[0], in[0]); }),
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

double worst_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double worst = 0;
  for (size_t i = 0; i < a.size(); ++i) worst = std::max(worst, std::abs(double(a[i]) - b[i]));
  return worst;
}
double norm_difference(const std::vector<float>& a, const std::vector<float>& b) {
  double square = 0, size = 0;
  for (size_t i = 0; i < a.size(); ++i)
    square += (double(a[i]) - b[i]) * (double(a[i]) - b[i]), size += double(b[i]) * b[i];
  return std::sqrt(square / size);
}
double largest(const std::vector<float>& a) {
  return worst_difference(a, std::vector(a.size(), 0.f));
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
      EXPECT_LT(worst_difference(unmerged, merged), 1e-5 * size);
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
    programs->update(s);
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
    EXPECT_NEAR(run.programs->update_state().grad_norm / std::sqrt(square), 1, 1e-4);
    expect_error(error_of([&] { run.params.get(Part::moment1, "embed.weight"); }),
                 "[params] expected a parameter that is trained for first moments, got "
                 "embed.weight, which is frozen");
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
    EXPECT_EQ(need.moments, adapters * 8);
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
    const TrainConfig train;
    const CheckpointSpec spec{.model = s.model, .train = train, .base = "somewhere/base"};
    LoraTraining run(*backend, s);
    for (int i = 0; i < 5; ++i) run.step(batch);
    RunState state;
    state.step = 5, state.update = run.programs->update_state();
    const fs::path saved = save_checkpoint(dir.path(), spec, run.params, state, true);
    EXPECT_FALSE(fs::exists(saved / "model.safetensors"));
    EXPECT_FALSE(fs::exists(saved / "config.json"));
    EXPECT_EQ(AdapterSource::base_of(dir.path()), "somewhere/base");

    LoraTraining again(*backend, s);  // the base comes as it came the first time
    const RunState back = load_checkpoint(saved, spec, again.params);
    EXPECT_EQ(back.step, 5);
    again.programs->set_update_state(back.update);
    again.steps = run.steps;
    for (int i = 0; i < 5; ++i) EXPECT_EQ(run.step(batch), again.step(batch));
    for (const ParamSpec& p : run.params.specs())
      EXPECT_EQ(run.params.values(Part::weight, p.name), again.params.values(Part::weight, p.name));

    ModelConfig other = s.model;
    other.lora.alpha = 9;
    const CheckpointSpec wrong{.model = other, .train = train};
    expect_error(error_of([&] { load_checkpoint(saved, wrong, again.params); }),
                 "expected adapters of rank 4 and alpha 9, got 4 and 8");
  }
}

// --- frozen parameters, whatever they are for ---

TEST(Frozen, LieInTheWeightsAlone) {
  const auto backend = make_cpu_backend(1);
  const std::vector<ParamSpec> specs{{"a", {8, 8}, Init::ones(), Group::matrix, false},
                                     {"b", {4, 16}, Init::ones(), Group::matrix, true},
                                     {"v", {5}, Init::ones(), Group::vector, true},
                                     {"e", {3, 2}, Init::ones(), Group::embedding, false},
                                     {"f", {70, 2}, Init::ones(), Group::embedding, true}};
  ParamStore store(*backend, specs, DType::bf16);
  EXPECT_EQ(store.flat_size(Part::weight), 64 + 256 + 64 + 64 + 128);
  EXPECT_EQ(store.flat_size(Part::grad), 64 + 256 + 64);
  EXPECT_EQ(store.part_bytes(Part::master), 4 * (64 + 256 + 64));
  EXPECT_EQ(store.range_size(Group::matrix), 64);
  EXPECT_EQ(store.range_size(Group::embedding), 256);
  EXPECT_EQ(store.count(), 64 + 64 + 5 + 6 + 140);
  EXPECT_EQ(store.trainable_count(), 64 + 5 + 140);
  const std::byte* base = store.flat(Part::weight).data;
  EXPECT_EQ(store.get(Part::weight, "b").data - base, 0);
  EXPECT_EQ(store.get(Part::weight, "a").data - base, 2 * 384);
  EXPECT_EQ(store.range(Part::weight, Group::vector).data, store.get(Part::weight, "v").data);
  store.initialise(1);
  store.set("a", std::vector<float>(64, 3));
  EXPECT_EQ(store.values(Part::weight, "a"), std::vector<float>(64, 3));
  expect_error(error_of([&] { store.values(Part::master, "e"); }),
               "[params] expected a parameter that is trained for master weights, got e, which is "
               "frozen");
}

// Gradients of what is trained do not know what is not; those of all others are never made.
TEST(Frozen, GradientsOfTheRestAreTheSameBits) {
  const int64_t B = 2, T = 5, C = 8, V = 11;
  const std::vector<std::string> names{"embed", "positions", "gain", "shift", "w", "bias", "head"};
  const auto gradients = [&](const std::set<std::string>& trained, bool accumulate) {
    const auto backend = make_cpu_backend(1);
    Tape t(DType::f32, "p");
    t.accumulate = accumulate;
    const auto param = [&](const char* name, Shape s, Group g) {
      return t.param(name, s, Init::normal(0.5f), g, trained.contains(name));
    };
    const Var tokens = t.input("tokens", {B, T}, DType::i32),
              positions = t.input("positions", {B, T}, DType::i32);
    Var x = embed(t, tokens, param("embed", {V, C}, Group::embedding), positions,
                  param("positions", {T, C}, Group::embedding));
    const Var n = norm(t, x, {}, param("gain", {C}, Group::vector),
                       param("shift", {C}, Group::vector), {.kind = Norm::layer, .eps = 1e-5f})
                      .y;
    x = linear(t, n, param("w", {C, C}, Group::matrix),
               {.bias = param("bias", {C}, Group::vector), .residual = x});
    head_loss(t, x, param("head", {V, C}, Group::head), t.input("targets", {B, T}, DType::i32),
              {.grad = true});
    differentiate(t);
    ParamStore store(*backend, t.params, DType::f32);
    store.initialise(3);
    Memory memory(*backend, &store);
    Exec exec(std::move(t), memory);
    std::vector<int32_t> ids, at;
    for (int32_t i = 0; i < B * T; ++i) ids.push_back(i * 7 % V), at.push_back(i % T);
    memory.state.write<int32_t>("p.tokens", ids);
    memory.state.write<int32_t>("p.targets", at);
    memory.state.write<int32_t>("p.positions", at);
    Scalars scalars;
    scalars.inv_targets = 0.1f;
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&scalars, 1));
    for (const std::string& name : trained)  // what accumulation adds to
      store.set(Part::grad, name,
                std::vector<float>(size_t(store.get(Part::grad, name).numel()), 1));
    exec.run();
    std::map<std::string, std::vector<float>> r;
    for (const std::string& name : trained) r[name] = store.values(Part::grad, name);
    return r;
  };
  const std::set<std::string> all(names.begin(), names.end());
  for (const bool accumulate : {false, true}) {
    const auto want = gradients(all, accumulate);
    for (size_t mask = 1; mask + 1 < size_t(1) << names.size(); ++mask) {
      std::set<std::string> some;
      for (size_t i = 0; i < names.size(); ++i)
        if (mask >> i & 1) some.insert(names[i]);
      for (const auto& [name, values] : gradients(some, accumulate))
        ASSERT_EQ(values, want.at(name)) << name << " with mask " << mask;
    }
  }
}

// --- files ---

struct Folders {
  TempDir dir;
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  Adapted m;
  explicit Folders(const ModelConfig& c) : m(*backend, c) {
    const fs::path base = dir / "base";
    make_dirs(base), make_dirs(dir / "adapter");
    write_file_atomic(base / "config.json", hf_config_json(base_of(c), DType::f32, 1, 2));
    write_safetensors_model(base, hf_tensors(base_of(c), m.params, DType::f32));
    write_adapter(dir / "adapter", c, m.params, base.string());
  }
};

TEST(LoraFiles, RoundTripInPeftsLayout) {
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    Folders f(s.config);
    const ModelSource source = ModelSource::open(f.dir / "base", f.dir / "adapter");
    EXPECT_EQ(source.config().lora.scale(), s.config.lora.scale());
    TinyModel other(*f.backend, source.config(), 1);
    source.load(other.params);
    ASSERT_EQ(other.params.specs().size(), f.m.params.specs().size());
    for (const ParamSpec& p : f.m.params.specs())
      EXPECT_EQ(f.m.params.values(Part::weight, p.name), other.params.values(Part::weight, p.name))
          << p.name;
    EXPECT_EQ(f.m.all_logits(tiny_prompt(9)), other.all_logits(tiny_prompt(9)));
  }
}

TEST(LoraFiles, NamesShapesAndKeys) {
  Folders llama(shapes()[3].config), gpt2(shapes()[0].config);
  const Safetensors a(llama.dir / "adapter/adapter_model.safetensors");
  EXPECT_EQ(a.tensors().size(), 8u);
  const std::string layer = "base_model.model.model.layers.1.self_attn.";
  EXPECT_EQ(a.at(layer + "q_proj.lora_A.weight").shape, (std::vector<int64_t>{4, 16}));
  EXPECT_EQ(a.at(layer + "q_proj.lora_B.weight").shape, (std::vector<int64_t>{16, 4}));
  EXPECT_EQ(a.at(layer + "v_proj.lora_B.weight").shape, (std::vector<int64_t>{8, 4}));
  const json j = read_json(llama.dir / "adapter/adapter_config.json");
  EXPECT_EQ(j.at("peft_type"), "LORA");
  EXPECT_EQ(j.at("task_type"), "CAUSAL_LM");
  EXPECT_EQ(j.at("r"), 4);
  EXPECT_EQ(j.at("lora_alpha"), 2);
  EXPECT_EQ(j.at("use_rslora"), true);
  EXPECT_EQ(j.at("fan_in_fan_out"), false);
  EXPECT_EQ(j.at("target_modules"), json({"q_proj", "v_proj"}));
  EXPECT_EQ(j.at("base_model_name_or_path"), (llama.dir / "base").string());

  const Safetensors b(gpt2.dir / "adapter/adapter_model.safetensors");
  EXPECT_EQ(b.at("base_model.model.transformer.h.0.attn.c_attn.lora_B.weight").shape,
            (std::vector<int64_t>{48, 3}));
  const json g = read_json(gpt2.dir / "adapter/adapter_config.json");
  EXPECT_EQ(g.at("fan_in_fan_out"), true);
  EXPECT_EQ(g.at("target_modules"), json({"c_attn", "c_proj", "c_fc"}));
}

// W + scale B A of the files' own tensors is what the merged folder holds, whatever the order of
// rows and columns in there.
TEST(LoraFiles, MergeIsPeftsFormulaOnTheFiles) {
  for (const NamedShape& s : shapes()) {
    SCOPED_TRACE(s.name);
    Folders f(s.config);
    const Converted done =
        convert_model({.to = f.dir / "merged", .adapter = f.dir / "adapter"}, *f.backend);
    EXPECT_EQ(done.params, count_params(base_of(s.config)));
    const Safetensors base(f.dir / "base"), merged(f.dir / "merged"),
        adapter(f.dir / "adapter/adapter_model.safetensors");
    ASSERT_EQ(base.tensors().size(), merged.tensors().size());
    const auto floats = [](const StoredTensor& t) {
      std::vector<float> v(size_t(t.numel()));
      std::memcpy(v.data(), t.bytes.data(), t.bytes.size());
      return v;
    };
    size_t touched = 0;
    for (const auto& [name, tensor] : base.tensors()) {
      std::vector<float> want = floats(tensor);
      const std::string module = "base_model.model." + name.substr(0, name.rfind('.'));
      const StoredTensor* at = adapter.find(module + ".lora_A.weight");
      if (at && name.ends_with(".weight")) {
        ++touched;
        const std::vector<float> A = floats(*at), B = floats(adapter.at(module + ".lora_B.weight"));
        const int64_t r = at->shape[0], in = at->shape[1], out = int64_t(B.size()) / r;
        const bool conv1d = std::string_view(s.name).starts_with("gpt2");
        for (int64_t o = 0; o < out; ++o)
          for (int64_t i = 0; i < in; ++i) {
            double x = 0;
            for (int64_t k = 0; k < r; ++k)
              x += double(B[size_t(o * r + k)]) * A[size_t(k * in + i)];
            want[size_t(conv1d ? i * out + o : o * in + i)] += float(x * s.config.lora.scale());
          }
      }
      EXPECT_LT(worst_difference(floats(merged.at(name)), want), 1e-6) << name;
    }
    EXPECT_EQ(2 * touched, adapter.tensors().size());
    // As a model it is the unmerged one within rounding.
    const ModelSource source = ModelSource::open(f.dir / "merged");
    TinyModel m(*f.backend, source.config(), 1);
    source.load(m.params);
    const std::vector<float> want = f.m.all_logits(tiny_prompt(9));
    EXPECT_LT(worst_difference(m.all_logits(tiny_prompt(9)), want), 1e-5 * largest(want));
  }
}

TEST(LoraFiles, TakesShardsAndOtherDtypes) {
  Folders f(shapes()[2].config);
  const fs::path dir = f.dir / "adapter", whole = dir / "adapter_model.safetensors";
  for (const DType dtype : {DType::bf16, DType::f16, DType::f64}) {
    write_adapter(dir, f.m.config, f.m.params, "x", dtype);
    TinyModel other(*f.backend, f.m.config, 7);
    AdapterSource::open(dir, base_of(f.m.config)).load(other.params);
    const std::string name = "blocks.0.mlp.up.lora_B";
    EXPECT_LT(worst_difference(other.params.values(Part::weight, name),
                               f.m.params.values(Part::weight, name)),
              dtype == DType::f64 ? 1e-30 : 0.01);
  }
  // Two files and an index.
  json index;
  {
    const Safetensors all(whole);
    std::vector<TensorToWrite> parts[2];
    size_t i = 0;
    for (const auto& [name, t] : all.tensors()) {
      index["weight_map"][name] = i % 2 ? "b.safetensors" : "a.safetensors";
      parts[i++ % 2].push_back(tensor_to_write(name, t));
    }
    write_safetensors(dir, "a.safetensors", parts[0]);
    write_safetensors(dir, "b.safetensors", parts[1]);
  }
  fs::remove(whole);
  write_file_atomic(dir / "adapter_model.safetensors.index.json", index.dump());
  TinyModel other(*f.backend, f.m.config, 7);
  AdapterSource::open(dir, base_of(f.m.config)).load(other.params);
  EXPECT_EQ(other.all_logits(tiny_prompt(5)), f.m.all_logits(tiny_prompt(5)));
}

TEST(LoraFiles, RefusesByNameWhatItDoesNotCompute) {
  const json good = json::parse(
      R"({"peft_type": "LORA", "r": 4, "lora_alpha": 16, "lora_dropout": 0.05, "bias": "none",
          "target_modules": ["q_proj", "v_proj"], "use_dora": false, "modules_to_save": null,
          "rank_pattern": {}, "loftq_config": {}, "megatron_core": "megatron.core",
          "peft_version": "0.18.0", "task_type": "CAUSAL_LM", "init_lora_weights": true,
          "some_new_key": false, "fan_in_fan_out": false, "base_model_name_or_path": "m"})");
  EXPECT_EQ(adapter_from_json(good, "c").lora,
            (LoraSpec{.rank = 4, .alpha = 16, .dropout = 0.05f, .targets = {"q_proj", "v_proj"}}));
  const auto message = [&](const char* key, json value) {
    json j = good;
    if (value.is_discarded())
      j.erase(key);
    else
      j[key] = std::move(value);
    return error_of([&] { adapter_from_json(j, "c"); });
  };
  expect_error(message("use_dora", true),
               "[c] expected an adapter without \"use_dora\", got \"true\": not supported");
  expect_error(message("bias", "all"), "without \"bias\"");
  expect_error(message("modules_to_save", {"lm_head"}), "without \"modules_to_save\"");
  expect_error(message("rank_pattern", {{"q_proj", 2}}), "without \"rank_pattern\"");
  expect_error(message("layers_to_transform", {0}), "without \"layers_to_transform\"");
  expect_error(message("init_lora_weights", "pissa"), "without \"init_lora_weights\"");
  expect_error(message("some_new_key", 3), "without \"some_new_key\"");
  expect_error(message("peft_type", "IA3"), "[c] expected peft_type LORA, got \"\\\"IA3\\\"\"");
  expect_error(message("target_modules", ".*attn.*"), "target_modules to be a list of names");
  expect_error(message("target_modules", json::array()), "target_modules to be a list of names");
  expect_error(message("r", 0), "[c] expected a rank from 1 to 8192, got 0");
  expect_error(message("r", "4"), "[c.r] expected a whole number");
  expect_error(message("r", json(json::value_t::discarded)), "[c] expected the key r, got none");
  expect_error(message("lora_dropout", 1), "expected a dropout in [0, 1), got 1");
  EXPECT_EQ(message("target_modules", "all-linear"), "");
  EXPECT_EQ(message("init_lora_weights", "gaussian"), "");
}

TEST(LoraFiles, DamagedFoldersAreOneLine) {
  Folders f(shapes()[3].config);
  const ModelConfig base = base_of(f.m.config);
  const fs::path dir = f.dir / "adapter";
  const auto message = [&] { return error_of([&] { AdapterSource::open(dir, base); }); };
  expect_error(error_of([&] { ModelSource::open(dir); }),
               "expected a model, got an adapter: name it by --adapter, its base here");
  expect_error(error_of([&] { AdapterSource::open(f.dir / "base", base); }),
               "expected an adapter's folder with adapter_config.json, got none there");
  expect_error(error_of([&] { AdapterSource::open(dir, gpt2_shape()); }),
               "[lora] expected targets among c_attn, c_proj, c_fc or all-linear, got \"q_proj\"");
  ModelConfig narrow = base;
  narrow.kv_heads = 1;
  expect_error(error_of([&] { AdapterSource::open(dir, narrow); }),
               "v_proj.lora_B.weight to be (4, 4), got (8, 4)");

  std::vector<TensorToWrite> tensors;
  const float zero[16 * 4] = {};
  const auto write = [&](const std::string& name, std::vector<int64_t> shape, DType d) {
    tensors.push_back({name, d, std::move(shape),
                       [&zero](const ByteSink& sink) { sink(std::as_bytes(std::span(zero))); }});
    fs::remove(dir / "adapter_model.safetensors");
    write_safetensors(dir, "adapter_model.safetensors", tensors);
  };
  const std::string first = "base_model.model.model.layers.0.self_attn.q_proj.";
  write(first + "lora_A.weight", {4, 16}, DType::f32);
  expect_error(message(), "expected tensor " + first + "lora_B.weight (16, 4), got none");
  write(first + "lora_B.weight", {16, 4}, DType::i32);
  expect_error(message(), "expected " + first + "lora_B.weight in a float type, got i32");

  write_adapter(dir, f.m.config, f.m.params, "gone");
  json j = read_json(dir / "adapter_config.json");
  j["target_modules"] = {"q_proj", "lm_head"};  // PEFT lets a list name what is not there
  write_file_atomic(dir / "adapter_config.json", j.dump());
  expect_error(message(), "expected only lora_A and lora_B of the targets, got");
  fs::remove(dir / "adapter_model.safetensors");
  write_file_atomic(dir / "adapter_model.bin", std::string_view("x"));
  expect_error(message(), "got only adapter_model.bin, which is not read");
  expect_error(error_of([&] { convert_model({.to = f.dir / "out", .adapter = dir}, *f.backend); }),
               "expected --from with its base model, got \"gone\" in its config");
}

}  // namespace
}  // namespace hearth
