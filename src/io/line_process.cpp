#include "io/line_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>

extern char** environ;

namespace hearth {
namespace {

// Waits until fd is ready for `events` or the deadline has passed.
bool ready(const Fd& fd, short events, LineProcess::Deadline deadline) {
  for (;;) {
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd p{fd.get(), events, 0};
    const int n = poll(&p, 1, int(std::clamp<int64_t>(left.count(), 0, 1 << 30)));
    if (n > 0) return true;
    if (n == 0 || errno != EINTR) return false;
  }
}

// Its own process group, so that what it starts can be killed with it, and no signal of ours.
struct SpawnSettings {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;

  explicit SpawnSettings(int line) {
    sigset_t none, all;
    sigemptyset(&none);
    sigfillset(&all);
    posix_spawnattr_init(&attributes);
    posix_spawnattr_setflags(
        &attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF);
    posix_spawnattr_setpgroup(&attributes, 0);
    posix_spawnattr_setsigmask(&attributes, &none);
    posix_spawnattr_setsigdefault(&attributes, &all);
    posix_spawn_file_actions_init(&files);
    posix_spawn_file_actions_adddup2(&files, line, 0);
    posix_spawn_file_actions_adddup2(&files, line, 1);
    posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  SpawnSettings(const SpawnSettings&) = delete;
};

}  // namespace

LineProcess::LineProcess(const std::filesystem::path& program, std::vector<std::string> args) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno(program, "a line to it");
  line_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  std::string name = program.string();
  std::vector<char*> argv{name.data()};
  for (std::string& a : args) argv.push_back(a.data());
  argv.push_back(nullptr);
  const SpawnSettings settings(theirs.get());
  const int error =
      posix_spawn(&pid_, name.c_str(), &settings.files, &settings.attributes, argv.data(), environ);
  if (error != 0) fail_errno(program, "to start it", error);
}

LineProcess::~LineProcess() {
  kill(-pid_, SIGKILL);
  while (waitpid(pid_, nullptr, 0) < 0 && errno == EINTR) {}
}

LineProcess::Heard LineProcess::say(std::string_view line, Deadline deadline) {
  const std::string text = std::string(line) + '\n';
  for (size_t done = 0; done < text.size();) {
    const ssize_t n =
        send(line_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += size_t(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!ready(line_, POLLOUT, deadline)) return Heard::late;
    } else if (errno != EINTR) {
      return Heard::ended;
    }
  }
  return Heard::line;
}

LineProcess::Heard LineProcess::hear(std::string& line, Deadline deadline) {
  for (size_t searched = 0;;) {
    if (const size_t end = heard_.find('\n', searched); end != heard_.npos) {
      line.assign(heard_, 0, end);
      heard_.erase(0, end + 1);
      if (line.ends_with('\r')) line.pop_back();
      return Heard::line;
    }
    searched = heard_.size();
    if (searched > longest_line) return Heard::too_long;
    if (!ready(line_, POLLIN, deadline)) return Heard::late;
    char buffer[4096];
    const ssize_t n = recv(line_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      heard_.append(buffer, size_t(n));
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      return Heard::ended;
    }
  }
}

}  // namespace hearth
