// What a user reads when the card cannot be used or is missing, and that `auto` then takes the CPU.
#include <fmt/format.h>

#include <algorithm>

#include "e2e/command.h"
#include "formats/safetensors.h"
#include "served_folder.h"
#include "sys/cores.h"

namespace hearth {
namespace {

#ifdef HEARTH_OLD_DRIVER
TEST(Device, AnOldDriverIsOneSentence) {
  const Folder folder;
  setenv("LD_LIBRARY_PATH", HEARTH_OLD_DRIVER, 1);
  const Arguments bench{"bench", "train", "--preset", "tiny", "--batch", "1",
                        "--seq", "32",    "--steps",  "1",    "--device"};
  Arguments cuda = bench, any = bench;
  cuda.push_back("cuda"), any.push_back("auto");
  const Ran refused = run(folder, cuda), taken = run(folder, any);
  unsetenv("LD_LIBRARY_PATH");
  EXPECT_EQ(refused.status, 1);
  EXPECT_NE(refused.err.find("the driver is for CUDA 12.2"), std::string::npos) << refused.err;
  EXPECT_EQ(std::count(refused.err.begin(), refused.err.end(), '\n'), 1) << refused.err;
  EXPECT_EQ(taken.status, 0) << taken.err;
}
#endif

// Without a GPU the step is compared with the reference; the CPU beside itself would prove nothing.
TEST(Device, LockstepNeverComparesTheCpuWithItself) {
  const Folder folder;
  const Arguments step{"doctor", "lockstep", "--preset", "tiny", "--batch",   "1",
                       "--seq",  "16",       "--device", "cpu",  "--threads", "1"};
  const Ran r = run(folder, step);
  EXPECT_EQ(r.status, 0) << r.err << r.out;
  EXPECT_NE(r.out.find(" against reference"), std::string::npos) << r.out;
  expect_error(run(folder, step + Arguments{"--against", "cpu"}), 2,
               "[--against] this step runs on the CPU, which would be compared with itself");
}

TEST(Device, DoctorChecksTheOneItIsGiven) {
  const Folder folder;
  const Ran cpu = run(folder, {"doctor", "--device", "cpu", "--threads", "1"});
  EXPECT_EQ(cpu.status, 0) << cpu.err;
  EXPECT_EQ(std::count(cpu.out.begin(), cpu.out.end(), '\n'), 2) << cpu.out;
  expect_error(run(folder, {"doctor", "--device", "cuda:99", "--threads", "1"}), 1,
               "[device] cuda:99 cannot be checked: ");
  expect_error(run(folder, {"doctor", "gradients", "--preset", "tiny", "gpt2", "--out", "g"}), 2,
               "[--preset] expected one preset, got 2");
}

// The rows of the joined qkv weight are those of q_proj, k_proj and v_proj, one after another.
TEST(Device, DoctorNamesGradientsAsTheFolderNamesItsTensors) {
  const Folder folder;
  const Arguments step{"doctor",   "gradients",   "--device",   "cpu", "--threads", "1",
                       "--preset", "modern-124m", "--layers",   "2",   "--dim",     "32",
                       "--heads",  "4",           "--kv-heads", "2",   "--vocab",   "64",
                       "--dtype",  "fp32",        "--seq",      "16"};
  const std::string own_file = folder / "own.safetensors",
                    named_file = folder / "named.safetensors", model = folder / "model";
  const Ran own = run(folder, step + Arguments{"--out", own_file});
  ASSERT_EQ(own.status, 0) << own.err;
  const Ran named = run(folder, step + Arguments{"--out", named_file, "--model-folder", model});
  ASSERT_EQ(named.status, 0) << named.err;
  const Safetensors a(own_file), b(named_file);
  const auto bytes = [](const Safetensors& file, const std::string& name) {
    const Bytes found = file.tensors().at(name).bytes;
    return std::string(reinterpret_cast<const char*>(found.data()), found.size());
  };
  std::string joined;
  for (const char* part : {"q", "k", "v"})
    joined += bytes(b, fmt::format("grad/model.layers.1.self_attn.{}_proj.weight", part));
  EXPECT_EQ(joined, bytes(a, "grad/blocks.1.attn.qkv.weight"));
  EXPECT_NE(joined.find_first_not_of('\0'), std::string::npos);
  const Ran told = run(folder, {"info", "--model", model});
  EXPECT_EQ(told.status, 0) << told.err;
  expect_error(run(folder, step + Arguments{"--out", named_file, "--model-folder", model}), 2,
               "[--model-folder] expected a new or empty folder to write to, got " + model);
  expect_error(run(folder, step + Arguments{"--position", "alibi", "--out", own_file,
                                            "--model-folder", folder / "no"}),
               2, "[--model-folder] Hugging Face has no layout for this model: ");
  EXPECT_FALSE(std::filesystem::exists(folder / "no"));
}

TEST(Device, InfoDescribesTheOneItIsGiven) {
  const Folder folder;
  const auto told = [&](const char* device) {
    return json_of(run(folder, {"info", "--device", device, "--json"}));
  };
  EXPECT_TRUE(told("auto").contains("cpu") && told("auto").contains("gpus"));
  EXPECT_TRUE(told("cpu").contains("cpu"));
  EXPECT_FALSE(told("cpu").contains("gpus") || told("cpu").contains("cuda"));
  const Ran cpu = run(folder, {"info", "--device", "cpu"});
  EXPECT_NE(cpu.out.find("\ncpu     "), std::string::npos) << cpu.out;
  EXPECT_EQ(cpu.out.find("\ngpu     "), std::string::npos) << cpu.out;
  // The first GPU, or why there is none; what else was asked for is answered in any case.
  const Ran cuda = run(folder, {"info", "--device", "cuda", "--preset", "tiny"});
  EXPECT_EQ(cuda.status, 0) << cuda.err;
  EXPECT_NE(cuda.out.find("\ngpu     "), std::string::npos) << cuda.out;
  EXPECT_EQ(cuda.out.find("\ncpu     "), std::string::npos) << cuda.out;
  EXPECT_NE(cuda.out.find("\nmodel   "), std::string::npos) << cuda.out;
  const auto missing = told("cuda:99");
  EXPECT_TRUE(missing["gpus"].empty());
  EXPECT_NE(missing["cuda"]["problem"], "");
  expect_error(run(folder, {"info", "--device", "gpu"}), 2,
               "expected auto, cpu or cuda[:i], got \"gpu\"");
}

TEST(Device, MoreThreadsThanCoresAreSaidOnce) {
  const Folder folder;
  const int cores = usable_threads();
  const Arguments commands[] = {
      {"info", "--device", "cpu"},
      {"bench", "fit", "--preset", "tiny", "--device", "cpu"},
      {"data", "stories", "--stories", "1", "--out", folder / "s.txt", "--force"}};
  for (const Arguments& command : commands) {
    SCOPED_TRACE(command[0]);
    const auto said = [&](int threads) {
      const Ran r = run(folder, command + Arguments{"--threads", std::to_string(threads)});
      EXPECT_EQ(r.status, 0) << r.err;
      return r.err;
    };
    EXPECT_EQ(said(cores).find("--threads"), std::string::npos);
    EXPECT_EQ(said(0).find("--threads"), std::string::npos);
    const std::string more = said(cores + 1), begin = "hearth: --threads " +
                                                      std::to_string(cores + 1) +
                                                      " is more than the " + std::to_string(cores);
    EXPECT_NE(more.find(begin), std::string::npos) << more;
    EXPECT_EQ(more.find(begin), more.rfind(begin)) << more;
  }
}

// Of every command that runs a model, in the same words.
TEST(Device, HalvesNeedACard) {
  const Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "text.txt", "Once upon a time.");
  const Arguments flags{"--model", folder / "model", "--device", "cpu", "--threads", "1"};
  const Arguments commands[] = {{"generate", "--prompt", "a"},
                                {"chat"},
                                {"serve", "--port", "0"},
                                {"eval", "--task", "perplexity", "--data", folder / "text.txt"}};
  for (const Arguments& command : commands) {
    SCOPED_TRACE(command[0]);
    expect_error(run(folder, command + flags + Arguments{"--dtype", "fp16"}), 2,
                 "1 thread, got fp16, which needs a GPU");
    expect_error(run(folder, command + flags + Arguments{"--dtype", "fp8"}), 2,
                 "expected auto, fp32, bf16 or fp16, got \"fp8\"; --weights fp8 stores");
    expect_error(run(folder, command + flags + Arguments{"--dtype", "int8"}), 2,
                 "got \"int8\"; --weights int8 stores the matrices in it");
  }
}

}  // namespace
}  // namespace hearth
