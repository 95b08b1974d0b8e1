#include "sys/https/https.h"

#include <curl/curl.h>

#include <exception>
#include <new>
#include <span>

#include "sys/build_info.h"
#include "sys/error.h"

namespace hearth::inline sys {
namespace {

// The state of one transfer, shared with libcurl's callbacks.
struct Transfer {
  const std::function<void(const HttpsHead&)>& begin;
  const std::function<void(Bytes)>& body;
  HttpsHead head = {};
  bool began = false;
  std::exception_ptr error = nullptr;
};

size_t on_header(char* data, size_t, size_t n, void* transfer) {
  read_header(static_cast<Transfer*>(transfer)->head, {data, n});
  return n;
}

// Exceptions must not pass through C code: the callback stores them and ends the transfer.
size_t on_body(char* data, size_t, size_t n, void* transfer) {
  Transfer& t = *static_cast<Transfer*>(transfer);
  if (t.head.status != 200 && t.head.status != 206) return n;  // ignore the text of an error page
  try {
    if (!t.began) t.begin(t.head);
    t.began = true;
    t.body(std::as_bytes(std::span(data, n)));
    return n;
  } catch (...) { t.error = std::current_exception(); }
  return 0;
}

// Errors that a retry would not fix.
bool is_lasting(CURLcode code) {
  return code == CURLE_UNSUPPORTED_PROTOCOL || code == CURLE_URL_MALFORMAT ||
         code == CURLE_WRITE_ERROR || code == CURLE_TOO_MANY_REDIRECTS ||
         code == CURLE_PEER_FAILED_VERIFICATION || code == CURLE_SSL_CACERT_BADFILE;
}

struct FreeList {
  void operator()(curl_slist* list) const { curl_slist_free_all(list); }
};
using HeaderList = std::unique_ptr<curl_slist, FreeList>;

void append(HeaderList& list, const std::string& line) {
  curl_slist* longer = curl_slist_append(list.get(), line.c_str());
  if (!longer) throw std::bad_alloc();
  list.release();
  list.reset(longer);
}

}  // namespace

struct Https::Curl {
  CURL* handle = curl_easy_init();

  ~Curl() { curl_easy_cleanup(handle); }
  template <class V>
  void set(CURLoption option, V value) {
    if (const CURLcode code = curl_easy_setopt(handle, option, value); code != CURLE_OK)
      fail("https", "libcurl refused option {}: {}", int(option), curl_easy_strerror(code));
  }
};

Https::Https(HttpsSpec spec) : curl_(std::make_unique<Curl>()) {
  Curl& c = *curl_;
  if (!c.handle) fail("https", "libcurl could not be initialised");
  c.set(CURLOPT_PROTOCOLS_STR, "https");
  c.set(CURLOPT_REDIR_PROTOCOLS_STR, "https");
  c.set(CURLOPT_SSLVERSION, long(CURL_SSLVERSION_TLSv1_2));  // minimum version
  c.set(CURLOPT_SSL_VERIFYPEER, 1L);
  c.set(CURLOPT_SSL_VERIFYHOST, 2L);
  c.set(CURLOPT_FOLLOWLOCATION, 1L);
  c.set(CURLOPT_MAXREDIRS, 10L);
  c.set(CURLOPT_NOSIGNAL, 1L);
  c.set(CURLOPT_CONNECTTIMEOUT, long(spec.connect_seconds));
  c.set(CURLOPT_LOW_SPEED_LIMIT, 1L);
  c.set(CURLOPT_LOW_SPEED_TIME, long(spec.stall_seconds));
  c.set(CURLOPT_WRITEFUNCTION, curl_write_callback(on_body));
  c.set(CURLOPT_HEADERFUNCTION, curl_write_callback(on_header));
  if (!spec.ca_file.empty()) c.set(CURLOPT_CAINFO, spec.ca_file.c_str());
  c.set(CURLOPT_USERAGENT,
        fmt::format("hearth/{}", build_info().version).c_str());  // libcurl copies it
}

Https::~Https() = default;

HttpsResult Https::get(const HttpsRequest& request,
                       const std::function<void(const HttpsHead&)>& begin,
                       const std::function<void(Bytes)>& body) {
  Curl& c = *curl_;
  Transfer transfer{begin, body};
  char message[CURL_ERROR_SIZE] = "";
  HeaderList headers;
  if (request.from > 0) {
    append(headers, fmt::format("Range: bytes={}-", request.from));
    if (!request.unless.empty()) append(headers, "If-Range: " + request.unless);
  }
  c.set(CURLOPT_URL, request.url.c_str());
  c.set(CURLOPT_HTTPHEADER, headers.get());
  c.set(CURLOPT_ERRORBUFFER, message);
  c.set(CURLOPT_WRITEDATA, static_cast<void*>(&transfer));
  c.set(CURLOPT_HEADERDATA, static_cast<void*>(&transfer));
  const CURLcode code = curl_easy_perform(c.handle);
  c.set(CURLOPT_HTTPHEADER, static_cast<curl_slist*>(nullptr));
  c.set(CURLOPT_ERRORBUFFER, static_cast<char*>(nullptr));
  if (transfer.error) std::rethrow_exception(transfer.error);

  HttpsResult r;
  r.head = transfer.head;
  const int status = r.head.status;
  if (code != CURLE_OK) {
    r.problem = message[0] ? message : curl_easy_strerror(code);
    r.lasting = is_lasting(code);
  } else if (status != 200 && status != 206) {
    r.problem = fmt::format("status {}", status);
    r.lasting = status >= 300 && status < 500 && status != 408 && status != 416 && status != 429;
  } else if (!transfer.began) {  // an empty body
    begin(transfer.head);
  }
  return r;
}

const char* https_library() { return "libcurl " LIBCURL_VERSION; }

}  // namespace hearth::inline sys
