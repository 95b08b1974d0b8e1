// HTTPS downloads by libcurl. Certificates are checked, redirects to other protocols are refused,
// and a connection that receives nothing for some time is given up.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth {

struct HttpsSpec {
  std::string ca_file;  // certificates to trust instead of the system's; empty: the system's
  int connect_seconds = 20;
  int stall_seconds = 30;  // without a byte
};

struct HttpsRequest {
  std::string url;
  int64_t from = 0;    // first byte wanted
  std::string unless;  // ETag: if the file changed since, it comes from byte 0
};

// What the headers of the last response said.
struct HttpsHead {
  int status = 0;
  int64_t from = 0;    // first byte of the body
  int64_t total = -1;  // bytes of the whole file; -1: unknown
  std::string etag;    // empty where there is none, or none that may be sent back
};
// Takes up one header line; the status line of a further response resets what was read before.
void read_header(HttpsHead&, std::string_view line);

// Whether a text may be an ETag of a request: quoted, of visible ASCII, without control bytes.
bool is_etag(std::string_view);

struct HttpsResult {
  HttpsHead head;
  std::string problem;   // empty: the body came whole
  bool lasting = false;  // trying again would not help
};

class Https {
 public:
  explicit Https(HttpsSpec);  // an error in a build without libcurl
  ~Https();

  // GETs; `begin` is called before the first byte of a body with status 200 or 206, then `body`
  // with its pieces. What they throw comes out of here.
  HttpsResult get(const HttpsRequest&, const std::function<void(const HttpsHead&)>& begin,
                  const std::function<void(Bytes)>& body);

 private:
  struct Curl;
  std::unique_ptr<Curl> curl_;
};

const char* https_library();  // "libcurl 7.88.1"; "" in a build without it

}  // namespace hearth
