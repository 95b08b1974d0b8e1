#include "http/config.h"

#include "sys/error.h"

namespace hearth::inline http {

void check_flag(const char* flag, int64_t value, int64_t low, int64_t high) {
  if (value < low || value > high)
    fail_usage(flag, "expected a number from {} to {}, got {}", low, high, value);
}

void HttpConfig::check() const {
  const auto seconds = [](const char* flag, double value) {
    if (!(value > 0 && value <= 86400))
      fail_usage(flag, "expected a time above 0 and up to 86400 seconds, got {}", value);
  };
  constexpr int64_t many = int64_t(1) << 31;
  check_flag("--port", port, 0, 65535);
  check_flag("--max-connections", max_connections, 1, 1 << 20);
  check_flag("--max-header-bytes", max_header_bytes, 256, 1 << 20);
  check_flag("--max-body-bytes", max_body_bytes, 1, many);
  if (max_pending_bytes != 0)  // otherwise the largest allowed body would always be rejected
    check_flag("--max-pending-bytes", max_pending_bytes, max_body_bytes, many * 16);
  check_flag("--workers", workers, 1, 64);
  check_flag("--max-output-bytes", max_output_bytes, 4096, many);
  seconds("--header-seconds", header_seconds);
  seconds("--body-seconds", body_seconds);
  seconds("--idle-seconds", idle_seconds);
  seconds("--write-seconds", write_seconds);
  seconds("--drain-seconds", drain_seconds);
}

}  // namespace hearth::inline http
