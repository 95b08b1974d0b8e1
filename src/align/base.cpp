#include "align/base.h"

#include "align/examples.h"
#include "core/error.h"
#include "io/files.h"
#include "io/gguf.h"
#include "io/hash.h"
#include "io/json.h"
#include "train/checkpoint.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

// A tokenizer that cannot be saved would be found at the first checkpoint, after all the training.
void expect_savable(const Tokenizer& t) {
  std::string name = (fs::temp_directory_path() / "hearth-tokenizer-XXXXXX").string();
  if (!mkdtemp(name.data())) fail(name, "expected to make a temporary folder, got an error");
  std::string problem;
  try {
    t.save(name);
  } catch (const Error& e) { problem = e.what(); }
  std::error_code none;
  fs::remove_all(name, none);
  if (problem.empty()) return;
  if (const size_t end = problem.find("] "); end != problem.npos) problem.erase(0, end + 2);
  fail("tokenizer", "{}: its checkpoints could not carry it", problem);
}

}  // namespace

ModelSource open_base(const fs::path& model, const LoraConfig& lora) {
  ModelSource source = ModelSource::open(model);
  if (source.config().lora && lora.spec())
    fail_usage("--lora",
               "{} is itself an adapter: merge it first (hearth convert --from {} --to DIR), or "
               "train all weights without --lora",
               model.string(), model.string());
  return source.merged();
}

ModelConfig config_in_training(const ModelSource& source, const LoraConfig& lora) {
  ModelConfig c = source.config();
  c.lora = lora.spec();
  return c.resolve();
}

void begin_adapters(const ModelSource& source, ParamStore& store, uint64_t seed) {
  source.load(store);
  start_adapters(store, seed);
}

nlohmann::ordered_json written_chat_template(const fs::path& dir) {
  if (!ChatTemplate::exists(dir)) return {};
  if (dir.extension() == ".gguf") return std::string(GgufFile(dir).text("tokenizer.chat_template"));
  if (fs::exists(dir / "chat_template.jinja")) return read_file(dir / "chat_template.jinja");
  const fs::path config = dir / "tokenizer_config.json";
  return parse_ordered_json(read_file(config), config.string()).at("chat_template");
}

nlohmann::ordered_json chat_source_of(const fs::path& dir, const Tokenizer& t) {
  const nlohmann::ordered_json written = written_chat_template(dir);
  return written.is_null() ? nlohmann::ordered_json(chatml(t)) : written;
}

ChatTemplate chat_template_of(const fs::path& dir, const Tokenizer& t) {
  if (ChatTemplate::exists(dir)) return ChatTemplate::load(dir);
  nlohmann::ordered_json tokens = nlohmann::ordered_json::object();
  if (t.eos() >= 0) tokens["eos_token"] = std::string(t.bytes_of(t.eos()));
  return ChatTemplate(chatml(t), "chatml", tokens);
}

json base_to_json(const ModelSource& source, const ModelConfig& in_training) {
  return in_training.lora ? json(model_digest(source)) : json();
}

std::string expect_same_run(const fs::path& checkpoint, const RunIdentity& now) {
  const std::string where = (checkpoint / "state" / "trainer.json").string();
  const json saved = read_json(where);
  const std::string kind(now.kind);
  if (!saved.is_object() || !saved.contains(kind))
    fail(where, "expected a checkpoint of such a run ({}), got another", kind);
  expect_same_settings(saved[kind], now.settings, now.free, where);
  if (saved.value("base", json()) != now.base)
    fail(where,
         "expected the model that the run began from, got other weights or another shape: give it "
         "that model by --model");
  if (saved.contains("data") && saved["data"] != now.data)
    fail(where,
         "expected the data that the run began with, got other: give it that by --data (and "
         "--val), or begin a new run");
  return where;
}

Tokenizer tokenizer_beside(const ModelSource& source, const ModelConfig& model) {
  if (source.tokenizer().empty())
    fail(source.path().string(), "expected a model with a tokenizer, got none beside it");
  Tokenizer t = Tokenizer::load(source.tokenizer());
  if (t.vocab_size() > model.vocab)
    fail(source.path().string(), "expected a tokenizer of at most {} tokens, got {}", model.vocab,
         t.vocab_size());
  expect_savable(t);
  return t;
}

void expect_schedule_without_decay(Schedule s) {
  if (s == Schedule::wsd || s == Schedule::wsd_sqrt)
    fail_usage("--schedule", "expected constant, cosine or linear, got {}", names_of(s)[size_t(s)]);
}

void expect_no_dropout(const LoraConfig& lora, std::string_view method) {
  if (const float dropout = lora.spec().dropout; dropout > 0)
    fail_usage("--lora", "expected no dropout with {}, whose passes have none, got {}", method,
               dropout);
}

}  // namespace hearth
