// hearth pretrain: trains a model on token files in a run folder, or continues such a run.
#include "cli/pretrain.h"

#include <fmt/format.h>

#include <span>

#include "cli/commands.h"
#include "cli/data_tokenizer.h"
#include "cli/model_flags.h"
#include "cli/recipes.h"
#include "cli/run_flags.h"
#include "cli/signals.h"
#include "data/loader.h"
#include "formats/run_folder.h"
#include "formats/toml.h"
#include "infer/engine.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "text/tokenizer/tokenizer.h"
#include "train/pretrain/batch_shape.h"

namespace hearth::inline cli {
namespace {

struct PretrainFlags {
  Common common;
  RunFlags run;
  std::string preset, recipe;
  FieldFlags<ModelConfig> model;
  FieldFlags<TrainConfig> train;
};

// The token files that --data or --val names.
std::vector<std::filesystem::path> files_of(std::span<const std::string> patterns) {
  std::vector<std::filesystem::path> files;
  for (const LoaderSource& source : parse_sources(patterns))
    files.insert(files.end(), source.files.begin(), source.files.end());
  return files;
}

void expect_tokenizer_of_data(const PretrainSpec& spec, const Tokenizer& tokenizer,
                              const std::string& path) {
  std::vector<std::filesystem::path> files = files_of(spec.train.data);
  for (const std::filesystem::path& file : files_of(spec.train.val)) files.push_back(file);
  const std::string problem = tokenizer_mismatch(files, tokenizer, path);
  if (!problem.empty()) fail("--tokenizer", "{}", problem);
}

// One setting of the run in the folder, or `value` if there is no run.
template <class T>
T setting_of_run(const std::filesystem::path& run, std::string_view key, T value) {
  const std::filesystem::path file = run / "config.toml";
  if (std::filesystem::exists(file))
    for (const TomlItem& item : read_toml(file))
      if (item.key == key) field_from_text(value, item.values, file.string());
  return value;
}

// The vocabulary size of the run in the folder; 0: there is no run.
int64_t vocab_of_run(const std::filesystem::path& run) {
  return setting_of_run(run, "vocab", int64_t(0));
}

// Where the run in the folder has its tokenizer: in its newest checkpoint, or where config.toml
// says if there is no checkpoint yet. Empty: it has none.
std::filesystem::path tokenizer_of_run(const std::filesystem::path& run) {
  namespace fs = std::filesystem;
  if (fs::exists(run / "latest"))  // its files are verified later, when the run loads them
    return fs::exists(run / "latest" / "tokenizer.json") ? run / "latest" : fs::path();
  const auto named = setting_of_run(run, "tokenizer", std::string());
  const fs::path path = named.empty() ? fs::path() : started_in(run) / named;
  return fs::exists(path) ? path : fs::path();
}

// A run keeps its tokenizer, since its weights know only the ids of that one. The tokenizer may be
// in another place by now, so vocabularies are compared, not paths.
void expect_tokenizer_of_run(const PretrainSpec& spec, const Tokenizer& tokenizer,
                             const std::filesystem::path& path) {
  const std::filesystem::path own = tokenizer_of_run(spec.run);
  if (own.empty() || own == path) return;
  std::optional<Tokenizer> began;
  try {
    began = Tokenizer::load(own);
  } catch (const Error&) { return; }  // a damaged checkpoint: the run goes on from an earlier one
  if (vocabulary_digest(*began) == vocabulary_digest(tokenizer)) return;
  fail("--tokenizer",
       "expected the tokenizer that the run began with ({} tokens), got another one ({} tokens) in "
       "{}; the run's own is in {}",
       began->vocab_size(), tokenizer.vocab_size(), path.string(), own.string());
}

// Without --vocab the embedding has one row per token of the tokenizer.
void fit_vocab(PretrainSpec& spec, bool given, int64_t tokens) {
  int64_t& vocab = spec.model.vocab;
  if (!given) {
    // A run that started with the preset's vocabulary keeps it.
    if (!spec.goes_on() || vocab_of_run(spec.run) != vocab) vocab = tokens;
    return;
  }
  if (spec.goes_on()) return;
  if (vocab < tokens)
    fail_usage("--vocab", "expected at least the {} tokens of {}, got {}", tokens,
               spec.train.tokenizer, vocab);
  if (vocab > tokens)
    spec.notes.push_back(fmt::format(
        "--vocab {} is more than the {} tokens of {}: {} rows of the embedding are never used",
        vocab, tokens, spec.train.tokenizer, vocab - tokens));
}

// The model that --preset and the model flags describe, or the one that --model names.
ModelConfig model_of(const PretrainFlags& f, const TrainConfig& train) {
  // An existing run stores its model in config.toml.
  const bool goes_on = f.run.goes_on();
  if (!train.model.empty() && !goes_on) {
    if (!f.preset.empty() || f.model.any_given())
      fail_usage("--model",
                 "--model continues pretraining of a model and cannot be combined with --preset or "
                 "model flags; drop one of them");
    return open_base(train.model, {}).config();
  }
  const ModelConfig m =
      f.preset.empty() ? model_of_flags(f.model) : model_over_preset(f.preset, f.model);
  if (f.preset.empty() && !f.model.given("dim") && !goes_on)
    fail_usage("pretrain",
               "pretrain needs a model: --preset, --model or model flags such as --dim");
  if (!goes_on) expect_layout(m);
  return m;
}

void check_tokenizer(PretrainSpec& spec, const PretrainFlags& f) {
  const std::filesystem::path path = tokenizer_of(spec);
  if (path.empty()) {
    spec.notes.push_back(
        "without --tokenizer the checkpoints will contain no tokenizer, and generate and chat "
        "cannot use them");
    return;
  }
  const Tokenizer tokenizer = Tokenizer::load(path);
  if (spec.resume) expect_tokenizer_of_run(spec, tokenizer, path);
  expect_tokenizer_of_data(spec, tokenizer, path.string());
  // A model from --model keeps its vocabulary.
  if (spec.train.model.empty()) fit_vocab(spec, f.model.given("vocab"), tokenizer.vocab_size());
}

void run(const PretrainFlags& f) {
  f.run.check_folder();
  PretrainSpec spec;
  spec.train = with_auto_dtype<TrainConfig>();
  f.train.apply(spec.train);
  spec.train.check();
  if (spec.train.data.empty()) fail_usage("pretrain", "pretrain needs token files: pass --data");
  spec.model = model_of(f, spec.train);
  f.run.place(spec);
  check_tokenizer(spec, f);
  if (!spec.train.val.empty() && !f.run.goes_on())
    note_shared_files(spec, files_of(spec.train.data), files_of(spec.train.val));
  if (!spec.goes_on()) spec.train.losses.expect_effect(spec.model, {});
  const TrainDType d = spec.train.dtype;
  const std::unique_ptr<Backend> backend =
      make_backend(f.common, {.tf32 = d == TrainDType::tf32, .fp16 = d == TrainDType::fp16});
  resolve_dtype(spec.train.dtype, *backend);
  spec.phases->mark("device");
  const std::unique_ptr<BoardThread> board = f.run.open_board();
  const RunResult r = run_pretrain(spec, *backend);
  expect_finite(r);
  f.run.explain_ending(r, reached_loss(r, spec.train.target_loss));
  put_result(f.common.json ? json_line(result_json(r, *backend)) : result_line(r));
  expect_not_signalled(r.reason);
  show_curve(spec.run);
}

// Continues the sample prompt with the model in training; an empty prompt starts a document.
std::string sample_text(const PretrainSpec& spec, const Tokenizer& t, ParamStore& store,
                        Backend& backend) {
  Request r;
  r.prompt = t.encode(spec.train.sample_prompt);
  if (r.prompt.empty() && t.eos() >= 0) r.prompt.assign(1, t.eos());
  r.sampling.max_tokens = int(spec.train.sample_tokens);
  r.sampling.temperature = 0.8f;
  r.sampling.seed = spec.train.seed;
  // Allocate only the cache that the sample can fill.
  const int64_t room = int64_t(std::max<size_t>(r.prompt.size(), 1)) + spec.train.sample_tokens;
  // With the factors of longrope that the model is trained with.
  const ModelConfig model = for_length(spec.model, longest_sequence(spec.model, spec.train));
  Engine engine(model, store, backend,
                {.max_batch = 1, .context = std::min(spec.model.context, room), .tokenizer = &t});
  const auto completions = engine.run(std::span(&r, 1));
  return spec.train.sample_prompt + completions.at(0).at(0).text;
}

}  // namespace

RunResult run_pretrain(PretrainSpec spec, Backend& backend) {
  spec.model = spec.model.resolve();
  const bool by_document = spec.train.document_mask || spec.train.eval_documents;
  if (by_document && spec.train.document_start < 0) {
    const std::filesystem::path tokenizer = tokenizer_of(spec);
    if (tokenizer.empty())
      fail_usage("pretrain",
                 "--document-mask and --eval-documents need --document-start or --tokenizer");
    spec.train.document_start = Tokenizer::load(tokenizer).eos();
    if (spec.train.document_start < 0)
      fail_usage("--document-start",
                 "{} names no end-of-text token: pass the id of the token that starts a document",
                 tokenizer.string());
  }
  if (spec.train.sample_every > 0) {
    const std::filesystem::path tokenizer = tokenizer_of(spec);
    if (tokenizer.empty()) fail_usage("pretrain", "--sample-every needs --tokenizer");
    spec.sample = [&spec, &backend, t = Tokenizer::load(tokenizer)](ParamStore& store) {
      return sample_text(spec, t, store, backend);
    };
  }
  watch(spec, backend, spec.train.dtype);
  return pretrain(spec, backend);
}

void add_pretrain(CLI::App& app) {
  CLI::App* c = app.add_subcommand("pretrain", "pretrain a model on token files");
  auto f = std::make_shared<PretrainFlags>();
  add_common(*c, f->common);
  c->add_option("--preset", f->preset,
                fmt::format("model preset: {}", fmt::join(preset_names(), ", ")));
  c->add_option("--recipe", f->recipe,
                fmt::format("settings that are known to work well together: {}; flags, HEARTH_* "
                            "variables and --config override them; hearth info --recipe NAME "
                            "prints them",
                            recipe_names()))
      ->group(recipe_group);
  f->run.add(*c, "--steps");
  f->train.add(*c, with_auto_dtype<TrainConfig>(), "Training");
  f->model.add(*c, ModelConfig{}, model_group);
  c->callback([f] { run(*f); });
}

}  // namespace hearth::inline cli
