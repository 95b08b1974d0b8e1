// Runs the built program as a user would, in a temporary folder with small token files to read.
#pragma once

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "data/shards.h"
#include "sys/files/files.h"

namespace hearth {

namespace fs = std::filesystem;

struct Ran {
  int status = 0;  // exit code, or 128 + signal
  std::string out, err;
};

using Arguments = std::vector<std::string>;

// A folder that is deleted with the object.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "hearth-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder");
    path_ = name;
  }
  ~Folder() {
    std::error_code none;
    fs::remove_all(path_, none);
  }
  fs::path operator/(const std::string& name) const { return path_ / name; }
  const fs::path& path() const { return path_; }

 private:
  fs::path path_;
};

// Starts `hearth args..` with stderr, and stdout unless `to` is given, in files of `folder`;
// returns its process id.
inline pid_t start(const Folder& folder, const Arguments& args, const std::string& name = "run",
                   const std::string& to = {}, const std::string& from = "/dev/null") {
  const std::string out = to.empty() ? (folder / (name + ".out")).string() : to;
  const std::string err = folder / (name + ".err");
  std::vector<char*> argv{const_cast<char*>(HEARTH_BINARY)};
  for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
  argv.push_back(nullptr);
  const pid_t pid = fork();
  if (pid == 0) {
    for (auto [fd, path] : {std::pair{1, &out}, {2, &err}})
      dup2(open(path->c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), fd);
    dup2(open(from.c_str(), O_RDONLY), 0);
    // So that stderr says nothing about a GPU that may be absent.
    setenv("HEARTH_DEVICE", "cpu", 0);
    execv(HEARTH_BINARY, argv.data());
    _exit(127);
  }
  return pid;
}

inline bool has_ended(pid_t pid) {
  siginfo_t info{};
  waitid(P_PID, id_t(pid), &info, WEXITED | WNOHANG | WNOWAIT);
  return info.si_pid == pid;
}

// Waits until the file exists or the process has ended without it.
inline void wait_for_file(const fs::path& file, pid_t pid) {
  while (!fs::exists(file) && !has_ended(pid))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
}

inline int wait_for(pid_t pid) {
  int status = 0;
  waitpid(pid, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
}

inline Ran run(const Folder& folder, const Arguments& args, const std::string& name = "run") {
  Ran r;
  r.status = wait_for(start(folder, args, name));
  r.out = read_file(folder / (name + ".out")), r.err = read_file(folder / (name + ".err"));
  return r;
}

// Runs with `input` on standard input.
inline Ran run_on(const std::string& input, const Folder& folder, const Arguments& args) {
  write_file_atomic(folder / "run.in", std::string_view(input));
  Ran r;
  r.status = wait_for(start(folder, args, "run", {}, folder / "run.in"));
  r.out = read_file(folder / "run.out"), r.err = read_file(folder / "run.err");
  return r;
}

// Runs with a stdout to which no byte can be written.
inline Ran run_into_full_disk(const Folder& folder, const Arguments& args) {
  Ran r;
  r.status = wait_for(start(folder, args, "full", "/dev/full"));
  r.err = read_file(folder / "full.err");
  return r;
}

inline Arguments operator+(Arguments a, const Arguments& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

// Expects one error line on stderr, possibly after the line that reports the dtype chosen by auto,
// and the given exit code.
inline void expect_error(const Ran& r, int status, const std::string& part) {
  EXPECT_EQ(r.status, status) << r.err;
  const bool chosen = r.err.starts_with("hearth: computing in ");
  const std::string error = chosen ? r.err.substr(r.err.find('\n') + 1) : r.err;
  EXPECT_EQ(std::count(error.begin(), error.end(), '\n'), 1) << r.err;
  EXPECT_TRUE(error.starts_with("hearth: [")) << r.err;
  EXPECT_NE(r.err.find(part), std::string::npos) << r.err;
}

constexpr int tiny_vocab = 64;

// A token file from a Markov chain that a small model can learn.
inline void write_chain(const fs::path& file, int64_t tokens, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<int32_t> ids;
  int32_t at = 0;
  for (int64_t i = 0; i < tokens; ++i) {
    at = int32_t((at * 5 + 1 + int(random() % 3)) % tiny_vocab);
    ids.push_back(at);
  }
  write_tokens(file, TokenFormat::llmc, tiny_vocab, ids);
}

// Flags for a model of a few thousand parameters, trained on `data`.
inline Arguments tiny_run(const fs::path& data, const fs::path& run, int64_t steps) {
  return {"pretrain",
          "--run",
          run.string(),
          "--data",
          data.string(),
          "--steps",
          std::to_string(steps),
          "--vocab",
          std::to_string(tiny_vocab),
          "--context",
          "16",
          "--layers",
          "2",
          "--dim",
          "32",
          "--heads",
          "2",
          "--hidden",
          "64",
          "--batch",
          "2",
          "--seq",
          "16",
          "--tokens-per-step",
          "64",
          "--lr",
          "1e-2",
          "--warmup",
          "5",
          "--dropout-residual",
          "0.1",
          "--eval-every",
          "0",
          "--threads",
          "2",
          "--order",
          "shuffled",
          "--dtype",
          "fp32",  // the same bits on every machine
          "--json"};
}

inline nlohmann::json json_of(const Ran& r) {
  EXPECT_EQ(r.status, 0) << r.err;
  return nlohmann::json::parse(r.out.empty() ? "null" : r.out);
}

}  // namespace hearth
