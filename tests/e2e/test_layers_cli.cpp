// Models whose layers differ, whose values have another width than their keys, or that have the
// choices of fast recipes, through the commands: training resumes to the bit, every task and the
// engine take them, files keep them or refuse them in one line.
#include <fmt/format.h>

#include "e2e/short_runs.h"
#include "formats/safetensors.h"

namespace hearth {
namespace {

struct Choice {
  const char* name;
  Arguments flags;
  const char* refusal;  // of GGUF; empty: it is written
  const char* type = "hearth";
};

const Choice choices[] = {
    {"attention-free",
     {"--layers", "3", "--mixer-pattern", "NA", "--window", "4"},
     "expected attention in every layer, got a mixer_pattern of \"NAN\""},
    {"wide-values",
     {"--v-head-dim", "12", "--output-gate", "elementwise"},
     "expected heads of values as wide as those of keys, got a v_head_dim of 12"},
    {"relative-bias",
     words("--position relative --relative-buckets 6 --relative-distance 9 --dropout-attention 0.1 "
           "--recompute block --window 12 --window-pattern SL --mtp 1 --mtp-loss 0.5"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it: llama cannot "
     "express position = relative"},
    {"experts",
     words("--layers 3 --experts 6 --top-k 2 --expert-hidden 8 --shared-experts 1 "
           "--first-dense-layers 1 --router sigmoid --router-bias --router-scale 2 "
           "--balance-loss 0.01 --router-z-loss 0.001 --balance-rate 0.01"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it: mixtral "
     "cannot express shared_experts = 1"},
    {"latent",
     words("--kv-heads 0 --kv-latent 12 --q-latent 10 --nope-dim 6 --rope-dim 4 --v-head-dim 5 "
           "--rope-pairs interleaved --recompute light"),
     "", "deepseek_v3"},
    {"latent-experts",
     words("--layers 3 --kv-heads 0 --kv-latent 12 --nope-dim 6 --rope-dim 4 --experts 6 --top-k 2 "
           "--expert-hidden 8 --shared-experts 1 --first-dense-layers 1 --router sigmoid "
           "--router-bias --window 6 --recompute block"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it: deepseek_v3 "
     "cannot express window = 6"},
    {"further-tokens",
     words("--mtp 2 --mtp-loss 0.5 --mtp-loss-schedule 0:0.2,2:0.3,3:0.5 --recompute block"), ""},
    {"latent-further-tokens",
     words("--layers 3 --kv-heads 0 --kv-latent 12 --nope-dim 6 --rope-dim 4 --experts 6 --top-k 2 "
           "--expert-hidden 8 --shared-experts 1 --first-dense-layers 1 --router sigmoid "
           "--router-bias --balance-rate 0.01 --balance-loss 0.01 --mtp 2 --recompute block"),
     "", "deepseek_v3"},
    {"longrope",
     words("--rotary 0.5 --rope-scaling longrope --rope-context 16 --rope-factor 2 "
           "--rope-short-factors 1,1.5 --rope-long-factors 1.25,9"),
     "", "phi3"},
    {"switch-experts", words("--experts 4 --top-k 1 --router switch --act relu2 --recompute block"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it: mixtral "
     "cannot express act = relu2"},
    {"recipe",
     words("--layers 4 --act relu2 --norm-gain=false --embed-norm --qk-norm before_rope "
           "--qk-norm-gain=false --rotary 0.5 --key-offset-pattern ONN --score-scale 0.3 "
           "--x0-skip --u-skips "
           "--value-embeds 1 --value-residual --smear --bigram-embeds 50 --output-gate per_head "
           "--gate-inputs 8 --window 6 --long-window 12 --window-pattern LSS "
           "--window-schedule 0:2,2:6 --long-window-schedule 0:4,3:12 --tied=false "
           "--zero-projections --zero-head --embed-std 1 --logit-scale 0.25 --logit-softcap 15 "
           "--lr-factors vector:5,embedding:2"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it"},
    {"key-offset",
     words("--norm layer --norm-bias --parallel-residual --rotary 0.5 --kv-heads 0 --qkv-bias "
           "--out-bias --mlp-bias --act gelu_erf --tied=false --key-offset-pattern O "
           "--recompute light --document-mask"),
     "llama.cpp has no architecture that computes this model, so GGUF cannot hold it: gpt_neox "
     "cannot express key_offset_pattern = O"}};

// The tensors of a file that are of modules of multi-token prediction, or the others.
std::map<std::string, std::string> tensors_of(const fs::path& path, int64_t layers, bool modules) {
  const Safetensors file(path);
  std::map<std::string, std::string> found;
  for (const auto& [name, tensor] : file.tensors()) {
    bool is_of_module = name.find("mtp.") != name.npos;
    for (const int64_t layer : {layers, layers + 1})
      is_of_module = is_of_module || name.starts_with(fmt::format("model.layers.{}.", layer));
    const bool copy =
        is_of_module && (name.ends_with("embed_tokens.weight") || name.ends_with("head.weight"));
    if (is_of_module == modules && !copy) found[name] = std::string(to_text(tensor.bytes));
  }
  return found;
}

// The tensors of the modules of multi-token prediction of a model with `layers` layers, without the
// copies that deepseek_v3 stores of the model's own embedding and head.
std::map<std::string, std::string> module_tensors(const fs::path& model, int64_t layers) {
  return tensors_of(model / "latest/model.safetensors", layers, true);
}

// A few greedy tokens of a model.
std::string generated(const ShortRuns& runs, const fs::path& model, const Arguments& more = {}) {
  const Ran r = run(runs.folder, Arguments{"generate", "--model", model.string(), "--prompt", "ab",
                                           "--max-tokens", "12", "--greedy", "--threads", "1"} +
                                     more);
  EXPECT_EQ(r.status, 0) << r.err;
  return r.out;
}

class LayerCommand : public testing::TestWithParam<Choice> {};

TEST_P(LayerCommand, ResumesToTheBit) {
  const ShortRuns runs;
  const fs::path whole = runs.folder / "whole", parts = runs.folder / "parts";
  const Ran all = run(runs.folder, runs.arguments("pretrain", whole) + GetParam().flags);
  ASSERT_EQ(all.status, 0) << all.err;
  ASSERT_EQ(run(runs.folder, runs.arguments("pretrain", parts) + GetParam().flags +
                                 Arguments{"--stop-after-step", "3"})
                .status,
            0);
  const Ran rest = run(runs.folder, {"pretrain", "--run", parts.string(), "--resume"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  for (const char* file : {"log.jsonl", "samples.jsonl", "latest/config.json",
                           "latest/model.safetensors", "latest/state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;
}

// Latent attention rounds as in training only if it is asked to.
TEST(LatentGeneration, BatchInvariantIsTheOtherForm) {
  const ShortRuns runs;
  const fs::path base = runs.folder / "base";
  const Ran made =
      run(runs.folder, runs.arguments("pretrain", base) +
                           words("--kv-heads 0 --kv-latent 12 --nope-dim 6 --rope-dim 4"));
  ASSERT_EQ(made.status, 0) << made.err;
  const auto logprobs = [&](const Arguments& more) {
    const Ran r = run(runs.folder, words("generate --model " + base.string() +
                                         " --prompt ab --max-tokens 20 --greedy --ignore-eos "
                                         "--threads 1 --dtype fp32 --logprobs 0 --json") +
                                       more);
    EXPECT_EQ(r.status, 0) << r.err;
    std::vector<double> all;
    const auto answer = nlohmann::json::parse(r.out);
    for (const auto& token : answer["logprobs"]) all.push_back(token["logprob"].get<double>());
    return all;
  };
  const std::vector<double> absorbed = logprobs({}), expanded = logprobs({"--batch-invariant"});
  ASSERT_EQ(absorbed.size(), 20u);
  ASSERT_EQ(expanded.size(), 20u);
  EXPECT_NE(absorbed, expanded);
  for (size_t i = 0; i < 20; ++i) EXPECT_NEAR(absorbed[i], expanded[i], 1e-4);
}

// A run and an engine say that they use the long factors, of which a user may not be aware.
TEST(LongRopeCommand, SaysThatItUsesTheLongFactors) {
  const ShortRuns runs;
  const Arguments flags = words(
      "--rope-scaling longrope --rope-context 16 --rope-short-factors 1,1.5,2,3 "
      "--rope-long-factors 1,3,9,27 --rope-attention-factor 1.5");
  const std::string note = "hearth: RoPE uses the long factors of longrope, because sequences may ";
  const auto trained = [&](const char* name, const Arguments& more) {
    return run(runs.folder, runs.arguments("pretrain", runs.folder / name) + flags + more);
  };
  const auto told = [&](const Ran& r, const std::string& length) {
    EXPECT_EQ(r.status, 0) << r.err;
    const bool said = r.err.find(note + "have " + length) != std::string::npos;
    EXPECT_EQ(said, !length.empty()) << r.err;
    EXPECT_EQ(r.err.find("long factors") != std::string::npos, !length.empty()) << r.err;
  };
  told(trained("short", {}), "");
  told(trained("long", words("--seq 32")), "32 tokens");
  const std::string model = " --model " + (runs.folder / "short").string();
  const auto generated = [&](const char* tokens) {
    return run(runs.folder, words("generate" + model + " --prompt ab --greedy --ignore-eos " +
                                  "--max-tokens " + tokens));
  };
  told(generated("5"), "");
  told(generated("30"), "32 tokens");
  write_file_atomic(runs.folder / "ids.txt", "1 2 3\n4 5 6 7 8 9\n");
  const auto logits = [&](const char* greedy) {
    return run(
        runs.folder,
        words("eval --task logits" + model + " --data " + (runs.folder / "ids.txt").string() +
              " --out " + (runs.folder / "l.safetensors").string() + " --greedy " + greedy));
  };
  told(logits("10"), "");
  told(logits("11"), "17 tokens");

  const Ran few = trained("few", words("--rope-long-factors 1,2"));
  expect_error(few, 2,
               "expected 4 numbers in --rope-long-factors, one per pair of rotated dims, got 2");
  const Ran other = trained("other", words("--rope-scaling linear --rope-factor 2"));
  expect_error(other, 2, "[--rope-context] has no effect: rope_scaling is linear; leave it out");
}

// Gains of gemma are stored without their 1, in which bf16 has other steps than in the gain.
TEST(GemmaRun, ResumesToTheBitInBf16) {
  const ShortRuns runs;
  const fs::path whole = runs.folder / "whole", parts = runs.folder / "parts";
  const Arguments flags = words(
      "--dtype bf16 --layers 2 --norm-place sandwich --embed-scale 4 --act geglu_tanh "
      "--qk-norm before_rope --window 9 --window-pattern SL --rope-pattern LR");
  const Ran all = run(runs.folder, runs.arguments("pretrain", whole) + flags);
  ASSERT_EQ(all.status, 0) << all.err;
  EXPECT_NE(read_file(whole / "latest/config.json").find("gemma3_text"), std::string::npos);
  const Ran first = run(
      runs.folder, runs.arguments("pretrain", parts) + flags + Arguments{"--stop-after-step", "3"});
  ASSERT_EQ(first.status, 0) << first.err;
  const Ran rest = run(runs.folder, {"pretrain", "--run", parts.string(), "--resume"});
  ASSERT_EQ(rest.status, 0) << rest.err;
  for (const char* file :
       {"log.jsonl", "latest/model.safetensors", "latest/state/optimizer.safetensors"})
    EXPECT_TRUE(read_file(whole / file) == read_file(parts / file)) << file;
}

TEST_P(LayerCommand, IsAlignedGeneratedAndConverted) {
  const ShortRuns runs;
  const fs::path base = runs.folder / "base";
  const Ran made = run(runs.folder, runs.arguments("pretrain", base) + GetParam().flags);
  ASSERT_EQ(made.status, 0) << made.err;
  const std::string common =
      " --model " + base.string() + " --steps 2 --warmup 0 --weight-decay 0.1 --threads 1";
  const auto file = [&](const char* name) { return " " + (runs.folder / name).string(); };
  const Ran sft =
      run(runs.folder, words("sft --run" + file("sft") + common + " --data" + file("rows.jsonl") +
                             " --batch 6 --lr 1e-2 --max-length 32"));
  EXPECT_EQ(sft.status, 0) << sft.err;
  const Ran lora =
      run(runs.folder, words("dpo --run" + file("lora") + common + " --data" + file("pairs.jsonl") +
                             " --batch 2 --max-length 32" + " --lora 2"));
  EXPECT_EQ(lora.status, 0) << lora.err;
  const Ran grpo = run(
      runs.folder, words("grpo --run" + file("grpo") + common + " --data" + file("prompts.jsonl") +
                         " --reward exact --prompts 2" + " --group 2 --max-completion 4"));
  EXPECT_EQ(grpo.status, 0) << grpo.err;

  // The adapters are found again by the names that they were written with.
  generated(runs, runs.folder / "lora");

  const fs::path folder = runs.folder / "folder";
  const Ran own = run(runs.folder, {"convert", "--from", base.string(), "--to", folder.string()});
  ASSERT_EQ(own.status, 0) << own.err;
  EXPECT_NE(read_file(folder / "config.json")
                .find(fmt::format("\"model_type\": \"{}\"", GetParam().type)),
            std::string::npos);
  EXPECT_EQ(generated(runs, folder), generated(runs, base));

  const Ran gguf = run(runs.folder, {"convert", "--from", base.string(), "--gguf",
                                     (runs.folder / "m.gguf").string()});
  if (!*GetParam().refusal) {
    ASSERT_EQ(gguf.status, 0) << gguf.err;
    EXPECT_EQ(generated(runs, runs.folder / "m.gguf"), generated(runs, base));
    return;
  }
  EXPECT_NE(gguf.status, 0);
  EXPECT_NE(gguf.err.find(GetParam().refusal), std::string::npos) << gguf.err;
  EXPECT_FALSE(fs::exists(runs.folder / "m.gguf"));
}

// Has pretrained a model with modules.
class ModuleCommand : public testing::TestWithParam<Choice> {
 protected:
  void SetUp() override {
    const Arguments& flags = GetParam().flags;
    ASSERT_EQ(run(runs.folder, runs.arguments("pretrain", base) + flags).status, 0);
    const auto layers = std::ranges::find(flags, "--layers");
    if (layers != flags.end()) L = std::stoi(*(layers + 1));
    before = module_tensors(base, L);
    ASSERT_GT(before.size(), 3u);
  }
  std::string file(const std::string& name) const { return " " + (runs.folder / name).string(); }

  const ShortRuns runs;
  const fs::path base = runs.folder / "base";
  int64_t L = 1;                              // layers
  std::map<std::string, std::string> before;  // the tensors of the modules
};

// SFT trains the modules of multi-token prediction; with a weight of 0, and in DPO and GRPO, the
// modules are saved as they were, without decay, also by a run that was resumed.
TEST_P(ModuleCommand, KeepsOrTrainsItsModules) {
  struct Tuning {
    const char *name, *task;
    std::string more;
  };
  const std::string sft = " --data" + file("rows.jsonl") + " --batch 6 --max-length 32";
  for (const Tuning& t :
       {Tuning{"learns", "sft", sft},
        {"stays", "sft", sft + " --mtp-loss 0"},
        {"dpo", "dpo", " --data" + file("pairs.jsonl") + " --batch 2 --max-length 32"},
        {"grpo", "grpo",
         " --data" + file("prompts.jsonl") +
             " --reward exact --prompts 2 --group 2 --max-completion 4 --train-equal"}}) {
    SCOPED_TRACE(t.name);
    const fs::path tuned = runs.folder / t.name;
    const Ran first = run(runs.folder, words(std::string(t.task) + " --run" + file(t.name) +
                                             " --model " + base.string() + t.more +
                                             " --steps 2 --warmup 0 --lr 1e-2 --weight-decay 5"
                                             " --threads 1 --stop-after-step 1"));
    ASSERT_EQ(first.status, 0) << first.err;
    const Ran rest = run(runs.folder, {t.task, "--run", tuned.string(), "--resume"});
    ASSERT_EQ(rest.status, 0) << rest.err;
    const bool learns = t.name == std::string("learns");
    EXPECT_EQ(read_file(tuned / "log.jsonl").find("\"mtp_1\":") != std::string::npos, learns);
    const auto after = module_tensors(tuned, L);
    ASSERT_EQ(after.size(), before.size());
    for (const auto& [name, bytes] : after) EXPECT_EQ(bytes != before.at(name), learns) << name;
    EXPECT_TRUE(read_file(tuned / "latest/model.safetensors") !=
                read_file(base / "latest/model.safetensors"));
    EXPECT_EQ(generated(runs, tuned, {"--draft", "mtp"}), generated(runs, tuned));
  }
}

// The values of a log without those of modules and of routers, of which modules have some.
std::vector<nlohmann::json> log_of_model(const fs::path& run) {
  std::vector<nlohmann::json> all;
  std::istringstream lines(read_file(run / "log.jsonl"));
  for (std::string line; std::getline(lines, line);) {
    nlohmann::json j = nlohmann::json::parse(line);
    for (const char* name : {"mtp_1", "mtp_2", "expert_load", "expert_violation"}) j.erase(name);
    all.push_back(std::move(j));
  }
  return all;
}

// With --mtp-loss DPO and GRPO train the modules and leave every bit of the model, its log and its
// optimizer's state as they are without, also where gradients are clipped and the run is resumed.
TEST_P(ModuleCommand, TrainsItsModulesBesideThePolicy) {
  for (const std::string task : {"dpo", "grpo"}) {
    if (!ShortRuns::can_run(task)) continue;
    SCOPED_TRACE(task);
    const std::string own =
        task == "dpo" ? " --data" + file("pairs.jsonl") + " --batch 5 --accumulate 3 --beta 1"
                      : " --data" + file("prompts.jsonl") +
                            " --reward regex:[a-m] --prompts 6 --group 4 --max-completion 4"
                            " --mu 2 --micro-tokens 40 --temperature 1.5";
    const auto arguments = [&](const char* name) {
      return words(task + " --run" + file(task + name) + " --model " + base.string() + own +
                   " --steps 5 --warmup 0 --schedule constant --lr 2e-2 --clip 0.05"
                   " --weight-decay 0.1 --threads 1 --clock 1700000000");
    };
    const Arguments taught = arguments("whole") + words("--mtp-loss 0.3");
    const fs::path plain = runs.folder / (task + "plain"), whole = runs.folder / (task + "whole");
    const fs::path parts = runs.folder / (task + "parts");
    for (const Arguments& each : {arguments("plain"), taught,
                                  arguments("parts") + words("--mtp-loss 0.3 --stop-after-step 2"),
                                  Arguments{task, "--run", parts.string(), "--resume"}}) {
      const Ran r = run(runs.folder, each);
      ASSERT_EQ(r.status, 0) << r.err;
    }
    const auto model = [&](const fs::path& of, const char* name) {
      return tensors_of(of / "latest" / name, L, false);
    };
    for (const char* name : {"model.safetensors", "state/optimizer.safetensors"}) {
      const auto want = model(plain, name), got = model(whole, name);
      ASSERT_GT(want.size(), 3u);
      ASSERT_EQ(got.size(), want.size());
      for (const auto& [tensor, bytes] : want) EXPECT_TRUE(got.at(tensor) == bytes) << tensor;
      EXPECT_TRUE(read_file(whole / "latest" / name) == read_file(parts / "latest" / name));
    }
    EXPECT_NE(model(whole, "model.safetensors"), model(base, "model.safetensors"));
    EXPECT_EQ(log_of_model(whole), log_of_model(plain));
    EXPECT_EQ(read_file(whole / "log.jsonl"), read_file(parts / "log.jsonl"));
    EXPECT_EQ(module_tensors(plain, L), before);
    for (const auto& [name, bytes] : module_tensors(whole, L))
      EXPECT_TRUE(bytes != before.at(name) || name.ends_with("bias")) << name;
    // All pairs are in every step, so the loss of the modules falls.
    std::vector<double> losses;
    std::istringstream lines(read_file(whole / "log.jsonl"));
    for (std::string line; std::getline(lines, line);)
      if (const auto j = nlohmann::json::parse(line); j.contains("mtp_1"))
        losses.push_back(j["mtp_1"].get<double>());
    ASSERT_GT(losses.size(), 2u);
    EXPECT_TRUE(task != "dpo" || losses.back() < losses.front() - 0.1) << losses.back();
    EXPECT_EQ(generated(runs, whole, {"--draft", "mtp"}), generated(runs, whole));
  }
}

// A weight for modules that there are not, or that adapters leave in the base, is refused.
TEST(ModuleLoss, IsRefusedWhereNoModulesLearn) {
  const ShortRuns runs;
  const fs::path plain = runs.folder / "plain", base = runs.folder / "base";
  ASSERT_EQ(run(runs.folder, runs.arguments("pretrain", plain)).status, 0);
  ASSERT_EQ(run(runs.folder, runs.arguments("pretrain", base) + words("--mtp 1")).status, 0);
  for (const std::string task : {"dpo", "grpo"}) {
    const auto refusal = [&](const fs::path& model, const std::string& more, const char* what) {
      const char* data = task == "dpo" ? "pairs.jsonl" : "prompts.jsonl";
      const Ran r =
          run(runs.folder, words(task + " --run " + (runs.folder / "run").string() + " --model " +
                                 model.string() + " --data " + (runs.folder / data).string() +
                                 (task == "dpo" ? "" : " --reward exact") + " --steps 1 " + more));
      expect_error(r, 2, what);
      EXPECT_FALSE(fs::exists(runs.folder / "run"));
    };
    refusal(plain, "--mtp-loss 0.3",
            "[--mtp-loss] has no effect: the model has no mtp modules; leave it out");
    refusal(base, "--mtp-loss 0.3 --lora 2",
            "[--mtp-loss] has no effect: adapters leave modules as they are; leave it out");
    refusal(base, "--mtp-loss -1", "[--mtp-loss] expected a weight of 0 or more, got -1");
  }
}

// Modules of multi-token prediction draft, and change no token.
TEST(DraftCommand, DraftsWithModules) {
  const ShortRuns runs;
  const auto trained = [&](const char* name, const Arguments& flags) {
    const Ran r = run(runs.folder, runs.arguments("pretrain", runs.folder / name) + flags);
    EXPECT_EQ(r.status, 0) << r.err;
  };
  trained("modules", {"--mtp", "2"});
  trained("plain", {});
  const auto generated = [&](const char* model, const std::string& flags) {
    return run(runs.folder, words(fmt::format("generate --model {} --prompt ab --max-tokens 20 "
                                              "--threads 1 {}",
                                              (runs.folder / model).string(), flags)));
  };
  for (const std::string how : {"--greedy", "--temperature 1.3 --seed 5"})
    for (const char* drafts : {" --draft mtp", " --draft mtp --speculate 4"}) {
      const Ran without = generated("modules", how), with = generated("modules", how + drafts);
      ASSERT_EQ(with.status, 0) << with.err;
      EXPECT_EQ(with.out, without.out);
      EXPECT_NE(with.err.find(", drafts accepted "), std::string::npos) << with.err;
      EXPECT_EQ(without.err.find(", drafts accepted "), std::string::npos) << without.err;
    }
  const Ran refused = generated("plain", "--draft mtp");
  EXPECT_EQ(refused.status, 2);
  EXPECT_NE(refused.err.find("expected a model with modules of multi-token prediction (mtp)"),
            std::string::npos)
      << refused.err;
  const std::string modules = runs.folder / "modules", plain = runs.folder / "plain";
  const Ran served = run(runs.folder, {"serve", "--port", "0", "--model", modules, "--model", plain,
                                       "--draft", "mtp"});
  EXPECT_EQ(served.status, 2);
  EXPECT_NE(served.err.find("[--draft] expected a model with modules of multi-token prediction "
                            "(mtp), got " +
                            plain + " without"),
            std::string::npos)
      << served.err;
  const Ran full = generated("modules", "--adapter " + plain);
  EXPECT_NE(full.err.find("[" + plain +
                          "] this folder holds no adapter: its newest checkpoint has "
                          "no adapter_config.json"),
            std::string::npos)
      << full.err;
  EXPECT_NE(generated("modules", "--draft ngram").err.find("expected lookup or mtp, got \"ngram\""),
            std::string::npos);
  const Ran timed =
      run(runs.folder, words("bench infer --preset tiny --mtp 1 --draft mtp --batch 2 "
                             "--prompt 8 --new 8 --repeats 1 --threads 1 --json"));
  ASSERT_EQ(timed.status, 0) << timed.err;
  const auto told = nlohmann::json::parse(timed.out);
  EXPECT_GT(told["drafted"].get<int>(), 0);
  EXPECT_EQ(told["acceptance"].size(), 1u);
  // The same of a trained model and of a text.
  const std::string model = "bench infer --model " + modules +
                            " --draft mtp --batch 2 --repeats 1 --threads 1 --dtype fp32 ";
  write_file_atomic(runs.folder / "text", std::string_view("a b c d e f g h i j k l m n o p"));
  const Ran text = run(
      runs.folder, words(model + "--prompt 6 --new 9 --text " + (runs.folder / "text").string()));
  ASSERT_EQ(text.status, 0) << text.err;
  EXPECT_NE(text.out.find(modules + " fp32 batch 2, prompt 6 + 9 new: "), std::string::npos)
      << text.out;
  EXPECT_NE(text.out.find(" GiB, accepted of the drafts "), std::string::npos) << text.out;
  const Ran drafted = run(runs.folder, words(model + "--prompt 6 --new 9 --speculate 2 --json"));
  ASSERT_EQ(drafted.status, 0) << drafted.err;
  EXPECT_EQ(nlohmann::json::parse(drafted.out)["acceptance"].size(), 2u);
  expect_error(run(runs.folder, words(model + "--layers 2")), 2,
               "[--model] has its own shape and tokenizer");
  expect_error(run(runs.folder, words(model + "--prompt 30 --new 9")), 2,
               "[--new] expected --prompt and --new of at most 32 tokens together");
}

std::vector<Choice> choices_with_modules() {
  std::vector<Choice> all;
  std::ranges::copy_if(choices, std::back_inserter(all),
                       [](const Choice& c) { return std::ranges::count(c.flags, "--mtp") > 0; });
  return all;
}

std::string name_of(const testing::TestParamInfo<Choice>& info) {
  std::string name = info.param.name;
  std::ranges::replace(name, '-', '_');
  return name;
}

INSTANTIATE_TEST_SUITE_P(, LayerCommand, testing::ValuesIn(choices), name_of);
INSTANTIATE_TEST_SUITE_P(, ModuleCommand, testing::ValuesIn(choices_with_modules()), name_of);

}  // namespace
}  // namespace hearth
