// Adapters as a user calls them: run beside a model, merged into it, and planned for.
#include "cpu/backend.h"
#include "e2e/command.h"
#include "model/decoder.h"
#include "model/files/adapter.h"
#include "model/files/folder.h"
#include "served_folder.h"

namespace hearth {
namespace {

// A model with its tokenizer, and an adapter that matters.
struct LoraFolder {
  Folder folder;
  std::string base = folder / "base", adapter = folder / "adapter";
  LoraFolder() {
    write_served_folder(base);
    ModelConfig c = ModelSource::open(base).config();
    c.lora = {.rank = 4, .alpha = 8, .targets = {"q_proj", "v_proj", "down_proj"}};
    const auto backend = make_cpu_backend(1);
    ParamStore params(*backend, decoder_params(c), DType::f32);
    for (const ParamSpec& p : params.specs()) {
      std::vector<float> v(size_t(p.shape.numel()));
      draw(v, Init::normal(0.3f), 3, p.name);
      params.set(p.name, v);
    }
    make_dirs(adapter);
    write_adapter(adapter, c, params, base);
  }
};

TEST(LoraCommands, UnmergedIsMerged) {
  const LoraFolder f;
  const std::string merged = f.folder / "merged";
  const auto done =
      json_of(run(f.folder, {"convert", "--adapter", f.adapter, "--merge", merged, "--json"}));
  EXPECT_EQ(done["model_type"], "llama");
  EXPECT_TRUE(done["tokenizer"].get<bool>());
  const auto text = [&](const Arguments& model) {
    return json_of(
        run(f.folder, Arguments{"generate", "--prompt", "Once", "--greedy", "--max-tokens", "24",
                                "--ignore-eos", "--dtype", "fp32", "--json"} +
                          model))["tokens"];
  };
  const auto plain = text({"--model", f.base});
  const auto unmerged = text({"--model", f.base, "--adapter", f.adapter});
  EXPECT_EQ(unmerged, text({"--model", merged}));
  EXPECT_EQ(unmerged, text({"--model", f.adapter}));  // it names its base
  EXPECT_NE(unmerged, plain);

  write_file_atomic(f.folder / "t.txt", "Once upon a time there was a dog and the dog ran.\n");
  const auto perplexity = [&](const Arguments& model) {
    return json_of(run(f.folder, Arguments{"eval", "--task", "perplexity", "--data",
                                           f.folder / "t.txt", "--dtype", "fp32", "--json"} +
                                     model))["value"]
        .get<double>();
  };
  const double with = perplexity({"--model", f.base, "--adapter", f.adapter});
  EXPECT_NEAR(with / perplexity({"--model", merged}), 1, 1e-5);
  EXPECT_EQ(with, perplexity({"--model", f.adapter}));
  json_of(run(f.folder, {"convert", "--from", f.adapter, "--to", f.folder / "again", "--json"}));
  EXPECT_EQ(read_file(f.folder / "again" / "model.safetensors"),
            read_file(f.folder / "merged" / "model.safetensors"));
  EXPECT_GT(std::abs(with / perplexity({"--model", f.base}) - 1), 0.01);
}

TEST(LoraCommands, FitSaysThatFrozenWeightsNeedNothing) {
  const Folder folder;
  const Arguments fit{"bench", "fit",     "--preset", "gpt2",   "--batch",  "1",  "--seq",
                      "128",   "--dtype", "bf16",     "--json", "--device", "cpu"};
  const auto whole = json_of(run(folder, fit));
  const auto lora = json_of(run(folder, fit + Arguments{"--lora", "16"}));
  // c_attn, c_proj, c_fc, c_proj of twelve layers.
  const int64_t adapters = 12 * 16 * ((768 + 2304) + (768 + 768) + (768 + 3072) + (3072 + 768));
  EXPECT_EQ(lora["shape"], "gpt2 lora 16 bf16 1x128");
  EXPECT_EQ(lora["gradients"], adapters * 4);
  EXPECT_EQ(lora["optimizer_state"], adapters * 8);
  EXPECT_EQ(lora["masters"], adapters * 4);
  EXPECT_EQ(lora["weights"].get<int64_t>(), whole["weights"].get<int64_t>() + adapters * 2);
  EXPECT_LT(lora["value"].get<double>(), 0.5 * whole["value"].get<double>());
}

TEST(LoraCommands, BenchTrainNamesTheAdapters) {
  const Folder folder;
  const Arguments bench{"bench",   "train", "--preset", "tiny", "--layers", "1",
                        "--batch", "1",     "--seq",    "8",    "--steps",  "1",
                        "--dtype", "fp32",  "--lora",   "4",    "--device", "cpu"};
  EXPECT_EQ(json_of(run(folder, bench + Arguments{"--json"}))["shape"],
            "tiny layers 1 lora 4 fp32 1x8");
  EXPECT_TRUE(run(folder, bench).out.starts_with("tiny layers 1 lora 4 fp32 1x8: "));
}

TEST(LoraCommands, WrongCalls) {
  const LoraFolder f;
  const Folder& dir = f.folder;
  fs::rename(f.base, dir / "elsewhere");
  for (const char* command : {"generate", "chat"})
    expect_error(run(dir, Arguments{command, "--model", f.adapter} +
                              (command == std::string("generate") ? Arguments{"--prompt", "a"}
                                                                  : Arguments{})),
                 1, "the base model of this adapter");
  fs::rename(dir / "elsewhere", f.base);
  expect_error(run(dir, {"generate", "--model", f.base, "--adapter", f.base, "--prompt", "a"}), 1,
               "this folder holds no adapter: it has no adapter_config.json");
  expect_error(run(dir, {"convert", "--to", dir / "x"}), 2, "convert needs --from MODEL");
  expect_error(run(dir, {"bench", "fit", "--lora", "4,x"}), 2,
               "expected rank[,alpha[,dropout]], got \"4,x\"");
  expect_error(
      run(dir, {"bench", "fit", "--preset", "gpt2", "--lora", "4", "--lora-targets", "q_proj"}), 2,
      "expected targets among c_attn, c_proj, c_fc or all-linear, got \"q_proj\"");
}

}  // namespace
}  // namespace hearth
