// hearth: one program that trains, aligns and serves small language models.
#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>

#include "cli/commands.h"
#include "core/error.h"

int main(int argc, char** argv) {
  try {
    return hearth::run_command_line(argc, argv);
  } catch (const hearth::Error& e) {
    fmt::print(stderr, "hearth: {}\n", e.what());
    return e.usage() ? 2 : 1;
  } catch (const std::bad_alloc&) {
    fmt::print(stderr, "hearth: [memory] expected more free memory than this machine has left\n");
  } catch (const std::exception& e) { fmt::print(stderr, "hearth: [internal] {}\n", e.what()); }
  return 1;
}
