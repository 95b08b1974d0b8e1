// A build without libcurl.
#include "sys/error.h"
#include "sys/https/https.h"

namespace hearth::inline sys {

struct Https::Curl {};

Https::Https(HttpsSpec) {
  fail("https",
       "this build cannot download, because libcurl was missing: install libcurl4-openssl-dev and "
       "build again");
}
Https::~Https() = default;

HttpsResult Https::get(const HttpsRequest&, const std::function<void(const HttpsHead&)>&,
                       const std::function<void(Bytes)>&) {
  return {};
}

const char* https_library() { return ""; }

}  // namespace hearth::inline sys
