// serve(): HTTP in front of a model. One thread runs every connection, one the engine, and a few
// workers read the bodies of requests.
#pragma once

#include <functional>
#include <memory>
#include <string>

#include "serve/config.h"
#include "serve/model.h"

namespace hearth {

struct ServeJob {
  std::string name;  // of the model
  std::function<std::unique_ptr<ServedModel>()> load;
  // Told once each: it listens, and answers /health with 503; the model is there.
  std::function<void(const std::string& url)> listening;
  std::function<void(ServedModel&)> ready;
};

// Returns after SIGTERM or SIGINT, when what was running has ended or drain_seconds have passed; a
// second signal ends it at once. While the model is being loaded the first one ends the process,
// with status 0: there is nothing to wait for. Throws when it cannot listen or load, and what the
// job throws.
void serve(const ServeConfig&, const ServeJob&);

}  // namespace hearth
