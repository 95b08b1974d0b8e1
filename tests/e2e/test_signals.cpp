// How commands end when something outside ends them: signals, closed pipes, limits, a file cut
// short. A run saves first and says how to go on; everything else is one line and an exit code.
#include <fcntl.h>
#include <sys/resource.h>
#include <sys/stat.h>

#include <thread>

#include "e2e/command.h"
#include "served_folder.h"

namespace hearth {
namespace {

// A pipe with a name, for a stream of a command; whoever reads it can leave.
class Fifo {
 public:
  explicit Fifo(const fs::path& path) {
    if (mkfifo(path.c_str(), 0600) != 0) throw std::runtime_error("no named pipe");
    reader_ = Fd(open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  }
  void wait_for_bytes(pid_t pid) const {
    char byte;
    while (read(reader_.get(), &byte, 1) != 1 && !has_ended(pid))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
  }
  void leave() { reader_ = Fd(); }

 private:
  Fd reader_;
};

class Signals : public testing::Test {
 protected:
  void SetUp() override {
    write_chain(data, 20000, 1);
    write_served_folder(folder / "model");
  }
  Arguments sft(const std::string& method) const {
    return {method,
            "--model",
            folder / "model",
            "--data",
            folder / "rows.jsonl",
            "--run",
            run_dir,
            "--max-length",
            "64",
            "--steps",
            "100000",
            "--batch",
            "2",
            "--threads",
            "1",
            "--eval-every",
            "0",
            "--checkpoint-every",
            "0"};
  }
  // The command a stopped one prints, on a line of its own.
  static std::string resume_line(const std::string& err) {
    const size_t at = err.find("to continue:\n  ");
    if (at == err.npos) return "";
    const size_t begin = at + 15;
    return err.substr(begin, err.find('\n', begin) - begin);
  }

  const Folder folder;
  const fs::path data = folder / "train.bin", run_dir = folder / "run";
};

TEST_F(Signals, EachSavesAndSaysHowToGoOn) {
  for (const int signal : {SIGINT, SIGTERM, SIGHUP}) {
    SCOPED_TRACE(signal);
    const std::string name = "it's " + std::to_string(signal);  // for a shell to quote
    // Enough steps not to end before the signal arrives, even on a busy machine.
    const pid_t pid = start(folder, tiny_run(data, folder / name, 2000), "stopped");
    wait_for_file(folder / name / "log.jsonl", pid);
    kill(pid, signal);
    EXPECT_EQ(wait_for(pid), 128 + signal);
    const std::string err = read_file(folder / "stopped.err");
    EXPECT_TRUE(fs::exists(folder / name / "latest/model.safetensors"));
    EXPECT_EQ(nlohmann::json::parse(read_file(folder / "stopped.out"))["reason"], "stopped");
    const std::string again = resume_line(err);
    ASSERT_NE(again, "") << err;
    EXPECT_EQ(std::system((again + " >" + (folder / "again.out").string()).c_str()), 0) << again;
    EXPECT_EQ(nlohmann::json::parse(read_file(folder / "again.out"))["steps"], 2000);
  }
}

// nohup(1) has SIGHUP ignored, and a run it started goes on when the terminal closes.
TEST_F(Signals, AnIgnoredHangupStaysIgnored) {
  signal(SIGHUP, SIG_IGN);
  const pid_t pid = start(folder, tiny_run(data, run_dir, 300), "nohup");
  signal(SIGHUP, SIG_DFL);
  wait_for_file(run_dir / "log.jsonl", pid);
  kill(pid, SIGHUP);
  EXPECT_EQ(wait_for(pid), 0) << read_file(folder / "nohup.err");
}

TEST_F(Signals, AlignmentEndsTheSameWay) {
  std::string rows;
  for (int i = 0; i < 8; ++i)
    rows += R"({"prompt":"q","completion":"a","chosen":"a","rejected":"zz"})"
            "\n";
  write_file_atomic(folder / "rows.jsonl", rows);
  for (const std::string method : {"sft", "dpo"}) {
    SCOPED_TRACE(method);
    fs::remove_all(run_dir);
    const pid_t pid = start(folder, sft(method), "stopped");
    wait_for_file(run_dir / "log.jsonl", pid);
    kill(pid, SIGHUP);
    EXPECT_EQ(wait_for(pid), 128 + SIGHUP) << read_file(folder / "stopped.err");
    const std::string again = resume_line(read_file(folder / "stopped.err"));
    EXPECT_EQ(again, std::string(HEARTH_BINARY) + " " + method +
                         " --device cpu --threads 1 --run " + run_dir.string() + " --resume");
    EXPECT_TRUE(fs::exists(run_dir / "latest/model.safetensors"));
    // A resumed call continues the run again, and what it changed stays changed.
    const auto logged = fs::file_size(run_dir / "log.jsonl");
    const Arguments resumed{method, "--run", run_dir, "--resume", "--keep", "100"};
    const pid_t second = start(folder, resumed, "resumed");
    while (fs::file_size(run_dir / "log.jsonl") <= logged && !has_ended(second))
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    kill(second, SIGHUP);
    EXPECT_EQ(wait_for(second), 128 + SIGHUP) << read_file(folder / "resumed.err");
    EXPECT_TRUE(resume_line(read_file(folder / "resumed.err"))
                    .ends_with("--run " + run_dir.string() + " --resume --keep 100"))
        << read_file(folder / "resumed.err");
    EXPECT_NE(read_file(run_dir / "config.toml").find("\nkeep = 100\n"), std::string::npos);
  }
}

// DPO's pass over the reference model comes before the first weights to save.
TEST_F(Signals, DposReferencePassKeepsItsResultsAlone) {
  std::string rows;
  for (int i = 0; i < 20000; ++i)
    rows += R"({"prompt":"q","chosen":"a","rejected":"zz"})"
            "\n";
  write_file_atomic(folder / "rows.jsonl", rows);
  const pid_t pid = start(folder, sft("dpo"), "stopped");
  wait_for_file(run_dir / "config.toml", pid);
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT);
  EXPECT_EQ(read_file(folder / "stopped.out"), "0 steps, 0 tokens, 0.0 s; no checkpoint\n");
  EXPECT_TRUE(fs::exists(run_dir / "reference.json"));
  EXPECT_FALSE(fs::exists(run_dir / "latest"));
  EXPECT_NE(resume_line(read_file(folder / "stopped.err")), "");
}

TEST_F(Signals, QuickstartSaysHowToGoOn) {
  const pid_t pid = start(folder, {"quickstart", "--run", run_dir, "--threads", "1"}, "stopped");
  wait_for_file(run_dir / "log.jsonl", pid);
  kill(pid, SIGINT);
  EXPECT_EQ(wait_for(pid), 128 + SIGINT);
  const std::string err = read_file(folder / "stopped.err");
  EXPECT_TRUE(
      resume_line(err).ends_with(" quickstart --device cpu --threads 1 --run " + run_dir.string()))
      << err;
}

TEST_F(Signals, ConvertRemovesWhatItWrote) {
  for (const auto& [signal, name] :
       {std::pair{SIGINT, "SIGINT"}, {SIGTERM, "SIGTERM"}, {SIGHUP, "SIGHUP"}}) {
    SCOPED_TRACE(name);
    const fs::path place = folder / "new";
    // As many files as experts have matrices, so that the signal arrives before the last one.
    const pid_t pid = start(folder,
                            {"convert", "--from", folder / "model", "--to", place / "hf", "--gguf",
                             place / "gguf/m.gguf", "--upcycle-moe", "1024", "--shard-bytes", "1"},
                            "stopped");
    wait_for_file(place / (".tmp-hf-" + std::to_string(pid)), pid);
    kill(pid, signal);
    EXPECT_EQ(wait_for(pid), 128 + signal);
    EXPECT_EQ(read_file(folder / "stopped.err"),
              "hearth: stopped by " + std::string(name) + "; nothing was written\n");
    EXPECT_EQ(read_file(folder / "stopped.out"), "");
    EXPECT_FALSE(fs::exists(place));
  }
}

TEST_F(Signals, ARunOutlivesItsPipes) {
  Fifo out(folder / "piped.out"), err(folder / "piped.err");
  const pid_t pid = start(folder, tiny_run(data, run_dir, 300), "piped", folder / "piped.out");
  wait_for_file(run_dir / "log.jsonl", pid);
  out.leave(), err.leave();
  EXPECT_EQ(wait_for(pid), 0);
  const std::string log = read_file(run_dir / "log.jsonl");
  EXPECT_EQ(std::count(log.begin(), log.end(), '\n'), 300);
  EXPECT_EQ(fs::read_symlink(run_dir / "latest").filename(), "step-00000300");
}

TEST_F(Signals, TextThatNobodyReadsEndsQuietly) {
  write_refrain_folder(folder / "refrain");
  Fifo out(folder / "text.out");
  const pid_t pid = start(folder,
                          {"generate", "--model", folder / "refrain", "--prompt", "a", "--greedy",
                           "--max-tokens", "-1", "--threads", "1", "--dtype", "fp32"},
                          "text", folder / "text.out");
  out.wait_for_bytes(pid);
  out.leave();
  EXPECT_EQ(wait_for(pid), 128 + SIGPIPE);
  EXPECT_EQ(read_file(folder / "text.err"), "");
}

// Lines that report an error, among those of the progress.
int64_t errors_in(const std::string& err) {
  int64_t n = 0;
  for (size_t at = 0; (at = err.find("hearth: [", at)) != err.npos; ++at) ++n;
  return n;
}

TEST_F(Signals, AFileSizeLimitIsOneLine) {
  rlimit before{};
  getrlimit(RLIMIT_FSIZE, &before);
  const rlimit small{20000, before.rlim_max};
  setrlimit(RLIMIT_FSIZE, &small);
  const Ran r = run(folder, tiny_run(data, run_dir, 5), "limited");
  setrlimit(RLIMIT_FSIZE, &before);
  EXPECT_EQ(r.status, 1) << r.err;
  EXPECT_NE(r.err.find("File too large"), std::string::npos) << r.err;
  EXPECT_EQ(errors_in(r.err), 1) << r.err;
}

TEST_F(Signals, AShardCutShortIsNamed) {
  const pid_t pid = start(folder, tiny_run(data, run_dir, 1000000), "cut");
  wait_for_file(run_dir / "log.jsonl", pid);
  fs::resize_file(data, 1024);
  EXPECT_EQ(wait_for(pid), 1);
  const std::string err = read_file(folder / "cut.err");
  EXPECT_NE(err.find("hearth: [" + data.string() + "] the file was truncated"), std::string::npos)
      << err;
  EXPECT_EQ(errors_in(err), 1) << err;
}

}  // namespace
}  // namespace hearth
