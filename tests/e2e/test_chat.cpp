// hearth chat as a user types: turns, commands, and an interrupt that ends the answer alone.
#include <algorithm>
#include <chrono>
#include <stdexcept>
#include <thread>

#include "e2e/command.h"
#include "served_folder.h"

namespace hearth {
namespace {

using nlohmann::json;

// A chat whose standard input is a pipe.
class ChatRun {
 public:
  ChatRun(const Folder& folder, const Arguments& flags) : folder_(folder) {
    write_served_folder(folder / "model");
    int ends[2];
    if (pipe(ends) != 0) throw std::runtime_error("no pipe");
    const Arguments args = Arguments{"chat",     "--model", folder / "model", "--threads", "1",
                                     "--device", "cpu",     "--dtype",        "fp32"} +
                           flags;
    std::vector<char*> argv{const_cast<char*>(HEARTH_BINARY)};
    for (const std::string& a : args) argv.push_back(const_cast<char*>(a.c_str()));
    argv.push_back(nullptr);
    const std::string out = folder / "out", err = folder / "err";
    pid_ = fork();
    if (pid_ == 0) {
      dup2(ends[0], 0);
      dup2(open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 1);
      dup2(open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644), 2);
      close(ends[0]);
      close(ends[1]);
      execv(HEARTH_BINARY, argv.data());
      _exit(127);
    }
    close(ends[0]);
    in_ = ends[1];
  }
  void type(const std::string& text) {
    ASSERT_EQ(write(in_, text.data(), text.size()), ssize_t(text.size()));
  }
  std::string out() const { return fs::exists(folder_ / "out") ? read_file(folder_ / "out") : ""; }
  std::string err() const { return read_file(folder_ / "err"); }
  void interrupt() const { kill(pid_, SIGINT); }
  int end() {
    close(in_);
    return wait_for(pid_);
  }
  template <class F>
  void eventually(F done) {
    for (int i = 0; i < 3000 && !done(); ++i)
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
    EXPECT_TRUE(done()) << err();
  }

 private:
  const Folder& folder_;
  pid_t pid_;
  int in_;
};

int64_t lines_in(const std::string& text) { return std::count(text.begin(), text.end(), '\n'); }

TEST(Chat, ReadsLinesThatEndAsInWindows) {
  const Folder folder;
  ChatRun chat(folder, {"--max-tokens", "2"});
  const std::string file = folder / "saved.json";
  chat.type("hello\r\n\r\n/save " + file + "\r\n/quit\r\nnot read\n");
  EXPECT_EQ(chat.end(), 0) << chat.err();
  EXPECT_EQ(json::parse(read_file(file))["messages"][0]["content"], "hello");
}

TEST(Chat, RemembersSavesAndForgets) {
  const Folder folder;
  ChatRun chat(folder, {"--json", "--seed", "3", "--max-tokens", "4", "--system", "Be brief."});
  const std::string first = folder / "first.json", second = folder / "second.json";
  chat.type("Grüße\nagain\n/save " + first + "\n/reset\n/save " + second + "\n/nonsense\n/quit\n");
  EXPECT_EQ(chat.end(), 1) << chat.err();  // for the nonsense
  ASSERT_EQ(lines_in(chat.out()), 2);
  const json saved = json::parse(read_file(first))["messages"];
  ASSERT_EQ(saved.size(), 5u);
  EXPECT_EQ(saved[0]["content"], "Be brief.");
  EXPECT_EQ(saved[1]["content"], "Grüße");
  EXPECT_EQ(saved[2]["role"], "assistant");
  EXPECT_EQ(saved[2]["content"], json::parse(chat.out().substr(0, chat.out().find('\n')))["text"]);
  EXPECT_EQ(json::parse(read_file(second))["messages"].size(), 1u);
  EXPECT_NE(chat.err().find("expected /reset"), std::string::npos);
}

// A file that this chat has written may be saved again; another one only by /save!.
TEST(Chat, SavingOverwritesOnlyItsOwnFiles) {
  const Folder folder;
  const std::string file = folder / "notes.txt", own = folder / "own.json";
  write_file_atomic(file, std::string_view("mine"));
  ChatRun kept(folder, {"--system", "Be brief."});
  kept.type("/save " + file + "\n/save " + own + "\n/save " + own + "\n");
  EXPECT_EQ(kept.end(), 1) << kept.err();
  EXPECT_EQ(read_file(file), "mine");
  EXPECT_NE(kept.err().find("this file exists: choose another name, or /save! " + file),
            std::string::npos)
      << kept.err();
  EXPECT_NE(kept.err().find("1 line of standard input failed"), std::string::npos) << kept.err();
  ChatRun forced(folder, {"--system", "Be brief."});
  forced.type("/save! " + file + "\n");
  EXPECT_EQ(forced.end(), 0) << forced.err();
  EXPECT_EQ(json::parse(read_file(file))["messages"].size(), 1u);
}

size_t times(const std::string& text, const std::string& part) {
  size_t n = 0;
  for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
  return n;
}

TEST(Chat, AFullContextLeavesOutOldTurnsAndSavesAll) {
  const Folder folder;
  ChatRun chat(folder, {"--json", "--seed", "3", "--max-tokens", "4", "--context", "64"});
  std::string lines;
  for (int i = 0; i < 6; ++i) lines += "this is question number " + std::to_string(i) + "\n";
  const std::string file = folder / "all.json";
  chat.type(lines + "/save " + file + "\n");
  EXPECT_EQ(chat.end(), 0) << chat.err();
  EXPECT_EQ(lines_in(chat.out()), 6);
  const json saved = json::parse(read_file(file))["messages"];
  ASSERT_EQ(saved.size(), 12u);
  for (int i = 0; i < 6; ++i)
    EXPECT_EQ(saved[size_t(2 * i)]["content"], "this is question number " + std::to_string(i));
  EXPECT_EQ(times(chat.err(),
                  "the context (64 tokens) is full; the model no longer sees the oldest 2 turns\n"),
            1u)
      << chat.err();
  EXPECT_EQ(times(chat.err(), "no longer sees"), 1u) << chat.err();
}

TEST(Chat, ATooLongMessageSaysTheLimitAndFailsAPipe) {
  const Folder folder;
  ChatRun chat(folder, {"--json", "--seed", "3", "--context", "64"});
  const std::string file = folder / "all.json";
  chat.type("hi\n" + std::string(200, 'x') + "\n/save " + file + "\n");
  EXPECT_EQ(chat.end(), 1) << chat.err();
  EXPECT_NE(chat.err().find("expected a message of at most 32 tokens, got "), std::string::npos)
      << chat.err();
  EXPECT_NE(
      chat.err().find("the context holds 64 tokens, and a message may take at most half of them"),
      std::string::npos)
      << chat.err();
  EXPECT_EQ(json::parse(read_file(file))["messages"].size(), 2u);  // those before it stay
}

// An answer without a limit has half of the context too.
TEST(Chat, AnEndlessAnswerKeepsItsRoom) {
  const Folder folder;
  ChatRun chat(folder, {"--json", "--seed", "3", "--context", "64", "--max-tokens", "-1"});
  chat.type(std::string(50, 'x') + "\n");
  EXPECT_EQ(chat.end(), 1) << chat.err();
  EXPECT_NE(chat.err().find("expected a message of at most 32 tokens, got "), std::string::npos)
      << chat.err();
}

// An error of the engine fails one message; the conversation goes on and can be saved.
TEST(Chat, AnErrorWhileAnsweringKeepsTheConversation) {
  const Folder folder;
  std::string twins = "(";
  for (int i = 0; i < 60; ++i) twins += "(a|b){0,90}" + std::string(i % 2 ? "|" : "");
  ChatRun chat(folder, {"--json", "--seed", "3", "--regex", "x?" + twins + "a{80})c",
                        "--max-tokens", "200"});
  const std::string file = folder / "all.json";
  chat.type("hi\nagain\n/save " + file + "\n");
  EXPECT_EQ(chat.end(), 1) << chat.err();
  const size_t failed = times(chat.err(), "ambiguous");
  EXPECT_GE(failed, 1u) << chat.err();
  EXPECT_EQ(json::parse(read_file(file))["messages"].size(), 2 * (2 - failed));
}

TEST(Chat, AnInterruptEndsTheAnswerOnly) {
  const Folder folder;
  ChatRun chat(folder, {"--seed", "3", "--max-tokens", "-1", "--temperature", "1.5"});
  chat.type("talk\n");
  chat.eventually([&] { return !chat.out().empty(); });
  chat.interrupt();
  chat.eventually([&] { return lines_in(chat.out()) >= 1; });
  chat.interrupt();  // between answers it is nothing
  const std::string file = folder / "saved.json";
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  chat.type("/save " + file + "\n");
  chat.eventually([&] { return fs::exists(file); });
  EXPECT_EQ(json::parse(read_file(file))["messages"].size(), 2u);
  EXPECT_EQ(chat.end(), 0) << chat.err();
}

TEST(Chat, SaysThatThereIsNoTemplate) {
  const Folder folder;
  ChatRun chat(folder, {"--max-tokens", "2"});
  EXPECT_EQ(chat.end(), 0);
  EXPECT_EQ(chat.err().find("no chat template"), std::string::npos);
  write_served_folder(folder / "plain", false);
  const Ran plain = run(folder, {"chat", "--model", folder / "plain", "--device", "cpu"});
  EXPECT_EQ(plain.status, 0);
  EXPECT_NE(plain.err.find("no chat template"), std::string::npos) << plain.err;
}

}  // namespace
}  // namespace hearth
