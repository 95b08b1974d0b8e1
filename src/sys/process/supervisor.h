// The process between this one and a program that LineProcess runs. It ends the program and all its
// descendants, in any session, when its leash socket closes: when the LineProcess is destroyed, and
// also when this process is killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace hearth::inline sys {

// The supervisor is this executable, started under a special name; it never reaches main(). Its
// file descriptors 0, 1 and 2 are passed on to the program; this one is the leash.
constexpr int supervisor_leash = 3;

// Sent over the leash when the program has started or failed to start.
struct SupervisedStart {
  int error = 0;  // an errno; 0: started
  pid_t pid = -1;
};

const char* supervisor_executable();
// The supervisor's argv for a program and its arguments.
std::vector<std::string> supervisor_arguments(const std::string& program,
                                              const std::vector<std::string>& args);

}  // namespace hearth::inline sys
