// What a user reads when the card cannot be used or is missing, and that `auto` then takes the CPU.
#include <algorithm>

#include "e2e/command.h"
#include "served_folder.h"

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

TEST(Device, DoctorRefusesWhatItWouldIgnore) {
  const Folder folder;
  expect_error(run(folder, {"doctor", "--device", "cpu"}), 2,
               "[--device] doctor compares all backends of this machine; hearth doctor lockstep "
               "--device cpu compares one");
  expect_error(run(folder, {"doctor", "gradients", "--preset", "tiny", "gpt2", "--out", "g"}), 2,
               "[--preset] expected one preset, got 2");
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
