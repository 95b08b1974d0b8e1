// hearth tokenizer: train, encode, decode, chat, save, bench.
#include <algorithm>
#include <array>
#include <charconv>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "data/documents.h"
#include "data/jsonl.h"
#include "data/shards.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "sys/clock.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/progress.h"
#include "sys/terminal.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/scanner.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/train.h"

namespace hearth::inline cli {
namespace {

namespace fs = std::filesystem;
using nlohmann::ordered_json;

struct TrainFlags {
  std::vector<std::string> input, special;
  std::string out, column = "text";
  BpeTrainSpec spec;
  int threads = 0;
  bool force = false, json = false;
};

// A folder to save a tokenizer in; tokenizer_config.json may have a chat template to lose.
void expect_new_tokenizer(const fs::path& folder, bool force) {
  for (const char* name : {"tokenizer.json", "tokenizer_config.json"})
    expect_new(folder / name, force);
}

void run_train(const TrainFlags& flags) {
  const fs::path out = fs::path(flags.out) / "tokenizer.json";
  expect_new_tokenizer(flags.out, flags.force);
  expect_writable(out);
  std::vector<fs::path> files = expand_globs(flags.input);
  refuse_folders(files, "*.txt");
  std::ranges::sort(files);  // the result does not depend on the given order
  files.erase(std::unique(files.begin(), files.end()), files.end());
  const auto start = Clock::now();
  BpeTrainSpec spec = flags.spec;
  spec.special.insert(spec.special.end(), flags.special.begin(), flags.special.end());
  int64_t bytes = 0;
  StatusLine status;
  spec.progress = [&](std::string_view stage, int64_t done) {
    const bool counting = stage == "count";
    if (counting) bytes = done;
    status.show(counting ? fmt::format("counted words in {:.1f} MB", double(done) * 1e-6)
                         : fmt::format("learned {} merges", done));
  };
  Threads threads(checked_threads(flags.threads));
  constexpr size_t piece = 16 << 20;  // only words are counted, so long texts may be split
  const DocumentSpec documents{
      .inputs = files, .column = flags.column, .piece = piece, .column_flag = "--column"};
  expect_column_effect(documents);
  DocumentReader reader(documents);
  bool any_text = false;
  const auto next = [&](std::string& text) {
    Document d;
    if (!reader.next(d)) return false;
    text = d.json ? jsonl_text(d.raw, document_place(documents, d.file, d.line),
                               {documents.column, documents.column_flag})
                  : std::string(d.raw);
    any_text |= !text.empty();
    return true;
  };
  const Tokenizer tokenizer = train_bpe(spec, next, threads);
  if (!any_text)
    fail(flags.input.front(), "expected text to train a tokenizer on, got none in {}",
         counted(int64_t(files.size()), "file"));
  status.finish(fmt::format("learned {} tokens from {:.1f} MB of text", tokenizer.vocab_size(),
                            double(bytes) * 1e-6));
  tokenizer.save(flags.out);
  if (tokenizer.vocab_size() < spec.vocab)
    say_problem(fmt::format("the text yields only {} of the {} requested tokens",
                            tokenizer.vocab_size(), spec.vocab));
  const double seconds = seconds_since(start);
  if (flags.json)
    fmt::print("{}\n", ordered_json{{"vocab", tokenizer.vocab_size()},
                                    {"files", files.size()},
                                    {"bytes", bytes},
                                    {"seconds", seconds},
                                    {"out", flags.out}}
                           .dump());
  else
    fmt::print("{}: {} tokens from {}, {:.1f} MB, in {:.1f} s\n", out.string(),
               tokenizer.vocab_size(), counted(int64_t(files.size()), "file"), double(bytes) * 1e-6,
               seconds);
}

struct TextFlags {
  std::string tokenizer, pattern;
  bool raw = false;
  bool records = false;
  bool special = false;
  bool frame = false;
  bool json = false;
};

// Reads the length of the next record from standard input: four bytes, little-endian. False at the
// end.
bool read_length(uint32_t& length, size_t number) {
  std::array<char, 4> bytes;
  std::cin.read(bytes.data(), 4);
  if (std::cin.gcount() == 0) return false;
  if (std::cin.gcount() < 4)
    fail("stdin", "expected the length of record {} in four bytes, got {}", number,
         std::cin.gcount());
  length = 0;
  for (size_t i = 0; i < 4; ++i) length |= uint32_t(uint8_t(bytes[i])) << 8 * i;
  constexpr uint32_t most = 1u << 30;
  if (length > most)
    fail("stdin", "expected records of at most {} bytes, got {} for record {}", most, length,
         number);
  return true;
}

std::string all_of_stdin() { return {std::istreambuf_iterator<char>(std::cin), {}}; }

// Calls f for each line or record of standard input, or once for all of it.
template <class F>
void for_each_input(const TextFlags& flags, F f) {
  std::ios::sync_with_stdio(false);
  if (flags.raw) {
    f(all_of_stdin(), 1);
    return;
  }
  size_t number = 0;
  if (flags.records) {
    std::string text;
    for (uint32_t length; read_length(length, ++number);) {
      text.resize(length);
      std::cin.read(text.data(), length);
      if (std::cin.gcount() < std::streamsize(length))
        fail("stdin", "expected {} bytes in record {}, got {}", length, number, std::cin.gcount());
      f(text, number);
    }
    return;
  }
  for (std::string line; std::getline(std::cin, line);) f(line, ++number);
}

void run_encode(const TextFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(flags.tokenizer, flags.pattern);
  fmt::memory_buffer line;
  for_each_input(flags, [&](const std::string& text, size_t) {
    std::vector<int32_t> ids =
        flags.special ? tokenizer.encode_with_special(text) : tokenizer.encode(text);
    if (flags.frame) tokenizer.add_template(ids);
    line.clear();
    const auto to = std::back_inserter(line);
    if (flags.json)
      fmt::format_to(to, "{{\"ids\":[{}],\"count\":{}}}\n", fmt::join(ids, ","), ids.size());
    else
      fmt::format_to(to, "{}\n", fmt::join(ids, " "));
    put({line.data(), line.size()});
  });
}

std::vector<int32_t> ids_of(std::string_view text, size_t line) {
  constexpr std::string_view gaps = " \t\r\n";
  std::vector<int32_t> ids;
  for (size_t i = 0; (i = text.find_first_not_of(gaps, i)) != std::string_view::npos;) {
    const size_t end = std::min(text.find_first_of(gaps, i), text.size());
    int32_t id = 0;
    const auto [ptr, error] = std::from_chars(text.data() + i, text.data() + end, id);
    if (error != std::errc() || ptr != text.data() + end)
      fail("stdin", "expected an id on line {} at byte {}, got \"{}\"", line, i,
           text.substr(i, end - i));
    ids.push_back(id);
    i = end;
  }
  return ids;
}

void run_decode(const TextFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(flags.tokenizer, flags.pattern);
  for_each_input(flags, [&](const std::string& line, size_t number) {
    const std::string text = tokenizer.decode(ids_of(line, number));
    if (flags.json)
      print_json({{"text", text}});
    else
      put_text(flags.raw ? text : text + "\n");
  });
}

struct TemplateFlags {
  std::string tokenizer, chat_template;
  bool ids = false;
  bool prompt = false;
  bool json = false;
};

// The templates of a folder, or one template file with the special tokens of the folder.
ChatTemplate chat_template_of(const TemplateFlags& flags) {
  const bool encodes = flags.ids || flags.json;
  if (flags.tokenizer.empty() && (encodes || flags.chat_template.empty()))
    fail_usage("tokenizer chat", "tokenizer chat needs --tokenizer");
  if (flags.chat_template.empty()) return ChatTemplate::load(flags.tokenizer);
  const fs::path config = fs::path(flags.tokenizer) / "tokenizer_config.json";
  const std::string source = read_file(flags.chat_template);
  if (!fs::exists(config)) return ChatTemplate(source, flags.chat_template);
  return ChatTemplate(source, flags.chat_template, special_tokens(read_json(config)));
}

// Reads from standard input a list of messages, or an object with "messages" and more variables.
ChatRequest read_chat_request() {
  ordered_json input = parse_ordered_json(all_of_stdin(), "stdin");
  if (!input.is_object()) return {.messages = std::move(input)};
  ChatRequest request{.messages = input.value("messages", ordered_json())};
  input.erase("messages");
  request.add_generation_prompt = input.value("add_generation_prompt", false);
  request.variables = std::move(input);
  return request;
}

void run_template(TemplateFlags flags) {
  if (!flags.tokenizer.empty()) flags.tokenizer = model_path(flags.tokenizer).string();
  const ChatTemplate chat = chat_template_of(flags);
  ChatRequest request = read_chat_request();
  request.add_generation_prompt |= flags.prompt;
  if (!flags.ids && !flags.json) return put(chat.render(request).bytes);
  const MarkedText text = flags.json ? chat.render_answers(request) : chat.render(request);
  const EncodedChat said = encode_chat(Tokenizer::load(flags.tokenizer), text);
  if (flags.json)
    print_json({{"text", text.bytes}, {"ids", said.ids}, {"answer", said.answer}});
  else
    put(fmt::format("{}\n", fmt::join(said.ids, " ")));
}

struct SaveFlags {
  std::string tokenizer, pattern, out;
  bool force = false;
};

void run_save(const SaveFlags& flags) {
  expect_new_tokenizer(flags.out, flags.force);
  Tokenizer::load(flags.tokenizer, flags.pattern).save(flags.out);
  fmt::print("{}\n", (fs::path(flags.out) / "tokenizer.json").string());
}

struct EncodeBenchFlags {
  std::string tokenizer, pattern, input;
  int repeats = 5;
  bool json = false;
};

void run_encode_bench(const EncodeBenchFlags& flags) {
  const Tokenizer tokenizer = Tokenizer::load(flags.tokenizer, flags.pattern);
  const std::string text = read_file(flags.input, rows_file_limit);
  std::vector<int32_t> ids;
  double best = 1e30;
  for (int i = 0; i < flags.repeats; ++i) {
    ids.clear();
    const auto start = Clock::now();
    tokenizer.encode_to(text, ids);
    best = std::min(best, seconds_since(start));
  }
  const double speed = double(text.size()) * 1e-6 / best;
  if (flags.json)
    fmt::print("{}\n", ordered_json{{"bytes", text.size()},
                                    {"tokens", ids.size()},
                                    {"seconds", best},
                                    {"value", speed},
                                    {"unit", "MB/s"}}
                           .dump());
  else
    fmt::print("{:.1f} MB/s on one core: {} bytes, {} tokens, {:.1f} ms (best of {})\n", speed,
               text.size(), ids.size(), best * 1e3, flags.repeats);
}

void add_train(CLI::App& app) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* c =
      app.add_subcommand("train", "train a byte-level BPE tokenizer and write tokenizer.json");
  c->add_option("--input", flags->input,
                "text, JSONL or Parquet files, optionally compressed, as for data prepare; globs")
      ->required();
  c->add_option("--column", flags->column,
                "text column of Parquet files, or key of the text in JSONL rows")
      ->capture_default_str();
  c->add_option("--vocab", flags->spec.vocab, "vocabulary size, including bytes and special tokens")
      ->capture_default_str();
  c->add_option("--pattern", flags->spec.pattern,
                "pattern that splits text into words: " + pattern_names())
      ->capture_default_str();
  c->add_option("--special", flags->special,
                "special token to add after the learned ones, such as '<|im_start|>'; repeat the "
                "flag for several")
      ->allow_extra_args(false);  // "[INST]" is a token, not a list
  c->add_option("--out", flags->out, "output folder")->required();
  add_force(*c, flags->force);
  c->add_option("--threads", flags->threads, "CPU threads; 0: one per core")
      ->check(at_least(0))
      ->capture_default_str();
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  c->callback([flags] { run_train(*flags); });
}

void add_source(CLI::App& c, std::string& tokenizer, std::string& pattern) {
  c.add_option("--tokenizer", tokenizer, "tokenizer file, model folder or run")->required();
  c.add_option(
      "--pattern", pattern,
      "split pattern of a .tiktoken file whose name and size are not known: " + pattern_names());
}

void add_text(CLI::App& app, const std::string& name, const std::string& what,
              void (*run)(const TextFlags&)) {
  auto flags = std::make_shared<TextFlags>();
  CLI::App* c = app.add_subcommand(name, what);
  add_source(*c, flags->tokenizer, flags->pattern);
  CLI::Option* raw = c->add_flag("--raw", flags->raw, "read all of standard input as one text");
  if (name == "encode") {
    c->add_flag(
         "--records", flags->records,
         "read texts of arbitrary bytes, each preceded by its length in four bytes, little-endian")
        ->excludes(raw);
    c->add_flag("--special", flags->special, "encode special tokens in the text as their ids");
    c->add_flag("--template", flags->frame,
                "add the tokens that the tokenizer's template puts around a text");
  }
  c->add_flag("--json", flags->json, "print the results as JSON lines");
  c->callback([flags, run] { run(*flags); });
}

void add_template(CLI::App& app) {
  auto flags = std::make_shared<TemplateFlags>();
  CLI::App* c = app.add_subcommand(
      "chat", "render messages (JSON on standard input) with the model's chat template");
  c->add_option("--tokenizer", flags->tokenizer, "model folder or run");
  c->add_option("--template", flags->chat_template,
                "template file to use in place of the folder's");
  c->add_flag("--prompt", flags->prompt, "end with the opening of the assistant's turn");
  c->add_flag("--ids", flags->ids, "print token ids; message text never becomes a special token");
  c->add_flag("--json", flags->json, "print text, ids and the mask of assistant tokens as JSON");
  c->callback([flags] { run_template(*flags); });
}

void add_save(CLI::App& app) {
  auto flags = std::make_shared<SaveFlags>();
  CLI::App* c =
      app.add_subcommand("save", "convert a tokenizer of any supported format to tokenizer.json");
  add_source(*c, flags->tokenizer, flags->pattern);
  c->add_option("--out", flags->out, "output folder")->required();
  add_force(*c, flags->force);
  c->callback([flags] { run_save(*flags); });
}

void add_tokenizer_bench(CLI::App& app) {
  auto flags = std::make_shared<EncodeBenchFlags>();
  CLI::App* c = app.add_subcommand("bench", "time encoding on one core");
  add_source(*c, flags->tokenizer, flags->pattern);
  c->add_option("--input", flags->input, "text file to encode")->required();
  c->add_option("--repeats", flags->repeats, "measured runs; the best is reported")
      ->check(at_least(1))
      ->capture_default_str();
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  c->callback([flags] { run_encode_bench(*flags); });
}

}  // namespace

void add_tokenizer(CLI::App& app) {
  CLI::App* c = app.add_subcommand("tokenizer", "train a tokenizer, encode and decode text");
  c->require_subcommand(1);
  add_train(*c);
  add_text(*c, "encode", "encode standard input, one line of ids per line of text", run_encode);
  add_text(*c, "decode", "decode token ids from standard input", run_decode);
  add_template(*c);
  add_save(*c);
  add_tokenizer_bench(*c);
}

}  // namespace hearth::inline cli
