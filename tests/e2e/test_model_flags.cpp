// Flags of a model's shape: what follows from one that others leave open.
#include "e2e/command.h"

namespace hearth {
namespace {

nlohmann::json config_of(const Folder& folder, const Arguments& flags) {
  return json_of(run(folder, Arguments{"info", "--json"} + flags))["config"];
}

TEST(ModelFlags, InfoTakesThoseOfPretraining) {
  const Folder folder;
  const nlohmann::json c =
      config_of(folder, {"--preset", "tiny", "--layers", "3", "--no-tied", "--heads", "2"});
  EXPECT_EQ(c["layers"], 3);
  EXPECT_EQ(c["tied"], false);
  EXPECT_EQ(c["kv_heads"], 1);
  EXPECT_EQ(config_of(folder, {"--dim", "64", "--heads", "2"})["head_dim"], 32);
  expect_error(run(folder, {"info", "--layers", "2"}), 2, "need --preset, or --dim");
  expect_error(run(folder, {"info", "--model", "X", "--layers", "2"}), 2, "[--model] ");
  EXPECT_EQ(run(folder, {"info"}).status, 0);
}

TEST(ModelFlags, WidthsOfMlpsFollowDim) {
  const Folder folder;
  const auto widths = [&](const Arguments& flags) {
    const nlohmann::json c = config_of(folder, flags);
    return std::pair(c["hidden"].get<int>(), c["expert_hidden"].get<int>());
  };
  using Widths = std::pair<int, int>;
  EXPECT_EQ(widths({"--preset", "tiny"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "128"}), Widths(448, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "256"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "tiny", "--dim", "128", "--hidden", "896"}), Widths(896, 0));
  EXPECT_EQ(widths({"--preset", "gpt2", "--dim", "384"}), Widths(1536, 0));
  EXPECT_EQ(widths({"--preset", "modern-124m", "--dim", "384"}), Widths(1024, 0));
  EXPECT_EQ(widths({"--preset", "moe-8x124m", "--dim", "384"}), Widths(1024, 1024));
  EXPECT_EQ(widths({"--preset", "moe-8x124m", "--hidden", "512"}), Widths(512, 512));
  EXPECT_EQ(widths({"--preset", "moe-64", "--dim", "384"}), Widths(1024, 256));
  EXPECT_EQ(widths({"--preset", "moe-64", "--hidden", "512"}), Widths(512, 512));
  EXPECT_EQ(widths({"--preset", "moe-64", "--dim", "384", "--expert-hidden", "96"}),
            Widths(1024, 96));
}

}  // namespace
}  // namespace hearth
