// hearth data arithmetic: generated sums and word problems to pretrain, fine-tune and reward on.
#include <fmt/format.h>

#include "cli/commands.h"
#include "tasks/arithmetic/arithmetic.h"

namespace hearth {
namespace {

struct ArithmeticFlags {
  std::string out;
  ArithmeticSpec spec;
  bool json = false;
};

void run_data_arithmetic(const ArithmeticFlags& flags) {
  const ArithmeticSet set = make_arithmetic(flags.spec);
  write_arithmetic(flags.out, set);
  if (flags.json)
    return print_json(
        {{"out", flags.out}, {"train", set.train.size()}, {"held_out", set.held_out.size()}});
  put(fmt::format("{}: {} problems to train on, {} held out\n", flags.out, set.train.size(),
                  set.held_out.size()));
}

}  // namespace

void add_data_arithmetic(CLI::App& app) {
  auto flags = std::make_shared<ArithmeticFlags>();
  ArithmeticSpec& s = flags->spec;
  CLI::App* c = app.add_subcommand("arithmetic", "generated sums and word problems");
  c->add_option("--out", flags->out,
                "folder for pretrain.txt, {sft,preferences,prompts}.jsonl, heldout.{txt,jsonl}")
      ->required();
  c->add_option("--digits", s.digits, "of each operand")->capture_default_str();
  c->add_option("--ops", s.ops, "any of + - *")->capture_default_str();
  c->add_flag("--words", s.words, "word problems instead of 12+34=");
  c->add_option("--problems", s.problems, "different ones; 0: all of up to 2 digits")
      ->capture_default_str();
  c->add_option("--held-out", s.held_out, "share that only the heldout files have")
      ->capture_default_str();
  c->add_option("--seed", s.seed, "of choice, order and words")->capture_default_str();
  c->add_flag("--json", flags->json, "result as one JSON object");
  c->callback([flags] { run_data_arithmetic(*flags); });
}

}  // namespace hearth
