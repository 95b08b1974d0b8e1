// The version, commit and compiler of this binary.
#pragma once

namespace hearth::inline sys {

struct BuildInfo {
  const char* version;
  const char* commit;
  const char* type;
  const char* compiler;
};
BuildInfo build_info();

}  // namespace hearth::inline sys
