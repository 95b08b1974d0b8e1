// Streams of gzip, zstd and neither: the same bytes whatever they are packed in, and one clear
// error for what is damaged.
#include <fcntl.h>

#include <random>

#include "sys/compression/byte_stream.h"
#include "sys/compression/snappy.h"
#include "unit/data_files.h"
#include "unit/packed_bytes.h"

namespace hearth {
namespace {

constexpr const char* cat_gzip =
    "1f8b08000000000002032bc94855484e2c512806e2fc3c8512203737b14407cc205e1c009fca53ef46000000";
constexpr const char* cat_zstd =
    "28b52ffd0468fd0000c07468652063617420736174206f6e20746865206d61742c200100bce61c03c15dd3ff";
constexpr const char* cat_snappy = "46387468652063617420736174206f6e20010f0c6d61742c0509a61800";

std::string cats() {
  const std::string one = "the cat sat on the mat";
  return one + ", " + one + ", " + one;
}

std::string all_of(const std::filesystem::path& path, size_t piece = 1000) {
  ByteStream stream(path);
  std::string all;
  std::vector<std::byte> some(piece);
  while (const size_t n = stream.read(some)) all += to_text(Bytes(some).first(n));
  return all;
}

class Packed : public testing::TestWithParam<Packing> {
 protected:
  void SetUp() override {
    if (GetParam() != Packing::none && !can_unpack(GetParam()))
      GTEST_SKIP() << "built without " << name(GetParam());
  }
  TemporaryFolder dir;
};

class DamagedPacking : public Packed {};

const auto packing_name = [](const auto& info) { return std::string(name(info.param)); };
INSTANTIATE_TEST_SUITE_P(, Packed, testing::Values(Packing::none, Packing::gzip, Packing::zstd),
                         packing_name);
INSTANTIATE_TEST_SUITE_P(, DamagedPacking, testing::Values(Packing::gzip, Packing::zstd),
                         packing_name);

TEST_P(Packed, ReadsWhatWasPacked) {
  std::string text;
  for (int i = 0; i < 300000; ++i) text += char('a' + i * 7 % 26);
  put_file(dir / "f", packed_of(GetParam(), text));
  EXPECT_EQ(all_of(dir / "f", 1), text);
  EXPECT_EQ(all_of(dir / "f", 70000), text);
  EXPECT_EQ(ByteStream(dir / "f").packing(), GetParam());
  for (const int64_t skip : {1, 1000, 262144, 290000, 300000}) {
    ByteStream stream(dir / "f");
    EXPECT_EQ(stream.peek().substr(0, 4), text.substr(0, 4));
    stream.skip(skip);
    std::byte c[1];
    ASSERT_EQ(stream.read(c), skip < 300000 ? 1u : 0u);
    if (skip < 300000) { EXPECT_EQ(char(c[0]), text[size_t(skip)]) << skip; }
  }
  EXPECT_TRUE(
      mentions(error_of([&] { ByteStream(dir / "f").skip(300003); }), {"f]", "3 bytes fewer"}));
}

TEST_P(Packed, TakesMembersOneAfterTheOther) {
  put_file(dir / "f", packed_of(GetParam(), "one ") + packed_of(GetParam(), "two ") +
                          packed_of(GetParam(), "") + packed_of(GetParam(), "three"));
  EXPECT_EQ(all_of(dir / "f"), "one two three");
}

TEST_P(DamagedPacking, IsNamedWithItsByte) {
  const std::string whole =
      from_hex(GetParam() == Packing::gzip ? cat_gzip : cat_zstd) + packed_of(GetParam(), "more");
  put_file(dir / "f", whole);
  EXPECT_EQ(all_of(dir / "f"), cats() + "more");
  for (size_t cut = packing_head; cut < whole.size(); ++cut) {
    put_file(dir / "f", whole.substr(0, cut));
    if (cut == 44) continue;  // between the two members: whole
    EXPECT_TRUE(mentions(error_of([&] { all_of(dir / "f"); }),
                         {"f]", name(GetParam()), fmt::format("ends at byte {}", cut).c_str()}))
        << cut;
  }
  put_file(dir / "f", whole + "garbage!");
  EXPECT_TRUE(mentions(error_of([&] { all_of(dir / "f"); }), {"f]", name(GetParam()), "byte"}));
  std::mt19937 random(1);
  for (int i = 0; i < 300; ++i) {  // any other damage: an error or other bytes, never a crash
    std::string bad = whole;
    bad[4 + random() % (bad.size() - 4)] = char(random());
    put_file(dir / "f", bad);
    try {
      all_of(dir / "f");
    } catch (const Error& e) { EXPECT_TRUE(mentions(e.what(), {"f]"})); }
  }
}

TEST(PackedFiles, RefusesWhatItCannotUnpack) {
  const TemporaryFolder dir;
  for (const auto& [bytes, what] : {std::pair{std::string("\xfd"
                                                          "7zXZ\0\0\0",
                                                          8),
                                              "xz"},
                                    {"BZh91AY&SY", "bzip2"},
                                    {"PK\3\4....", "zip"}}) {
    put_file(dir / "f", bytes);
    EXPECT_TRUE(mentions(error_of([&] { ByteStream s(dir / "f"); }), {"f]", what, "unpack it"}));
  }
}

TEST(Lines, ComeWholeWhateverTheBuffer) {
  const TemporaryFolder dir;
  std::string text;
  std::vector<std::string> expected;
  std::mt19937 random(2);
  for (int i = 0; i < 2000; ++i) {
    expected.push_back(std::string(random() % (i % 100 ? 300 : 400000), char('a' + i % 26)) + "\n");
    text += expected.back();
  }
  expected.push_back("last");
  put_file(dir / "f", text + "last");
  ByteStream stream(dir / "f");
  LineReader lines(stream);
  std::string_view line;
  for (const std::string& want : expected) {
    ASSERT_TRUE(lines.next(line, 1 << 20));
    ASSERT_EQ(line, want);
  }
  EXPECT_FALSE(lines.next(line, 1 << 20));
  put_file(dir / "f", "abcdefg\nhi");
  ByteStream again(dir / "f");
  LineReader cut(again);
  std::vector<std::string> pieces;
  while (cut.next(line, 4)) pieces.emplace_back(line);
  EXPECT_EQ(pieces, (std::vector<std::string>{"abcd", "efg\n", "hi"}));
}

std::string snappy(std::string_view packed, size_t size) {
  std::vector<std::byte> out;
  const char* problem = unpack_snappy(out, to_bytes(packed), size);
  return problem ? problem : std::string(to_text(out));
}

TEST(Snappy, Unpacks) {
  EXPECT_EQ(snappy(from_hex(cat_snappy), 70), cats());
  EXPECT_EQ(snappy(std::string("\0", 1), 0), "");
  // Lengths and distances of every width.
  const std::string long_text(70000, 'x');
  EXPECT_EQ(snappy(std::string("\xf0\xa2\x04\xf8\x6f\x11\x01", 7) + long_text, 70000), long_text);
  EXPECT_EQ(snappy("\x0c\x08"
                   "abc" +
                       std::string("\x22\x03\0", 3),
                   12),
            "abcabcabcabc");
  EXPECT_EQ(snappy("\x07\x08"
                   "abc" +
                       std::string("\x0f\x03\0\0\0", 5),
                   7),
            "abcabca");
}

TEST(Snappy, RefusesDamage) {
  const std::string whole = from_hex(cat_snappy);
  EXPECT_EQ(snappy(whole, 71), "a different length than stated");
  EXPECT_EQ(snappy("\x05\x08"
                   "ab",
                   5),
            "truncated data");
  EXPECT_EQ(snappy(std::string("\x07\x08"
                               "abc\x0e\x04\0",
                               8),
                   7),
            "a back reference before the start");
  EXPECT_EQ(snappy(std::string("\xff\xff\xff\xff\x0f\x00", 6), 0xffffffff),
            "less data than stated");
  for (size_t cut = 0; cut < whole.size(); ++cut)
    EXPECT_NE(snappy(whole.substr(0, cut), 70), cats());
  std::mt19937 random(3);
  std::vector<std::byte> out;
  for (int i = 0; i < 20000; ++i) {
    std::string bad = whole;
    bad[random() % bad.size()] = char(random());
    unpack_snappy(out, to_bytes(bad), 70);
  }
}

}  // namespace
}  // namespace hearth
