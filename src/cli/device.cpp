// The backend for --device: a CUDA GPU if this build can use one, otherwise the CPU, with a message
// that says why.
#include <fmt/format.h>

#include <atomic>
#include <charconv>

#include "cli/commands.h"
#include "cpu/backend.h"
#include "cuda/backend.h"
#include "formats/fields.h"
#include "formats/json.h"
#include "infer/draft.h"
#include "sys/cores.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

// Prints once per process why no GPU is used.
void say_using_cpu(const std::string& why) {
  static std::atomic<bool> said = false;
  if (!said.exchange(true)) say("hearth: using the CPU: {}\n", why);
}

// The first GPU that this build can use, or -1 with a message on stderr. A build without CUDA
// prints nothing.
int first_usable_card() {
  const CudaDriver driver = cuda_driver();
  std::string why = driver.problem;
  for (int i = 0; i < driver.cards; ++i) {
    const CudaCard c = cuda_card(i);
    if (c.problem.empty()) return c.index;
    if (why.empty()) why = fmt::format("{}: {}", c.name, c.problem);
  }
  if (driver.runtime > 0) say_using_cpu(why);
  return -1;
}

// "cuda" means cuda:0.
int card_number(const std::string& device) {
  if (device == "cuda") return 0;
  int n = -1;
  const char *begin = device.data() + 5, *end = device.data() + device.size();
  if (device.size() > 5 && device.starts_with("cuda:") &&
      std::from_chars(begin, end, n).ptr == end && n >= 0)
    return n;
  fail_usage("device", "expected auto, cpu or cuda[:i], got {}", in_quotes(device));
}

}  // namespace

int checked_threads(int threads) {
  static std::atomic<bool> said = false;
  const int cores = usable_threads();
  if (threads > cores && !said.exchange(true))
    say_problem(
        fmt::format("--threads {} is more than the {} that this process may use; --threads "
                    "0 is one thread per core",
                    threads, counted(cores, "core")));
  return threads;
}

void add_dtype(CLI::App& c, std::string& to) {
  c.add_option("--dtype", to,
               "type of weights and activations: auto, fp32 or bf16; on a GPU also fp16")
      ->capture_default_str();
}

namespace {

DType named_dtype(const std::string& name, const Backend& backend) {
  for (const auto& [known, dtype] :
       {std::pair{"fp32", DType::f32}, {"bf16", DType::bf16}, {"fp16", DType::f16}}) {
    if (name != known) continue;
    if (!backend.runs(dtype))
      fail_usage("--dtype", "expected fp32 or bf16 on {}, got {}, which needs a GPU",
                 backend.describe(), name);
    return dtype;
  }
  const bool quantised = name == "int8" || name == "int4" || name == "fp8";
  fail_usage("--dtype", "expected auto, fp32, bf16 or fp16, got {}{}", in_quotes(name),
             quantised ? fmt::format("; --weights {} stores the matrices in it", name) : "");
}

DType chosen_dtype(Workload work, const Backend& backend, DType stored,
                   const std::string& model = {}) {
  const DtypeChoice choice = auto_dtype(work, backend, stored);
  say("hearth: computing {}in {}, {}\n", model.empty() ? "" : model + " ",
      choice.dtype == DType::bf16 ? "bf16" : "fp32", choice.why);
  return choice.dtype;
}

}  // namespace

void check_dtype(const std::string& name, const Backend& backend) {
  if (name != "auto") named_dtype(name, backend);
}

DType weights_dtype(const std::string& name, const Backend& backend, Workload work, DType stored,
                    const std::string& model) {
  return name == "auto" ? chosen_dtype(work, backend, stored, model) : named_dtype(name, backend);
}

LoadedModel load_model(const ModelFlags& f, Backend& backend, Workload work) {
  ModelSource source = ModelSource::open(f.model, f.adapter);
  const WeightsSpec weights{weights_dtype(f.dtype, backend, work, source.dtype()),
                            weight_format(f.weights, backend)};
  return LoadedModel(std::move(source), backend, weights);
}

void resolve_dtype(TrainDType& dtype, const Backend& backend) {
  if (dtype != TrainDType::automatic) return;
  dtype = chosen_dtype(Workload::training, backend, DType::f32) == DType::bf16 ? TrainDType::bf16
                                                                               : TrainDType::fp32;
}

void add_generation_config(CLI::App& c, std::string& to) {
  c.add_option(
       "--generation-config", to,
       "auto: use the sampling defaults in the model's generation_config.json; none: ignore them")
      ->capture_default_str()
      ->check(CLI::IsMember({"auto", "none"}));
}

void apply_generation_config(SamplingSpec& s, const std::string& choice, const ModelSource& source,
                             const std::set<std::string>& given) {
  if (choice == "none") {
    if (const auto dir = generation_folder(source); !dir.empty()) try {
        if (const auto j = read_generation_config(dir); !j.is_object())
          fail(dir.string(), "expected a JSON object in generation_config.json, got {}",
               j.type_name());
      } catch (const Error& e) {
        say_problem(fmt::format("{}; its end tokens are ignored", e.what()));
      }
    return;
  }
  const GenerationDefaults defaults = GenerationDefaults::read(source);
  if (const std::string said = defaults.apply(s, given); !said.empty())
    say("hearth: {} from {}\n", said, defaults.file.string());
}

void add_weights(CLI::App& c, std::string& to) {
  c.add_option(
       "--weights", to,
       "plain (the type of --dtype), or quantise matrices on load: int8, int4, on a GPU also fp8")
      ->capture_default_str();
}

WeightFormat weight_format(const std::string& name, const Backend& backend) {
  for (const WeightFormat f : weight_formats) {
    if (name != to_string(f)) continue;
    if (!backend.multiplies(f))
      fail_usage("--weights", "expected plain, int8 or int4 on {}, got {}, which needs a GPU",
                 backend.describe(), name);
    return f;
  }
  fail_usage("--weights", "expected plain, int8, int4 or fp8, got {}", in_quotes(name));
}

void add_kv(CLI::App& c, std::string& to) {
  c.add_option("--kv", to,
               "KV cache format: plain (the type of --dtype), or fp8: half the memory of bf16, "
               "slightly less accurate")
      ->capture_default_str();
}

CacheFormat cache_format(const std::string& name) {
  for (const CacheFormat f : {CacheFormat::plain, CacheFormat::fp8})
    if (name == to_string(f)) return f;
  fail_usage("--kv", "expected plain or fp8, got {}", in_quotes(name));
}

Draft Speculation::source() const {
  for (const Draft d : {Draft::lookup, Draft::mtp})
    if (draft == enum_name(d)) return d;
  fail_usage("--draft", "expected lookup or mtp, got {}", in_quotes(draft));
}

int64_t Speculation::guesses() const {
  const bool asked = draft_flag && draft_flag->count() > 0;
  return tokens == 0 && asked && source() == Draft::lookup ? lookup_guesses : tokens;
}

void add_speculation(CLI::App& c, Speculation& s) {
  c.add_option("--speculate", s.tokens,
               fmt::format("draft tokens per sequence and step; does not change the output. 0: "
                           "none, or {} with --draft lookup, one per module with --draft mtp",
                           lookup_guesses))
      ->capture_default_str()
      ->check(between(0, 64));
  s.draft_flag =
      c.add_option("--draft", s.draft,
                   "where draft tokens come from: lookup (earlier text), or mtp (the model's "
                   "modules of multi-token prediction)")
          ->capture_default_str();
}

void add_batch_invariant(CLI::App& c, bool& to) {
  c.add_flag(
      "--batch-invariant", to,
      "on a GPU with --dtype bf16 or fp16: make a request's tokens independent of the rest of the "
      "batch; slower");
}

int chosen_card(const Common& c) {
  if (c.device == "auto") return first_usable_card();
  return c.device == "cpu" ? -1 : card_number(c.device);
}

NamedCards named_cards(const Common& c) {
  if (c.device == "cpu") return {};
  const CudaDriver driver = cuda_driver();
  if (c.device == "auto") return {cuda_cards(), driver.problem};
  const int card = card_number(c.device);
  if (driver.cards == 0) return {{}, driver.problem};
  if (card < driver.cards) return {{cuda_card(card)}, ""};
  return {{}, fmt::format("expected cuda:0 to cuda:{}, got cuda:{}", driver.cards - 1, card)};
}

std::unique_ptr<Backend> make_backend(const Common& c, const BackendWish& wish) {
  if (const int card = chosen_card(c); card >= 0) {
    try {
      return make_cuda_backend({.card = card,
                                .tf32 = wish.tf32,
                                .hopper_kernels = wish.hopper_kernels,
                                .batch_invariant = wish.batch_invariant,
                                .memory_limit = int64_t(c.memory_limit * (1 << 30))});
    } catch (const Error& e) {
      if (c.device != "auto") throw;
      say_using_cpu(e.what());
    }
  }
  if (wish.tf32 || wish.fp16)
    fail_usage("--dtype", "expected fp32 or bf16 on the CPU, or fp8 for training, got {}",
               wish.tf32 ? "tf32" : "fp16");
  return make_cpu_backend(checked_threads(c.threads));
}

}  // namespace hearth::inline cli
