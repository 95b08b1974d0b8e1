// run_server(): the HTTP server for a model. One thread handles all connections, one runs the
// engine, and a few workers read request bodies.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/config.h"
#include "serve/model.h"

namespace hearth::inline serve {

struct ServeJob {
  std::string name;  // model name
  std::function<std::unique_ptr<ServedModel>()> load;
  // Each called once: the server listens and answers /health with 503; the model is loaded.
  std::function<void(const std::string& url)> listening;
  std::function<void(ServedModel&)> ready;
};

// Returns after SIGTERM or SIGINT, when running requests have finished or drain_seconds have
// passed; a second signal ends it at once. While the model is loading, the first signal ends the
// process with status 0. Throws if it cannot listen or load, and rethrows errors of the job.
void run_server(const ServeConfig&, const ServeJob&);

}  // namespace hearth::inline serve
