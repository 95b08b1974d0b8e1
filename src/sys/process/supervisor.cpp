#include "sys/process/supervisor.h"

#include <dirent.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace hearth::inline sys {
namespace {

constexpr const char* supervisor_name = "hearth-supervisor";

// The parent of a process according to /proc; -1 if the process is gone.
pid_t parent_of(const char* pid) {
  char path[64], stat[512];
  std::snprintf(path, sizeof path, "/proc/%.20s/stat", pid);
  const int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return -1;
  const ssize_t n = read(fd, stat, sizeof stat - 1);
  close(fd);
  if (n <= 0) return -1;
  stat[n] = 0;
  // "pid (name) state parent ..": the name may contain anything, so it ends at the last
  // parenthesis.
  const char* name_end = std::strrchr(stat, ')');
  int parent = -1;
  if (!name_end || std::sscanf(name_end + 1, " %*c %d", &parent) != 1) return -1;
  return parent;
}

// Sends SIGKILL to every child of this process; returns how many received it.
int kill_children() {
  DIR* proc = opendir("/proc");
  if (!proc) return 0;
  int sent = 0;
  const pid_t self = getpid();
  while (const dirent* entry = readdir(proc)) {
    if (entry->d_name[0] < '1' || entry->d_name[0] > '9') continue;
    if (parent_of(entry->d_name) != self) continue;
    sent += kill(pid_t(std::atol(entry->d_name)), SIGKILL) == 0;
  }
  closedir(proc);
  return sent;
}

// Whether any living child is left. Ids of dead children are released only here, so kill_children()
// cannot hit an unrelated process.
bool reap_children() {
  pid_t ended;
  do ended = waitpid(-1, nullptr, WNOHANG);
  while (ended > 0);
  return ended == 0;
}

// Runs until no descendant is left. Children of a dying child become ours, so killing children
// repeatedly reaches all descendants. A child of another user, or one in an uninterruptible call,
// is abandoned after some seconds.
void end_descendants() {
  constexpr int rounds = 5000;
  for (int i = 0; i < rounds; ++i) {
    kill_children();
    if (!reap_children()) return;
    const timespec pause{0, 1'000'000};
    nanosleep(&pause, nullptr);
  }
}

// Starts the program in its own process group. It dies with the supervisor.
SupervisedStart start_program(char** argv) {
  int status[2];
  if (pipe2(status, O_CLOEXEC) != 0) return {errno, -1};
  const pid_t self = getpid();
  SupervisedStart s{0, fork()};
  if (s.pid == 0) {
    setpgid(0, 0);
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != self) _exit(127);
    execv(argv[0], argv);
    const int error = errno;
    const ssize_t told = write(status[1], &error, sizeof error);
    _exit(told > 0 ? 127 : 126);
  }
  if (s.pid < 0) s.error = errno;
  close(status[1]);
  // A successful exec closes the pipe, so nothing arrives.
  int error = 0;
  if (s.pid > 0 && read(status[0], &error, sizeof error) == ssize_t(sizeof error)) s.error = error;
  close(status[0]);
  return s;
}

[[noreturn]] void supervise(char** argv) {
  prctl(PR_SET_NAME, supervisor_name);
  prctl(PR_SET_CHILD_SUBREAPER, 1);
  fcntl(supervisor_leash, F_SETFD, FD_CLOEXEC);
  const SupervisedStart started = start_program(argv);
  // After the start, because a program inherits ignored signals. The owner handles signals that are
  // sent to the whole group.
  for (const int s : {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE}) signal(s, SIG_IGN);
  // Only the program keeps the socket and stderr, so that they close when it ends.
  const int nothing = open("/dev/null", O_RDWR);
  for (const int fd : {0, 1, 2}) dup2(nothing, fd);
  bool owned = send(supervisor_leash, &started, sizeof started, MSG_NOSIGNAL) > 0;
  while (owned && started.error == 0) {
    pollfd leash{supervisor_leash, POLLIN, 0};
    if (poll(&leash, 1, 1000) == 0) {  // reap detached children
      reap_children();
      continue;
    }
    char byte;
    const ssize_t n = recv(supervisor_leash, &byte, 1, MSG_DONTWAIT);
    owned = n > 0 || (n < 0 && (errno == EINTR || errno == EAGAIN));
  }
  if (started.pid > 0) end_descendants();
  _exit(0);
}

// Runs before main(): every program that links this file, tests included, can be its own
// supervisor, and would otherwise run its main() again for each child program.
__attribute__((constructor)) void supervise_if_named_so(int argc, char** argv) {
  if (argc > 1 && std::strcmp(argv[0], supervisor_name) == 0) supervise(argv + 1);
}

}  // namespace

const char* supervisor_executable() { return "/proc/self/exe"; }

std::vector<std::string> supervisor_arguments(const std::string& program,
                                              const std::vector<std::string>& args) {
  std::vector<std::string> all{supervisor_name, program};
  all.insert(all.end(), args.begin(), args.end());
  return all;
}

}  // namespace hearth::inline sys
