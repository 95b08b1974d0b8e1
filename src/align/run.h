// The loop that SFT and DPO share: a run folder, steps, validation, checkpoints, and going on as if
// nothing had happened. What a step is made of is a task's to say.
#pragma once

#include <atomic>
#include <filesystem>
#include <functional>
#include <optional>
#include <string>

#include "align/config.h"
#include "align/examples.h"
#include "align/logprob_programs.h"
#include "align/templates.h"
#include "core/error.h"
#include "model/folder.h"
#include "train/trainer.h"

namespace hearth {

struct AlignRunSpec {
  std::filesystem::path run;
  bool resume = false;
  bool quiet = false;                      // nothing on stderr
  int64_t stop_after_step = 0;             // save and end after that step; 0: do not
  const std::atomic<int>* stop = nullptr;  // set by a signal handler
  std::function<void(const std::string&)> warn = {};
};

// The model under training with its tokenizer and chat template.
struct AlignModel {
  // Of a run that is resumed its newest valid checkpoint, else what the config names. With adapters
  // always that, their base, which is loaded at once.
  AlignModel(const AlignConfig&, const AlignRunSpec&, Backend&);

  std::optional<std::filesystem::path> checkpoint;  // that a resumed run goes on from
  ModelSource source;
  ModelConfig config;
  Tokenizer tokenizer;
  RunTemplate chat;
  // Saved with every checkpoint; see carry_template().
  nlohmann::ordered_json carried_template;  // null: none
  std::vector<int32_t> ends;                // of answers
  int64_t max_length;                       // of an example
  ParamStore params;
  Memory memory;
};

// Lets checkpoints carry what the model is trained with: the run's template where any row that is
// trained on was `rendered` by it, else the model's own or none.
void carry_template(AlignModel&, bool rendered);

// Chooses how a batch with head is run; the chunks of logits as the backend likes them.
LogprobProgramsSpec programs_spec(const AlignModel&, const AlignConfig&);

struct StepReport {
  double loss = 0;
  int64_t tokens = 0, examples = 0;  // fed, padding not counted
  nlohmann::ordered_json more = {};  // logged beside the loss
};
struct EvalReport {
  double loss = 0;
  nlohmann::ordered_json more = {};
};

class AlignTask {
 public:
  virtual ~AlignTask() = default;
  virtual int64_t steps_per_epoch() const = 0;
  // What takes long before the first step, in a folder that is this process's. False: a signal
  // came.
  virtual bool prepare() { return true; }
  // Leaves the gradients of step `step` (from 0) in the store; sets what else of the scalars it
  // uses.
  virtual StepReport train(int64_t step, Scalars) = 0;
  virtual std::optional<EvalReport> evaluate() = 0;  // nothing to validate on: nothing
  // Of the examples; a run that is resumed with others is refused. Empty: the method sees to it.
  virtual std::string data_digest() const { return {}; }
};

ExampleEncoder encoder_of(const AlignModel&, const AlignConfig&);

// Checks what can be checked of a config without its data.
void check_config(const AlignConfig&, const AlignRunSpec&);

// `settings` is the whole config of the method, as it goes to config.toml and into checkpoints.
RunResult align(const AlignRunSpec&, const AlignConfig&, const nlohmann::ordered_json& settings,
                AlignModel&, AlignTask&);

// An error where no row is left to learn from; what was cut or left out is said, and why.
template <class T>
void expect_examples(const AlignRunSpec& spec, const Examples<T>& e, const char* what,
                     int64_t max_length) {
  std::vector<std::string> lines;
  const auto left_out = [&](int64_t rows, const std::string& why) {
    if (rows) lines.push_back(fmt::format("{} of {} rows left out: {}", rows, e.read, why));
  };
  left_out(e.unanswered, "no turn of the assistant in them");
  left_out(e.blank, "no text to learn in them");
  left_out(e.cut_off, fmt::format("their prompts fill all {} tokens of --max-length", max_length));
  left_out(e.equal, "both answers are equal");
  if (e.kept.empty())
    fail(what, "expected rows with something to learn, got {}",
         lines.empty() ? "none" : fmt::format("{}", fmt::join(lines, "; ")));
  if (e.cut)
    lines.push_back(fmt::format("{} of {} rows cut at {} tokens", e.cut, e.read, max_length));
  for (const std::string& line : lines)
    if (spec.warn) spec.warn(fmt::format("{}: {}", what, line));
  if (e.spelled && spec.warn)
    spec.warn(
        fmt::format("{}: {} of {} rows spell a special token, the first in {}: they are "
                    "learned as characters; --special-tokens takes them for the tokens",
                    what, e.spelled, e.read, e.spelled_in));
}

}  // namespace hearth
