// hearth generate: text that goes on from a prompt, streamed as it is made.
#include <charconv>
#include <iostream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "cli/commands.h"
#include "infer/engine.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/terminal.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"

namespace hearth {

namespace {

using nlohmann::ordered_json;

struct GenerateFlags {
  std::string model, adapter, prompt, prompt_file;
  std::vector<std::string> logit_bias;  // "id:value"
  Request request = {};
  bool greedy = false;
  bool echo = false;
  int64_t speculate = 0;
  std::string dtype = "auto", weights = "plain", kv = "plain", generation_config = "auto";
  std::set<std::string> given = {};  // sampling fields that flags name
  bool batch_invariant = false;
  Common common = {};
};

std::string read_prompt(const GenerateFlags& flags) {
  if (flags.prompt_file.empty()) return flags.prompt;
  if (flags.prompt_file == "-") return {std::istreambuf_iterator<char>(std::cin), {}};
  return read_file(flags.prompt_file);
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
      fail_usage("--logit-bias", "expected each id once, got {} again", id);
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
  if (flags.echo && !prompt.empty()) {  // nothing predicts the first token
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

void print_text(const std::vector<Completion>& all, const std::string& echoed) {
  for (size_t i = 0; i < all.size(); ++i) {
    if (all.size() > 1) put(fmt::format("--- {} of {} ---\n", i + 1, all.size()));
    put_text(echoed + all[i].text + "\n");
  }
}

Request complete(const GenerateFlags& flags) {
  Request r = flags.request;
  r.sampling.logit_bias = parse_bias(flags.logit_bias);
  if (flags.greedy) r.sampling.temperature = 0;
  if (r.sampling.logprobs >= 0 && !flags.common.json)
    fail_usage("--logprobs", "expected --json with it, got none");
  r.prompt_logprobs = flags.echo && r.sampling.logprobs >= 0;
  return r;
}

void run_generate(const GenerateFlags& flags) {
  Request request = complete(flags);
  const CacheFormat cache = cache_format(flags.kv);
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

  request.prompt = tokenizer.encode(text);
  if (!request.prompt.empty()) tokenizer.add_template(request.prompt);  // Llama's bos
  // No more cache than this call can fill.
  const int64_t asked = request.sampling.max_tokens;
  const int64_t room =
      int64_t(std::max<size_t>(request.prompt.size(), 1)) + std::max<int64_t>(asked, 0);
  EngineSpec spec{.max_batch = std::max<int64_t>(request.beams, std::clamp(request.n, 1, 16)),
                  .context = asked < 0 ? 0 : std::min(config.context, room),
                  .speculate = flags.speculate,
                  .cache = cache,
                  .tokenizer = &tokenizer};
  Engine engine(config, model.params(), *backend, spec);
  if (asked < 0 && engine.context() < config.context)
    say("hearth: a context of {} tokens: the model's {} do not fit in memory\n", engine.context(),
        config.context);

  const std::string echoed = flags.echo ? text : "";
  const bool streams = !flags.common.json && request.n == 1 && request.beams == 1;
  const auto stream = [](std::string_view piece) {
    put_text(piece);
    flush();
  };
  if (streams) stream(echoed);
  const auto all = engine.run(std::vector{request}, [&](const TokenEvent& t) {
    if (streams) stream(t.text);
    return true;
  })[0];
  if (streams)
    put("\n");
  else if (flags.common.json)
    print_json(to_json(all, flags, echoed, request.prompt));
  else
    print_text(all, echoed);
  flush();
  for (const Completion& c : all)
    if (say_if_clipped(c, asked, config.context)) break;
  say("{} tokens after {}: the first in {:.1f} ms, then {:.1f} tokens/s ({}), {}, KV cache {}\n",
      all[0].tokens.size(), request.prompt.size(), all[0].ttft_ms, all[0].tokens_per_s,
      all[0].finish_reason, backend->describe(), engine.stats().cache);
}

// The flags that generation_config.json has a field for, by that field.
using SamplingFlags = std::map<std::string, CLI::Option*>;

SamplingFlags add_sampling(CLI::App& c, GenerateFlags& f) {
  SamplingSpec& s = f.request.sampling;
  SamplingFlags flags;
  flags["temperature"] =
      c.add_option("--temperature", s.temperature, "0: greedy")->capture_default_str();
  c.add_flag("--greedy", f.greedy, "the likeliest token each time")->excludes(flags["temperature"]);
  flags["top_k"] = c.add_option("--top-k", s.top_k, "keep so many of the likeliest; 0: all")
                       ->capture_default_str();
  flags["top_p"] =
      c.add_option("--top-p", s.top_p, "keep the likeliest that together reach this share")
          ->capture_default_str();
  flags["min_p"] = c.add_option("--min-p", s.min_p, "drop those below this share of the likeliest")
                       ->capture_default_str();
  flags["repetition_penalty"] = c.add_option("--repetition-penalty", s.repetition_penalty,
                                             "of tokens in prompt and completion")
                                    ->capture_default_str();
  c.add_option("--presence-penalty", s.presence_penalty, "of tokens the completion has")
      ->capture_default_str();
  c.add_option("--frequency-penalty", s.frequency_penalty, "for each time it has them")
      ->capture_default_str();
  c.add_option("--logit-bias", f.logit_bias, "id:value,..., added to the logits")->delimiter(',');
  flags["max_tokens"] = c.add_option("--max-tokens", s.max_tokens, "-1: to the end of the context")
                            ->capture_default_str();
  c.add_option("--min-tokens", s.min_tokens, "do not stop before so many")->capture_default_str();
  c.add_option("--stop", s.stop, "string that ends the text; may be given again")
      ->allow_extra_args(false);
  c.add_option("--stop-id", s.stop_ids, "token that ends the text; may be given again")
      ->allow_extra_args(false);
  c.add_flag("--ignore-eos", s.ignore_eos, "go on after the end of text");
  c.add_option("--logprobs", s.logprobs,
               "with --json: log-probabilities under the model, with so many alternatives");
  return flags;
}

}  // namespace

void add_generate(CLI::App& app) {
  auto flags = std::make_shared<GenerateFlags>();
  GenerateFlags& f = *flags;
  f.request.sampling.max_tokens = 128;
  CLI::App* c = app.add_subcommand("generate", "go on from a prompt");
  c->add_option("--model", f.model, "run, checkpoint or Hugging Face folder, or model file")
      ->required();
  add_adapter(*c, f.adapter);
  CLI::Option* prompt = c->add_option("--prompt", f.prompt, "text; empty: the start of a text");
  c->add_option("--prompt-file", f.prompt_file, "file with the prompt; - for standard input")
      ->excludes(prompt);
  const SamplingFlags sampling = add_sampling(*c, f);
  c->add_option("--n", f.request.n, "completions; with --beams the best so many")
      ->capture_default_str();
  c->add_option("--beams", f.request.beams, "more than 1: beam search")->capture_default_str();
  c->add_option("--length-penalty", f.request.length_penalty,
                "beams are ranked by log-probability / tokens^this")
      ->capture_default_str();
  c->add_flag("--echo", f.echo, "print the prompt too");
  c->add_option("--speculate", f.speculate,
                "guesses looked up in the text and verified in a step; the tokens stay the same")
      ->capture_default_str()
      ->check(CLI::Range(0, 64));
  c->add_option("--seed", f.request.sampling.seed, "of the samples")->capture_default_str();
  add_generation_config(*c, f.generation_config);
  add_dtype(*c, f.dtype);
  add_weights(*c, f.weights);
  add_kv(*c, f.kv);
  add_batch_invariant(*c, f.batch_invariant);
  add_common(*c, f.common);
  c->callback([flags, sampling] {
    for (const auto& [field, option] : sampling)
      if (option->count() > 0) flags->given.insert(field);
    if (flags->greedy) flags->given.insert("temperature");
    run_generate(*flags);
  });
}

}  // namespace hearth
