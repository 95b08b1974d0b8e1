// SHA-256 and CRC-32C against published vectors; both SHA-256 paths against each other.
#include "sys/hash/hash.h"

#include <algorithm>
#include <random>
#include <vector>

#include "sys/hash/sha256_blocks.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

std::vector<std::byte> random_bytes(size_t n) {
  std::mt19937 rng(7);
  std::vector<std::byte> bytes(n);
  for (std::byte& b : bytes) b = std::byte(rng());
  return bytes;
}

TEST(IoHash, Sha256Vectors) {  // FIPS 180-4
  EXPECT_EQ(sha256_hex({}), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex(to_bytes("abc")),
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(to_bytes("abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq")),
            "248d6a61d20638b8e5c026930c3e6039a33ce45964ff2167f6ecedd419db06c1");
  EXPECT_EQ(sha256_hex(to_bytes(std::string(1'000'000, 'a'))),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

TEST(IoHash, Sha256InPiecesIsTheSame) {
  const auto bytes = random_bytes(300);
  for (size_t n = 0; n <= bytes.size(); ++n) {
    const Bytes all = Bytes(bytes).first(n);
    for (const size_t piece : {1, 7, 63, 64, 65, 200}) {
      Sha256 hash;
      for (size_t at = 0; at < n; at += piece)
        hash.update(all.subspan(at, std::min(piece, n - at)));
      ASSERT_EQ(hash.hex(), sha256_hex(all)) << n << " bytes by " << piece;
    }
  }
}

TEST(IoHash, NativeBlocksEqualPlainBlocks) {
  const Sha256Blocks native = sha256_blocks_native();
  if (!native) GTEST_SKIP() << "needs SHA-256 instructions";
  const auto bytes = random_bytes(64 * 9 + 1);
  for (size_t blocks = 0; blocks < 10; ++blocks) {
    uint32_t a[8] = {1, 2, 3, 4, 5, 6, 7, 8}, b[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const std::byte* unaligned = bytes.data() + 1;
    native(a, unaligned, blocks);
    sha256_blocks_plain(b, unaligned, blocks);
    EXPECT_TRUE(std::equal(a, a + 8, b)) << blocks << " blocks";
  }
}

TEST(IoHash, DigestOfAFile) {
  const TempDir dir;
  const auto bytes = random_bytes((1 << 20) + 77);
  write_file_atomic(dir / "f", bytes);
  const FileDigest d = digest_file(dir.path(), "f");
  EXPECT_EQ(d.file, "f");
  EXPECT_EQ(d.size, bytes.size());
  EXPECT_EQ(d.sha256, sha256_hex(bytes));
  expect_error(error_of([&] { digest_file(dir.path(), "g"); }), "No such file");
}

TEST(IoHash, Crc32cVectors) {  // RFC 3720, B.4
  EXPECT_EQ(crc32c(to_bytes("123456789")), 0xe3069283u);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte(0))), 0x8a9136aau);
  EXPECT_EQ(crc32c(std::vector<std::byte>(32, std::byte(0xff))), 0x62a8ab43u);
  std::vector<std::byte> up;
  for (int i = 0; i < 32; ++i) up.push_back(std::byte(i));
  EXPECT_EQ(crc32c(up), 0x46dd794eu);
}

}  // namespace
}  // namespace hearth::test
