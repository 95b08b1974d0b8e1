// zstd decompression with libzstd. A frame may use a window of up to 128 MiB, the library's default
// limit; data compressed with --long=28 or more is an error.
#include <zstd.h>
#include <zstd_errors.h>

#include "sys/compression/compression.h"
#include "sys/error.h"

namespace hearth::inline sys {
namespace {

class Zstd : public Unpacker {
 public:
  Zstd() : z_(ZSTD_createDStream()) {
    if (!z_) fail("zstd", "out of memory while unpacking");
  }
  ~Zstd() override { ZSTD_freeDStream(z_); }
  Zstd(const Zstd&) = delete;
  Zstd& operator=(const Zstd&) = delete;

  Step step(Bytes in, std::span<std::byte> out) override {
    ZSTD_inBuffer from{in.data(), in.size(), 0};
    ZSTD_outBuffer to{out.data(), out.size(), 0};
    const char* problem = nullptr;
    while (to.pos < to.size && !problem) {
      if (ended_ && from.pos == from.size) break;
      const size_t in_before = from.pos, out_before = to.pos;
      const size_t left = ZSTD_decompressStream(z_, &to, &from);
      if (ZSTD_isError(left)) {
        problem = ZSTD_getErrorCode(left) == ZSTD_error_frameParameter_windowTooLarge
                      ? "a window of more than 128 MiB (--long=28 or more): compress it with a "
                        "smaller window"
                      : ZSTD_getErrorName(left);
        break;
      }
      ended_ = left == 0;
      if (from.pos == in_before && to.pos == out_before) break;  // needs more input or output
    }
    return {from.pos, to.pos, problem};
  }
  bool complete() const override { return ended_; }

 private:
  ZSTD_DStream* z_;
  bool ended_ = false;
};

}  // namespace

std::unique_ptr<Unpacker> make_zstd() { return std::make_unique<Zstd>(); }
const char* zstd_library() { return "libzstd " ZSTD_VERSION_STRING; }

}  // namespace hearth::inline sys
