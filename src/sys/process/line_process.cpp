#include "sys/process/line_process.h"

#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <sstream>

#include "sys/process/supervisor.h"

extern char** environ;

namespace hearth::inline sys {
namespace {

// File descriptors for the supervisor; a separate process group, so that terminal signals do not
// reach it; and no blocked or ignored signals.
struct SpawnSettings {
  posix_spawnattr_t attributes;
  posix_spawn_file_actions_t files;

  SpawnSettings(int line, int words, int leash) {
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
    if (words >= 0)
      posix_spawn_file_actions_adddup2(&files, words, 2);
    else
      posix_spawn_file_actions_addopen(&files, 2, "/dev/null", O_WRONLY, 0);
    posix_spawn_file_actions_adddup2(&files, leash, supervisor_leash);
  }
  ~SpawnSettings() {
    posix_spawnattr_destroy(&attributes);
    posix_spawn_file_actions_destroy(&files);
  }
  SpawnSettings(const SpawnSettings&) = delete;
};

}  // namespace

LineProcess::LineProcess(const std::filesystem::path& program, std::vector<std::string> args,
                         Stderr words) {
  int ends[2];
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno(program, "create a socket to the program");
  line_ = Fd(ends[0]);
  const Fd theirs(ends[1]);
  Fd their_words;
  if (words == Stderr::kept) {
    if (pipe2(ends, O_CLOEXEC) != 0) fail_errno(program, "create a pipe for its stderr");
    words_ = Fd(ends[0]), their_words = Fd(ends[1]);
    fcntl(words_.get(), F_SETFL, O_NONBLOCK);
  }
  if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
    fail_errno(program, "create a socket to its supervisor");
  leash_ = Fd(ends[0]);
  Fd their_leash(ends[1]);
  std::vector<std::string> words_of_call = supervisor_arguments(program.string(), args);
  std::vector<char*> argv;
  for (std::string& a : words_of_call) argv.push_back(a.data());
  argv.push_back(nullptr);
  const SpawnSettings settings(theirs.get(), their_words.get(), their_leash.get());
  const int error = posix_spawn(&supervisor_, supervisor_executable(), &settings.files,
                                &settings.attributes, argv.data(), environ);
  if (error != 0) fail_errno(program, "start its supervisor", error);
  their_leash = Fd();
  SupervisedStart started{ECHILD, -1};  // if the supervisor exits without a report
  while (recv(leash_.get(), &started, sizeof started, MSG_WAITALL) < 0 && errno == EINTR) {}
  pid_ = started.pid;
  if (started.error == 0) return;
  end();
  fail_errno(program, "start the program", started.error);
}

LineProcess::~LineProcess() { end(); }

// The supervisor exits when all processes it supervises have exited.
void LineProcess::end() {
  leash_ = Fd();
  while (waitpid(supervisor_, nullptr, 0) < 0 && errno == EINTR) {}
}

// Waits until the socket is ready for `events` or the deadline has passed.
bool LineProcess::ready(short events, Deadline deadline) {
  constexpr int64_t look_up = 100;  // poll interval in ms if the wait may be abandoned
  for (;;) {
    if (abandoned_ && *abandoned_) return false;
    const auto left =
        std::chrono::ceil<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd p[] = {{line_.get(), events, 0}, {words_.get(), POLLIN, 0}};  // negative fds are ignored
    const int n =
        poll(p, 2, int(std::clamp<int64_t>(left.count(), 0, abandoned_ ? look_up : 1 << 30)));
    if (n < 0 && errno != EINTR) return false;
    if (n > 0 && p[1].revents) listen();
    if (n > 0 && p[0].revents) return true;
    if (left.count() <= 0) return false;  // even if stderr still has output
  }
}

// Reads from the stderr pipe and keeps the end. Reads at most one pipe capacity, because the
// program may write as fast as this reads.
void LineProcess::listen() {
  char buffer[4096];
  for (int reads = 0; words_.get() >= 0 && reads < 32; ++reads) {
    const ssize_t n = read(words_.get(), buffer, sizeof buffer);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0 && errno == EAGAIN) return;
    if (n <= 0) words_ = Fd();  // all writers have closed it
    if (n > 0) said_.append(buffer, size_t(n));
    if (said_.size() > most_words) said_.erase(0, said_.size() - most_words);
  }
}

std::string LineProcess::last_words() {
  listen();
  return said_;
}

LineProcess::Heard LineProcess::say(std::string_view line, Deadline deadline) {
  const std::string text = std::string(line) + '\n';
  for (size_t done = 0; done < text.size();) {
    const ssize_t n =
        send(line_.get(), text.data() + done, text.size() - done, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (n > 0) {
      done += size_t(n);
    } else if (errno == EAGAIN || errno == EWOULDBLOCK) {
      if (!ready(POLLOUT, deadline)) return Heard::late;
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
    if (!ready(POLLIN, deadline)) return Heard::late;
    char buffer[4096];
    const ssize_t n = recv(line_.get(), buffer, sizeof buffer, MSG_DONTWAIT);
    if (n > 0) {
      heard_.append(buffer, size_t(n));
    } else if (n == 0 || (errno != EINTR && errno != EAGAIN)) {
      return Heard::ended;
    }
  }
}

Trouble trouble_of(LineProcess::Heard h) {
  switch (h) {
    case LineProcess::Heard::line:
      return Trouble::none;
    case LineProcess::Heard::late:
      return Trouble::hung;
    case LineProcess::Heard::ended:
      return Trouble::died;
    case LineProcess::Heard::too_long:
      return Trouble::rubbish;
  }
  return Trouble::rubbish;
}

std::optional<std::filesystem::path> find_program(const std::string& name,
                                                  const std::filesystem::path& last) {
  namespace fs = std::filesystem;
  const auto runs = [](const fs::path& p) {
    std::error_code none;
    return fs::is_regular_file(p, none) && access(p.c_str(), X_OK) == 0;
  };
  if (name.find('/') != name.npos) return runs(name) ? std::optional<fs::path>(name) : std::nullopt;
  const char* path = std::getenv("PATH");
  std::istringstream folders(std::string(path ? path : "") + ":" + last.string());
  for (std::string folder; std::getline(folders, folder, ':');)
    if (const fs::path p = fs::path(folder) / name; !folder.empty() && runs(p)) return p;
  return std::nullopt;
}

}  // namespace hearth::inline sys
