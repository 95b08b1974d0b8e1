// hearth data arithmetic: generated arithmetic problems for pretraining, fine-tuning and rewards.
#include <fmt/format.h>

#include "cli/commands.h"
#include "tasks/arithmetic/arithmetic.h"

namespace hearth::inline cli {
namespace {

struct ArithmeticFlags {
  std::string out;
  ArithmeticSpec spec;
  bool force = false, json = false;
};

void run_data_arithmetic(const ArithmeticFlags& flags) {
  for (const char* name : arithmetic_files)
    expect_new(std::filesystem::path(flags.out) / name, flags.force);
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
  CLI::App* c = app.add_subcommand("arithmetic", "generate arithmetic and word problems");
  c->add_option("--out", flags->out,
                "output folder: pretrain.txt, {sft,preferences,prompts}.jsonl, heldout.{txt,jsonl}")
      ->required();
  c->add_option("--digits", s.digits, "digits of each operand")->capture_default_str();
  c->add_option("--ops", s.ops, "operators: any of + - *")->capture_default_str();
  c->add_flag("--words", s.words, "write word problems instead of 12+34=");
  c->add_option("--problems", s.problems, "number of distinct problems; 0: all (up to 2 digits)")
      ->capture_default_str();
  c->add_option("--held-out", s.held_out, "fraction that goes only to the heldout files")
      ->capture_default_str();
  c->add_option("--seed", s.seed, "random seed for the choice, order and words of the problems")
      ->capture_default_str();
  add_force(*c, flags->force);
  c->add_flag("--json", flags->json, "print the result as one JSON object");
  c->callback([flags] { run_data_arithmetic(*flags); });
}

}  // namespace hearth::inline cli
