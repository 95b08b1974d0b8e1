// hearth quickstart: trains a small story model from scratch, in minutes on a CPU. It generates the
// embedded corpus, trains a tokenizer on it, trains the tiny preset until the loss is near the
// corpus's known entropy, and samples. A finished run is detected and only shown again.
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>

#include "cli/commands.h"
#include "cli/data_tokenizer.h"
#include "cli/pretrain.h"
#include "cli/run_flags.h"
#include "cli/signals.h"
#include "data/prepare.h"
#include "formats/fields.h"
#include "formats/json.h"
#include "formats/toml.h"
#include "infer/engine.h"
#include "model/files/folder.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"
#include "sys/threads.h"
#include "tasks/stories/corpus.h"
#include "text/tokenizer/train.h"

namespace hearth::inline cli {
namespace fs = std::filesystem;
namespace {

// More training tokens than a run reads, so that none repeats; few enough validation stories to
// validate on all of them, whose exact entropy is known.
constexpr int64_t train_stories = 12000, val_stories = 256, tokenizer_stories = 4000;
constexpr uint64_t train_seed = 1, val_seed = 2;
constexpr double target_over_floor = 1.08;
constexpr const char* floor_file = "floor.json";  // written last

struct QuickstartFlags {
  Common common;
  std::string run = "runs/quickstart";
  std::string dtype = "auto";
  int64_t steps = 1200;
};

// The corpus on disk: lowest possible loss in nats per token, and tokens per character.
struct Floor {
  double nats_per_token = 0, chars_per_token = 0;
};

// Writes stories in the input format of `data prepare`; returns their exact -log p.
double write_stories(const fs::path& file, uint64_t seed, int64_t count) {
  AtomicFile out(file);
  double nats = 0;
  for (int64_t i = 0; i < count; ++i) {
    const Story s = make_story(seed, uint64_t(i));
    nats += s.nats;
    out.write(to_bytes(s.text + "\n<|endoftext|>\n"));
  }
  out.commit();
  return nats;
}

PrepareResult prepare_stories(const fs::path& text, const fs::path& out, const Tokenizer& t) {
  PrepareSpec p;
  p.inputs = {text.string()};
  p.out = out;
  p.encode = [t](std::string_view s, std::vector<int32_t>& ids) { t.encode_to(s, ids); };
  p.vocab = t.vocab_size(), p.bos = t.bos(), p.eos = t.eos();
  p.tokenizer_id = "quickstart";
  p.vocabulary_id = vocabulary_digest(t);
  return prepare(p);
}

constexpr std::string_view unfinished = ".data-";  // + the id of the writing process

Floor write_data(const fs::path& dir, int64_t vocab, int threads) {
  say("generating {} stories from the built-in grammar\n", train_stories);
  write_stories(dir / "sample.txt", train_seed, tokenizer_stories);
  write_stories(dir / "train.txt", train_seed, train_stories);
  const double nats = write_stories(dir / "val.txt", val_seed, val_stories);
  say("training a tokenizer with {} tokens\n", vocab);
  Threads pool(threads);
  const fs::path sample = dir / "sample.txt";
  const Tokenizer t =
      train_bpe({.vocab = int(vocab), .pattern = "gpt2"}, std::span(&sample, 1), pool);
  make_dirs(dir / "tokenizer");
  t.save(dir / "tokenizer");
  prepare_stories(dir / "train.txt", dir / "train", t);
  const PrepareResult val = prepare_stories(dir / "val.txt", dir / "val", t);
  const double tokens = double(val.train.tokens);
  const double chars = double(fs::file_size(dir / "val.txt")) - 15.0 * double(val_stories);
  const Floor f{nats / tokens, chars / tokens};
  write_file_atomic(dir / floor_file, nlohmann::json{{"nats_per_token", f.nats_per_token},
                                                     {"chars_per_token", f.chars_per_token}}
                                          .dump());
  return f;
}

Floor read_floor(const fs::path& file) {
  const nlohmann::json j = read_json(file);
  const auto number = [&](const char* key) {
    if (!j.is_object() || !j.contains(key) || !j[key].is_number())
      fail(file.string(),
           "expected a number \"{}\", got none; delete the folder and run quickstart again", key);
    return j[key].get<double>();
  };
  return {number("nats_per_token"), number("chars_per_token")};
}

// Written beside its final place and renamed when complete. A folder without the floor file is not
// from a quickstart.
Floor make_data(const fs::path& run, int64_t vocab, int threads) {
  const fs::path dir = run / "data";
  if (fs::exists(dir / floor_file)) return read_floor(dir / floor_file);
  if (fs::exists(fs::symlink_status(dir)))
    fail(dir.string(),
         "this folder was not written by quickstart (it has no {}); choose another --run",
         floor_file);
  make_dirs(run);
  remove_leftovers(run, unfinished);
  const fs::path whole = run / fmt::format("{}{}", unfinished, getpid());
  make_new_dir(whole);
  const Floor f = write_data(whole, vocab, threads);
  if (std::rename(whole.c_str(), dir.c_str()) != 0) fail_errno(dir, "move the data into place");
  fsync_dir(run);
  return f;
}

std::string samples_of(const fs::path& checkpoint, Backend& backend) {
  LoadedModel model(ModelSource::open(checkpoint), backend, {});
  const Tokenizer& t = model.tokenizer();
  Engine engine(model.config(), model.params(), backend, {.max_batch = 2, .tokenizer = &t});
  Request r;
  r.prompt.assign(1, t.eos());  // starts a document
  r.n = 2;
  r.sampling.max_tokens = 200;
  r.sampling.temperature = 0.8f;
  r.sampling.seed = 1;
  const auto completions = engine.run(std::span(&r, 1));
  std::string text;
  for (const Completion& c : completions.at(0)) text += fmt::format("\n{}\n", visible(c.text));
  return text;
}

// A run that was started keeps its dtype, even on another machine.
TrainDType dtype_of_run(const fs::path& run, const std::string& asked) {
  if (asked == "auto" && fs::exists(run / "config.toml"))
    for (const TomlItem& item : read_toml(run / "config.toml"))
      if (item.key == "dtype" && item.values.size() == 1)
        return parse_enum<TrainDType>(item.values[0], (run / "config.toml").string());
  return parse_enum<TrainDType>(asked, "--dtype");
}

// How to call this program again from the current folder.
std::string this_program() {
  const fs::path program = fs::read_symlink("/proc/self/exe");
  const fs::path near = fs::proximate(program);
  return (near.begin()->string() == ".." ? program : near).string();
}

void run(const QuickstartFlags& f) {
  const fs::path run = f.run, data = run / "data";
  const std::unique_ptr<Backend> backend = make_backend(f.common);
  PretrainSpec spec;
  spec.model = preset("tiny");
  TrainConfig& c = spec.train;
  c.data = {(data / "train" / "*.bin").string()}, c.val = {(data / "val" / "*.bin").string()};
  c.tokenizer = (data / "tokenizer").string();
  c.steps = f.steps, c.batch = 2, c.seq = "512";
  c.document_mask = c.eval_documents = true;
  c.dtype = dtype_of_run(run, f.dtype);
  resolve_dtype(c.dtype, *backend);
  c.lr = 3e-3, c.schedule = Schedule::linear, c.warmup = 30, c.lr_floor = 0.05;
  c.order = LoaderSpec::Order::shuffled;
  c.eval_every = 100, c.checkpoint_every = 0, c.keep = 1;
  c.eval_tokens = 1 << 20;  // all of them, because the floor is computed over all
  c.sample_every = 200, c.sample_tokens = 60;
  c.check();  // before any file is written
  const Floor floor = make_data(run, spec.model.vocab, f.common.threads);
  c.target_loss = target_over_floor * floor.nats_per_token;
  spec.run = run, spec.resume = true;
  say("the corpus has an entropy of {:.4f} nats per character: no model can get below {:.4f} nats "
      "per token; training stops at {:.4f}\n",
      floor.nats_per_token / floor.chars_per_token, floor.nats_per_token, c.target_loss);
  const RunResult r = run_pretrain(spec, *backend);

  expect_not_signalled(r.reason);
  expect_finite(r);
  const double over = 100 * (r.val_loss.value_or(0) / floor.nats_per_token - 1);
  std::string text = samples_of(r.checkpoint, *backend);
  text += fmt::format(
      "\nvalidation loss {:.4f} nats per token, {:.1f}% above the corpus's entropy of {:.4f}; {}, "
      "{} tokens, {}{:.0f} s\n",
      r.val_loss.value_or(0), over, floor.nats_per_token, counted(r.steps, "step"), r.tokens,
      r.tokens_per_s ? fmt::format("{:.0f} tokens/s, ", *r.tokens_per_s) : "", r.train_seconds);
  text += fmt::format(
      "\nwhat to try next:\n"
      "  {0} generate --model {1} --prompt \"Once upon a time\" --temperature 0.8\n"
      "  {0} pretrain --help\n"
      "  {0} data prepare --tokenizer TOKENIZER --input 'my/*.txt' --out my-tokens\n",
      this_program(), f.run);
  put_result(text);
}

}  // namespace

void add_quickstart(CLI::App& app) {
  CLI::App* c = app.add_subcommand(
      "quickstart", "train the tiny preset on the embedded corpus and sample from it");
  auto f = std::make_shared<QuickstartFlags>();
  add_common(*c, f->common);
  c->add_option("--run", f->run, "run folder")->capture_default_str();
  c->add_option("--dtype", f->dtype, "compute type: auto, fp32 or bf16")->capture_default_str();
  c->add_option("--steps", f->steps, "maximum optimizer steps")->capture_default_str();
  c->callback([f] { run(*f); });
}

}  // namespace hearth::inline cli
