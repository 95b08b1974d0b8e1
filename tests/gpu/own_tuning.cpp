// Tests tune products while others run beside them: they keep their choices apart from the user's,
// in a folder beside the test program.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>

namespace {

class OwnTuning : public testing::Environment {
 public:
  void SetUp() override {
    const auto program = std::filesystem::read_symlink("/proc/self/exe");
    setenv("HEARTH_CACHE", (program.parent_path() / "tuning").c_str(), 1);
  }
};

const testing::Environment* const own_tuning = testing::AddGlobalTestEnvironment(new OwnTuning);

}  // namespace
