// Metrics: the counters and latencies of the server and its models in Prometheus format. Updated by
// the network thread.
#pragma once

#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "core/backend.h"
#include "http/handler.h"
#include "infer/engine.h"

namespace hearth::inline serve {

// Counts values up to each bound and beyond the last.
class Histogram {
 public:
  explicit Histogram(std::vector<double> bounds)
      : bounds_(std::move(bounds)), counts_(bounds_.size() + 1) {}
  void observe(double value);
  // Lines of the exposition format.
  std::string text(const std::string& name, const std::string& labels) const;

 private:
  std::vector<double> bounds_;
  std::vector<uint64_t> counts_;
  double sum_ = 0;
};

// Of one model.
struct ModelMetrics {
  ModelMetrics();

  Histogram first_token, between_tokens, whole_request;  // seconds
  std::map<std::string, int64_t> finished;               // completions by reason
  int64_t prompt_tokens = 0, generated_tokens = 0;
};

struct ModelReport {
  std::string name;  // the label of its metrics
  EngineStats engine;
  const ModelMetrics* requests;
};

struct ServerReport {
  std::vector<ModelReport> models = {};  // none while they are loading
  const HttpCounters* http;
  int64_t body_bytes = 0;
  std::optional<DeviceState> device = {};  // absent: no sensors
};

// Uses vLLM's names for equivalent metrics.
std::string metrics_text(const ServerReport&);

}  // namespace hearth::inline serve
