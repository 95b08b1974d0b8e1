// Metrics: the server's counters and latencies in Prometheus format. Updated by the network thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "http/handler.h"
#include "infer/engine.h"

namespace hearth::inline serve {

// Counts values up to each bound and beyond the last.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  // Lines of the exposition format with # HELP and # TYPE.
  std::string text(const std::string& name, const std::string& help,
                   const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

struct Metrics : HttpCounters {
  Metrics();
  // Uses vLLM's names for equivalent metrics; `model` is their label.
  std::string text(const EngineStats&, const std::string& model, int64_t body_bytes = 0) const;

  Histogram first_token, between_tokens, whole_request;  // seconds
  std::map<std::string, int64_t> finished;               // completions by reason
  int64_t prompt_tokens = 0, generated_tokens = 0;       // of finished requests
};

}  // namespace hearth::inline serve
