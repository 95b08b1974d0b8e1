// hearth convert: writes a model in another format.
#include "model/files/convert.h"

#include "cli/commands.h"
#include "cli/signals.h"
#include "cpu/backend.h"
#include "formats/fields.h"
#include "model/files/hf_names.h"
#include "sys/counted.h"
#include "sys/error.h"
#include "sys/terminal.h"

namespace hearth::inline cli {
namespace {

struct ConvertFlags {
  std::string from, to, gguf, adapter;
  ConvertSpec spec = {};
  bool force = false, json = false;
};

// Refuses a folder, and a path that ends like one.
void expect_file_path(const std::string& gguf) {
  const std::filesystem::path path = gguf;
  if (path.lexically_normal().has_filename() && !std::filesystem::is_directory(path)) return;
  fail_usage("--gguf", "expected a file, got the folder {}: give a name in it, such as {}", gguf,
             (path / "model.gguf").string());
}

void run_convert(const ConvertFlags& flags) {
  count_stop_signals();
  ConvertSpec spec = flags.spec;
  spec.from = flags.from, spec.to = flags.to, spec.gguf = flags.gguf;
  spec.adapter = flags.adapter;
  if (!spec.upcycle && (spec.upcycle.top_k || spec.upcycle.granularity != 1))
    fail_usage("--upcycle-moe", "--top-k and --granularity need --upcycle-moe EXPERTS");
  if (!flags.gguf.empty()) {
    expect_file_path(flags.gguf);
    expect_new(flags.gguf, flags.force);
    expect_writable(flags.gguf);
  }
  spec.check = stop_if_signalled;
  const auto backend = make_cpu_backend(0);
  const Converted c = convert_model(spec, *backend);
  if (spec.upcycle.experts > 1 && spec.upcycle.top_k == 1)
    say("with --top-k 1 the weight of an expert is always 1, as the dense model's function needs "
        "it: training moves the routers by their balance losses alone, with --top-k 2 by its loss "
        "too\n");
  if (c.widened)
    say("{} matrices are stored as Q8_0 or F16 because the blocks of {} do not fit their rows\n",
        c.widened, flags.spec.dtype);
  if (c.left_out)
    say("the GGUF file does not hold the model's {} of multi-token prediction\n",
        counted(c.left_out, "module"));
  if (c.other_gelu)
    say("llama.cpp computes the GELU of gptneox by its tanh form, within 0.0005 of the model's\n");
  if (c.more_spaces)
    say("llama.cpp puts a space before every text, also after a special token; this tokenizer "
        "leaves some of them out\n");
  if (!flags.to.empty() && c.model_type == enum_name(HfType::hearth))
    say("{} is for hearth alone: no other program reads the model_type hearth\n", flags.to);
  if (!c.tokenizer) say("{} has no tokenizer, so none was written\n", c.from);
  if (flags.json) {
    print_json({{"model_type", c.model_type},
                {"params", c.params},
                {"dtype", c.dtype},
                {"tokenizer", c.tokenizer},
                {"to", flags.to},
                {"gguf", flags.gguf}});
    return;
  }
  const char* both = flags.to.empty() || flags.gguf.empty() ? "" : " and ";
  put(fmt::format("{}, {} parameters, {}: {}{}{}\n", c.model_type, c.params, c.dtype, flags.to,
                  both, flags.gguf));
}

}  // namespace

void add_convert(CLI::App& app) {
  auto f = std::make_shared<ConvertFlags>();
  CLI::App* c = app.add_subcommand("convert", "convert a model to another format");
  c->add_option("--from", f->from,
                "run, checkpoint or Hugging Face folder, llama2.c .bin, minGPT .json or .gguf; "
                "with --adapter the default is the adapter's base model");
  c->add_option("--adapter", f->adapter,
                "PEFT folder or run whose adapter is merged into the weights");
  c->add_option("--to,--merge", f->to, "Hugging Face folder to write");
  c->add_option("--gguf", f->gguf, "GGUF file to write");
  c->add_flag("--force", f->force, "overwrite an existing GGUF file");
  c->add_option("--dtype", f->spec.dtype,
                "fp32, bf16 or fp16; with only --gguf also q8_0, q6_k, q4_k or q4_0; default: the "
                "type of the source");
  c->add_option("--shard-bytes", f->spec.shard_bytes,
                "maximum bytes of weights per file; larger models are split")
      ->capture_default_str();
  UpcycleSpec& upcycle = f->spec.upcycle;
  c->add_option("--upcycle-moe", upcycle.experts,
                "turn every MLP of a dense model into this many experts; the result computes the "
                "same function");
  c->add_option("--top-k", upcycle.top_k,
                "with --upcycle-moe: experts per token, a multiple of --granularity; default: 2 x "
                "--granularity");
  c->add_option("--granularity", upcycle.granularity,
                "with --upcycle-moe: shards that an MLP is split into")
      ->capture_default_str();
  c->add_option("--seed", upcycle.seed, "with --upcycle-moe: random seed of the router")
      ->capture_default_str();
  c->add_flag("--json", f->json, "print the result as one JSON object");
  c->callback([f] { run_convert(*f); });
}

}  // namespace hearth::inline cli
