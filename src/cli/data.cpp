// hearth data: prepares, describes and checks token files, and writes the embedded corpus.
#include <algorithm>
#include <chrono>
#include <memory>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "cli/data_get.h"
#include "cli/data_tokenizer.h"
#include "data/holdout.h"
#include "data/prepare.h"
#include "data/token_stats.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/terminal.h"
#include "sys/threads.h"
#include "tasks/stories/corpus.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

// ---- prepare ----------------------------------------------------------------------------------

struct PrepareFlags {
  PrepareSpec spec;
  std::string tokenizer, out, format = "llmc", source = "auto";
  bool json = false;
};

void use_tokenizer(PrepareSpec& spec, const Tokenizer& tokenizer, const std::string& path) {
  // A llama2.c vocabulary adds bos to each text; here the file format decides how a document
  // starts.
  const std::vector<int32_t> probe = tokenizer.encode("x");
  const bool adds_bos = probe.size() > 1 && probe[0] == tokenizer.bos();
  spec.encode = [tokenizer, adds_bos](std::string_view text, std::vector<int32_t>& out) {
    const auto begin = std::ptrdiff_t(out.size());
    tokenizer.encode_to(text, out);
    if (adds_bos) out.erase(out.begin() + begin);
  };
  spec.vocab = tokenizer.vocab_size();
  spec.bos = tokenizer.bos();
  spec.eos = tokenizer.eos();
  spec.tokenizer_id = tokenizer_digest(path);
  spec.vocabulary_id = vocabulary_digest(tokenizer);
}

void warn_of_marks(const PrepareResult& r) {
  constexpr size_t most = 5;  // files to name
  for (size_t i = 0; i < std::min(most, r.marks_inside.size()); ++i) {
    const auto& [path, count] = r.marks_inside[i];
    say_problem(
        fmt::format("{}: <|endoftext|> occurs {} inside a line and was read as plain text; put it "
                    "on a separate line to end a document",
                    path == "-" ? "stdin" : path.string(), counted(count, "time")));
  }
  if (r.marks_inside.size() > most)
    say_problem(fmt::format("the same warning applies to {}",
                            counted(int64_t(r.marks_inside.size() - most), "more file")));
}

void run_prepare(const PrepareFlags& flags) {
  PrepareSpec spec = flags.spec;
  spec.out = flags.out;
  spec.format = flags.format == "raw" ? TokenFormat::raw : TokenFormat::llmc;
  spec.source = flags.source == "text"      ? SourceKind::text
                : flags.source == "jsonl"   ? SourceKind::jsonl
                : flags.source == "parquet" ? SourceKind::parquet
                                            : SourceKind::automatic;
  spec.progress = true;
  spec.threads = checked_threads(spec.threads);
  use_tokenizer(spec, Tokenizer::load(flags.tokenizer), flags.tokenizer);

  const auto start = std::chrono::steady_clock::now();
  const PrepareResult r = prepare(spec);
  warn_of_marks(r);
  const double seconds =
      std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
  if (flags.json) {
    ordered_json files = ordered_json::array();
    for (const fs::path& f : r.files) files.push_back(f.string());
    const ordered_json report = {{"format", flags.format},
                                 {"vocab", spec.vocab},
                                 {"bytes", r.bytes},
                                 {"documents", r.train.documents + r.val.documents},
                                 {"tokens", r.train.tokens + r.val.tokens},
                                 {"train_documents", r.train.documents},
                                 {"train_tokens", r.train.tokens},
                                 {"train_shards", r.train_shards},
                                 {"val_documents", r.val.documents},
                                 {"val_tokens", r.val.tokens},
                                 {"val_shards", r.val_shards},
                                 {"files", files},
                                 {"pieces", r.pieces},
                                 {"resumed", r.resumed},
                                 {"seconds", seconds}};
    fmt::print("{}\n", report.dump());
    return;
  }
  for (const auto& [name, counts, shards] :
       {std::tuple("train", r.train, r.train_shards), std::tuple("val", r.val, r.val_shards)})
    if (shards > 0)
      fmt::print("{}: {} of {} in {} under {}\n", name, counted(counts.tokens, "token"),
                 counted(counts.documents, "document"), counted(shards, "file"), flags.out);
  if (r.pieces)
    fmt::print(
        "--val-fraction would have put all whole documents on one side, so texts were split into "
        "pieces of up to {} bytes\n",
        side_piece_bytes);
}

void add_prepare(CLI::App& app) {
  auto flags = std::make_shared<PrepareFlags>();
  CLI::App* c =
      app.add_subcommand("prepare", "convert text, JSONL and Parquet files to token files");
  c->add_option("--tokenizer", flags->tokenizer, "tokenizer file, model folder or run")->required();
  c->add_option(
       "--input", flags->spec.inputs,
       "text (a line <|endoftext|> ends a document), .jsonl or Parquet files, optionally gzip or "
       "zstd; globs; -: standard input")
      ->required();
  c->add_option("--out", flags->out, "output folder; an interrupted run resumes from it")
      ->required();
  c->add_option("--format", flags->format,
                "format of the token files: llmc (with header) or raw (with metadata.json)")
      ->check(CLI::IsMember({"llmc", "raw"}))
      ->capture_default_str();
  c->add_option("--source", flags->source, "input type; auto detects it from name and content")
      ->check(CLI::IsMember({"auto", "text", "jsonl", "parquet"}))
      ->capture_default_str();
  c->add_option("--column", flags->spec.column,
                "text column of Parquet files, or key of the text in JSONL rows")
      ->capture_default_str();
  c->add_option("--shard-tokens", flags->spec.shard_tokens,
                "tokens per file; 0: 100000000 for llmc, all in one file for raw")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--val-fraction", flags->spec.val_fraction,
                "fraction of documents for validation, chosen by a hash of their text; if whole "
                "documents would leave one side empty, long texts are split")
      ->capture_default_str();
  c->add_option("--max-document-bytes", flags->spec.max_document_bytes,
                "longest document held in memory; a longer text is encoded in pieces, a longer "
                "JSONL line or Parquet row is an error")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_option("--threads", flags->spec.threads, "CPU threads; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  c->callback([flags] { run_prepare(*flags); });
}

// ---- stat -------------------------------------------------------------------------------------

struct StatFlags {
  std::vector<std::string> input;
  int64_t vocab = 0;
  int32_t document_start = -1;
  bool json = false;
};

void stat_eval(const fs::path& path, const StatFlags& flags) {
  const EvalStat s = stat_eval_file(path, flags.vocab);
  if (flags.json) {
    const ordered_json line = {{"file", path.string()},
                               {"format", "eval"},
                               {"dtype", "uint16"},
                               {"examples", s.examples},
                               {"completions", s.completions},
                               {"context_tokens", s.context_tokens},
                               {"completion_tokens", s.completion_tokens},
                               {"longest", s.longest},
                               {"max_token", s.max_token},
                               {"vocab_checked", flags.vocab}};
    fmt::print("{}\n", line.dump());
    return;
  }
  fmt::print(
      "{}: evaluation file, {} with {}, {} of context and {} of "
      "completions up to {}, the longest {} together\n",
      path.string(), counted(s.examples, "example"), counted(s.completions, "completion"),
      counted(s.context_tokens, "token"), s.completion_tokens, s.max_token, s.longest);
}

void run_stat(const StatFlags& flags) {
  int64_t tokens = 0;
  const std::vector<fs::path> paths = expand_globs(flags.input);
  refuse_folders(paths, "*.bin");
  for (const fs::path& folder : unfinished_folders(paths))
    say_problem(
        fmt::format("{}: this folder is not finished: run data prepare again", folder.string()));
  for (const fs::path& path : paths) {
    if (is_eval_file(path)) {
      stat_eval(path, flags);
      continue;
    }
    const TokenFile file(path);
    if (flags.vocab > 0) file.check_tokens(flags.vocab);
    const TokenStat s =
        stat_tokens(file, flags.document_start >= 0 ? DocumentMarks{flags.document_start}
                                                    : document_marks_of(file));
    tokens += file.size();
    if (flags.json) {
      const ordered_json line = {{"file", path.string()},
                                 {"format", name(file.format())},
                                 {"dtype", file.width() == 2 ? "uint16" : "uint32"},
                                 {"tokens", file.size()},
                                 {"max_token", s.max_token},
                                 {"document_start", s.marks.open},
                                 {"document_end", s.marks.close},
                                 {"documents", s.counts.documents},
                                 {"min_length", s.counts.shortest},
                                 {"mean_length", s.mean_length()},
                                 {"max_length", s.counts.longest},
                                 {"continued_tokens", s.continued},
                                 {"vocab_checked", flags.vocab}};
      fmt::print("{}\n", line.dump());
    } else {
      fmt::print("{}: {} {}, {} up to {}, {} {} of {} to {} (mean {:.1f}){}\n", path.string(),
                 name(file.format()), file.width() == 2 ? "uint16" : "uint32",
                 counted(file.size(), "token"), s.max_token,
                 counted(s.counts.documents, "document"),
                 s.marks.open >= 0 ? fmt::format("opened by {}", s.marks.open)
                                   : fmt::format("closed by {}", s.marks.close),
                 s.counts.shortest, counted(s.counts.longest, "token"), s.mean_length(),
                 flags.vocab > 0 ? fmt::format(", all below {}", flags.vocab) : "");
    }
  }
  if (!flags.json && paths.size() > 1) fmt::print("{} files, {} tokens\n", paths.size(), tokens);
}

void add_stat(CLI::App& app) {
  auto flags = std::make_shared<StatFlags>();
  CLI::App* c = app.add_subcommand("stat", "describe and check token files and evaluation files");
  c->add_option("files", flags->input, "token files: paths or globs")->required();
  c->add_option("--vocab", flags->vocab,
                "check that every token id is below this value; 0: no check")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_option("--document-start", flags->document_start,
                "id of the token that starts a document; -1: from the metadata beside the files, "
                "else GPT-2's or Llama-3's")
      ->capture_default_str();
  c->add_flag("--json", flags->json, "print one JSON object per file");
  c->callback([flags] { run_stat(*flags); });
}

// ---- stories ----------------------------------------------------------------------------------

struct StoriesFlags {
  std::string out;
  int64_t bytes = 0, stories = 0;
  uint64_t seed = 1;
  int threads = 0;
  bool json = false, force = false;
};

// Writes to standard output, or to a file that appears only when complete.
class TextSink {
 public:
  explicit TextSink(const std::string& out) {
    if (out != "-") file_ = std::make_unique<AtomicFile>(out);
  }
  void write(std::string_view text) { file_ ? file_->write(to_bytes(text)) : put(text); }
  void finish() { file_ ? file_->commit() : flush(); }

 private:
  std::unique_ptr<AtomicFile> file_;
};

struct StoriesWritten {
  int64_t stories = 0, bytes = 0, chars = 0;  // chars: without separators
  double nats = 0;
};

StoriesWritten write_stories(TextSink& sink, const StoriesFlags& flags) {
  constexpr int64_t block = 4096, grain = 64;
  constexpr std::string_view separator = "\n<|endoftext|>\n";
  Threads threads(checked_threads(flags.threads));
  std::vector<Story> made(block);
  std::string text;
  StoriesWritten sum;
  const auto more = [&] {
    return flags.stories > 0 ? sum.stories < flags.stories : sum.bytes < flags.bytes;
  };
  while (more()) {
    const int64_t first = sum.stories;
    threads.ranges(block, grain, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i)
        made[size_t(i)] = make_story(flags.seed, uint64_t(first + i));
    });
    text.clear();
    for (int64_t i = 0; i < block && more(); ++i) {
      const Story& s = made[size_t(i)];
      const size_t before = text.size();
      if (sum.stories > 0) text += separator;
      text += s.text;
      ++sum.stories;
      sum.bytes += int64_t(text.size() - before);
      sum.chars += int64_t(s.text.size());
      sum.nats += s.nats;
    }
    sink.write(text);
  }
  sink.write("\n");
  ++sum.bytes;
  return sum;
}

void run_stories(const StoriesFlags& flags) {
  if ((flags.bytes > 0) == (flags.stories > 0))
    fail_usage("data stories", "expected exactly one of --bytes and --stories, got {}",
               flags.bytes > 0 ? "both" : "neither");
  if (flags.out != "-") expect_new(flags.out, flags.force);
  TextSink sink(flags.out);
  const StoriesWritten w = write_stories(sink, flags);
  sink.finish();
  const CorpusEntropy e = corpus_entropy();
  const double per_story = w.nats / double(w.stories), per_char = w.nats / double(w.chars);
  std::FILE* to = flags.out == "-" ? stderr : stdout;  // standard output holds the text
  if (flags.json) {
    const ordered_json report = {{"stories", w.stories},
                                 {"bytes", w.bytes},
                                 {"seed", flags.seed},
                                 {"nats_per_story", e.nats_per_story},
                                 {"chars_per_story", e.chars_per_story},
                                 {"nats_per_char", e.nats_per_char()},
                                 {"realised_nats_per_story", per_story},
                                 {"realised_nats_per_char", per_char}};
    fmt::print(to, "{}\n", report.dump());
  } else {
    fmt::print(to,
               "{}, {} bytes\nentropy: {:.4f} nats per story of {:.2f} characters, {:.6f} nats "
               "per character\nthese stories: {:.4f} nats per story, {:.6f} nats per character\n",
               counted(w.stories, "story", "stories"), w.bytes, e.nats_per_story, e.chars_per_story,
               e.nats_per_char(), per_story, per_char);
  }
}

void add_stories(CLI::App& app) {
  auto flags = std::make_shared<StoriesFlags>();
  CLI::App* c = app.add_subcommand(
      "stories", "write the embedded corpus: stories from a grammar with known entropy");
  c->add_option("--out", flags->out, "text file to write; -: standard output")->required();
  c->add_option("--bytes", flags->bytes, "write whole stories until there are this many bytes")
      ->check(at_least(0));
  c->add_option("--stories", flags->stories, "number of stories to write")->check(at_least(0));
  c->add_option("--seed", flags->seed, "random seed of the corpus")->capture_default_str();
  c->add_option("--threads", flags->threads, "CPU threads; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  add_force(*c, flags->force);
  c->callback([flags] { run_stories(*flags); });
}

}  // namespace

void add_data(CLI::App& app) {
  CLI::App* c =
      app.add_subcommand("data", "prepare, download, describe and generate training data");
  c->require_subcommand(1);
  add_prepare(*c);
  add_data_get(*c);
  add_stat(*c);
  add_stories(*c);
  add_data_chess(*c);
  add_data_arithmetic(*c);
}

}  // namespace hearth::inline cli
