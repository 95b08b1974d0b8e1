// The subcommands, one file each. Each add_* function adds a subcommand with its flags to the app
// and sets the callback that runs it.
#pragma once

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/fp8.h"
#include "core/quantised.h"
#include "cuda/backend.h"
#include "infer/engine.h"
#include "infer/generation_config.h"
#include "infer/loaded_model.h"
#include "model/auto_dtype.h"
#include "train/config.h"

namespace hearth::inline cli {

// Flags of most commands.
struct Common {
  std::string device = "auto";  // auto | cpu | cuda[:i]
  int threads = 0;              // 0: one per core
  double memory_limit = 0;      // GPU memory in GiB; 0: all that is free
  bool json = false;
};
void add_common(CLI::App&, Common&);
// The threads of --threads; says once if they are more than the cores (device.cpp).
int checked_threads(int threads);
// --adapter, for commands that run a model.
void add_adapter(CLI::App&, std::string& adapter);

// Checks of the number that a flag is given (commands.cpp).
CLI::Validator at_least(int64_t least);
CLI::Validator above_zero();
CLI::Validator between(double least, double most);

// --force, and the error without it for a command that would overwrite `file` (commands.cpp).
void add_force(CLI::App&, bool& to);
void expect_new(const std::filesystem::path& file, bool force);
// Throws if `file` or its folder cannot be created, so that a long command fails at its start.
// Leaves nothing behind (commands.cpp).
void expect_writable(const std::filesystem::path& file);

// Backend options beyond the defaults that a command needs.
struct BackendWish {
  bool tf32 = false, fp16 = false;
  bool batch_invariant = false;  // for GPUs; the CPU always is
  bool hopper_kernels = true;    // false: the kernels for other GPUs on Hopper too
};
// The backend that --device names; an unavailable one is an error that says why (device.cpp).
std::unique_ptr<Backend> make_backend(const Common&, const BackendWish& = {});
int chosen_card(const Common&);  // the GPU that it would use; -1: none
// The GPUs that --device names, usable or not; with auto all of them.
struct NamedCards {
  std::vector<CudaCard> cards = {};
  std::string problem = {};  // why there are none, if there should be one
};
NamedCards named_cards(const Common&);

// --weights: storage format of the model's matrices while it runs; a format that the backend cannot
// multiply is an error (device.cpp).
void add_weights(CLI::App&, std::string& to);
WeightFormat weight_format(const std::string& name, const Backend&);

// --kv: storage format of the KV cache (device.cpp).
void add_kv(CLI::App&, std::string& to);
CacheFormat cache_format(const std::string& name);

// --speculate and --draft: how many draft tokens a step verifies, and where they come from
// (device.cpp).
struct Speculation {
  int64_t tokens = 0;
  std::string draft = "lookup";
  const CLI::Option* draft_flag = nullptr;

  Draft source() const;     // an unknown name is an error
  int64_t guesses() const;  // 0: none, or one per module
  bool on() const { return guesses() > 0 || source() != Draft::lookup; }
};
void add_speculation(CLI::App&, Speculation&);

// --batch-invariant, for commands that run a model (device.cpp).
void add_batch_invariant(CLI::App&, bool& to);

// --dtype of commands that run a model: type of weights, activations and cache. A type without
// kernels on the backend is an error. auto depends on the workload and on the stored type of the
// weights; the choice is printed on stderr, with the name of the model if there are several
// (device.cpp).
void add_dtype(CLI::App&, std::string& to);
void check_dtype(const std::string& name, const Backend&);
DType weights_dtype(const std::string& name, const Backend&, Workload, DType stored,
                    const std::string& model = {});

// The flags that say which model a command runs, and how: --model, --adapter, --dtype, --weights.
struct ModelFlags {
  const std::string &model, &adapter, &dtype, &weights;
};
LoadedModel load_model(const ModelFlags&, Backend&, Workload);

// --dtype of commands that train: a config whose dtype is auto unless a flag sets it. resolve_dtype
// replaces auto, so that the run stores the choice and a resumed run keeps it (device.cpp).
template <class Config>
Config with_auto_dtype() {
  Config c;
  c.dtype = TrainDType::automatic;
  return c;
}
void resolve_dtype(TrainDType&, const Backend&);

// --generation-config auto or none: whether to use the sampling defaults in the model's folder
// (device.cpp).
void add_generation_config(CLI::App&, std::string& to);
// Applies the folder's defaults to fields not in `given` and prints the applied values on stderr.
void apply_generation_config(SamplingSpec&, const std::string& choice, const ModelSource&,
                             const std::set<std::string>& given);

// Writes text to stdout unchanged; flush() flushes it. Both fail if stdout cannot be written.
void put(std::string_view);
void flush();

// Writes model output: exact bytes to a pipe or file, visible control characters to a terminal.
void put_text(std::string_view);

// Writes the final result of a run. A closed stdout is no error: the run folder has the results.
void put_result(std::string_view);

// Says on stderr that longrope uses its long factors for sequences of up to `tokens` tokens, if it
// does.
void say_long_rope(const ModelConfig&, int64_t tokens);
// Prints a note on stderr and returns true if the context ended a completion before `asked` tokens.
bool say_if_clipped(const Completion&, int64_t asked, int64_t context);

// One JSON object as a line. Bytes that are not valid UTF-8 become U+FFFD.
std::string json_line(const nlohmann::ordered_json&);
void print_json(const nlohmann::ordered_json&);  // on stdout
template <class T>
nlohmann::json json_or_null(const std::optional<T>& x) {
  return x ? nlohmann::json(*x) : nlohmann::json();
}

void add_info(CLI::App&);
void add_tokenizer(CLI::App&);
void add_data(CLI::App&);
void add_pretrain(CLI::App&);
void add_generate(CLI::App&);
void add_chat(CLI::App&);
void add_serve(CLI::App&);
void add_board(CLI::App&);
void add_plot(CLI::App&);
void add_bench(CLI::App&);
void add_quickstart(CLI::App&);
void add_doctor(CLI::App&);
void add_convert(CLI::App&);
void add_eval(CLI::App&);
void add_chess(CLI::App&);
void add_grpo(CLI::App&);
void add_sft(CLI::App&);
void add_dpo(CLI::App&);
void add_data_chess(CLI::App&);       // hearth data chess
void add_data_arithmetic(CLI::App&);  // hearth data arithmetic

int run_command_line(int argc, char** argv);

}  // namespace hearth::inline cli
