// Replaces the server in a build without Boost.Beast.
#include "serve/server.h"
#include "sys/error.h"

namespace hearth::inline serve {

void run_server(const ServeConfig&, const ServeJob&) {
  fail("serve",
       "this build has no server, because Boost.Beast was missing: install libboost-dev (1.74 or "
       "later) and build again");
}

}  // namespace hearth::inline serve
