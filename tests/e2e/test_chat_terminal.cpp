// hearth chat in a real terminal: tmux draws the screen, keys are pressed, and what a person would
// see is read back. Skipped where there is no tmux.
#include <fmt/format.h>

#include <chrono>
#include <thread>

#include "e2e/command.h"
#include "served_folder.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

using nlohmann::json;

class ChatTerminal : public testing::Test {
 protected:
  void SetUp() override {
    if (std::system("tmux -V >/dev/null 2>&1") != 0)
      GTEST_SKIP() << "needs tmux (scripts/packages installs it)";
  }
  ~ChatTerminal() override { tmux("kill-server"); }

  // A window whose edge a wide character meets; the shell stays to say how the program ended.
  void open(const std::string& flags) {
    const std::string chat = fmt::format("{} chat --device cpu --threads 1 {}; echo ended $?; cat",
                                         HEARTH_BINARY, flags);
    ASSERT_EQ(tmux(fmt::format("-f /dev/null new-session -d -x 70 -y 40 \"{}\"", chat)), 0);
    expect_on_screen("/reset, /save FILE, /save! FILE, /quit; Ctrl-C stops an answer");
    expect_on_screen("\n> ");
  }
  int tmux(const std::string& command, const std::string& to = "/dev/null") const {
    return std::system(fmt::format("env -u TMUX LC_ALL=C.UTF-8 tmux -u -S {} {} >{} 2>&1",
                                   (folder_ / "tmux").string(), command, to)
                           .c_str());
  }
  void type(const std::string& text) { ASSERT_EQ(tmux("send-keys -l '" + text + "'"), 0); }
  void press(const std::string& key) { ASSERT_EQ(tmux("send-keys " + key), 0); }
  void enter(const std::string& text) {
    type(text);
    press("Enter");
  }
  std::string screen() const {
    const fs::path file = folder_ / "screen";
    if (tmux("capture-pane -p -N -S -", file.string()) != 0) return "";  // with what left it
    return read_file(file);
  }
  static size_t count(const std::string& text, const std::string& part) {
    size_t n = 0;
    for (size_t at = 0; (at = text.find(part, at)) != text.npos; at += part.size()) ++n;
    return n;
  }
  // Half a minute without it is a failure.
  template <class F>
  void eventually(F shown) {
    for (int i = 0; i < 1500; ++i) {
      if (shown(screen())) return;
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    const std::string all = screen();
    FAIL() << all.substr(0, 2000) << "\n..\n" << all.substr(all.size() - all.size() / 4);
  }
  void expect_on_screen(const std::string& part, size_t times = 1) {
    SCOPED_TRACE(part);
    eventually([&](const std::string& s) { return count(s, part) >= times; });
  }
  void expect_answer_to(const std::string& question) {
    SCOPED_TRACE(question);
    eventually([&](const std::string& s) {
      const size_t at = s.find(question);
      return at != s.npos && s.find(refrain, at) != s.npos;
    });
  }
  json saved(const std::string& name, size_t messages) {
    const std::string file = folder_ / name;
    enter("/save " + file);
    expect_on_screen(fmt::format("(saved {} messages to", messages));
    return json::parse(read_file(file))["messages"];
  }

  Folder folder_;
};

TEST_F(ChatTerminal, WideCharactersAndInterrupts) {
  write_refrain_folder(folder_ / "model");
  open(fmt::format("--model {} --temperature 0 --max-tokens -1", (folder_ / "model").string()));
  // A line in the making is corrected, another dropped; the program stays.
  type("héé");
  press("BSpace");
  type("日本語 😀x");
  press("BSpace");
  press("Enter");
  expect_answer_to("> hé日本語 😀");
  press("C-c");
  expect_on_screen("(stopped)");
  type("never sent");
  press("C-c");
  expect_on_screen("(to end the program, type /quit or press Ctrl-D)");
  enter("und weiter");
  expect_answer_to("> und weiter");
  press("C-c");
  expect_on_screen("(stopped)", 2);
  const json messages = saved("conversation.json", 4);
  ASSERT_EQ(messages.size(), 4u);
  EXPECT_EQ(messages[0]["content"], "hé日本語 😀");
  EXPECT_EQ(messages[2]["content"], "und weiter");
  for (const size_t i : {1, 3}) {
    const std::string answer = messages[i]["content"];
    EXPECT_EQ(messages[i]["role"], "assistant");
    EXPECT_LT(int64_t(answer.size()), refrain_context - 100);
    ASSERT_GE(answer.size(), refrain.size());
    for (size_t at = 0; at + refrain.size() <= answer.size(); at += refrain.size())
      ASSERT_EQ(answer.substr(at, refrain.size()), refrain) << at;
  }
  // Whole characters only, at the edges of the window too.
  EXPECT_EQ(screen().find("\uFFFD"), std::string::npos) << screen();
  press("C-d");
  expect_on_screen("ended 0");
}

TEST_F(ChatTerminal, RemembersForgetsAndSaves) {
  const fs::path model = test::test_data("models/story/story.bin");
  open(fmt::format("--model {} --seed 3 --max-tokens 12", model.string()));
  expect_on_screen("no chat template");
  enter("Tell me of a dog.");
  expect_on_screen("\n> ", 2);
  enter("And of a cat.");
  expect_on_screen("\n> ", 3);
  const json first = saved("first.json", 4);
  ASSERT_EQ(first.size(), 4u);
  EXPECT_EQ(first[0]["content"], "Tell me of a dog.");
  EXPECT_EQ(first[2]["content"], "And of a cat.");
  EXPECT_FALSE(first[1]["content"].get<std::string>().empty());
  enter("/reset");
  expect_on_screen("(started a new conversation)");
  EXPECT_EQ(saved("none.json", 0).size(), 0u);
  // The first answer again, since nothing stands before the question.
  enter("Tell me of a dog.");
  expect_on_screen("\n> ", 7);
  const json again = saved("again.json", 2);
  EXPECT_EQ(again[1]["content"], first[1]["content"]);
  enter("/quit");
  expect_on_screen("ended 0");
}

}  // namespace
}  // namespace hearth
