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

std::string Histogram::text(const std::string& name, const std::string& labels) const {
  std::string s;
  uint64_t below = 0;
  for (size_t i = 0; i < counts_.size(); ++i) {
    const std::string le = i < bounds_.size() ? fmt::format("{}", bounds_[i]) : "+Inf";
    s += fmt::format("{}_bucket{{{},le=\"{}\"}} {}\n", name, labels, le, below += counts_[i]);
  }
  s += fmt::format("{0}_sum{{{1}}} {2}\n{0}_count{{{1}}} {3}\n", name, labels, sum_, below);
  return s;
}

ModelMetrics::ModelMetrics()
    : first_token({0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60}),
      between_tokens({0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25,
                      0.5, 1, 2.5}),
      whole_request({0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600}) {}

namespace {

// Writes families one after another, each with a line for every model.
class ModelLines {
 public:
  explicit ModelLines(std::span<const ModelReport> models) : models_(models) {}

  // `get` gives the value of a model.
  template <class Get>
  void value(const char* type, const std::string& name, const char* help, Get get) {
    family(type, name, help, [&](const ModelReport& m, const std::string& labels) {
      return fmt::format("{}{{{}}} {}\n", name, labels, get(m));
    });
  }
  void histogram(const std::string& name, const char* help, Histogram ModelMetrics::*which) {
    family("histogram", name, help, [&](const ModelReport& m, const std::string& labels) {
      return (m.requests->*which).text(name, labels);
    });
  }
  // `lines` gives those of a model.
  template <class Lines>
  void family(const char* type, const std::string& name, const char* help, Lines lines) {
    text += heading(name, type, help);
    for (const ModelReport& m : models_)
      text += lines(m, fmt::format("model_name=\"{}\"", escaped(m.name)));
  }

  std::string text;

 private:
  std::span<const ModelReport> models_;
};

std::string model_text(std::span<const ModelReport> models) {
  ModelLines w(models);
  using M = const ModelReport&;
  w.value("gauge", "vllm:num_requests_running", "Sequences in the running batch.",
          [](M m) { return m.engine.running; });
  w.value("gauge", "vllm:num_requests_waiting", "Sequences waiting for the batch.",
          [](M m) { return m.engine.waiting; });
  w.value("gauge", "vllm:kv_cache_usage_perc", "Fraction of the KV cache in use (1: full).",
          [](M m) {
            const EngineStats& e = m.engine;
            return e.blocks ? double(e.used_blocks) / double(e.blocks) : 0;
          });
  w.value("counter", "vllm:num_preemptions_total", "Preempted sequences.",
          [](M m) { return m.engine.preemptions; });
  w.value("counter", "vllm:prefix_cache_hits_total", "Prompt tokens found in the prefix cache.",
          [](M m) { return m.engine.reused_tokens; });
  w.value("counter", "vllm:prompt_tokens_total",
          "Tokens of prompts whose first token was generated.",
          [](M m) { return m.requests->prompt_tokens; });
  w.value("counter", "vllm:generation_tokens_total", "Generated tokens.",
          [](M m) { return m.requests->generated_tokens; });
  w.family("counter", "vllm:request_success_total", "Completions by finish reason.",
           [](M m, const std::string& labels) {
             std::string s;
             for (const auto& [reason, count] : m.requests->finished)
               s += fmt::format("vllm:request_success_total{{{},finished_reason=\"{}\"}} {}\n",
                                labels, escaped(reason), count);
             return s;
           });
  w.histogram("vllm:time_to_first_token_seconds", "Time from request to first token.",
              &ModelMetrics::first_token);
  w.histogram("vllm:inter_token_latency_seconds", "Time between tokens of a sequence.",
              &ModelMetrics::between_tokens);
  w.histogram("vllm:e2e_request_latency_seconds", "Time from request to its end.",
              &ModelMetrics::whole_request);
  w.family("gauge", "vllm:cache_config_info", "Block size, type and blocks of the KV cache.",
           [](M m, const std::string& labels) {
             return fmt::format(
                 "vllm:cache_config_info{{{},block_size=\"{}\",cache_dtype=\"{}\","
                 "num_gpu_blocks=\"{}\"}} 1\n",
                 labels, cache_block, m.engine.cache, m.engine.blocks);
           });
  w.value("gauge", "hearth:prompt_tokens_per_step",
          "Tokens of prompts that the last step could take.",
          [](M m) { return m.engine.prompt_rows; });
  w.value("gauge", "hearth:kv_cache_bytes", "Memory of the KV cache.",
          [](M m) { return m.engine.cache_bytes; });
  w.value("gauge", "hearth:kv_blocks", "Blocks of the KV cache.",
          [](M m) { return m.engine.blocks; });
  w.value("gauge", "hearth:kv_blocks_used", "Blocks of the KV cache in use.",
          [](M m) { return m.engine.used_blocks; });
  return std::move(w.text);
}

}  // namespace

std::string metrics_text(const ServerReport& r) {
  std::string s = r.models.empty() ? "" : model_text(r.models);
  const auto gauge = [&](const std::string& name, const char* help, auto v) {
    s += heading(name, "gauge", help) + fmt::format("{} {}\n", name, v);
  };
  gauge("hearth:connections", "Open connections.", r.http->connections);
  gauge("hearth:pending_body_bytes", "Body bytes of requests not yet started.", r.body_bytes);
  s += heading("hearth:http_responses_total", "counter", "Responses by status.");
  for (const auto& [status, count] : r.http->responses)
    s += fmt::format("hearth:http_responses_total{{status=\"{}\"}} {}\n", status, count);
  gauge("process_resident_memory_bytes", "Resident memory size in bytes.", resident_bytes());
  if (!r.device) return s;
  gauge("hearth:device_memory_bytes", "Memory of the GPU in use by all processes.",
        r.device->memory_bytes);
  gauge("hearth:device_watts", "Power that the GPU draws.", r.device->watts);
  gauge("hearth:device_celsius", "Temperature of the GPU.", r.device->celsius);
  gauge("hearth:device_utilisation", "Fraction of the time that the GPU was busy.",
        r.device->utilisation);
  return s;
}

}  // namespace hearth::inline serve
