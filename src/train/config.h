// TrainConfig: everything about a pretraining run that is not the model. Written to the run folder
// as config.toml; a resumed run reads it back.
#pragma once

#include <cmath>
#include <optional>
#include <string>
#include <type_traits>
#include <vector>

#include "data/loader.h"
#include "formats/enum_names.h"
#include "model/decoder.h"
#include "optim/schedule.h"
#include "optim/update_program.h"
#include "sys/error.h"
#include "train/losses.h"

namespace hearth::inline train {

HEARTH_ENUM_NAMES(LoaderSpec::Order, {"sequential", "shuffled"})

// tf32: fp32 everywhere, but a GPU's tensor cores round the inputs of products. fp8: bf16, but the
// products of linear layers round their inputs to fp8 (docs/fp8.md). automatic: not chosen yet; a
// command resolves it for its device before the run begins (model/auto_dtype.h).
enum class TrainDType : uint8_t { fp32, tf32, bf16, fp16, fp8, automatic };
HEARTH_ENUM_NAMES(TrainDType, {"fp32", "tf32", "bf16", "fp16", "fp8", "auto"})
inline DType to_dtype(TrainDType d) {
  if (d == TrainDType::automatic)
    fail_usage("--dtype", "expected fp32, tf32, bf16 or fp16 here, got auto");
  if (d == TrainDType::fp8)
    fail_usage("--dtype", "fp8 is a type of training, which is not done here; choose bf16");
  return d == TrainDType::bf16 ? DType::bf16 : d == TrainDType::fp16 ? DType::f16 : DType::f32;
}

// The same for commands that train: weights and activations are then bf16.
inline DType storage_dtype(TrainDType d) {
  return d == TrainDType::fp8 ? DType::bf16 : to_dtype(d);
}

enum class Fp8Head : uint8_t { on, off };
HEARTH_ENUM_NAMES(Fp8Head, {"on", "off"})
enum class Fp8Wgrad : uint8_t { fp8, bf16 };
HEARTH_ENUM_NAMES(Fp8Wgrad, {"fp8", "bf16"})
// Which products run in fp8 beside those of the linear layers' forward pass and input gradients.
struct Fp8Config {
  Fp8Head head = Fp8Head::on;
  Fp8Wgrad wgrad = Fp8Wgrad::fp8;

  template <class V>
  void visit(V&& v) {
    v("fp8_head", head, "with --dtype fp8: on: the products of the head are fp8 too; off: bf16");
    visit_wgrad(v);
  }
  // Of the tasks whose head is always bf16: DPO and GRPO.
  template <class V>
  void visit_wgrad(V&& v) {
    v("fp8_wgrad", wgrad, "with --dtype fp8: type of the products for weight gradients: fp8, bf16");
  }
  bool operator==(const Fp8Config&) const = default;
  // What a program records; nothing: no fp8.
  std::optional<Fp8Recording> recording(TrainDType d) const {
    if (d != TrainDType::fp8) return {};
    return Fp8Recording{.head = head == Fp8Head::on, .wgrad = wgrad == Fp8Wgrad::fp8};
  }
  // The same in fine-tuning. Its batches differ in size, and with that the gradients, so no scale
  // comes from the previous step.
  std::optional<Fp8Recording> fine_tuning(TrainDType d) const {
    std::optional<Fp8Recording> r = recording(d);
    if (r) r->measured = true;
    return r;
  }
};

// Throws a usage error unless a setting is finite and at least `low`.
template <class T>
void expect_at_least(std::type_identity_t<T> low, const char* flag, T x) {
  if (!(x >= low) || !std::isfinite(double(x)))
    fail_usage(flag, "expected {} or more, got {}", low, x);
}

// Help texts of settings whose meaning differs between tasks.
struct RunHelp {
  const char* steps = "optimizer steps";
  const char* eval_every = "steps between validations; 0: only at the end";
  const char* seed = "random seed for initialisation, shuffling and dropout";
};

// The settings that every training command shares; the config of each task inherits them.
struct RunConfig : RateConfig {
  int64_t steps = 1000;
  TrainDType dtype = TrainDType::fp32;
  Fp8Config fp8;  // each task visits those of its choices that it uses
  uint64_t seed = 1;
  OptimizerKind optimizer = OptimizerKind::adamw;
  float beta1 = 0.9f, beta2 = 0.95f, adam_eps = 1e-8f;
  float weight_decay = 0.1f;
  bool decay_all = false;
  std::string lr_factors, group_beta1, group_beta2, group_weight_decay;
  MuonConfig muon;
  float clip = 1;
  double spike_z = 0;
  Recompute recompute = Recompute::none;
  bool offload = false;
  int64_t eval_every = 250, checkpoint_every = 500;
  bool save_best = true;
  int keep = 3;

  template <class V>
  void visit_run(V&& v, const RunHelp& help = {}) {
    v("steps", steps, help.steps);
    v("dtype", dtype,
      "compute type: auto, fp32, bf16 or fp8; on a GPU also tf32 or fp16; master weights stay "
      "fp32");
    v("seed", seed, help.seed);
    v("optimizer", optimizer, optimizer_help);
    visit_rate(v);
    v("beta1", beta1, beta1_help);
    v("beta2", beta2, beta2_help);
    v("adam_eps", adam_eps, "AdamW epsilon, added to the root of the second moment");
    v("weight_decay", weight_decay, "weight decay of the weight matrices");
    v("decay_all", decay_all, "apply weight decay to norms, biases and embeddings too");
    v("lr_factors", lr_factors,
      "factors on the learning rate by parameter group, such as embedding:10,vector:2; groups: "
      "matrix, head (untied), embedding, vector");
    v("group_beta1", group_beta1, "beta1 of single parameter groups, such as embedding:0.8");
    v("group_beta2", group_beta2, "beta2 of single parameter groups, such as embedding:0.99");
    v("group_weight_decay", group_weight_decay,
      "weight decay of single parameter groups, such as embedding:0.01,head:0");
    muon.visit(v);
    v("clip", clip, "maximum gradient norm; larger gradients are scaled down; 0: no clipping");
    v("spike_z", spike_z,
      "skip a step whose loss is this many standard deviations above the last 128 losses; 0: off");
    v("recompute", recompute,
      "gradient checkpointing: none, light (recompute norms and activation functions) or block "
      "(recompute whole blocks)");
    v("offload", offload,
      "keep optimizer state and master weights in host memory to save GPU memory");
    v("eval_every", eval_every, help.eval_every);
    v("checkpoint_every", checkpoint_every, "steps between checkpoints; 0: only at the end");
    v("save_best", save_best,
      "also save a checkpoint after each validation that is better than those before");
    v("keep", keep,
      "number of checkpoints to keep, besides the best one and the one that bad steps roll back "
      "to");
  }

  UpdateSpec update_spec() const {
    return {.optimizer = optimizer,
            .beta1 = beta1,
            .beta2 = beta2,
            .eps = adam_eps,
            .decay = weight_decay,
            .decay_all = decay_all,
            .rates = parse_groups(lr_factors, "--lr-factors"),
            .beta1s = parse_groups(group_beta1, "--group-beta1", 1),
            .beta2s = parse_groups(group_beta2, "--group-beta2", 1),
            .decays = parse_groups(group_weight_decay, "--group-weight-decay"),
            .muon = muon,
            .exact_f32 = dtype == TrainDType::fp32};
  }
  UpdateProgram::Fp8 fp8_update() const { return UpdateProgram::Fp8(dtype == TrainDType::fp8); }
  // The next step after `step` whose checkpoint may be written while training continues; `total`:
  // there is only the last checkpoint.
  int64_t next_save(int64_t step, int64_t total, bool evaluates) const;
  // Throws an error that names the flag of the first setting that a run of `total` steps cannot
  // use.
  void check_run(int64_t total) const;
};

struct TrainConfig : RunConfig {
  std::string model;
  std::vector<std::string> data, val;
  std::string tokenizer;
  int64_t batch = 0;
  std::string seq = "0", tokens_per_step = "0";
  std::string window_schedule, long_window_schedule, head_schedule;
  std::string mtp_loss_schedule, further_loss_schedule;
  LoaderSpec::Order order = LoaderSpec::Order::sequential;
  bool document_mask = false;
  int64_t document_start = -1;
  int workers = 2, prefetch = 4;
  int64_t eval_tokens = 0;
  bool eval_documents = false;
  double target_loss = 0;
  LossConfig losses;
  int64_t sample_every = 0, sample_tokens = 100;
  std::string sample_prompt;

  template <class V>
  void visit(V&& v) {
    v("model", model,
      "model to continue pretraining: a run, a checkpoint, a Hugging Face folder or a .gguf");
    v("data", data,
      "token files to train on: paths or globs, optionally weighted: a*.bin:0.7,b*.bin:0.3");
    v("val", val, "token files to validate on");
    v("tokenizer", tokenizer,
      "tokenizer to store with the checkpoints and to sample with; sets --vocab");
    v("batch", batch,
      "sequences per micro-batch, or, if --seq is a schedule, while its first length lasts; 0: as "
      "many as fit in memory, up to --tokens-per-step, which has to be given then");
    v("seq", seq,
      "tokens per sequence; 0: the model's context; or a schedule of STEP:TOKENS: 0:256,1000:1024, "
      "where a step may be a share of the run: 0:256,50%:1024");
    v("tokens_per_step", tokens_per_step,
      "tokens per optimizer step; 0: one micro-batch of batch sequences; or a schedule: "
      "0:65536,1000:131072");
    v("window_schedule", window_schedule,
      "the model's window by step, such as 0:128,500:256 or 0:128,50%:256; ends at --window; "
      "empty: "
      "the same in all steps");
    v("long_window_schedule", long_window_schedule,
      "the same for the layers that --window-pattern marks L; ends at --long-window");
    v("head_schedule", head_schedule,
      "whether an untied head is tied to the token embedding, by step: 0:tied,67%:untied; empty: "
      "never");
    visit_run(v);
    losses.visit(v);
    v("mtp_loss_schedule", mtp_loss_schedule,
      "--mtp-loss by step, such as 0:0.3,50%:0.1 with --mtp-loss 0.1, at which it has to end; "
      "empty: "
      "the same in all steps");
    v("further_loss_schedule", further_loss_schedule,
      "--further-loss by step, such as 0:0.5,60%:0; ends at --further-loss; empty: the same in all "
      "steps");
    fp8.visit(v);
    v("order", order, "order of the training data: sequential or shuffled");
    v("document_mask", document_mask,
      "mask attention across documents and restart positions at each document");
    v("document_start", document_start,
      "id of the token that starts a document; -1: the tokenizer's eos");
    v("workers", workers, "data loader threads");
    v("prefetch", prefetch, "batches to prefetch");
    v("eval_tokens", eval_tokens,
      "validation tokens, taken from the start of the files; 0: as many as 64 steps train "
      "on, rounded down to a power of two, at most 2^20");
    v("eval_documents", eval_documents,
      "validate on separate documents; only documents longer than seq are cut");
    v("target_loss", target_loss, "stop when the validation loss reaches this value; 0: never");
    v("sample_every", sample_every, "steps between text samples; 0: none");
    v("sample_tokens", sample_tokens, "tokens per sample");
    v("sample_prompt", sample_prompt, "prompt of the samples");
  }

  // Throws an error that names the flag of the first invalid value. Settings that depend on files
  // or on the model are checked when those are loaded.
  void check() const;
};

}  // namespace hearth::inline train
