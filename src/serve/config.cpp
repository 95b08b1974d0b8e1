#include "serve/config.h"

namespace hearth::inline serve {

void ServeConfig::check() const {
  http.check();
  constexpr int64_t many = int64_t(1) << 31;
  check_flag("--batch", batch, 1, 4096);
  check_flag("--queue", queue, 0, 1 << 20);
  check_flag("--step-tokens", step_tokens, 0, 1 << 16);
  check_flag("--step-ms", step_ms, 0, 1'000'000);
  check_flag("--speculate", speculate, 0, 64);
  check_flag("--max-messages", max_messages, 1, many);
  check_flag("--max-tokenize-bytes", max_tokenize_bytes, 1, many);
  check_flag("--max-detokenize-ids", max_detokenize_ids, 1, many);
  check_flag("--max-json-depth", max_json_depth, 2, 256);
  check_flag("--max-prompt-tokens", max_prompt_tokens, 0, many);
  check_flag("--max-new-tokens", max_new_tokens, 1, many);
  check_flag("--max-choices", max_choices, 1, 1 << 16);
  check_flag("--max-logprobs", max_logprobs, 0, 1024);
  check_flag("--max-stop-strings", max_stop_strings, 0, 1024);
  check_flag("--max-stop-bytes", max_stop_bytes, 1, 1 << 20);
  check_flag("--max-answer-entries", max_answer_entries, 1, many);
}

}  // namespace hearth::inline serve
