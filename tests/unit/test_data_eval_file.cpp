// data stat of llm.c's evaluation files: the layout as write_evalfile makes it, and every way to be
// wrong by one word.
#include "data/token_stats.h"
#include "unit/data_files.h"
#include "unit/packed_bytes.h"

namespace hearth {
namespace {

// Two examples of two and three completions.
std::string eval_file() {
  const std::string first = little(65535, 2) + little(26, 2) + little(0, 2) + little(1, 2) +
                            little(2, 2) + little(3, 2) + little(7, 2) + little(8, 2) +
                            little(9, 2) + little(1, 2) + little(50256, 2) + little(1, 2) +
                            little(5, 2);
  const std::string second = little(65535, 2) + little(26, 2) + little(1, 2) + little(0, 2) +
                             little(3, 2) + little(1, 2) + little(4, 2) + little(2, 2) +
                             little(1, 2) + little(2, 2) + little(0, 2) + little(1, 2) +
                             little(6, 2);
  return little(20240522, 4) + little(1, 4) + little(2, 4) + little(26, 4) +
         std::string(1008, '\0') + first + second;
}

TEST(EvalFile, IsDescribed) {
  const TemporaryFolder dir;
  put_file(dir / "e.bin", eval_file());
  EXPECT_TRUE(is_eval_file(dir / "e.bin"));
  const EvalStat s = stat_eval_file(dir / "e.bin", 50257);
  EXPECT_EQ(s.examples, 2);
  EXPECT_EQ(s.completions, 5);
  EXPECT_EQ(s.context_tokens, 4);
  EXPECT_EQ(s.completion_tokens, 5);
  EXPECT_EQ(s.longest, 4);
  EXPECT_EQ(s.max_token, 50256);
  write_tokens(dir / "t.bin", TokenFormat::llmc, 100, counting_tokens(10));
  EXPECT_FALSE(is_eval_file(dir / "t.bin"));
  EXPECT_FALSE(is_eval_file(dir / "none.bin"));
}

TEST(EvalFile, NamesTheByteThatIsWrong) {
  const TemporaryFolder dir;
  const auto refused = [&](size_t at, uint64_t word, int bytes = 2) {
    std::string file = eval_file();
    file.replace(at, size_t(bytes), little(word, bytes));
    put_file(dir / "e.bin", file);
    return error_of([&] { stat_eval_file(dir / "e.bin", 50257); });
  };
  EXPECT_TRUE(mentions(refused(4, 2, 4), {"e.bin", "version 1", "byte 4", "2"}));
  EXPECT_TRUE(mentions(refused(8, 3, 4), {"example 2", "byte 1076", "end of the file"}));
  EXPECT_TRUE(mentions(refused(8, 1, 4), {"byte 1050", "26 bytes more"}));
  EXPECT_TRUE(mentions(refused(12, 28, 4), {"byte 12", "28"}));
  EXPECT_TRUE(mentions(refused(1024, 1), {"mark", "byte 1024"}));
  EXPECT_TRUE(mentions(refused(1026, 28), {"28 bytes", "example 0", "byte 1026", "26"}));
  EXPECT_TRUE(mentions(refused(1028, 5), {"index", "byte 1028"}));
  EXPECT_TRUE(mentions(refused(1030, 2), {"completions", "label"}));
  EXPECT_TRUE(mentions(refused(1036, 50257), {"token", "byte 1036", "50257"}));
  EXPECT_TRUE(mentions(refused(1034, 60000), {"byte"}));
  const std::string whole = eval_file();
  for (size_t cut = 0; cut < whole.size(); cut += cut < 1000 ? 100 : 1) {
    put_file(dir / "e.bin", whole.substr(0, cut));
    EXPECT_TRUE(mentions(error_of([&] { stat_eval_file(dir / "e.bin", 0); }), {"e.bin"})) << cut;
  }
}

}  // namespace
}  // namespace hearth
