// What SFT and DPO are told beside the model. Defaults are those of the specification: AdamW (0.9,
// 0.999, 1e-8) without decay, clipping at 1, linear decay to 0, no warmup.
#pragma once

#include <string>
#include <vector>

#include "align/templates.h"
#include "model/lora.h"
#include "train/config.h"

namespace hearth {

// What every method of alignment has.
struct AlignConfig {
  std::string model;
  std::vector<std::string> data, val;
  double holdout = 0;
  int64_t max_length = 0;
  int64_t batch = 8, accumulate = 1;
  int64_t epochs = 3, steps = 0;
  TrainDType dtype = TrainDType::fp32;
  uint64_t seed = 1;
  ChatForm chat_template = ChatForm::own;
  int64_t clock = 0;
  bool special_tokens = false;
  double lr = 2e-5;
  Schedule schedule = Schedule::linear;
  int64_t warmup = 0;
  double lr_floor = 0;
  float beta1 = 0.9f, beta2 = 0.999f, adam_eps = 1e-8f;
  float weight_decay = 0;
  float clip = 1;
  Recompute recompute = Recompute::none;
  int64_t eval_every = 0, checkpoint_every = 500;
  int keep = 3;
  LoraConfig lora;

  // `data_help` says what rows the method takes.
  template <class V>
  void visit(V&& v, const char* data_help) {
    v("model", model, "folder or file of the model to start from");
    v("data", data, data_help);
    v("val", val, "the same to validate on");
    v("holdout", holdout, "share of the data kept from training, to validate on");
    v("max_length", max_length, "tokens of an example; the rest is cut off; 0: 1024 at most");
    v("batch", batch, "examples, packed rows or pairs of a micro-batch");
    v("accumulate", accumulate, "micro-batches of an optimizer step");
    v("epochs", epochs, "times through the data");
    v("steps", steps, "optimizer steps, whatever the epochs; 0: by epochs");
    v("dtype", dtype, "auto, fp32, bf16 or, on a card, tf32; masters are fp32");
    v("seed", seed, "of shuffling, the held-out share and dropout");
    v("chat_template", chat_template, chat_form_help);
    v("clock", clock,
      "seconds since 1970 that chat templates take the date from; 0: those when the run begins");
    v("special_tokens", special_tokens,
      "special tokens written in prompts, completions or texts are those tokens, not characters");
    v("lr", lr, "peak learning rate");
    v("schedule", schedule, "constant, cosine or linear");
    v("warmup", warmup, "steps of linear warmup");
    v("lr_floor", lr_floor, "fraction of the peak that cosine and linear end at");
    v("beta1", beta1, "AdamW");
    v("beta2", beta2, "AdamW");
    v("adam_eps", adam_eps, "AdamW");
    v("weight_decay", weight_decay, "of matrices");
    v("clip", clip, "largest gradient norm; 0: no clipping");
    v("recompute", recompute, "none, light (norms, activations) or block");
    v("eval_every", eval_every, "steps between validations; 0: at the start and the end");
    v("checkpoint_every", checkpoint_every, "steps between checkpoints; 0: only at the end");
    v("keep", keep, "checkpoints kept beside the best");
    lora.visit(v);
  }
};

enum class SftPacking : uint8_t { none, bfd };
inline std::span<const std::string_view> names_of(SftPacking) {
  static constexpr auto names = std::to_array<std::string_view>({"none", "bfd"});
  return names;
}

struct SftConfig : AlignConfig {
  SftPacking packing = SftPacking::bfd;

  template <class V>
  void visit(V&& v) {
    AlignConfig::visit(v, "JSONL, a JSON list, Parquet or text to train on; patterns");
    v("packing", packing, "bfd: whole examples into rows of max_length, best fit; or none");
  }
};

enum class DpoLoss : uint8_t { sigmoid, hinge, ipo, cdpo, robust, sigmoid_norm };
inline std::span<const std::string_view> names_of(DpoLoss) {
  static constexpr auto names = std::to_array<std::string_view>(
      {"sigmoid", "hinge", "ipo", "cdpo", "robust", "sigmoid_norm"});
  return names;
}

enum class DpoReference : uint8_t { cached, live };
inline std::span<const std::string_view> names_of(DpoReference) {
  static constexpr auto names = std::to_array<std::string_view>({"cached", "live"});
  return names;
}

struct DpoConfig : AlignConfig {
  DpoConfig() { lr = 1e-6; }
  DpoLoss loss = DpoLoss::sigmoid;
  double beta = 0.1, label_smoothing = 0;
  DpoReference reference = DpoReference::cached;

  template <class V>
  void visit(V&& v) {
    AlignConfig::visit(v, "JSONL or a JSON list of prompts with two answers each; patterns");
    v("loss", loss, "sigmoid, hinge, ipo, cdpo, robust or sigmoid_norm");
    v("beta", beta, "weight of the KL penalty toward the reference model");
    v("label_smoothing", label_smoothing, "share of labels taken for wrong: cdpo, robust");
    v("reference", reference, "cached: its log-probabilities once, in a file; or live");
  }
};

}  // namespace hearth
