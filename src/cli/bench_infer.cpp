// hearth bench infer: the engine on random weights, or on a model, and random tokens, or a text.
// Either a batch of equal requests, compared with the time to read weights and KV cache, or a
// workload of many unequal requests.
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <map>
#include <random>

#include "cli/bench.h"
#include "cli/constraint_flags.h"
#include "cli/model_flags.h"
#include "diag/peak_flops.h"
#include "infer/engine.h"
#include "infer/loaded_model.h"
#include "model/decoder.h"
#include "model/layer_spec.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "text/tokenizer/tokenizer.h"
#include "train/config.h"

namespace hearth::inline cli {
namespace {

using Clock = std::chrono::steady_clock;

struct InferFlags {
  Common common;
  std::string preset = "gpt2", model_path, text;
  std::string dtype = "auto", weights = "plain", kv = "plain";
  const CLI::Option* preset_flag = nullptr;
  bool batch_invariant = false;
  int64_t batch = 1, prompt = 128, made = 256, workload = 0;
  int64_t step_tokens = 512;
  Speculation speculation = {};
  uint64_t seed = 1;
  int repeats = 3;
  std::string tokenizer;
  ConstraintFlags constraint;
  FieldFlags<ModelConfig> model;

  std::string name() const {
    return model_path.empty() ? name_over_preset(preset, model) : model_path;
  }
};

// Arrival times of a run's tokens, in ms since its start.
struct Run {
  std::vector<double> first;  // of each request
  std::vector<double> gaps;   // between consecutive tokens of a request
  double all_first = 0, end = 0;
  int64_t tokens = 0;
};

Run timed_run(Engine& engine, std::span<const Request> requests) {
  Run r;
  std::vector<double> last(requests.size(), -1);
  const auto begin = Clock::now();
  engine.run(requests, [&](const TokenEvent& e) {
    const double now = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
    (last[e.request] < 0 ? r.first : r.gaps)
        .push_back(last[e.request] < 0 ? now : now - last[e.request]);
    last[e.request] = now;
    if (r.first.size() == requests.size() && r.all_first == 0) r.all_first = now;
    ++r.tokens;
    return true;
  });
  r.end = std::chrono::duration<double, std::milli>(Clock::now() - begin).count();
  return r;
}

// Counts of draft tokens, and the share accepted of the first, the second, .. token of a draft.
void put_drafts(nlohmann::ordered_json& j, const EngineStats& s) {
  j["drafted"] = s.drafted, j["accepted"] = s.accepted;
  j["acceptance"] = nlohmann::ordered_json::array();
  for (const DraftCount& d : s.drafts)
    if (d.tried > 0) j["acceptance"].push_back(double(d.accepted) / double(d.tried));
}

// The same for people: ", accepted of the drafts 81% 65%".
std::string drafts_text(const EngineStats& s) {
  std::string text;
  for (const DraftCount& d : s.drafts)
    if (d.tried > 0) text += fmt::format(" {:.0f}%", 100 * double(d.accepted) / double(d.tried));
  return text.empty() ? text : ", accepted of the drafts" + text;
}

double percentile(std::vector<double> x, double share) {
  if (x.empty()) return 0;
  const auto at = x.begin() + ptrdiff_t(share * double(x.size() - 1));
  std::nth_element(x.begin(), at, x.end());
  return *at;
}

nlohmann::ordered_json percentiles(const std::vector<double>& x) {
  return {{"p50", percentile(x, 0.5)}, {"p90", percentile(x, 0.9)}, {"p99", percentile(x, 0.99)}};
}

// What the text of every request has to match; the tokenizer says what tokens mean.
struct Constrained {
  Constrained(const InferFlags& f, const Tokenizer* tokenizer) : spec(f.constraint.spec()) {
    if (spec.kind == ConstraintSpec::Kind::none) return;
    if (!tokenizer) fail_usage("infer", "constrained text needs --tokenizer");
    maker.emplace(*tokenizer);
    maker->make(spec);  // throws before the first run
  }
  std::string name() const {
    return spec.kind == ConstraintSpec::Kind::none          ? ""
           : spec.kind == ConstraintSpec::Kind::json_schema ? " json-schema"
                                                            : " regex";
  }
  ConstraintSpec spec;
  std::optional<ConstraintMaker> maker;
};

// The model of --model, or else a config with random weights.
struct BenchModel {
  BenchModel(const InferFlags& f, Backend& backend, const WeightsSpec& weights) {
    if (!f.model_path.empty()) {
      loaded.emplace(ModelSource::open(f.model_path), backend, weights);
      config = loaded->config();
      expect_context(f);
      return;
    }
    if (!f.tokenizer.empty()) own_tokenizer = Tokenizer::load(f.tokenizer);
    config = model_over_preset(f.preset, f.model);
    if (own_tokenizer) config.vocab = own_tokenizer->vocab_size();
    // The requests of a workload have fixed lengths, so the context of a shorter model is extended.
    if (f.workload) config.context = std::max(config.context, 2 * workload_longest);
    expect_context(f);
    config = config.resolve();
    drawn.emplace(backend, decoder_params(config, weights.format), weights.dtype);
    drawn->initialise(f.seed);
  }
  void expect_context(const InferFlags& f) const {
    if (f.workload && config.context < 2 * workload_longest)
      fail_usage("--workload", "expected a model with a context of at least {}, got {}",
                 2 * workload_longest, config.context);
    if (!f.workload && f.prompt + f.made > config.context)
      fail_usage("--new",
                 "expected --prompt and --new of at most {} tokens together, the context of {}, "
                 "got {} and {}{}",
                 config.context, f.model_path.empty() ? f.preset : f.model_path, f.prompt, f.made,
                 f.model_path.empty() ? "; --context makes it longer" : "");
  }
  const Tokenizer* tokenizer() {
    if (loaded && !loaded->source().tokenizer().empty()) return &loaded->tokenizer();
    return own_tokenizer ? &*own_tokenizer : nullptr;
  }
  ParamStore& params() { return loaded ? loaded->params() : *drawn; }

  static constexpr int64_t workload_shortest = 100, workload_longest = 1024;
  std::optional<LoadedModel> loaded;
  std::optional<Tokenizer> own_tokenizer;
  ModelConfig config;
  std::optional<ParamStore> drawn;
};

struct Bench {
  explicit Bench(const InferFlags& f)
      : flags(f),
        train_dtype(parse_enum<TrainDType>(f.dtype, "--dtype")),
        backend(make_backend(f.common, {.tf32 = train_dtype == TrainDType::tf32,
                                        .fp16 = train_dtype == TrainDType::fp16,
                                        .batch_invariant = f.batch_invariant})),
        dtype(resolved(train_dtype, *backend)),
        format(weight_format(f.weights, *backend)),
        cache(cache_format(f.kv)),
        model(f, *backend, {dtype, format}),
        constrained(f, model.tokenizer()) {
    if (f.text.empty()) return;
    if (!model.tokenizer()) fail_usage("--text", "needs a tokenizer: --model or --tokenizer");
    text = model.tokenizer()->encode(read_file(f.text));
    const int64_t least = f.workload ? BenchModel::workload_longest : f.prompt;
    if (int64_t(text.size()) < least)
      fail_usage("--text", "expected at least {} tokens, got {}", least, text.size());
  }
  static DType resolved(TrainDType& dtype, const Backend& backend) {
    resolve_dtype(dtype, backend);
    return to_dtype(dtype);
  }
  Engine engine(int64_t context) {
    return Engine(model.config, model.params(), *backend,
                  {.max_batch = flags.batch,
                   .context = context,
                   .step_tokens = flags.step_tokens,
                   .speculate = flags.speculation.guesses(),
                   .draft = flags.speculation.source(),
                   .reuse_prefixes = false,
                   .cache = cache,
                   .exact = flags.batch_invariant,
                   .tokenizer = model.tokenizer()});
  }
  // Random tokens, or a part of the text.
  Request request(std::mt19937_64& bits, int64_t prompt, int64_t made) {
    Request r;
    if (text.empty()) {
      const Tokenizer* t = model.tokenizer();
      const uint64_t ids =
          uint64_t(t ? std::min<int64_t>(t->vocab_size(), model.config.vocab) : model.config.vocab);
      for (int64_t i = 0; i < prompt; ++i) r.prompt.push_back(int32_t(bits() % ids));
    } else {
      const auto from = text.begin() + int64_t(bits() % (text.size() - size_t(prompt) + 1));
      r.prompt.assign(from, from + prompt);
    }
    r.sampling.temperature = 0;
    r.sampling.max_tokens = made;
    r.sampling.ignore_eos = true;
    if (constrained.maker) r.constraint = constrained.maker->make(constrained.spec);
    return r;
  }
  std::vector<Request> equal_requests(std::mt19937_64& bits, int64_t made) {
    std::vector<Request> all;
    for (int64_t i = 0; i < flags.batch; ++i) all.push_back(request(bits, flags.prompt, made));
    return all;
  }

  // Bytes of all matrices and the head in their stored format.
  int64_t streamed_bytes() {
    int64_t bytes = matmul_params(model.config) * size_of(dtype);
    for (const ParamSpec& p : model.params().specs())
      if (const Tensor q = model.params().quantised(p.name))
        bytes += q.bytes() - p.shape.numel() * size_of(dtype);
    return bytes;
  }
  // Cache bytes per token, over all layers.
  int64_t cached_bytes() const {
    return cache_block_bytes(model.config, cache, dtype) / cache_block;
  }
  std::string weights_name() const {
    std::string name(enum_name(train_dtype));
    if (format != WeightFormat::plain) name = fmt::format("{} {}", to_string(format), name);
    if (cache != CacheFormat::plain) name += fmt::format(" kv {}", to_string(cache));
    if (flags.batch_invariant) name += " batch-invariant";
    return name;
  }

  const InferFlags& flags;
  TrainDType train_dtype;
  std::unique_ptr<Backend> backend;
  DType dtype;
  WeightFormat format;
  CacheFormat cache;
  BenchModel model;
  Constrained constrained;
  std::vector<int32_t> text;  // of --text
};

// Equal requests that start together; reports the median of several runs with different prompts.
void bench_batch(const InferFlags& f) {
  Bench b(f);
  Engine engine = b.engine(f.prompt + f.made);
  std::mt19937_64 bits(f.seed);
  // Twice: a program first runs node by node and is then captured as a graph.
  for (int i = 0; i < 2; ++i) engine.run(b.equal_requests(bits, std::min<int64_t>(f.made, 8)));
  std::vector<Run> runs;
  for (int i = 0; i < f.repeats; ++i)
    runs.push_back(timed_run(engine, b.equal_requests(bits, f.made)));
  std::ranges::sort(runs, {}, &Run::end);
  const Run& r = runs[runs.size() / 2];

  const double total = 1e3 * double(r.tokens) / r.end;
  const double decoded = double(r.tokens - f.batch), decode_ms = r.end - r.all_first;
  const double decode = f.made > 1 ? 1e3 * decoded / decode_ms : 0;
  // A decoding step reads every matrix once, plus the keys and values of every sequence.
  const double weights = double(b.streamed_bytes());
  const double cached =
      double(f.batch * b.cached_bytes()) * (double(f.prompt) + double(f.made) / 2);
  const double bandwidth = measure_bandwidth(*b.backend);
  const double bound = double(f.batch) * bandwidth / (weights + cached);
  const EngineStats s = engine.stats();
  nlohmann::ordered_json j =
      bench_line(*b.backend, "infer",
                 fmt::format("{} {} batch {} prompt {} new {}{}", f.name(), b.weights_name(),
                             f.batch, f.prompt, f.made, b.constrained.name()),
                 total, "tokens/s");
  j["decode_tokens_per_s"] = decode;
  j["ttft_ms"] = r.all_first;
  j["prompt_tokens_per_s"] = 1e3 * double(f.batch * f.prompt) / r.all_first;
  j["itl_ms"] = percentiles(r.gaps);
  j["memory_bytes"] = peak_bytes(*b.backend);
  j["cache_bytes"] = s.cache_bytes;
  j["bandwidth_gb_per_s"] = bandwidth * 1e-9;
  j["bound_tokens_per_s"] = bound;
  j["share"] = decode / bound;
  if (f.speculation.on()) put_drafts(j, s);
  if (f.common.json) return print_json(j);
  fmt::print(
      "{} {} batch {}, prompt {} + {} new{}: {:.1f} tokens/s; first token after {:.1f} ms, then "
      "{:.1f} tokens/s, {:.0f}% of the {:.0f} that a bandwidth of {:.1f} GB/s allows; {:.2f} "
      "GiB{}\n",
      f.name(), b.weights_name(), f.batch, f.prompt, f.made, b.constrained.name(), total,
      r.all_first, decode, 100 * decode / bound, bound, bandwidth * 1e-9,
      double(peak_bytes(*b.backend)) / (1 << 30), drafts_text(s));
}

// Unequal requests, all submitted at the start.
void bench_workload(const InferFlags& f) {
  Bench b(f);
  Engine engine = b.engine(2 * BenchModel::workload_longest);
  std::mt19937_64 bits(f.seed);
  const auto length = [&] {
    const uint64_t range =
        uint64_t(BenchModel::workload_longest - BenchModel::workload_shortest + 1);
    return BenchModel::workload_shortest + int64_t(bits() % range);
  };
  std::vector<Request> requests;
  int64_t prompts = 0;
  for (int64_t i = 0; i < f.workload; ++i) {
    const int64_t prompt = length(), made = length();
    requests.push_back(b.request(bits, prompt, made));
    prompts += prompt;
  }
  std::vector<Request> warm = requests;
  for (Request& r : warm) r.sampling.max_tokens = 4;
  for (int i = 0; i < 2; ++i) engine.run(warm);
  const EngineStats before = engine.stats();
  const Run r = timed_run(engine, requests);
  const EngineStats s = engine.stats();
  const double rate = 1e3 * double(r.tokens) / r.end;
  nlohmann::ordered_json j =
      bench_line(*b.backend, "infer",
                 fmt::format("{} {} workload {} batch {}{}", f.name(), b.weights_name(), f.workload,
                             f.batch, b.constrained.name()),
                 rate, "tokens/s");
  j["ttft_ms"] = percentiles(r.first);
  j["itl_ms"] = percentiles(r.gaps);
  j["seconds"] = r.end * 1e-3;
  j["prompt_tokens"] = prompts, j["output_tokens"] = r.tokens;
  j["steps"] = s.steps - before.steps, j["preemptions"] = s.preemptions - before.preemptions;
  j["memory_bytes"] = peak_bytes(*b.backend);
  j["cache_bytes"] = s.cache_bytes;
  if (f.speculation.on()) put_drafts(j, s);
  if (f.common.json) return print_json(j);
  fmt::print(
      "{} {}, {} requests, at most {} at a time: {:.1f} tokens/s; time to first token {:.0f} ms "
      "(median), {:.0f} ms (p99); between tokens {:.1f} ms (median), {:.1f} ms (p99){}\n",
      f.name(), b.weights_name(), f.workload, f.batch, rate, percentile(r.first, 0.5),
      percentile(r.first, 0.99), percentile(r.gaps, 0.5), percentile(r.gaps, 0.99), drafts_text(s));
}

void check_model(const InferFlags& f) {
  if (f.model_path.empty()) return;
  if (f.preset_flag->count() > 0 || f.model.any_given() || !f.tokenizer.empty())
    fail_usage("--model",
               "has its own shape and tokenizer; drop --preset, --tokenizer and the "
               "flags of a model's shape");
}

}  // namespace

void add_bench_infer(CLI::App& bench) {
  CLI::App* c = bench.add_subcommand("infer", "time inference on random weights or a model");
  auto f = std::make_shared<InferFlags>();
  add_common(*c, f->common);
  f->preset_flag = c->add_option("--preset", f->preset, "model preset, with random weights")
                       ->capture_default_str();
  c->add_option("--model", f->model_path,
                "instead of a preset: a run, a checkpoint, a Hugging Face folder or a .gguf");
  c->add_option("--text", f->text,
                "file whose parts are the prompts, instead of random tokens; drafts are accepted "
                "as often as on such text");
  c->add_option("--dtype", f->dtype, "compute type: auto, fp32 or bf16; on a GPU also tf32 or fp16")
      ->capture_default_str();
  add_weights(*c, f->weights);
  add_kv(*c, f->kv);
  add_batch_invariant(*c, f->batch_invariant);
  const auto count = [&](const char* name, int64_t& to, const char* help) {
    c->add_option(name, to, help)->capture_default_str()->check(at_least(1));
  };
  count("--batch", f->batch, "sequences decoded in parallel");
  count("--prompt", f->prompt, "tokens per prompt");
  count("--new", f->made, "tokens generated per sequence");
  count("--step-tokens", f->step_tokens, "maximum tokens per engine step");
  c->add_option("--workload", f->workload,
                "instead run this many requests with prompts and outputs of 100 to 1024 tokens")
      ->check(at_least(1));
  add_speculation(*c, f->speculation);
  c->add_option("--repeats", f->repeats, "measured runs; the median is reported")
      ->capture_default_str()
      ->check(at_least(1));
  c->add_option("--seed", f->seed, "random seed for weights, tokens and lengths")
      ->capture_default_str();
  c->add_option("--tokenizer", f->tokenizer,
                "tokenizer of constrained text; the model gets its vocabulary");
  f->constraint.add(*c);
  f->model.add(*c, ModelConfig{}, model_group);
  c->callback([f] {
    check_model(*f);
    f->workload ? bench_workload(*f) : bench_batch(*f);
  });
}

}  // namespace hearth::inline cli
