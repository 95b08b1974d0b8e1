// Initial values drawn on the GPU have the bits of the host's, and pinned memory of any size works.
#include <bit>
#include <cstring>

#include "core/params.h"
#include "cuda_case.h"
#include "held.h"

namespace hearth {
namespace {

using test::card;

// 16M normal draws leave about 28 to the host.
TEST(CudaDraw, HasTheBitsOfTheHost) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<ParamSpec> specs{{"table", {16384, 1024}, Init::normal(1), Group::embedding},
                                     {"small", {3, 7}, Init::normal(0.02f), Group::matrix},
                                     {"matrix", {1000, 1001}, Init::uniform(0.036f), Group::matrix},
                                     {"gain", {769}, Init::ones(), Group::vector},
                                     {"flat", {129}, Init::normal(0), Group::vector},
                                     {"head", {1000, 64}, Init::zeros(), Group::head}};
  for (const DType dtype : {DType::f32, DType::bf16, DType::f16}) {
    ParamStore store(card(), specs, dtype);
    store.initialise(9);
    for (const ParamSpec& s : specs) {
      std::vector<float> want(size_t(s.shape.numel()));
      draw(want, s.init, 9, s.name);
      const std::vector<float> got =
          store.values(store.has_master() ? Part::master : Part::weight, s.name);
      int64_t different = 0;
      for (size_t i = 0; i < want.size(); ++i)
        if (std::bit_cast<uint32_t>(got[i]) != std::bit_cast<uint32_t>(want[i]) && ++different < 5)
          ADD_FAILURE() << s.name << " element " << i << ": expected " << want[i] << ", got "
                        << got[i];
      EXPECT_EQ(different, 0) << s.name << " " << to_string(dtype);
      if (!store.has_master()) continue;
      std::vector<std::byte> rounded(want.size() * 2);
      convert_from_floats(rounded.data(), dtype, want);
      convert_to_floats(want, dtype, rounded.data());
      EXPECT_EQ(store.values(Part::weight, s.name), want) << s.name << " " << to_string(dtype);
    }
  }
}

TEST(CudaDraw, OffloadedMastersHaveThemToo) {
  HEARTH_NEEDS_A_CARD();
  const std::vector<ParamSpec> specs{{"table", {16384, 1024}, Init::normal(1), Group::embedding}};
  ParamStore store(card(), specs, DType::bf16, true);
  store.initialise(4);
  std::vector<float> want(16384 * 1024);
  draw(want, Init::normal(1), 4, "table");
  EXPECT_EQ(store.values(Part::master, "table"), want);
}

// Below 32 MiB CUDA allocates it; above, pages of the process are registered.
TEST(CudaPinned, MemoryOfAnySizeIsZeroedAndCopied) {
  HEARTH_NEEDS_A_CARD();
  Backend& b = card();
  for (const int64_t bytes : {int64_t(1000), (int64_t(32) << 20) + 4096, int64_t(300) << 20}) {
    const Buffer host(b, bytes, "a test", true), device(b, bytes, "a test");
    for (int64_t i = 0; i < bytes; i += 4096 - 7) ASSERT_EQ(host.data()[i], std::byte{}) << i;
    std::memset(host.data(), 0x5a, size_t(bytes));
    b.upload(device.data(), host.data(), bytes);
    std::memset(host.data(), 0, size_t(bytes));
    b.download(host.data(), device.data(), bytes);
    EXPECT_EQ(std::memcmp(host.data(), host.data() + 1, size_t(bytes - 1)), 0);
    EXPECT_EQ(host.data()[0], std::byte{0x5a});
    b.copy_on(StreamKind::download, host.data(), device.data(), bytes);
    b.finish(StreamKind::download);
  }
}

}  // namespace
}  // namespace hearth
