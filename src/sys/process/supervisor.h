// The process that stands between this one and a program that LineProcess runs. It ends the program
// and every process the program has started, in whatever session, when its leash closes: when the
// LineProcess goes, and also when this process is killed.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace hearth {

// The supervisor is this executable again, started under a name of its own: it never reaches
// main(). Its file descriptors 0, 1 and 2 are handed on to the program; this one is the leash.
constexpr int supervisor_leash = 3;

// Sent over the leash once the program runs, or could not be started.
struct SupervisedStart {
  int error = 0;  // an errno; 0: it runs
  pid_t pid = -1;
};

const char* supervisor_executable();
// Its argv for a program and the program's arguments.
std::vector<std::string> supervisor_arguments(const std::string& program,
                                              const std::vector<std::string>& args);

}  // namespace hearth
