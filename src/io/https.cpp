#include "io/https.h"

#include <dlfcn.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <exception>
#include <optional>

#include "core/build_info.h"
#include "core/error.h"
#include "io/trimmed.h"

namespace hearth {
namespace {

// libcurl's interface as curl.h declares it; these numbers are part of its ABI and never change.
enum Option : int {
  opt_ssl_version = 32,
  opt_low_speed_limit = 19,
  opt_low_speed_time = 20,
  opt_follow_location = 52,
  opt_verify_peer = 64,
  opt_max_redirects = 68,
  opt_connect_timeout = 78,
  opt_verify_host = 81,
  opt_no_signal = 99,
  opt_protocols = 181,
  opt_redirect_protocols = 182,
  opt_write_data = 10001,
  opt_url = 10002,
  opt_error_buffer = 10010,
  opt_user_agent = 10018,
  opt_headers = 10023,
  opt_header_data = 10029,
  opt_ca_file = 10065,
  opt_write_function = 20011,
  opt_header_function = 20079,
};
constexpr long only_https = 1 << 1, tls_1_2 = 6;
constexpr int error_protocol = 1, error_url = 3, error_write = 23, error_redirects = 47,
              error_certificate = 60, error_ca_file = 77;
constexpr size_t error_size = 256;

using Receive = size_t (*)(char*, size_t, size_t, void*);

// One transfer, as the callbacks see it.
struct Transfer {
  const std::function<void(const HttpsHead&)>& begin;
  const std::function<void(Bytes)>& body;
  HttpsHead head = {};
  bool began = false;
  std::exception_ptr error = nullptr;
};

std::optional<int64_t> number_at(std::string_view text) {
  int64_t n = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), n);
  if (error != std::errc() || n < 0) return {};
  return n;
}

void read_header(HttpsHead& head, std::string_view line) {
  if (line.starts_with("HTTP/")) {  // a new answer: what was redirected is forgotten
    head = {};
    if (const size_t space = line.find(' '); space != line.npos)
      head.status = int(number_at(line.substr(space + 1)).value_or(0));
    return;
  }
  const size_t colon = line.find(':');
  if (colon == line.npos) return;
  std::string key(line.substr(0, colon));
  std::transform(key.begin(), key.end(), key.begin(),
                 [](unsigned char c) { return std::tolower(c); });
  const std::string_view value = trimmed(line.substr(colon + 1));
  if (key == "etag" && is_etag(value)) head.etag = value;
  if (key == "content-length" && head.status == 200) head.total = number_at(value).value_or(-1);
  if (key == "content-range" && value.starts_with("bytes ")) {
    head.from = number_at(value.substr(6)).value_or(-1);
    if (const size_t slash = value.find('/'); slash != value.npos)
      head.total = number_at(value.substr(slash + 1)).value_or(-1);
  }
}

size_t on_header(char* data, size_t, size_t n, void* transfer) {
  read_header(static_cast<Transfer*>(transfer)->head, {data, n});
  return n;
}

// No exception may pass through C: it is kept, and the transfer ends.
size_t on_body(char* data, size_t, size_t n, void* transfer) {
  Transfer& t = *static_cast<Transfer*>(transfer);
  if (t.head.status != 200 && t.head.status != 206) return n;  // the text of an error page
  try {
    if (!t.began) t.begin(t.head);
    t.began = true;
    t.body(std::as_bytes(std::span(data, n)));
    return n;
  } catch (...) { t.error = std::current_exception(); }
  return 0;
}

}  // namespace

bool is_etag(std::string_view tag) {
  std::string_view quoted = tag;
  if (quoted.starts_with("W/")) quoted.remove_prefix(2);
  return tag.size() < 200 && quoted.size() >= 2 && quoted.front() == '"' && quoted.back() == '"' &&
         std::all_of(tag.begin(), tag.end(), [](char c) { return c > ' ' && c < '\x7f'; });
}

struct Https::Curl {
  HttpsSpec spec;
  void* library = nullptr;
  void* (*easy_init)() = nullptr;
  void (*easy_cleanup)(void*) = nullptr;
  int (*easy_setopt)(void*, int, ...) = nullptr;
  int (*easy_perform)(void*) = nullptr;
  const char* (*easy_strerror)(int) = nullptr;
  void* (*slist_append)(void*, const char*) = nullptr;
  void (*slist_free_all)(void*) = nullptr;
  void* handle = nullptr;

  template <class F>
  void load(F& function, const char* name) {
    function = reinterpret_cast<F>(dlsym(library, name));
    if (!function) fail("https", "expected {} in libcurl, got none", name);
  }
  ~Curl() {
    if (handle) easy_cleanup(handle);
    if (library) dlclose(library);
  }
  template <class V>
  void set(Option option, V value) {
    if (easy_setopt(handle, option, value) != 0)
      fail("https", "expected a libcurl that knows option {}, got an older one", int(option));
  }
  void configure();
};

void Https::Curl::configure() {
  set(opt_protocols, only_https);
  set(opt_redirect_protocols, only_https);
  set(opt_ssl_version, tls_1_2);
  set(opt_verify_peer, 1L);
  set(opt_verify_host, 2L);
  set(opt_follow_location, 1L);
  set(opt_max_redirects, 10L);
  set(opt_no_signal, 1L);
  set(opt_connect_timeout, long(spec.connect_seconds));
  set(opt_low_speed_limit, 1L);
  set(opt_low_speed_time, long(spec.stall_seconds));
  set(opt_write_function, Receive(on_body));
  set(opt_header_function, Receive(on_header));
  if (!spec.ca_file.empty()) set(opt_ca_file, spec.ca_file.c_str());
  set(opt_user_agent, fmt::format("hearth/{}", build_info().version).c_str());  // is copied
}

Https::Https(HttpsSpec spec) : curl_(std::make_unique<Curl>()) {
  Curl& c = *curl_;
  c.spec = std::move(spec);
  for (const char* name : {"libcurl.so.4", "libcurl-gnutls.so.4"})
    if (!c.library) c.library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (!c.library)
    fail("https", "expected libcurl.so.4 to download with, got none: install the package curl");
  c.load(c.easy_init, "curl_easy_init");
  c.load(c.easy_cleanup, "curl_easy_cleanup");
  c.load(c.easy_setopt, "curl_easy_setopt");
  c.load(c.easy_perform, "curl_easy_perform");
  c.load(c.easy_strerror, "curl_easy_strerror");
  c.load(c.slist_append, "curl_slist_append");
  c.load(c.slist_free_all, "curl_slist_free_all");
  c.handle = c.easy_init();
  if (!c.handle) fail("https", "expected libcurl to start, got an error");
  c.configure();
}

Https::~Https() = default;

HttpsResult Https::get(const HttpsRequest& request,
                       const std::function<void(const HttpsHead&)>& begin,
                       const std::function<void(Bytes)>& body) {
  Curl& c = *curl_;
  Transfer transfer{begin, body};
  char message[error_size] = "";
  void* headers = nullptr;
  if (request.from > 0) {
    headers = c.slist_append(headers, fmt::format("Range: bytes={}-", request.from).c_str());
    if (!request.unless.empty())
      headers = c.slist_append(headers, ("If-Range: " + request.unless).c_str());
  }
  c.set(opt_url, request.url.c_str());
  c.set(opt_headers, headers);
  c.set(opt_error_buffer, message);
  c.set(opt_write_data, &transfer);
  c.set(opt_header_data, &transfer);
  const int code = c.easy_perform(c.handle);
  c.set(opt_headers, static_cast<void*>(nullptr));
  c.set(opt_error_buffer, static_cast<char*>(nullptr));
  c.slist_free_all(headers);
  if (transfer.error) std::rethrow_exception(transfer.error);

  HttpsResult r;
  r.head = transfer.head;
  const int status = r.head.status;
  if (code != 0) {
    r.problem = message[0] ? message : c.easy_strerror(code);
    r.lasting = code == error_protocol || code == error_url || code == error_write ||
                code == error_redirects || code == error_certificate || code == error_ca_file;
  } else if (status != 200 && status != 206) {
    r.problem = fmt::format("status {}", status);
    r.lasting = status >= 300 && status < 500 && status != 408 && status != 416 && status != 429;
  } else if (!transfer.began) {  // a body of no bytes
    begin(transfer.head);
  }
  return r;
}

}  // namespace hearth
