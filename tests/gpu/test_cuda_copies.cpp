// Copies on the card as one launch, and those that are none of whole 16 bytes.
#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "cuda_case.h"

namespace hearth {
namespace {

using test::card;

TEST(CudaMemory, ManyCopiesAtOnce) {
  HEARTH_NEEDS_A_CARD();
  Backend& b = card();
  constexpr int64_t room = 4096;
  std::mt19937 random{5};
  for (const int64_t bytes : {int64_t(16), int64_t(272), int64_t(4096), int64_t(100)})
    for (const int64_t count : {1, 4, 5, 40}) {
      SCOPED_TRACE(std::to_string(count) + " of " + std::to_string(bytes));
      const Buffer from(b, count * room, "test"), to(b, count * room, "test");
      std::vector<unsigned char> sent(size_t(count * room)), got(sent.size()), want(sent.size());
      for (auto& x : sent) x = static_cast<unsigned char>(random());
      b.upload(from.data(), sent.data(), count * room);
      std::vector<Copy> all;
      for (int64_t i = 0; i < count; ++i) {
        const int64_t source = (count - 1 - i) * room;
        all.push_back({to.data() + i * room, from.data() + source, bytes});
        std::copy_n(sent.begin() + source, bytes, want.begin() + i * room);
      }
      b.copy_all(all);
      b.download(got.data(), to.data(), count * room);
      EXPECT_TRUE(got == want);
    }
}

}  // namespace
}  // namespace hearth
