// In place of the server where Boost.Beast was not found when hearth was built.
#include "serve/server.h"
#include "sys/error.h"

namespace hearth {

void serve(const ServeConfig&, const ServeJob&) {
  fail("serve",
       "expected a build with Boost.Beast, got one without: install libboost-dev (1.74 or "
       "later) and build again");
}

}  // namespace hearth
