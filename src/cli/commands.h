// The commands of the program. Each add_* declares one subcommand with its flags on the app and
// leaves a callback that runs it; one file per command.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <string_view>

#include "core/backend.h"
#include "core/fp8.h"
#include "core/quantised.h"
#include "infer/generation_config.h"
#include "infer/loaded_model.h"
#include "train/auto_dtype.h"
#include "train/config.h"

namespace hearth {

struct Completion;

// Flags most commands take.
struct Common {
  std::string device = "auto";  // auto | cpu | cuda[:i]
  int threads = 0;              // 0: every core
  double memory_limit = 0;      // GiB of a card; 0: what is free
  bool json = false;
};
void add_common(CLI::App&, Common&);
// --adapter, of the commands that run a model.
void add_adapter(CLI::App&, std::string& adapter);

// What a command needs of its backend beyond the default.
struct BackendWish {
  bool tf32 = false, fp16 = false;
  bool batch_invariant = false;  // of a card; the CPU is
};
// The backend --device asks for; says in one sentence when there is none such (device.cpp).
std::unique_ptr<Backend> make_backend(const Common&, const BackendWish& = {});

// --weights: how the matrices of a model are kept while it runs; refuses what the backend cannot
// multiply (device.cpp).
void add_weights(CLI::App&, std::string& to);
WeightFormat weight_format(const std::string& name, const Backend&);

// --kv: what the KV cache holds (device.cpp).
void add_kv(CLI::App&, std::string& to);
CacheFormat cache_format(const std::string& name);

// --batch-invariant of the commands that run a model (device.cpp).
void add_batch_invariant(CLI::App&, bool& to);

// --dtype of the commands that run a model: its weights, activations and cache; refuses what the
// backend has no kernels for. auto is resolved for the work and the type the weights are stored in,
// and the choice goes to stderr (device.cpp).
void add_dtype(CLI::App&, std::string& to);
void check_dtype(const std::string& name, const Backend&);
DType weights_dtype(const std::string& name, const Backend&, Workload, DType stored);

// The flags that say which model a command runs, and how: --model, --adapter, --dtype, --weights.
struct ModelFlags {
  const std::string &model, &adapter, &dtype, &weights;
};
LoadedModel load_model(const ModelFlags&, Backend&, Workload);

// --dtype of the commands that train: a config whose dtype is auto unless a flag says otherwise,
// and the choice, so that the run records it and a resumed run keeps it (device.cpp).
template <class Config>
Config with_auto_dtype() {
  Config c;
  c.dtype = TrainDType::automatic;
  return c;
}
void resolve_dtype(TrainDType&, const Backend&);

// --generation-config: whether the sampling defaults of a model's folder count; auto or none
// (device.cpp).
void add_generation_config(CLI::App&, std::string& to);
// Lays them under what was given and says on stderr which values they are. `given` names fields.
void apply_generation_config(SamplingSpec&, const std::string& choice, const ModelSource&,
                             const std::set<std::string>& given);

// Text on stdout as it is; flush() brings out what was put. An error where it cannot be written.
void put(std::string_view);
void flush();

// What a model wrote: a pipe or a file gets the exact bytes, a terminal gets control characters
// made visible.
void put_text(std::string_view);

// The last words of a run, whose results lie in its folder: that nobody reads them is no error.
void put_result(std::string_view);

// Says on stderr, and returns, whether the context ended a completion before `asked` tokens.
bool say_if_clipped(const Completion&, int64_t asked, int64_t context);

// One JSON object as a line. JSON cannot carry bytes that are not UTF-8: they become U+FFFD.
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
void add_bench(CLI::App&);
void add_quickstart(CLI::App&);
void add_doctor(CLI::App&);
void add_convert(CLI::App&);
void add_eval(CLI::App&);
void add_chess(CLI::App&);
void add_grpo(CLI::App&);
void add_sft(CLI::App&);
void add_dpo(CLI::App&);
void add_data_chess(CLI::App&);       // under data
void add_data_arithmetic(CLI::App&);  // the same

int run_command_line(int argc, char** argv);

}  // namespace hearth
