// hearth chat: a conversation in the terminal. Ctrl-C stops the answer, not the program.
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <random>
#include <set>

#include "cli/commands.h"
#include "cli/constraint_flags.h"
#include "formats/json.h"
#include "serve/model.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"

namespace hearth::inline cli {

namespace {

using nlohmann::ordered_json;

struct ConversationFlags {
  std::string model, adapter, system, dtype = "auto", weights = "plain", kv = "plain";
  std::string generation_config = "auto";
  std::set<std::string> given = {};  // sampling fields set by flags
  SamplingSpec sampling = {};
  int64_t context = 0;
  Speculation speculation = {};
  bool seeded = false;
  ConstraintFlags constraint = {};
  Common common = {};
};

// Set by the signal handler, read between tokens.
std::atomic<bool> interrupted = false;
static_assert(std::atomic<bool>::is_always_lock_free);

void catch_interrupts() {
  struct sigaction action = {};
  action.sa_handler = [](int) {
    interrupted = true;
  };  // without SA_RESTART, so that a read ends too
  sigaction(SIGINT, &action, nullptr);
}

// Lines of standard input as they are entered. An interrupt discards what was entered of a line.
// The LineReader of files would repeat an interrupted read, and wait for enough bytes to know
// whether they are packed.
class EnteredLines {
 public:
  enum class Got { line, interrupt, end };
  Got read(std::string& line) {
    for (;;) {
      if (const size_t at = held_.find('\n'); at != std::string::npos) {
        line = held_.substr(0, at);
        held_.erase(0, at + 1);
        if (line.ends_with('\r')) line.pop_back();  // from a file with Windows' line ends
        return Got::line;
      }
      char bytes[4096];
      const ssize_t count = ::read(STDIN_FILENO, bytes, sizeof bytes);
      if (count < 0 && errno == EINTR) {
        held_.clear();
        return Got::interrupt;
      }
      if (count < 0) fail("stdin", "reading a line failed");
      if (count > 0) {
        held_.append(bytes, size_t(count));
        continue;
      }
      line = std::exchange(held_, {});
      return line.empty() ? Got::end : Got::line;
    }
  }

 private:
  std::string held_;
};

class Chat {
 public:
  Chat(ServedModel& model, const ConversationFlags& flags)
      : model_(model),
        flags_(flags),
        constraint_(model.constraints().make(flags.constraint.spec())),
        terminal_(isatty(STDIN_FILENO)) {
    reset();
  }

  // Returns the number of lines that failed: messages that are too long, commands that failed.
  int64_t run() {
    std::string line;
    for (;;) {
      note("> ");
      interrupted = false;
      const EnteredLines::Got got = lines_.read(line);
      if (got == EnteredLines::Got::end) {
        note("\n");
        return failed_;
      }
      if (got == EnteredLines::Got::interrupt) {
        note("\n(to end the program, type /quit or press Ctrl-D)\n");
        continue;
      }
      if (line.find_first_not_of(" \t") == std::string::npos) continue;
      if (line == "/quit" || line == "/exit") return failed_;
      if (line.starts_with("/"))
        obey(line);
      else
        answer(line);
    }
  }

 private:
  // For the user at the terminal, not for a program that reads the answers.
  void note(std::string_view text) const {
    if (terminal_) say("{}", text);
  }

  void problem(std::string_view text) {
    say_problem(std::string(text));
    ++failed_;
  }

  void reset() {
    messages_ = ordered_json::array();
    left_out_ = 0;
    if (!flags_.system.empty())
      messages_.push_back({{"role", "system"}, {"content", flags_.system}});
  }

  void obey(const std::string& line) {
    const std::string word = line.substr(0, line.find(' '));
    const std::string rest = line.size() > word.size() ? line.substr(word.size() + 1) : "";
    if (word == "/reset") {
      reset();
      note("(started a new conversation)\n");
    } else if ((word == "/save" || word == "/save!") && !rest.empty()) {
      save(rest, word == "/save!");
    } else {
      problem(fmt::format(
          "[chat] expected /reset, /save FILE, /save! FILE (overwrites a file) or /quit, got {}",
          in_quotes(line)));
    }
  }

  // Writes the whole conversation as one JSONL line, including turns that the model no longer sees.
  // Overwrites only files that this chat has written, unless `force` is set.
  void save(const std::string& file, bool force) {
    try {
      std::error_code ignored;
      const std::string path = std::filesystem::absolute(file, ignored).lexically_normal();
      if (!force && !saved_.contains(path) && std::filesystem::exists(path, ignored))
        fail(file, "this file exists: choose another name, or /save! {} to overwrite it", file);
      write_file_atomic(file, ordered_json{{"messages", messages_}}.dump(
                                  -1, ' ', false, nlohmann::json::error_handler_t::replace) +
                                  "\n");
      saved_.insert(path);
      note(fmt::format("(saved {} to {})\n", counted(int64_t(messages_.size()), "message"), file));
    } catch (const Error& e) { problem(e.what()); }
  }

  // The conversation without the oldest `left_out` turns; the system prompt always stays.
  ordered_json shown(size_t left_out) const {
    const size_t keep = flags_.system.empty() ? 0 : 1;
    ordered_json some = ordered_json::array();
    for (size_t i = 0; i < messages_.size(); ++i)
      if (i < keep || i >= keep + left_out) some.push_back(messages_[i]);
    return some;
  }

  [[noreturn]] void fail_too_long(int64_t room, size_t tokens) const {
    const int64_t context = model_.context();
    const std::string why = context - room < context / 2
                                ? fmt::format("{} are reserved for the answer", context - room)
                                : std::string("a message may take at most half of them");
    fail("chat",
         "expected a message of at most {} tokens, got {} (chat template {}included); "
         "the context holds {} tokens, and {}; shorten the message",
         room, tokens, flags_.system.empty() ? "" : "and the system prompt ", context, why);
  }

  // The conversation as tokens. Drops the oldest turns until the conversation and an answer fit. A
  // message that does not fit alone is an error and changes nothing.
  std::vector<int32_t> prompt() {
    const int64_t asked = flags_.sampling.max_tokens, context = model_.context();
    const int64_t wanted = asked < 0 ? context : std::max<int64_t>(asked, 1);
    const int64_t room = std::max<int64_t>(context - std::min(wanted, context / 2), 1);
    for (size_t left_out = left_out_;; left_out += 2) {  // a question and its answer
      const ordered_json some = shown(left_out);
      std::vector<int32_t> ids = model_.chat().encode(some);
      if (int64_t(ids.size()) <= room) {
        if (left_out > 0 && left_out_ == 0)
          say("hearth: the context ({} tokens) is full; the model no longer sees the oldest {} "
              "turns\n",
              model_.context(), left_out);
        left_out_ = left_out;
        return ids;
      }
      const size_t least = flags_.system.empty() ? 1 : 2;  // the system prompt and the message
      if (some.size() <= least) fail_too_long(room, ids.size());
    }
  }

  Completion complete(const Request& request) {
    return model_.engine().run(std::vector{request}, [&](const TokenEvent& t) {
      if (!flags_.common.json) {
        put_text(t.text);
        flush();
      }
      return !interrupted;
    })[0][0];
  }

  // An error leaves the conversation as it was before the message.
  void answer(const std::string& line) {
    messages_.push_back({{"role", "user"}, {"content", line}});
    Request request{.sampling = flags_.sampling, .constraint = constraint_};
    if (!flags_.seeded) request.sampling.seed = std::random_device{}();
    model_.chat().add_stops(request.sampling);
    Completion c;
    try {
      request.prompt = prompt();
      c = complete(request);
    } catch (const Error& e) {
      messages_.erase(messages_.size() - 1);
      problem(e.what());
      return;
    }
    messages_.push_back({{"role", "assistant"}, {"content", c.text}});
    if (flags_.common.json)
      print_json({{"text", c.text}, {"tokens", c.tokens}, {"finish_reason", c.finish_reason}});
    else
      put("\n");
    flush();
    if (c.finish_reason == "cancelled") note("(stopped)\n");
    say_if_clipped(c, request.sampling.max_tokens, model_.context());
  }

  ServedModel& model_;
  const ConversationFlags& flags_;
  const std::shared_ptr<Constraint> constraint_;
  const bool terminal_;
  EnteredLines lines_;
  ordered_json messages_;        // including the dropped turns
  std::set<std::string> saved_;  // files that this chat has written
  size_t left_out_ = 0;          // oldest turns that the model no longer sees
  int64_t failed_ = 0;
};

void run_conversation(ConversationFlags& flags) {
  const CacheFormat cache = cache_format(flags.kv);
  const Draft draft = flags.speculation.source();
  const std::unique_ptr<Backend> backend = make_backend(flags.common);
  ModelSource source = ModelSource::open(flags.model, flags.adapter);
  if (flags.context > source.config().context)
    fail_usage("--context", "expected 1 to {}, got {}", source.config().context, flags.context);
  const WeightsSpec weights{
      weights_dtype(flags.dtype, *backend, Workload::decoding, source.dtype()),
      weight_format(flags.weights, *backend)};
  apply_generation_config(flags.sampling, flags.generation_config, source, flags.given);
  ServedModel model(std::move(source), *backend, weights,
                    {.max_batch = 1,
                     .context = flags.context,
                     .speculate = flags.speculation.guesses(),
                     .draft = draft,
                     .cache = cache});
  flags.sampling.check(model.config().vocab);  // before a message is written
  if (!model.context_note().empty())
    say("hearth: {}; --context changes it\n", model.context_note());
  say_long_rope(model.config(), model.context());
  if (!model.chat().has_template())
    say("hearth: this model has no chat template; the conversation is formatted as User: and "
        "Assistant: lines. Use hearth generate to continue a prompt, or hearth sft on messages or "
        "instructions to train a template\n");
  if (isatty(STDIN_FILENO)) say("/reset, /save FILE, /save! FILE, /quit; Ctrl-C stops an answer\n");
  catch_interrupts();
  // A user has seen the errors; a script needs the exit code.
  const int64_t failed = Chat(model, flags).run();
  if (failed > 0 && !isatty(STDIN_FILENO))
    fail("chat", "{} of standard input failed; see the messages above", counted(failed, "line"));
}

}  // namespace

void add_chat(CLI::App& app) {
  auto flags = std::make_shared<ConversationFlags>();
  ConversationFlags& f = *flags;
  f.sampling.max_tokens = 512;
  CLI::App* c = app.add_subcommand("chat", "chat with a model in the terminal");
  c->add_option("--model", f.model, "run, checkpoint or Hugging Face folder, or model file")
      ->required();
  add_adapter(*c, f.adapter);
  c->add_option("--system", f.system, "system prompt");
  SamplingSpec& s = f.sampling;
  const std::map<std::string, CLI::Option*> sampling{
      {"temperature",
       c->add_option("--temperature", s.temperature, "sampling temperature; 0: greedy")},
      {"top_k", c->add_option("--top-k", s.top_k, "sample from the k most likely tokens; 0: all")},
      {"top_p", c->add_option("--top-p", s.top_p,
                              "sample from the most likely tokens with this total probability")},
      {"min_p", c->add_option("--min-p", s.min_p,
                              "drop tokens less likely than this fraction of the most likely one")},
      {"repetition_penalty", c->add_option("--repetition-penalty", s.repetition_penalty,
                                           "penalty for tokens already in the text")},
      {"max_tokens", c->add_option("--max-tokens", s.max_tokens,
                                   "maximum tokens per answer; -1: until the context is full")}};
  for (const auto& [field, option] : sampling) option->capture_default_str();
  f.constraint.add(*c);
  add_generation_config(*c, f.generation_config);
  CLI::Option* seed = c->add_option(
      "--seed", f.sampling.seed, "random seed of the answers; default: a new seed for each answer");
  c->add_option("--context", f.context,
                "context length in tokens; 0: the model's, or what fits in memory")
      ->check(at_least(0))
      ->capture_default_str();
  add_speculation(*c, f.speculation);
  add_dtype(*c, f.dtype);
  add_weights(*c, f.weights);
  add_kv(*c, f.kv);
  add_common(*c, f.common);
  c->callback([flags, seed, sampling] {
    flags->seeded = seed->count() > 0;
    for (const auto& [field, option] : sampling)
      if (option->count() > 0) flags->given.insert(field);
    run_conversation(*flags);
  });
}

}  // namespace hearth::inline cli
