#include "serve/config.h"

#include "sys/error.h"

namespace hearth::inline serve {

void ServeConfig::check() const {
  const auto whole = [](const char* flag, int64_t value, int64_t low, int64_t high) {
    if (value < low || value > high)
      fail_usage(flag, "expected a number from {} to {}, got {}", low, high, value);
  };
  const auto seconds = [](const char* flag, double value) {
    if (!(value > 0 && value <= 86400))
      fail_usage(flag, "expected a time above 0 and up to 86400 seconds, got {}", value);
  };
  constexpr int64_t many = int64_t(1) << 31;
  whole("--port", port, 0, 65535);
  whole("--batch", batch, 1, 4096);
  whole("--queue", queue, 0, 1 << 20);
  whole("--speculate", speculate, 0, 64);
  whole("--max-connections", max_connections, 1, 1 << 20);
  whole("--max-header-bytes", max_header_bytes, 256, 1 << 20);
  whole("--max-body-bytes", max_body_bytes, 1, many);
  if (max_pending_bytes != 0)  // otherwise the largest allowed body would always be rejected
    whole("--max-pending-bytes", max_pending_bytes, max_body_bytes, many * 16);
  whole("--workers", workers, 1, 64);
  whole("--max-messages", max_messages, 1, many);
  whole("--max-tokenize-bytes", max_tokenize_bytes, 1, many);
  whole("--max-detokenize-ids", max_detokenize_ids, 1, many);
  whole("--max-json-depth", max_json_depth, 2, 256);
  whole("--max-prompt-tokens", max_prompt_tokens, 0, many);
  whole("--max-new-tokens", max_new_tokens, 1, many);
  whole("--max-choices", max_choices, 1, 1 << 16);
  whole("--max-logprobs", max_logprobs, 0, 1024);
  whole("--max-stop-strings", max_stop_strings, 0, 1024);
  whole("--max-stop-bytes", max_stop_bytes, 1, 1 << 20);
  whole("--max-answer-entries", max_answer_entries, 1, many);
  whole("--max-output-bytes", max_output_bytes, 4096, many);
  seconds("--header-seconds", header_seconds);
  seconds("--body-seconds", body_seconds);
  seconds("--idle-seconds", idle_seconds);
  seconds("--write-seconds", write_seconds);
  seconds("--drain-seconds", drain_seconds);
}

}  // namespace hearth::inline serve
