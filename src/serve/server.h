// run_server(): the HTTP server for one or more models. One thread handles all connections, one
// runs the engines, and a few workers read request bodies.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/config.h"
#include "serve/model.h"

namespace hearth::inline serve {

struct ServeJob {
  std::function<std::vector<NamedModel>()> load;  // with their engines
  // Each called once: the server listens and answers /health with 503; all models are loaded.
  std::function<void(const std::string& url)> listening;
  std::function<void(std::span<const NamedModel>)> ready;
  // Reads the sensors of the device, on any thread; may be absent.
  std::function<std::optional<DeviceState>()> sensors = {};
};

// Returns after SIGTERM or SIGINT, when running requests have finished or drain_seconds have
// passed; a second signal ends it at once. While models are loading, the first signal ends the
// process with status 0. Throws if it cannot listen or load, and rethrows errors of the job.
void run_server(const ServeConfig&, const ServeJob&);

}  // namespace hearth::inline serve
