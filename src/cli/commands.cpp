// The command line: flags over environment over file over default. What the environment and the
// --config file give is put among the arguments, so that one parser checks them all.
#include "cli/commands.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <set>

#include "cli/arguments.h"
#include "core/build_info.h"
#include "core/error.h"
#include "io/json.h"

namespace hearth {

void add_common(CLI::App& app, Common& c) {
  app.add_option("--device", c.device, "auto, cpu or cuda[:i]")->capture_default_str();
  app.add_option("--threads", c.threads, "CPU threads; 0: one per core")->capture_default_str();
  app.add_option("--memory-limit", c.memory_limit, "GiB of a card to use at most; 0: what is free")
      ->capture_default_str();
  app.add_flag("--json", c.json, "one JSON object (or JSON lines) on stdout");
}

void add_adapter(CLI::App& app, std::string& adapter) {
  app.add_option("--adapter", adapter,
                 "adapter folder (PEFT's layout), checkpoint or run, beside the model's weights");
}

void put(std::string_view text) {
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size())
    fail("stdout", "expected to write {} bytes, got an error", text.size());
}

void flush() {
  if (std::fflush(stdout) != 0 || std::ferror(stdout))  // the latter: earlier, of what was put
    fail("stdout", "expected to write all, got an error");
}

void print_json(const nlohmann::ordered_json& j) {
  put(j.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n");
}

int run_command_line(int argc, char** argv) {
  CLI::App app("hearth trains, samples and measures small language models on the machine you own.",
               "hearth");
  app.require_subcommand(1);
  app.set_version_flag("--version", build_info().version);
  add_info(app);
  add_tokenizer(app);
  add_data(app);
  add_pretrain(app);
  add_generate(app);
  add_chat(app);
  add_serve(app);
  add_bench(app);
  add_quickstart(app);
  add_doctor(app);
  add_convert(app);
  add_eval(app);
  add_chess(app);
  add_grpo(app);
  add_sft(app);
  add_dpo(app);
  allow_config_files(app);

  const std::vector<std::string> given(argv + 1, argv + argc);
  std::vector<std::string> args = merge_arguments(app, given);
  std::reverse(args.begin(), args.end());  // as CLI11 wants them
  try {
    app.parse(args);
  } catch (const CLI::CallForVersion&) {
    put(fmt::format("hearth {}\n", build_info().version));
  } catch (const CLI::ParseError& e) {
    if (e.get_exit_code() != 0) explain_parse_error(app, given, e);
    app.exit(e);  // help
  }
  flush();  // a full disk is an error, not less output
  return 0;
}

}  // namespace hearth
