// hearth generate: continues a prompt and streams the text as it is generated.
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <set>

#include "cli/commands.h"
#include "cli/constraint_flags.h"
#include "infer/engine.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/clock.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth::inline cli {

namespace {

using nlohmann::ordered_json;

struct GenerateFlags {
  std::string model, adapter, prompt, prompt_file;
  std::vector<std::string> logit_bias;  // "id:value"
  Request request = {};
  bool prompt_given = false;
  bool greedy = false;
  bool echo = false;
  Speculation speculation = {};
  std::string dtype = "auto", weights = "plain", kv = "plain", generation_config = "auto";
  std::set<std::string> given = {};  // sampling fields set by flags
  bool batch_invariant = false;
  ConstraintFlags constraint = {};
  Common common = {};
};

std::string read_prompt(const GenerateFlags& flags) {
  if (flags.prompt_file.empty()) return flags.prompt;
  if (flags.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_file(flags.prompt_file);
}

// Text that waits on standard input is read only on request, because a script may need it itself:
// without a prompt the caller may have meant it.
void say_if_stdin_is_ignored(const GenerateFlags& flags) {
  int waiting = 0;
  if (!flags.prompt_given && flags.prompt_file.empty() && !isatty(STDIN_FILENO) &&
      ioctl(STDIN_FILENO, FIONREAD, &waiting) == 0 && waiting > 0)
    say("hearth: standard input was not read; --prompt-file - takes the prompt from it\n");
}

std::map<int32_t, float> parse_bias(const std::vector<std::string>& pairs) {
  std::map<int32_t, float> bias;
  for (const std::string& pair : pairs) {
    int32_t id = 0;
    float value = 0;
    const char* end = pair.data() + pair.size();
    const auto number = std::from_chars(pair.data(), end, id);
    const bool colon = number.ec == std::errc() && number.ptr != end && *number.ptr == ':';
    const auto added = colon ? std::from_chars(number.ptr + 1, end, value) : number;
    if (!colon || added.ec != std::errc() || added.ptr != end)
      fail_usage("--logit-bias", "expected id:value, got \"{}\"", pair);
    if (!bias.emplace(id, value).second)
      fail_usage("--logit-bias", "expected each id once, got {} twice", id);
  }
  return bias;
}

ordered_json to_json(const TokenLogprob& p) {
  ordered_json top = ordered_json::array();
  for (const auto& [token, logprob] : p.top)
    top.push_back({{"token", token}, {"logprob", logprob}});
  return {{"token", p.token}, {"logprob", p.logprob}, {"top", std::move(top)}};
}

ordered_json to_json(const Completion& c, const GenerateFlags& flags, const std::string& echoed,
                     std::span<const int32_t> prompt) {
  ordered_json j{{"text", echoed + c.text},          {"tokens", c.tokens},
                 {"finish_reason", c.finish_reason}, {"ttft_ms", c.ttft_ms},
                 {"tokens_per_s", c.tokens_per_s},   {"prompt_tokens", prompt.size()}};
  if (flags.request.beams > 1) j["score"] = c.score;
  if (flags.request.sampling.logprobs < 0) return j;
  ordered_json logprobs = ordered_json::array();
  if (flags.echo && !prompt.empty()) {  // the first token has no log-probability
    logprobs.push_back({{"token", prompt[0]}, {"logprob", nullptr}, {"top", nullptr}});
    for (const TokenLogprob& p : c.prompt_logprobs) logprobs.push_back(to_json(p));
  }
  for (const TokenLogprob& p : c.logprobs) logprobs.push_back(to_json(p));
  j["logprobs"] = std::move(logprobs);
  return j;
}

ordered_json to_json(const std::vector<Completion>& all, const GenerateFlags& flags,
                     const std::string& echoed, std::span<const int32_t> prompt) {
  ordered_json j = to_json(all[0], flags, echoed, prompt);
  if (flags.request.n > 1) {
    ordered_json choices = ordered_json::array();
    for (const Completion& c : all) choices.push_back(to_json(c, flags, echoed, prompt));
    j["choices"] = std::move(choices);
  }
  return j;
}

void put_now(std::string_view piece) {
  put_text(piece);
  flush();
}

void print_text(const std::vector<Completion>& all, const std::string& echoed) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all.size() > 1) put(fmt::format("--- {} of {} ---\n", i + 1, all.size()));
    put_text(echoed + all[i].text + "\n");
  }
}

// Warns if --max-tokens ended a constrained text before it matched.
void say_if_cut(const std::vector<Completion>& all) {
  const auto cut = [](const Completion& c) { return c.finish_reason == "length" && !c.matches; };
  if (std::ranges::any_of(all, cut))
    say("hearth: the text is not complete: --max-tokens ended it before it matched\n");
}

// For each place in a draft: how many tokens were accepted and tried.
std::string drafts_of(const EngineStats& s) {
  std::string shares;
  for (const DraftCount& d : s.drafts)
    if (d.tried > 0) shares += fmt::format(" {}/{}", d.accepted, d.tried);
  return shares.empty() ? "" : ", drafts accepted" + shares;
}

// The tokens of all samples, and their rate in `seconds` of generation: after the first token of
// each, unless none has another.
void say_totals(const std::vector<Completion>& all, size_t prompt, double seconds,
                const Backend& backend, const EngineStats& stats) {
  size_t tokens = 0, first = 0;
  double to_first = seconds;
  std::set<std::string> reasons;
  for (const Completion& c : all) {
    reasons.insert(c.finish_reason);
    if (c.tokens.empty()) continue;
    tokens += c.tokens.size(), ++first;
    to_first = std::min(to_first, c.ttft_ms / 1e3);
  }
  const double rate = tokens > first ? double(tokens - first) / (seconds - to_first)
                                     : double(tokens) / std::max(seconds, 1e-9);
  say("{} tokens{}, prompt {}: first token {:.1f} ms, then {:.1f} tokens/s ({}), {}, KV cache "
      "{}{}\n",
      tokens, all.size() > 1 ? fmt::format(" in {} samples", all.size()) : "", prompt,
      tokens ? to_first * 1e3 : 0, rate, fmt::join(reasons, ","), backend.describe(), stats.cache,
      drafts_of(stats));
}

Request complete(const GenerateFlags& flags) {
  Request r = flags.request;
  r.sampling.logit_bias = parse_bias(flags.logit_bias);
  if (flags.greedy) r.sampling.temperature = 0;
  if (r.sampling.logprobs >= 0 && !flags.common.json)
    fail_usage("--logprobs", "--logprobs needs --json");
  r.prompt_logprobs = flags.echo && r.sampling.logprobs >= 0;
  if (flags.speculation.on() && r.beams > 1)
    fail_usage(flags.speculation.tokens > 0 ? "--speculate" : "--draft",
               "has no effect: --beams {} makes no drafts; leave it out", r.beams);
  return r;
}

// An empty prompt starts a new text with bos or eos, as on the server.
std::vector<int32_t> encoded_prompt(const Tokenizer& t, const std::string& text) {
  std::vector<int32_t> ids = t.encode(text);
  if (!ids.empty())
    t.add_template(ids);  // Llama's bos
  else if (const int32_t start = t.bos() >= 0 ? t.bos() : t.eos(); start >= 0)
    ids.push_back(start);
  return ids;
}

void run_generate(const GenerateFlags& flags) {
  Request request = complete(flags);
  const CacheFormat cache = cache_format(flags.kv);
  const ConstraintSpec constraint = flags.constraint.spec();
  const std::string text = read_prompt(flags);
  const std::unique_ptr<Backend> backend =
      make_backend(flags.common, {.batch_invariant = flags.batch_invariant});
  LoadedModel model = load_model({flags.model, flags.adapter, flags.dtype, flags.weights}, *backend,
                                 Workload::decoding);
  const Tokenizer& tokenizer = model.tokenizer();
  const ModelConfig& config = model.config();
  apply_generation_config(request.sampling, flags.generation_config, model.source(), flags.given);
  if (!request.sampling.ignore_eos)
    for (const int32_t id : model.ends()) request.sampling.stop_ids.push_back(id);

  ConstraintMaker constraints(tokenizer);
  request.constraint = constraints.make(constraint);
  request.prompt = encoded_prompt(tokenizer, text);
  // Allocate only the cache that this call can fill.
  const int64_t asked = request.sampling.max_tokens;
  const int64_t room =
      int64_t(std::max<size_t>(request.prompt.size(), 1)) + std::max<int64_t>(asked, 0);
  EngineSpec spec{.max_batch = std::max<int64_t>(request.beams, std::clamp(request.n, 1, 16)),
                  .context = asked < 0 ? 0 : std::min(config.context, room),
                  .speculate = flags.speculation.guesses(),
                  .draft = flags.speculation.source(),
                  .remedy = "provide more memory or use a smaller --max-tokens",
                  .cache = cache,
                  .exact = flags.batch_invariant,
                  .tokenizer = &tokenizer};
  Engine engine(config, model.params(), *backend, spec);
  if (asked < 0 && engine.context() < config.context)
    say("hearth: the context is {} tokens: the model's {} do not fit in memory\n", engine.context(),
        config.context);
  say_long_rope(config, engine.context());

  say_if_stdin_is_ignored(flags);
  const std::string echoed = flags.echo ? text : "";
  const bool streams = !flags.common.json && request.n == 1 && request.beams == 1;
  if (streams) put_now(echoed);
  const Clock::time_point start = Clock::now();
  const auto all = engine.run(std::vector{request}, [&](const TokenEvent& t) {
    if (streams) put_now(t.text);
    return true;
  })[0];
  const double seconds = seconds_since(start);
  if (streams)
    put("\n");
  else if (flags.common.json)
    print_json(to_json(all, flags, echoed, request.prompt));
  else
    print_text(all, echoed);
  flush();
  for (const Completion& c : all)
    if (say_if_clipped(c, asked, config.context)) break;
  say_if_cut(all);
  say_totals(all, request.prompt.size(), seconds, *backend, engine.stats());
}

// Flags with a matching field in generation_config.json, keyed by that field.
using SamplingFlags = std::map<std::string, CLI::Option*>;

SamplingFlags add_sampling(CLI::App& c, GenerateFlags& f) {
  SamplingSpec& s = f.request.sampling;
  SamplingFlags flags;
  flags["temperature"] =
      c.add_option("--temperature", s.temperature, "sampling temperature; 0: greedy")
          ->capture_default_str();
  c.add_flag("--greedy", f.greedy, "always take the most likely token")
      ->excludes(flags["temperature"]);
  flags["top_k"] = c.add_option("--top-k", s.top_k, "sample from the k most likely tokens; 0: all")
                       ->capture_default_str();
  flags["top_p"] = c.add_option("--top-p", s.top_p,
                                "sample from the most likely tokens with this total probability")
                       ->capture_default_str();
  flags["min_p"] = c.add_option("--min-p", s.min_p,
                                "drop tokens less likely than this fraction of the most likely one")
                       ->capture_default_str();
  flags["repetition_penalty"] = c.add_option("--repetition-penalty", s.repetition_penalty,
                                             "penalty for tokens in the prompt and completion")
                                    ->capture_default_str();
  c.add_option("--presence-penalty", s.presence_penalty,
               "penalty for tokens already in the completion")
      ->capture_default_str();
  c.add_option("--frequency-penalty", s.frequency_penalty,
               "penalty per occurrence of a token in the completion")
      ->capture_default_str();
  c.add_option("--logit-bias", f.logit_bias, "values to add to the logits: id:value,...")
      ->delimiter(',');
  flags["max_tokens"] = c.add_option("--max-tokens", s.max_tokens,
                                     "maximum tokens to generate; -1: until the context is full")
                            ->capture_default_str();
  c.add_option("--min-tokens", s.min_tokens, "minimum tokens to generate before stopping")
      ->capture_default_str();
  c.add_option("--stop", s.stop, "string that ends the text; repeat the flag for several")
      ->allow_extra_args(false);
  c.add_option("--stop-id", s.stop_ids, "token id that ends the text; repeat the flag for several")
      ->allow_extra_args(false);
  c.add_flag("--ignore-eos", s.ignore_eos, "continue after the end-of-text token");
  c.add_option("--logprobs", s.logprobs,
               "with --json: print log-probabilities, with this many alternatives per token");
  return flags;
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  GenerateFlags& f = *flags;
  f.request.sampling.max_tokens = 128;
  CLI::App* c = app.add_subcommand("generate", "continue a prompt");
  c->add_option("--model", f.model, "run, checkpoint or Hugging Face folder, or model file")
      ->required();
  add_adapter(*c, f.adapter);
  CLI::Option* prompt = c->add_option("--prompt", f.prompt, "prompt; empty: start a new text");
  c->add_option("--prompt-file", f.prompt_file, "file with the prompt; -: standard input")
      ->excludes(prompt);
  const SamplingFlags sampling = add_sampling(*c, f);
  c->add_option("--n", f.request.n, "number of completions; with --beams the best N beams")
      ->capture_default_str();
  c->add_option("--beams", f.request.beams, "beam width; 1: no beam search")->capture_default_str();
  c->add_option("--length-penalty", f.request.length_penalty,
                "rank beams by log-probability / tokens^PENALTY")
      ->capture_default_str();
  c->add_flag("--echo", f.echo, "print the prompt too");
  add_speculation(*c, f.speculation);
  c->add_option("--seed", f.request.sampling.seed, "random seed of the samples")
      ->capture_default_str();
  f.constraint.add(*c);
  add_generation_config(*c, f.generation_config);
  add_dtype(*c, f.dtype);
  add_weights(*c, f.weights);
  add_kv(*c, f.kv);
  add_batch_invariant(*c, f.batch_invariant);
  add_common(*c, f.common);
  c->callback([flags, sampling, prompt] {
    flags->prompt_given = prompt->count() > 0;
    for (const auto& [field, option] : sampling)
      if (option->count() > 0) flags->given.insert(field);
    if (flags->greedy) flags->given.insert("temperature");
    run_generate(*flags);
  });
}

}  // namespace hearth::inline cli
