#include "cli/synonyms.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <string_view>
#include <utility>

#include "formats/json.h"

namespace hearth::inline cli {
namespace {

// A flag name from another program, and our names in order of preference: the first that the
// command has is used.
struct Synonym {
  std::string_view theirs;
  std::array<std::string_view, 2> ours;
};

// From transformers, TRL, nanoGPT, llama.cpp, vLLM and related command lines.
constexpr Synonym synonyms[] = {
    {"learning-rate", {"lr"}},
    {"max-lr", {"lr"}},
    {"max-steps", {"steps"}},
    {"num-steps", {"steps"}},
    {"train-steps", {"steps"}},
    {"max-iters", {"steps"}},
    {"iters", {"steps"}},
    {"num-iterations", {"steps"}},
    {"num-epochs", {"epochs"}},
    {"num-train-epochs", {"epochs"}},
    {"batch-size", {"batch"}},
    {"micro-batch-size", {"batch"}},
    {"per-device-train-batch-size", {"batch"}},
    {"device-batch-size", {"batch"}},
    {"max-num-seqs", {"batch"}},
    {"total-batch-size", {"tokens-per-step", "batch"}},
    {"gradient-accumulation-steps", {"accumulate", "tokens-per-step"}},
    {"grad-accum", {"accumulate", "tokens-per-step"}},
    {"seq-len", {"seq", "max-length"}},
    {"seq-length", {"seq", "max-length"}},
    {"sequence-length", {"seq", "max-length"}},
    {"block-size", {"seq", "context"}},
    {"max-seq-len", {"seq", "max-length"}},
    {"max-seq-length", {"max-length", "seq"}},
    {"context-length", {"context", "max-length"}},
    {"context-size", {"context", "max-length"}},
    {"ctx-size", {"context"}},
    {"n-ctx", {"context"}},
    {"max-model-len", {"context"}},
    {"output-dir", {"run", "out"}},
    {"out-dir", {"run", "out"}},
    {"output", {"out", "run"}},
    {"save-dir", {"run", "out"}},
    {"run-dir", {"run"}},
    {"resume-from-checkpoint", {"resume"}},
    {"model-name-or-path", {"model"}},
    {"model-path", {"model"}},
    {"checkpoint", {"model"}},
    {"train-data", {"data"}},
    {"train-file", {"data"}},
    {"dataset", {"data"}},
    {"dataset-name", {"data"}},
    {"val-data", {"val", "eval-data"}},
    {"validation-file", {"val", "eval-data"}},
    {"eval-dataset", {"eval-data", "val"}},
    {"warmup-steps", {"warmup"}},
    {"warmup-iters", {"warmup"}},
    {"lr-scheduler", {"schedule"}},
    {"lr-scheduler-type", {"schedule"}},
    {"lr-schedule", {"schedule"}},
    {"max-grad-norm", {"clip"}},
    {"grad-clip", {"clip"}},
    {"clip-grad-norm", {"clip"}},
    {"adam-beta1", {"beta1"}},
    {"adam-beta2", {"beta2"}},
    {"adam-epsilon", {"adam-eps"}},
    {"wd", {"weight-decay"}},
    {"gradient-checkpointing", {"recompute"}},
    {"activation-checkpointing", {"recompute"}},
    {"save-steps", {"checkpoint-every"}},
    {"save-every", {"checkpoint-every"}},
    {"eval-steps", {"eval-every"}},
    {"eval-interval", {"eval-every"}},
    {"save-total-limit", {"keep"}},
    {"n-layer", {"layers"}},
    {"num-layers", {"layers"}},
    {"num-hidden-layers", {"layers"}},
    {"depth", {"layers"}},
    {"n-head", {"heads"}},
    {"num-heads", {"heads"}},
    {"num-attention-heads", {"heads"}},
    {"n-kv-head", {"kv-heads"}},
    {"num-kv-heads", {"kv-heads"}},
    {"num-key-value-heads", {"kv-heads"}},
    {"n-embd", {"dim"}},
    {"d-model", {"dim"}},
    {"hidden-size", {"dim"}},
    {"intermediate-size", {"hidden"}},
    {"vocab-size", {"vocab"}},
    {"dropout", {"dropout-residual"}},
    {"precision", {"dtype"}},
    {"mixed-precision", {"dtype"}},
    {"torch-dtype", {"dtype"}},
    {"quantization", {"weights"}},
    {"kv-cache-dtype", {"kv"}},
    {"gpu", {"device"}},
    {"num-threads", {"threads"}},
    {"n-threads", {"threads"}},
    {"num-workers", {"workers"}},
    {"temp", {"temperature"}},
    {"n-predict", {"max-tokens"}},
    {"num-predict", {"max-tokens"}},
    {"max-new-tokens", {"max-tokens", "max-completion"}},
    {"max-completion-tokens", {"max-tokens"}},
    {"max-completion-length", {"max-completion", "max-tokens"}},
    {"repeat-penalty", {"repetition-penalty"}},
    {"system-prompt", {"system"}},
    {"file", {"prompt-file"}},
    {"num-return-sequences", {"n"}},
    {"num-beams", {"beams"}},
    {"num-generations", {"group"}},
    {"group-size", {"group"}},
    {"lora", {"adapter"}},
    {"lora-r", {"lora"}},
    {"lora-rank", {"lora"}},
    {"random-seed", {"seed"}},
};

// One-letter flags from llama.cpp, curl and compilers.
constexpr Synonym short_synonyms[] = {
    {"b", {"batch"}},
    {"c", {"context", "config"}},
    {"d", {"data", "device"}},
    {"f", {"prompt-file"}},
    {"i", {"input"}},
    {"j", {"threads"}},
    {"m", {"model"}},
    {"n", {"max-tokens", "steps"}},
    {"o", {"out", "run"}},
    {"p", {"prompt", "port"}},
    {"r", {"run"}},
    {"s", {"seed"}},
    {"t", {"threads"}},
    {"v", {"vocab"}},
};

// What other programs call commands, and our name.
constexpr std::pair<std::string_view, std::string_view> command_synonyms[] = {
    {"train", "pretrain"},     {"finetune", "sft"},       {"fine-tune", "sft"},
    {"runs", "board"},         {"list", "board"},         {"dashboard", "board"},
    {"tensorboard", "board"},  {"run", "chat"},           {"complete", "generate"},
    {"inference", "generate"}, {"evaluate", "eval"},      {"export", "convert"},
    {"quantize", "convert"},   {"merge", "convert"},      {"benchmark", "bench"},
    {"download", "data"},      {"tokenize", "tokenizer"},
};

constexpr std::string_view type_flags[] = {"dtype", "weights", "kv", "fp8-wgrad"};

// What others call a type, and our name.
constexpr std::pair<std::string_view, std::string_view> type_synonyms[] = {
    {"f32", "fp32"},     {"float32", "fp32"}, {"float", "fp32"}, {"bfloat16", "bf16"},
    {"f16", "fp16"},     {"float16", "fp16"}, {"half", "fp16"},  {"float8", "fp8"},
    {"fp8_e4m3", "fp8"}, {"i8", "int8"},      {"i4", "int4"},    {"q8", "q8_0"},
};

// Our name of a type; other texts are returned as they are.
std::string type_named(const std::string& text) {
  std::string name = text;
  for (char& c : name) c = char(std::tolower(uint8_t(c)));
  for (const auto& [theirs, ours] : type_synonyms)
    if (name == theirs) return std::string(ours);
  static constexpr std::string_view known[] = {"auto", "fp32", "tf32", "bf16", "fp16", "fp8",
                                               "int8", "int4", "q8_0", "q6_k", "q4_k", "q4_0"};
  return std::ranges::find(known, name) != std::end(known) ? name : text;
}

bool has(const CLI::App& command, std::string_view name) {
  return !name.empty() && command.get_option_no_throw("--" + std::string(name));
}

}  // namespace

std::string meant_flag(const std::string& flag, const CLI::App& command) {
  std::string name = flag.substr(std::min(flag.find_first_not_of('-'), flag.size()));
  std::replace(name.begin(), name.end(), '_', '-');
  if (has(command, name)) return "--" + name;
  for (const Synonym& s : synonyms)
    if (name == s.theirs)
      for (const std::string_view ours : s.ours)
        if (has(command, ours)) return "--" + std::string(ours);
  std::vector<std::string> known;
  for (const CLI::Option* o : command.get_options())
    for (const std::string& l : o->get_lnames()) known.push_back(l);
  const std::string found = near(name, known);
  return found.empty() ? "" : "--" + found;
}

std::string command_synonym(const std::string& word) {
  for (const auto& [theirs, ours] : command_synonyms)
    if (word == theirs) return std::string(ours);
  return {};
}

std::string meant_command(const std::string& word, const std::vector<std::string>& names) {
  const std::string ours = command_synonym(word);
  return std::ranges::find(names, ours) != names.end() ? ours : near(word, names);
}

void allow_type_synonyms(CLI::App& app) {
  for (CLI::App* c : app.get_subcommands([](CLI::App*) { return true; })) {
    allow_type_synonyms(*c);
    for (const std::string_view flag : type_flags)
      if (CLI::Option* o = c->get_option_no_throw("--" + std::string(flag)))
        o->transform(CLI::Validator(
            [](std::string& text) {
              text = type_named(text);
              return std::string();
            },
            ""));
  }
}

std::string meant_by_short(const std::string& flag, const CLI::App& command) {
  if (flag.size() > 2)  // a long name with one dash
    if (const std::string meant = meant_flag(flag, command); !meant.empty()) return meant;
  const std::string letter = flag.substr(1, 1);
  std::string meant = has(command, letter) ? "--" + letter : "";
  for (const Synonym& s : short_synonyms) {
    if (letter != s.theirs) continue;
    const auto ours = std::find_if(s.ours.begin(), s.ours.end(),
                                   [&](std::string_view o) { return has(command, o); });
    if (ours != s.ours.end()) meant += (meant.empty() ? "--" : " or --") + std::string(*ours);
  }
  return meant;
}

}  // namespace hearth::inline cli
