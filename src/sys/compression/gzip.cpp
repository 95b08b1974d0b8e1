// gzip with zlib.
#include <zlib.h>

#include <algorithm>
#include <climits>

#include "sys/compression/compression.h"
#include "sys/error.h"

namespace hearth::inline sys {
namespace {

class Gzip : public Unpacker {
 public:
  Gzip() {
    constexpr int gzip_only = 16;  // added to the window bits
    if (inflateInit2(&z_, MAX_WBITS + gzip_only) != Z_OK)
      fail("gzip", "out of memory while unpacking");
  }
  ~Gzip() override { inflateEnd(&z_); }
  Gzip(const Gzip&) = delete;
  Gzip& operator=(const Gzip&) = delete;

  Step step(Bytes in, std::span<std::byte> out) override {
    const uInt room = uInt(std::min<size_t>(out.size(), UINT_MAX));
    const uInt given = uInt(std::min<size_t>(in.size(), UINT_MAX));
    z_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
    z_.avail_in = given;
    z_.next_out = reinterpret_cast<Bytef*>(out.data());
    z_.avail_out = room;
    const char* problem = nullptr;
    while (z_.avail_out > 0 && !problem) {
      if (ended_) {  // the start of another member, if there is more input
        if (z_.avail_in == 0) break;
        inflateReset(&z_);
        ended_ = false;
      }
      const int code = inflate(&z_, Z_NO_FLUSH);
      ended_ = code == Z_STREAM_END;
      if (code == Z_BUF_ERROR) break;  // needs more input or output
      if (code != Z_OK && code != Z_STREAM_END) problem = z_.msg ? z_.msg : "damaged data";
    }
    return {given - z_.avail_in, room - z_.avail_out, problem};
  }
  bool complete() const override { return ended_; }

 private:
  z_stream z_{};
  bool ended_ = false;
};

}  // namespace

std::string gzip(Bytes in) {
  constexpr int gzip_format = 16, default_memory = 8;
  z_stream z{};
  if (deflateInit2(&z, Z_BEST_COMPRESSION, Z_DEFLATED, MAX_WBITS + gzip_format, default_memory,
                   Z_DEFAULT_STRATEGY) != Z_OK)
    fail("gzip", "out of memory while packing");
  std::string out(deflateBound(&z, uLong(in.size())), '\0');
  z.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(in.data()));
  z.avail_in = uInt(in.size());
  z.next_out = reinterpret_cast<Bytef*>(out.data());
  z.avail_out = uInt(out.size());
  const int code = deflate(&z, Z_FINISH);
  out.resize(z.total_out);
  deflateEnd(&z);
  if (code != Z_STREAM_END) fail("gzip", "could not pack {} bytes", in.size());
  return out;
}

std::unique_ptr<Unpacker> make_gzip() { return std::make_unique<Gzip>(); }
const char* gzip_library() { return "zlib " ZLIB_VERSION; }

}  // namespace hearth::inline sys
