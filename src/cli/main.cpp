// hearth: one program that trains, aligns and serves small language models.
#include <fcntl.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <system_error>

#include "cli/commands.h"
#include "cli/signals.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace {

// Turns an exception from a library into a message in our format.
std::string explain_foreign_error(const std::exception& e) {
  if (const auto* f = dynamic_cast<const std::filesystem::filesystem_error*>(&e)) {
    std::string path = f->path1().string();
    if (!f->path2().empty()) path += " to " + f->path2().string();
    return fmt::format("[{}] cannot be used: {}", path, f->code().message());
  }
  if (dynamic_cast<const nlohmann::json::exception*>(&e)) {
    const std::string text = e.what();  // "[json.exception.type_error.302] type must be .."
    const size_t end = text.find("] ");
    return "[json] unexpected contents: " + text.substr(end == text.npos ? 0 : end + 2);
  }
  if (const auto* s = dynamic_cast<const std::system_error*>(&e)) {
    if (std::ferror(stdout)) return fmt::format("[stdout] writing failed: {}", s->code().message());
    return fmt::format("[system] a system call failed: {}", s->what());
  }
  return fmt::format("[internal] {}", e.what());
}

// The exit code of a failed command. Prints the error, unless the only failure is that the reader
// of stdout is gone.
int failed(const std::string& line, int code) {
  if (std::ferror(stdout) && hearth::reader_is_gone(STDOUT_FILENO)) return 128 + SIGPIPE;
  hearth::say_problem(line);
  return code;
}

// Otherwise a file or socket could get the number of a closed stream and receive its output.
void keep_standard_streams() {
  for (const int fd : {0, 1, 2})
    if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", fd == 0 ? O_RDONLY : O_WRONLY) != fd) _exit(1);
}

}  // namespace

int main(int argc, char** argv) {
  keep_standard_streams();
  hearth::survive_write_signals();
  try {
    return hearth::run_command_line(argc, argv);
  } catch (const hearth::Error& e) {
    return failed(e.what(), e.usage() ? 2 : 1);
  } catch (const std::bad_alloc&) {
    return failed("[memory] out of memory; try a smaller model, batch or context", 1);
  } catch (const std::exception& e) { return failed(explain_foreign_error(e), 1); }
}
