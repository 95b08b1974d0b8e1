// Commands that run a model on the card: fp16 weights and quantised ones beside fp32.
#include "e2e/command.h"
#include "gpu/cuda_case.h"
#include "served_folder.h"

namespace hearth {
namespace {

TEST(CudaCommands, RunAModelInHalves) {
  HEARTH_NEEDS_A_CARD();
  ASSERT_TRUE(fs::exists(HEARTH_BINARY));
  const Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "text.txt", "Once upon a time there was a card that counted.");
  const auto ask = [&](const Arguments& command, const char* dtype) {
    return json_of(run(folder, command + Arguments{"--model", folder / "model", "--device", "cuda",
                                                   "--json", "--dtype", dtype}));
  };
  const Arguments eval{"eval", "--task", "perplexity", "--data", folder / "text.txt"};
  const double fp32 = ask(eval, "fp32").at("value"), fp16 = ask(eval, "fp16").at("value");
  EXPECT_NE(fp16, fp32);  // or it was not used
  EXPECT_NEAR(fp16 / fp32, 1, 0.02);
  const Arguments generate{"generate",     "--prompt",   "ab", "--max-tokens", "8", "--greedy",
                           "--ignore-eos", "--logprobs", "0"};
  const auto plain = ask(generate, "fp32"), half = ask(generate, "fp16");
  EXPECT_EQ(half.at("tokens").size(), 8u);
  EXPECT_NEAR(half.at("logprobs").at(0).at("logprob").get<double>(),
              plain.at("logprobs").at(0).at("logprob").get<double>(), 0.05);
}

TEST(CudaCommands, RunAModelOfQuantisedWeights) {
  HEARTH_NEEDS_A_CARD();
  ASSERT_TRUE(fs::exists(HEARTH_BINARY));
  const Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "text.txt", "Once upon a time there was a card that counted.");
  const auto perplexity = [&](const char* dtype, const char* weights) {
    return json_of(run(folder, {"eval", "--task", "perplexity", "--data", folder / "text.txt",
                                "--model", folder / "model", "--device", "cuda", "--json",
                                "--dtype", dtype, "--weights", weights}))
        .at("value")
        .get<double>();
  };
  for (const char* dtype : {"bf16", "fp32"}) {
    const double plain = perplexity(dtype, "plain");
    for (const auto& [weights, share] : {std::pair{"int8", 0.03}, {"int4", 0.3}, {"fp8", 0.1}}) {
      const double near = perplexity(dtype, weights);
      EXPECT_NE(near, plain) << weights;  // or they were not used
      EXPECT_NEAR(near / plain, 1, share) << weights;
    }
  }
}

}  // namespace
}  // namespace hearth
