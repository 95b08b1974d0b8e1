// Batches of whole documents: how rows are filled, and where reading stops.
#include <gtest/gtest.h>

#include <limits>

#include "data/whole_documents.h"
#include "data_files.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using Ids = std::vector<int32_t>;

class WholeDocuments : public testing::TestWithParam<int64_t> {  // a vocabulary: 2 or 4 bytes
 protected:
  fs::path file(const std::string& name, const Ids& ids) {
    write_tokens(folder / name, TokenFormat::llmc, GetParam(), ids);
    return folder / name;
  }
  TemporaryFolder folder;
};

TEST_P(WholeDocuments, FillRowsAndMaskTheRest) {
  const std::vector<fs::path> files{file("a.bin", {9, 9, 0, 1, 2, 0, 3, 0, 4, 5, 6, 7, 8})};
  const std::vector<Batch> b = whole_documents(files, {.batch = 2, .seq = 5, .vocab = 10});
  ASSERT_EQ(b.size(), 2u);  // what stands before the first document is left out
  EXPECT_EQ(b[0].tokens, (Ids{0, 1, 2, 0, 3, 0, 4, 5, 6, 7}));
  EXPECT_EQ(b[0].targets, (Ids{1, 2, 0, 3, 0, 4, 5, 6, 7, 8}));
  EXPECT_EQ(b[0].documents, (Ids{0, 0, 0, 1, 1, 0, 0, 0, 0, 0}));
  EXPECT_EQ(b[0].count, 10);
  EXPECT_EQ(b[1].tokens, (Ids{8, 0, 0, 0, 0, 0, 0, 0, 0, 0}));
  EXPECT_EQ(b[1].targets, (Ids{0, -100, -100, -100, -100, -100, -100, -100, -100, -100}));
  EXPECT_EQ(b[1].count, 1);
}

TEST_P(WholeDocuments, StopBeforeTheOneThatIsTooMany) {
  const std::vector<fs::path> files{file("a.bin", {0, 1, 2, 0, 3, 4, 5, 0, 6}),
                                    file("b.bin", {0, 7, 0, 8, 9})};
  const auto taken = [&](int64_t most) {
    int64_t n = 0;
    for (const Batch& b : whole_documents(files, {.batch = 1, .seq = 8, .max_tokens = most}))
      n += b.count;
    return n;
  };
  EXPECT_EQ(taken(0), 14);
  EXPECT_EQ(taken(3), 3);
  EXPECT_EQ(taken(6), 3);
  EXPECT_EQ(taken(7), 7);
  EXPECT_EQ(taken(9), 9);
  EXPECT_EQ(taken(10), 9);
  EXPECT_EQ(taken(11), 11);
  EXPECT_EQ(taken(14), 14);
  EXPECT_EQ(taken(std::numeric_limits<int64_t>::max()), 14);
  EXPECT_EQ(error_of([&] { taken(2); }),
            "[" + files[0].string() +
                "] the first document has 3 tokens, more than the 2 to validate on: use a higher "
                "--eval-tokens");
}

TEST_P(WholeDocuments, SayWhichTokenStartsNone) {
  const std::vector<fs::path> one{file("a.bin", {1, 2, 3})}, two{one[0], file("b.bin", {4, 5})};
  const auto error = [](const std::vector<fs::path>& files) {
    return error_of([&] { whole_documents(files, {.batch = 1, .seq = 8, .max_tokens = 1}); });
  };
  const std::string none = "[" + one[0].string() + "] no document starts with token 0 in ";
  EXPECT_EQ(error(one), none + "1 file; check --document-start");
  EXPECT_EQ(error(two), none + "2 files; check --document-start");
}

TEST_P(WholeDocuments, OpenNoFileAfterTheyAreFull) {
  const std::vector<fs::path> files{file("a.bin", {0, 1, 2, 0, 3}), folder / "none.bin"};
  EXPECT_EQ(whole_documents(files, {.batch = 1, .seq = 8, .max_tokens = 4})[0].count, 3);
  EXPECT_THROW(whole_documents(files, {.batch = 1, .seq = 8, .max_tokens = 6}), Error);
}

INSTANTIATE_TEST_SUITE_P(Widths, WholeDocuments, testing::Values(100, 100000));

}  // namespace
}  // namespace hearth
