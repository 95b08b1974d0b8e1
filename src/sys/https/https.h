// HTTPS downloads with libcurl. Certificates are verified, redirects to other protocols are
// rejected, and a connection that receives nothing for some time is closed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>

#include "sys/files/files.h"

namespace hearth::inline sys {

struct HttpsSpec {
  std::string ca_file;  // CA certificates to trust; empty: the system's
  int connect_seconds = 20;
  int stall_seconds = 30;  // maximum time without received data
};

struct HttpsRequest {
  std::string url;
  int64_t from = 0;    // first byte to request
  std::string unless;  // ETag: if the file has changed, it is sent from byte 0
};

// Headers of the last response.
struct HttpsHead {
  int status = 0;
  int64_t from = 0;    // first byte of the body
  int64_t total = -1;  // size of the whole file; -1: unknown
  std::string etag;    // empty: none, or not usable in a request
};
// Processes one header line; the status line of a later response resets the fields.
void read_header(HttpsHead&, std::string_view line);

// Whether a text is a valid ETag for a request: quoted visible ASCII without control bytes.
bool is_etag(std::string_view);

struct HttpsResult {
  HttpsHead head;
  std::string problem;   // empty: the body is complete
  bool lasting = false;  // a retry would not help
};

class Https {
 public:
  explicit Https(HttpsSpec);  // throws in a build without libcurl
  ~Https();

  // Sends a GET request. For status 200 or 206 it calls `begin` before the first byte of the body
  // and then `body` with each piece. Their exceptions are rethrown.
  HttpsResult get(const HttpsRequest&, const std::function<void(const HttpsHead&)>& begin,
                  const std::function<void(Bytes)>& body);

 private:
  struct Curl;
  std::unique_ptr<Curl> curl_;
};

const char* https_library();  // "libcurl 7.88.1"; "" in a build without it

}  // namespace hearth::inline sys
