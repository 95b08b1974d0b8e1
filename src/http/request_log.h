// RequestLog: one line on stderr per request (--log-requests). It never contains a prompt, an
// answer, a query string or a key.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

#include "http/workers.h"

namespace hearth::inline http {

struct RequestRecord {
  std::string client = {};  // address:port
  std::string method = {}, path = {};
  int status = 0;
  int64_t bytes = 0;  // bytes sent
  double milliseconds = 0;
  int64_t prompt_tokens = -1, completion_tokens = -1;  // -1: unknown
};

// TIME CLIENT METHOD PATH STATUS BYTES MS PROMPT COMPLETION, with "-" for unknown values. Request
// bytes that are not printable ASCII are escaped.
std::string log_line(std::chrono::system_clock::time_point, const RequestRecord&);

class RequestLog {
 public:
  explicit RequestLog(bool enabled) : writer_(enabled ? 1 : 0), enabled_(enabled) {}
  ~RequestLog();
  // Called on the network thread, which a blocked reader of stderr must not stall: a separate
  // thread writes the lines, and lines beyond the limit are dropped and counted.
  void add(const RequestRecord&);

 private:
  std::atomic<int64_t> waiting_ = 0;
  std::atomic<int64_t> dropped_ = 0;
  Workers writer_;
  const bool enabled_;
};

}  // namespace hearth::inline http
