#include "sys/build_info.h"

#include "sys/commit.h"

namespace hearth::inline sys {

BuildInfo build_info() {
  return {HEARTH_VERSION, HEARTH_COMMIT, HEARTH_BUILD_TYPE, "gcc " __VERSION__};
}

}  // namespace hearth::inline sys
