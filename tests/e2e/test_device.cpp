// What a user reads when the card cannot be used, and that `auto` then takes the CPU.
#include <algorithm>

#include "e2e/command.h"

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

}  // namespace
}  // namespace hearth
