// The settings of SFT and DPO. Defaults are those of the specification: AdamW (0.9, 0.999, 1e-8)
// without weight decay, clipping at 1, linear decay of the learning rate to 0, no warmup.
#pragma once

#include <string>
#include <vector>

#include "data/examples/templates.h"
#include "model/lora.h"
#include "train/config.h"

namespace hearth::inline train {

// The settings that SFT and DPO share.
struct ExampleConfig : RunConfig, TemplateConfig {
  ExampleConfig() {
    steps = 0, lr = 2e-5, schedule = Schedule::linear, lr_floor = 0;
    beta2 = 0.999f, weight_decay = 0, eval_every = 0;
  }
  std::string model;
  std::vector<std::string> data, val;
  double holdout = 0;
  int64_t max_length = 0;
  int64_t batch = 8, accumulate = 1;
  int64_t epochs = 3;
  bool special_tokens = false;
  double target_loss = 0;
  LoraConfig lora;

  // `data_help` describes the rows that the method takes.
  template <class V>
  void visit(V&& v, const char* data_help) {
    v("model", model, "model folder or file to start from");
    v("data", data, data_help);
    v("val", val, "validation files in the same format");
    v("holdout", holdout, "fraction of the data to hold out for validation");
    v("max_length", max_length,
      "maximum tokens per example, longer ones are truncated; 0: the model's context, at most "
      "1024");
    v("batch", batch,
      "examples (sft with packing: rows, dpo: pairs) per micro-batch; 0: 8 x accumulate of them "
      "per step, divided into the largest micro-batches that fit in memory");
    v("accumulate", accumulate, "micro-batches per optimizer step");
    v("epochs", epochs, "passes over the data");
    visit_run(v, {.steps = "optimizer steps; 0: as many as the epochs need",
                  .eval_every = "steps between validations; 0: only at the start and the end",
                  .seed = "random seed for shuffling, the held-out split and dropout"});
    v("target_loss", target_loss, "stop when the validation loss reaches this value; 0: never");
    TemplateConfig::visit(v);
    v("special_tokens", special_tokens,
      "parse special tokens spelled in prompts, completions or texts as tokens, not as characters");
    lora.visit(v);
  }
};

enum class SftPacking : uint8_t { none, bfd };
HEARTH_ENUM_NAMES(SftPacking, {"none", "bfd"})

struct SftConfig : ExampleConfig {
  SftPacking packing = SftPacking::bfd;
  LossConfig losses;

  template <class V>
  void visit(V&& v) {
    ExampleConfig::visit(v, "training data: JSONL, a JSON list, Parquet or text; globs allowed");
    v("packing", packing,
      "bfd: pack whole examples into rows of max_length by best-fit decreasing; none: no packing");
    losses.visit(v);
    fp8.visit(v);
  }
};

enum class DpoLoss : uint8_t { sigmoid, hinge, ipo, cdpo, robust, sigmoid_norm };
HEARTH_ENUM_NAMES(DpoLoss, {"sigmoid", "hinge", "ipo", "cdpo", "robust", "sigmoid_norm"})

enum class DpoReference : uint8_t { cached, live };
HEARTH_ENUM_NAMES(DpoReference, {"cached", "live"})

struct DpoConfig : ExampleConfig {
  DpoConfig() { lr = 1e-6; }
  DpoLoss loss = DpoLoss::sigmoid;
  double beta = 0.1, label_smoothing = 0;
  DpoReference reference = DpoReference::cached;
  ModuleLossConfig modules;

  template <class V>
  void visit(V&& v) {
    ExampleConfig::visit(v,
                         "preference pairs: JSONL or a JSON list, each row a prompt with a chosen "
                         "and a rejected answer; globs allowed");
    v("loss", loss, "DPO loss: sigmoid, hinge, ipo, cdpo, robust or sigmoid_norm");
    v("beta", beta, "weight of the KL penalty toward the reference model");
    v("label_smoothing", label_smoothing, "cdpo and robust: assumed fraction of swapped labels");
    v("reference", reference,
      "reference log-probabilities: cached (computed once, kept in a file) or live");
    modules.visit(v);
    fp8.visit_wgrad(v);
  }
};

}  // namespace hearth::inline train
