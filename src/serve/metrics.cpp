#include "serve/metrics.h"

#include <fmt/format.h>

#include <algorithm>

#include "sys/process/process_memory.h"

namespace hearth::inline serve {
namespace {

// A label value may contain anything; these three characters are escaped.
std::string escaped(const std::string& value) {
  std::string s;
  for (const char c : value)
    s += c == '\n' ? "\\n" : c == '"' ? "\\\"" : c == '\\' ? "\\\\" : std::string(1, c);
  return s;
}

std::string heading(const std::string& name, const char* type, const std::string& help) {
  return fmt::format("# HELP {0} {2}\n# TYPE {0} {1}\n", name, type, help);
}

}  // namespace

void Histogram::observe(double value) {
  const auto at = std::ranges::lower_bound(bounds_, value);
  ++counts_[size_t(at - bounds_.begin())];
  sum_ += value;
}

std::string Histogram::text(const std::string& name, const std::string& help,
                            const std::string& labels) const {
  std::string s = heading(name, "histogram", help);
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const std::string le = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    s += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, le, below += counts_[i]);
  }
  s += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, below);
  return s;
}

Metrics::Metrics()
    : first_token({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}),
      between_tokens({0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                      0.5, 1, 2.5}),
      whole_request({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}) {}

std::string Metrics::text(const EngineStats& e, const std::string& model,
                          int64_t body_bytes) const {
  const std::string labels = fmt::format("model_name=\"{}\"", escaped(model));
  std::string s;
  const auto value = [&](const char* type, const std::string& name, const char* help, auto v) {
    s += heading(name, type, help) + fmt::format("{}{{{}}} {}\n", name, labels, v);
  };
  value("gauge", "vllm:num_requests_running", "Sequences in the running batch.", e.running);
  value("gauge", "vllm:num_requests_waiting", "Sequences waiting for the batch.", e.waiting);
  value("gauge", "vllm:kv_cache_usage_perc", "Fraction of the KV cache in use (1: full).",
        e.blocks ? double(e.used_blocks) / double(e.blocks) : 0);
  value("counter", "vllm:num_preemptions_total", "Preempted sequences.", e.preemptions);
  value("counter", "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
        e.reused_tokens);
  value("counter", "vllm:prompt_tokens_total", "Prompt tokens of finished requests.",
        prompt_tokens);
  value("counter", "vllm:generation_tokens_total", "Generated tokens of finished requests.",
        generated_tokens);
  s += heading("vllm:request_success_total", "counter", "Completions by finish reason.");
  for (const auto& [reason, count] : finished)
    s += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n", labels,
                     escaped(reason), count);
  s += first_token.text("vllm:time_to_first_token_seconds", "Time from request to first token.",
                        labels);
  s += between_tokens.text("vllm:inter_token_latency_seconds", "Time between tokens of a sequence.",
                           labels);
  s += whole_request.text("vllm:e2e_request_latency_seconds", "Time from request to its end.",
                          labels);
  s += heading("vllm:cache_config_info", "gauge", "Block size, type and blocks of the KV cache.") +
       fmt::format(
           "vllm:cache_config_info{{{},block_size=\"{}\",cache_dtype=\"{}\",num_gpu_blocks=\"{}\"}}"
           " 1"
           "\n",
           labels, cache_block, e.cache, e.blocks);
  value("gauge", "hearth:kv_cache_bytes", "Memory of the KV cache.", e.cache_bytes);
  value("gauge", "hearth:kv_blocks", "Blocks of the KV cache.", e.blocks);
  value("gauge", "hearth:kv_blocks_used", "Blocks of the KV cache in use.", e.used_blocks);
  value("gauge", "hearth:connections", "Open connections.", connections);
  value("gauge", "hearth:pending_body_bytes", "Body bytes of requests not yet started.",
        body_bytes);
  s += heading("hearth:http_responses_total", "counter", "Responses by status.");
  for (const auto& [status, count] : responses)
    s += fmt::format("hearth:http_responses_total{{{},status=\"{}\"}} {}\n", labels, status, count);
  s += heading("process_resident_memory_bytes", "gauge", "Resident memory size in bytes.") +
       fmt::format("process_resident_memory_bytes {}\n", resident_bytes());
  return s;
}

}  // namespace hearth::inline serve
