// Which chat template a checkpoint carries: the one its rows were trained through, or the base's
// own, or none; never one the model has not seen.
#include "e2e/command.h"
#include "served_folder.h"
#include "text/chat/chat_template.h"

namespace hearth {
namespace {

class AlignTemplates : public testing::Test {
 protected:
  void SetUp() override {
    write_served_folder(folder / "base", false);
    const std::string plain = R"({"prompt": "q", "completion": "a"})",
                      instruction = R"({"instruction": "Add.", "input": "1 1", "output": "2"})";
    write("plain.jsonl", plain + "\n");
    write("instructions.jsonl", instruction + "\n");
    write("mixed.jsonl", plain + "\n" + instruction + "\n");
    write("pairs.jsonl", R"({"prompt": "q", "chosen": "a", "rejected": "b"})"
                         "\n");
    write("asked.jsonl", R"({"instruction": "Add.", "answer": "2"})"
                         "\n");
  }
  void write(const std::string& name, const std::string& text) {
    write_file_atomic(folder / name, text);
  }
  std::string path(const std::string& name) const { return folder / name; }

  // One step; returns the checkpoint's folder.
  fs::path trained(const std::string& method, const std::string& from, const std::string& data,
                   const Arguments& more = {}) {
    const std::string run_name = "run-" + std::to_string(++runs_);
    json_of(run(folder, Arguments{method, "--model", path(from), "--data", path(data), "--run",
                                  path(run_name), "--steps", "1", "--threads", "1", "--json"} +
                            more));
    last_ = run_name;
    return folder / run_name / "latest";
  }
  std::string carried(const fs::path& checkpoint) const {
    const fs::path file = checkpoint / "chat_template.jinja";
    return fs::exists(file) ? read_file(file) : "";
  }
  // What a chat asks the model for.
  std::string asked(const fs::path& checkpoint) const {
    const nlohmann::ordered_json messages = {{{"role", "user"}, {"content", "Add."}}};
    return ChatTemplate::load(checkpoint)
        .render({.messages = messages, .add_generation_prompt = true})
        .bytes;
  }

  const Folder folder;
  std::string last_;
  int runs_ = 0;
};

TEST_F(AlignTemplates, PlainRowsLeaveAModelWithoutATemplate) {
  EXPECT_EQ(carried(trained("sft", "base", "plain.jsonl")), "");
  const std::string sft = last_;
  const Ran chat =
      run(folder, {"chat", "--model", path(sft), "--device", "cpu", "--dtype", "fp32"});
  EXPECT_EQ(chat.status, 0) << chat.err;
  EXPECT_NE(chat.err.find("no chat template"), std::string::npos) << chat.err;
  EXPECT_NE(chat.err.find("hearth generate"), std::string::npos) << chat.err;
  EXPECT_EQ(std::count(chat.err.begin(), chat.err.end(), '\n'), 1) << chat.err;
  // Nor do DPO, GRPO and adapters make one up.
  EXPECT_EQ(carried(trained("dpo", sft, "pairs.jsonl")), "");
  EXPECT_EQ(carried(trained("sft", "base", "plain.jsonl", {"--lora", "2"})), "");
  EXPECT_EQ(carried(trained("grpo", sft, "plain.jsonl",
                            {"--reward", "length:3", "--prompts", "1", "--group", "2",
                             "--max-completion", "4"})),
            "");
  // A form that no row goes through is not carried either.
  EXPECT_EQ(carried(trained("sft", "base", "plain.jsonl", {"--chat-template", "alpaca"})), "");
}

TEST_F(AlignTemplates, InstructionsAreCarriedAsTheyWereTrained) {
  const fs::path own = trained("sft", "base", "instructions.jsonl");
  EXPECT_NE(carried(own).find("<|im_start|>"), std::string::npos);
  EXPECT_EQ(asked(own), "<|im_start|>user\nAdd.<|end|>\n<|im_start|>assistant\n");
  const std::string sft = last_;
  EXPECT_NE(carried(trained("sft", "base", "mixed.jsonl")), "");
  EXPECT_NE(carried(trained("sft", "base", "instructions.jsonl", {"--lora", "2"})), "");
  // What comes after asks as SFT did.
  EXPECT_EQ(carried(trained("dpo", sft, "pairs.jsonl")), carried(own));
  EXPECT_EQ(carried(trained(
                "grpo", sft, "asked.jsonl",
                {"--reward", "exact", "--prompts", "1", "--group", "2", "--max-completion", "4"})),
            carried(own));
}

TEST_F(AlignTemplates, AlpacasFormIsAFlagAndATemplate) {
  const Arguments alpaca{"--chat-template", "alpaca"};
  const std::string prompt =
      "Below is an instruction that describes a task. Write a response that appropriately "
      "completes the request.\n\n### Instruction:\nAdd.\n\n### Response:\n";
  const fs::path sft = trained("sft", "base", "instructions.jsonl", alpaca);
  EXPECT_EQ(asked(sft), prompt);
  const std::string from = last_;
  // It resumes, and the next method takes it for the model's own.
  json_of(run(folder, {"sft", "--run", path(from), "--resume", "--json"}));
  EXPECT_EQ(asked(trained("sft", from, "instructions.jsonl")), prompt);
  // A base with a template of its own that is trained by another one carries the other one.
  write_served_folder(folder / "templated");
  EXPECT_EQ(asked(trained("sft", "templated", "instructions.jsonl", alpaca)), prompt);
  EXPECT_EQ(carried(trained("sft", "templated", "plain.jsonl", alpaca)), served_template());
}

}  // namespace
}  // namespace hearth
