// hearth doctor: checks that the backends of this machine compute the same. `lockstep` runs a model
// on two backends node by node and names the first op that differs; without a subcommand each
// backend is checked on a small model.
#include <fmt/format.h>

#include "cli/commands.h"
#include "cli/model_flags.h"
#include "cpu/backend.h"
#include "cpu/reference/reference.h"
#include "cuda/backend.h"
#include "diag/lockstep.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/files/folder.h"
#include "model/files/hf_names.h"
#include "model/files/tensor_rows.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "train/config.h"

namespace hearth::inline cli {
namespace {

struct DoctorFlags {
  Common common;
  std::vector<std::string> presets;
  std::string dtype = "bf16", against = "auto", recompute = "none";
  int64_t batch = 2, seq = 128;
  uint64_t seed = 1;
  bool documents = false;
  FieldFlags<ModelConfig> model;
};

struct GradientFlags {
  DoctorFlags at;
  std::string out, folder;
};

nlohmann::ordered_json to_json(const LockstepNode& n) {
  return {{"op", n.op},         {"where", n.where},
          {"output", n.output}, {"shape", to_string(n.shape)},
          {"error", n.error},   {"tolerance", n.tolerance}};
}

// Prints one model's result; returns true if every op agreed.
bool report(const std::string& what, const LockstepResult& r, bool json) {
  if (json) {
    nlohmann::ordered_json j{{"lockstep", what}, {"nodes", r.nodes}, {"outputs", r.outputs}};
    j["first"] = r.first ? to_json(*r.first) : nlohmann::ordered_json();
    for (const auto& [op, n] : r.worst) j["worst"][op] = n.error;
    print_json(j);
    return !r.first;
  }
  const LockstepNode* worst = nullptr;
  for (const auto& [op, n] : r.worst)
    if (!worst || !(n.error <= worst->error)) worst = &n;
  if (r.first)
    fmt::print(
        "{}: {} of {} is the first to differ: output {} {}, error {:.3g}, tolerance {:.3g}\n", what,
        r.first->op, r.first->where.empty() ? "the update" : r.first->where, r.first->output,
        to_string(r.first->shape), r.first->error, r.first->tolerance);
  else
    fmt::print("{}: {} nodes agree; worst: {}, error {:.3g}, tolerance {:.3g}\n", what, r.nodes,
               worst->op, worst->error, worst->tolerance);
  return !r.first;
}

std::unique_ptr<Backend> backend_of(const DoctorFlags& f) {
  const TrainDType d = parse_enum<TrainDType>(f.dtype, "--dtype");
  return make_backend(f.common, {.tf32 = d == TrainDType::tf32, .fp16 = d == TrainDType::fp16});
}

ProgramSpec spec_of(const DoctorFlags& f, const std::string& name, const Backend& backend) {
  const ModelConfig model = model_over_preset(name, f.model).resolve();
  return {.model = model,
          .dtype = storage_dtype(parse_enum<TrainDType>(f.dtype, "--dtype")),
          .fp8 = Fp8Config{}.recording(parse_enum<TrainDType>(f.dtype, "--dtype")),
          .B = f.batch,
          .T = std::min(f.seq, model.context),
          .recompute = parse_enum<Recompute>(f.recompute, "--recompute"),
          .documents = f.documents,
          .accumulates = true,
          .logits_bytes = logits_chunk_bytes(backend)};
}

void run_lockstep(const DoctorFlags& f) {
  if (f.against != "auto" && f.against != "cpu" && f.against != "reference")
    fail_usage("--against", "expected auto, cpu or reference, got {}", in_quotes(f.against));
  const std::unique_ptr<Backend> tried = backend_of(f);
  const bool on_gpu = tried->device_bytes() > 0;
  if (f.against == "cpu" && !on_gpu)
    fail_usage("--against",
               "this step runs on the CPU, which would be compared with itself: use reference");
  const std::unique_ptr<Backend> trusted = on_gpu && f.against != "reference"
                                               ? make_cpu_backend(checked_threads(f.common.threads))
                                               : make_reference_backend();
  bool agreed = true;
  for (const std::string& name : f.presets) {
    const ProgramSpec s = spec_of(f, name, *tried);
    const std::string what = fmt::format("{} {} {}x{}, {} against {}", name, f.dtype, s.B, s.T,
                                         tried->describe(), trusted->describe());
    agreed &= report(what, lockstep(s, *tried, *trusted, f.seed), f.common.json);
    std::fflush(stdout);  // the next model may take a minute
  }
  if (!agreed) fail("doctor", "an op differs between the backends; see the lines above");
}

TensorToWrite written(std::string name, std::span<const int32_t> ids, Shape s) {
  return {std::move(name), DType::i32, {s[0], s[1]}, [ids](const ByteSink& sink) {
            sink(std::as_bytes(ids));
          }};
}

TensorToWrite computed(std::string name, std::vector<int64_t> shape,
                       std::function<std::vector<float>()> values) {
  return {std::move(name), DType::f32, std::move(shape),
          [values = std::move(values)](const ByteSink& sink) {
            const std::vector<float> v = values();
            sink(std::as_bytes(std::span(v)));
          }};
}

// Weights and gradients in hearth's own layout.
void add_params(std::vector<TensorToWrite>& to, ParamStore& store) {
  for (const ParamSpec& p : store.specs())
    for (Part part : {Part::weight, Part::grad})
      to.push_back(computed((part == Part::weight ? "weight/" : "grad/") + p.name,
                            {p.shape.dim.begin(), p.shape.dim.begin() + p.shape.rank},
                            [&store, part, name = p.name] { return store.values(part, name); }));
}

// Writes the model as a Hugging Face folder, and adds the gradients of that folder's tensors.
void add_folder(std::vector<TensorToWrite>& to, const std::filesystem::path& dir,
                const ModelConfig& model, ParamStore& store) {
  const HfType type = hf_type(model);
  if (type == HfType::hearth)
    fail_usage("--model-folder", "Hugging Face has no layout for this model: {}",
               why_own_layout(model));
  std::filesystem::create_directories(dir);
  write_file_atomic(dir / "config.json", hf_config_json(model, DType::f32, -1, -1));
  write_safetensors(dir, "model.safetensors", hf_tensors(model, store, DType::f32));
  for (FileTensor& t : file_tensors(model, {.type = type})) {
    if (t.param.empty() || t.copy) continue;
    t.offset = 0;  // a gain that is stored without its 1 has the same gradient
    to.push_back(computed("grad/" + t.name, t.shape,
                          [&store, t] { return from_rows(t, store.values(Part::grad, t.param)); }));
  }
}

// Who takes --model-folder for a model to read must not lose that model.
void expect_no_model(const std::string& folder) {
  namespace fs = std::filesystem;
  if (!folder.empty() && fs::exists(folder) && !(fs::is_directory(folder) && fs::is_empty(folder)))
    fail_usage("--model-folder", "expected a new or empty folder to write to, got {}", folder);
}

// Writes one step's tokens, weights, loss and gradients to a file that other programs can check.
void run_gradients(const GradientFlags& g) {
  const DoctorFlags& f = g.at;
  expect_no_model(g.folder);
  if (f.presets.size() != 1)
    fail_usage("--preset", "expected one preset, got {}", f.presets.size());
  const std::unique_ptr<Backend> backend = backend_of(f);
  const ProgramSpec s = spec_of(f, f.presets.at(0), *backend);
  ParamStore store(*backend, decoder_params(s.model), s.dtype);
  store.initialise(f.seed);
  make_training_buffers(store, s.update);
  Memory memory(*backend, &store);
  Programs programs(s, memory);
  const Batch batch = random_batch(s, f.seed);
  Scalars scalars;
  scalars.inv_targets = 1 / float(batch.count);
  programs.micro(batch, scalars, true);
  std::vector<TensorToWrite> tensors{
      written("tokens", batch.tokens, {s.B, s.T}), written("targets", batch.targets, {s.B, s.T}),
      computed("loss", {1}, [&] { return std::vector<float>{float(programs.loss())}; })};
  if (g.folder.empty())
    add_params(tensors, store);
  else
    add_folder(tensors, g.folder, s.model, store);
  const std::filesystem::path out = std::filesystem::absolute(g.out);
  write_safetensors(out.parent_path(), out.filename().string(), tensors);
  fmt::print("loss {:.6f}; wrote {} parameters with their gradients to {}\n", programs.loss(),
             store.count(), g.out);
}

void run_all(const Common& common) {
  bool agreed = true;
  const auto try_one = [&](Backend& tried, Backend& trusted, const char* dtype) {
    DoctorFlags f;
    f.dtype = dtype, f.seq = 48;
    const ProgramSpec s = spec_of(f, "tiny", tried);
    const std::string what =
        fmt::format("tiny {}, {} against {}", dtype, tried.describe(), trusted.describe());
    agreed &= report(what, lockstep(s, tried, trusted, 1), common.json);
  };
  const auto reference = make_reference_backend(),
             cpu = make_cpu_backend(checked_threads(common.threads));
  try_one(*cpu, *reference, "fp32");
  try_one(*cpu, *reference, "bf16");
  const NamedCards named = named_cards(common);
  if (!common.json && !named.problem.empty()) fmt::print("no GPU: {}\n", named.problem);
  for (const CudaCard& c : named.cards) {
    if (!c.problem.empty()) {
      if (!common.json) fmt::print("{}: {}\n", c.name, c.problem);
      continue;
    }
    const auto card = make_cuda_backend({.card = c.index});
    try_one(*card, *cpu, "fp32");
    try_one(*card, *cpu, "bf16");
  }
  if (common.device != "auto" && !named.problem.empty())
    fail("device", "{} cannot be checked: {}", common.device, named.problem);
  if (!agreed) fail("doctor", "an op differs between the backends; see the lines above");
}

}  // namespace

static void add_step_flags(CLI::App& c, DoctorFlags& f) {
  add_common(c, f.common);
  c.add_option("--preset", f.presets, "one or more model presets")->capture_default_str();
  c.add_option("--dtype", f.dtype, "compute type: fp32, bf16 or fp8")->capture_default_str();
  c.add_option("--batch", f.batch, "sequences per batch")
      ->capture_default_str()
      ->check(between(1, 1 << 20));
  c.add_option("--seq", f.seq, "tokens per sequence")
      ->capture_default_str()
      ->check(between(1, 1 << 20));
  c.add_option("--seed", f.seed, "random seed for weights and tokens")->capture_default_str();
  c.add_option("--recompute", f.recompute, "gradient checkpointing: none, light or block")
      ->capture_default_str();
  c.add_flag("--documents", f.documents, "use a document mask");
  f.model.add(c, ModelConfig{}, "Model (overrides the presets)");
}

void add_doctor(CLI::App& app) {
  CLI::App* doctor =
      app.add_subcommand("doctor", "check that all backends compute the same results");
  auto common = std::make_shared<Common>();
  add_common(*doctor, *common);
  CLI::App* c =
      doctor->add_subcommand("lockstep", "compare one training step on two backends, op by op");
  auto f = std::make_shared<DoctorFlags>();
  f->presets = {"tiny"};
  add_step_flags(*c, *f);
  c->add_option(
       "--against", f->against,
       "backend to compare with: cpu, reference (double precision, slow), or auto: the CPU "
       "for a GPU, the reference for the CPU")
      ->capture_default_str();
  c->callback([f] { run_lockstep(*f); });
  CLI::App* gradients =
      doctor->add_subcommand("gradients", "write the weights and gradients of one step to a file");
  auto g = std::make_shared<GradientFlags>();
  g->at.presets = {"gpt2"};
  add_step_flags(*gradients, g->at);
  gradients->add_option("--out", g->out, "safetensors file to write")->required();
  gradients->add_option("--model-folder", g->folder,
                        "also write the model as this Hugging Face folder, and name the gradients "
                        "as its tensors; the weights are then in the folder alone");
  gradients->callback([g] { run_gradients(*g); });
  doctor->callback([doctor, common] {
    if (doctor->get_subcommands().empty()) run_all(*common);
  });
}

}  // namespace hearth::inline cli
