// hearth eval: scores a model on perplexity, HellaSwag, LAMBADA or multiple choice, or writes its
// raw logits for comparison with other programs.
#include "eval/tasks.h"

#include <charconv>
#include <sstream>

#include "cli/commands.h"
#include "data/shards.h"
#include "formats/fields.h"
#include "formats/safetensors.h"
#include "infer/engine.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/compression/byte_stream.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/progress.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

using nlohmann::ordered_json;

enum class EvalTask : uint8_t { perplexity, hellaswag, lambada, choices, logits };
std::span<const std::string_view> names_of(EvalTask) {
  static constexpr auto names =
      std::to_array<std::string_view>({"perplexity", "hellaswag", "lambada", "choices", "logits"});
  return names;
}

enum class Bos : uint8_t { automatic, on, off };
std::span<const std::string_view> names_of(Bos) {
  static constexpr auto names = std::to_array<std::string_view>({"auto", "on", "off"});
  return names;
}

struct EvalFlags {
  std::string model, adapter, task, data, out, dtype = "auto", weights = "plain", kv = "plain",
                                               bos = "auto";
  int64_t limit = 0, stride = 0, context = 0, batch_tokens = 8192, greedy = 0;
  Common common = {};
};

// What is scored, for messages: "474 windows of 3 documents", or "3 windows".
struct Scored {
  const char* part;       // singular of a ScoreItem
  const char* item = "";  // singular of what --limit counts, if that is not a part
  int64_t items = 0;
};

struct EvalResult {
  std::vector<Metric> metrics;
  int64_t n = 0;
  const char* unit;  // singular of the n items
  int64_t tokens = 0;
};

// Whether the tokenizer's own template begins a text with bos.
bool adds_bos(const Tokenizer& t) {
  std::vector<int32_t> text;
  t.add_template(text);
  return !text.empty() && text[0] == t.bos();
}

// A loaded model and the values that the tasks need.
struct Examinee {
  std::unique_ptr<Backend> backend;
  LoadedModel model;
  int64_t longest;  // context length in tokens
  bool bos;         // contexts start with it

  explicit Examinee(const EvalFlags& f)
      : backend(make_backend(f.common)),
        model(load_model({f.model, f.adapter, f.dtype, f.weights}, *backend, Workload::scoring)),
        longest(f.context ? f.context : model.config().context) {
    if (longest < 1 || longest > model.config().context)
      fail_usage("--context", "expected 1 to {}, got {}", model.config().context, longest);
    const Bos wanted = parse_enum<Bos>(f.bos, "--bos");
    const bool tokenizes = !model.source().tokenizer().empty();
    if (wanted == Bos::on && tokenizes && model.tokenizer().bos() < 0)
      fail_usage("--bos", "the model's tokenizer has no bos");
    // As in lm-evaluation-harness since its version 0.4.9.2.
    bos =
        wanted == Bos::on || (wanted == Bos::automatic && tokenizes && adds_bos(model.tokenizer()));
  }
};

std::vector<Score> scored(Examinee& e, const EvalFlags& f, std::span<const ScoreItem> items,
                          const Scored& what, bool greedy) {
  say_long_rope(e.model.config(), e.longest);
  Scorer scorer(e.model.config(), e.model.params(), *e.backend,
                {.batch_tokens = f.batch_tokens,
                 .context = e.longest,
                 .greedy = greedy,
                 .cache = cache_format(f.kv)});
  std::string all = counted(int64_t(items.size()), what.part);
  if (*what.item) all += " of " + counted(what.items, what.item);
  StatusLine status;
  const auto scores = scorer.score(items, [&](size_t done) {
    if (status.due()) status.show(fmt::format("scored {} of {}", done, all));
  });
  status.finish(fmt::format("scored {}", all));
  return scores;
}

template <class T>
void keep_first(std::vector<T>& items, int64_t limit) {
  if (limit > 0 && int64_t(items.size()) > limit) items.erase(items.begin() + limit, items.end());
}

int64_t tokens_in(std::span<const Score> scores) {
  int64_t n = 0;
  for (const Score& s : scores) n += s.tokens;
  return n;
}

EvalResult eval_choices(Examinee& e, const EvalFlags& f, std::vector<Choices> items) {
  keep_first(items, f.limit);
  std::vector<ScoreItem> all;
  for (const Choices& item : items)
    for (const std::string& choice : item.choices)
      all.push_back(encode_pair(e.model.tokenizer(), item.context, " " + choice, e.longest, e.bos));
  const int64_t n = int64_t(items.size());
  const auto scores = scored(e, f, all, {"choice", "question", n}, false);
  return {choice_metrics(items, scores), n, "question", tokens_in(scores)};
}

EvalResult eval_lambada(Examinee& e, const EvalFlags& f) {
  std::vector<LastWord> items = read_lambada(f.data);
  keep_first(items, f.limit);
  std::vector<ScoreItem> all;
  for (const LastWord& item : items)
    all.push_back(encode_pair(e.model.tokenizer(), item.context, item.word, e.longest, e.bos));
  const int64_t n = int64_t(items.size());
  const auto scores = scored(e, f, all, {"last word", "text", n}, true);
  return {last_word_metrics(scores), n, "text", tokens_in(scores)};
}

// Token files are read as in pretraining: each file is one text, regardless of documents in it.
EvalResult eval_tokens(Examinee& e, const EvalFlags& f) {
  const int64_t stride = f.stride ? f.stride : e.longest;
  std::vector<ScoreItem> all;
  for (const std::filesystem::path& path : expand_glob(f.data)) {
    const int64_t left = f.limit - int64_t(all.size());
    if (f.limit > 0 && left <= 0) break;
    const TokenFile file(path);
    file.check_tokens(e.model.config().vocab);
    // Read only the tokens for the requested windows: a shard may be larger than memory.
    const bool part = f.limit > 0 && left - 1 < file.size() / stride;
    const int64_t needed = part ? 1 + e.longest + (left - 1) * stride : file.size();
    const int64_t count = std::min(file.size(), needed);
    std::vector<int32_t> tokens(static_cast<size_t>(count));
    file.read(tokens.data(), 0, count);
    for (ScoreItem& w : rolling_windows(tokens, e.longest, stride)) all.push_back(std::move(w));
  }
  keep_first(all, f.limit);
  if (all.empty()) fail(f.data, "expected at least two tokens, got fewer");
  const auto scores = scored(e, f, all, {"window"}, false);
  return {perplexity_metrics(scores), int64_t(all.size()), "window", tokens_in(scores)};
}

EvalResult eval_perplexity(Examinee& e, const EvalFlags& f) {
  if (f.data.ends_with(".bin") || f.data.ends_with(".bin}")) return eval_tokens(e, f);
  std::vector<std::string> documents = read_documents(f.data);
  keep_first(documents, f.limit);
  std::vector<ScoreItem> all;
  int64_t words = 0, bytes = 0;
  for (const std::string& text : documents) {
    words += count_words(text), bytes += int64_t(text.size());
    for (ScoreItem& w :
         rolling_windows(e.model.tokenizer(), text, e.longest, f.stride ? f.stride : e.longest))
      all.push_back(std::move(w));
  }
  if (all.empty()) fail(f.data, "the files contain no text to score");
  const int64_t n = int64_t(documents.size());
  const auto scores = scored(e, f, all, {"window", "document", n}, false);
  return {perplexity_metrics(scores, words, bytes), n, "document", tokens_in(scores)};
}

// Reads one list of token ids per line.
std::vector<std::vector<int32_t>> read_ids(const std::string& path, int64_t vocab) {
  std::istringstream in(read_unpacked(path, rows_file_limit));
  std::vector<std::vector<int32_t>> lists;
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::vector<int32_t> ids;
    for (std::string word; words >> word;) {
      int32_t id = -1;
      const auto [end, error] = std::from_chars(word.data(), word.data() + word.size(), id);
      if (error != std::errc() || end != word.data() + word.size() || id < 0 || id >= vocab)
        fail(path, "expected token ids below {}, got {}", vocab, in_quotes(word));
      ids.push_back(id);
    }
    if (!ids.empty()) lists.push_back(std::move(ids));
  }
  if (lists.empty()) fail(path, "expected lines of token ids, got an empty file");
  return lists;
}

// For line i, writes "logits.i" (tokens, V) from one forward pass and "greedy.i", the greedy
// continuation from the engine with its KV cache.
void write_logits(Examinee& e, const EvalFlags& f) {
  if (f.out.empty()) fail_usage("--out", "the task logits needs --out with the file to write");
  auto lists = read_ids(f.data, e.model.config().vocab);
  keep_first(lists, f.limit);
  std::vector<TensorToWrite> tensors;
  const CacheFormat cache = cache_format(f.kv);
  int64_t longest = 1;
  for (const auto& ids : lists) longest = std::max(longest, int64_t(ids.size()));
  // Both compute with the factors of longrope that the longest line with its continuation needs.
  const ModelConfig config =
      for_length(e.model.config(), std::min(longest + f.greedy, e.model.config().context));
  say_long_rope(config, longest);
  Scorer scorer(config, e.model.params(), *e.backend, {.context = longest, .cache = cache});
  for (size_t i = 0; i < lists.size(); ++i)
    tensors.push_back({fmt::format("logits.{}", i),
                       DType::f32,
                       {int64_t(lists[i].size()), config.vocab},
                       [&, i](const ByteSink& sink) {
                         const std::vector<float> logits = scorer.logits(lists[i]);
                         sink(std::as_bytes(std::span(logits)));
                       }});
  std::vector<std::vector<Completion>> completions;
  if (f.greedy > 0) {
    std::vector<Request> requests;
    int64_t room = 0;  // allocate only the cache that this call can fill
    for (const auto& ids : lists) {
      room = std::max(room, int64_t(ids.size()) + f.greedy);
      requests.push_back({.prompt = ids});
      requests.back().sampling.temperature = 0;
      requests.back().sampling.max_tokens = int(f.greedy);
    }
    Engine engine(config, e.model.params(), *e.backend,
                  {.context = std::min(room, config.context), .cache = cache});
    completions = engine.run(requests);
    for (size_t i = 0; i < lists.size(); ++i) {
      const std::vector<int32_t>& made = completions[i][0].tokens;
      tensors.push_back({fmt::format("greedy.{}", i),
                         DType::i32,
                         {int64_t(made.size())},
                         [&made](const ByteSink& sink) { sink(std::as_bytes(std::span(made))); }});
    }
  }
  const std::filesystem::path out = std::filesystem::absolute(f.out);
  write_safetensors(out.parent_path(), out.filename().string(), tensors);
  say("{}: wrote the logits of {}\n", f.out, counted(int64_t(lists.size()), "line"));
}

void print_result(const EvalFlags& f, const EvalResult& r) {
  if (f.common.json) {
    ordered_json metrics = ordered_json::array();
    for (const Metric& m : r.metrics)
      metrics.push_back({{"metric", m.name},
                         {"value", m.value},
                         {"stderr", m.error ? ordered_json(*m.error) : ordered_json()}});
    print_json({{"task", f.task},
                {"metric", r.metrics[0].name},
                {"value", r.metrics[0].value},
                {"stderr", metrics[0]["stderr"]},
                {"n", r.n},
                {"tokens", r.tokens},
                {"metrics", metrics}});
    return;
  }
  for (const Metric& m : r.metrics)
    put(m.error ? fmt::format("{} {:.5g} +- {:.2g}\n", m.name, m.value, *m.error)
                : fmt::format("{} {:.5g}\n", m.name, m.value));
  put(fmt::format("n {}, {} scored\n", counted(r.n, r.unit), counted(r.tokens, "token")));
}

void expect_used(const EvalFlags& f, EvalTask task) {
  const bool perplexity = task == EvalTask::perplexity, logits = task == EvalTask::logits;
  const auto refuse = [&](const char* flag, bool given, bool used) {
    if (given && !used) fail_usage(flag, "has no effect with --task {}; leave it out", f.task);
  };
  refuse("--stride", f.stride > 0, perplexity);
  refuse("--bos", f.bos != "auto", !perplexity && !logits);
  refuse("--out", !f.out.empty(), logits);
  refuse("--greedy", f.greedy > 0, logits);
  refuse("--context", f.context > 0, !logits);  // it runs each line whole
}

void run_eval(const EvalFlags& f) {
  const EvalTask task = parse_enum<EvalTask>(f.task, "--task");
  expect_used(f, task);
  const CacheFormat cache = cache_format(f.kv);  // reports a wrong name before the model is loaded
  Examinee e(f);
  if (e.model.config().mla && cache != CacheFormat::plain)
    fail_usage("--kv", "a cache of latents (kv_latent) cannot be in fp8: use a plain one");
  switch (task) {
    case EvalTask::perplexity:
      return print_result(f, eval_perplexity(e, f));
    case EvalTask::hellaswag:
      return print_result(f, eval_choices(e, f, read_hellaswag(f.data)));
    case EvalTask::lambada:
      return print_result(f, eval_lambada(e, f));
    case EvalTask::choices:
      return print_result(f, eval_choices(e, f, read_choices(f.data)));
    case EvalTask::logits:
      return write_logits(e, f);
  }
}

}  // namespace

void add_eval(CLI::App& app) {
  auto f = std::make_shared<EvalFlags>();
  CLI::App* c = app.add_subcommand("eval", "evaluate a model on a task");
  add_common(*c, f->common);
  c->add_option("--model", f->model, "run, checkpoint or Hugging Face folder, or a model file")
      ->required();
  add_adapter(*c, f->adapter);
  c->add_option("--task", f->task,
                "perplexity, hellaswag, lambada, choices (ARC and similar) or logits")
      ->required();
  c->add_option(
       "--data", f->data,
       "files of the task; perplexity: text, .jsonl or .bin token files; hellaswag and lambada: "
       "the files of these sets; choices: ARC's files, or rows of context, choices and gold; "
       "logits: lines of token ids")
      ->required();
  add_dtype(*c, f->dtype);
  add_weights(*c, f->weights);
  add_kv(*c, f->kv);
  c->add_option(
       "--limit", f->limit,
       "use only the first N documents, questions, texts or lines (of token files: windows); "
       "0: all")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--context", f->context, "context length in tokens; 0: the model's")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--stride", f->stride,
                "perplexity: tokens scored per window, the rest of the window is context; 0: the "
                "whole window")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option(
       "--bos", f->bos,
       "hellaswag, lambada, choices: start contexts with bos: auto (if the tokenizer does), "
       "on or off")
      ->capture_default_str();
  c->add_option("--batch-tokens", f->batch_tokens,
                "tokens per forward pass; logits: each line is a pass of its own")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--out", f->out, "logits: safetensors file to write");
  c->add_option("--greedy", f->greedy, "logits: also write this many greedy tokens after each line")
      ->check(at_least(0))
      ->capture_default_str();
  c->callback([f] { run_eval(*f); });
}

}  // namespace hearth::inline cli
