#include "train/checkpoint.h"

#include <algorithm>
#include <bit>

#include "core/error.h"
#include "io/checkpoint_dir.h"
#include "io/fields.h"
#include "io/files.h"
#include "io/safetensors.h"
#include "model/adapter.h"
#include "model/folder.h"

namespace hearth {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

constexpr std::array optimizer_parts{Part::moment1, Part::moment2, Part::master};
constexpr std::array part_names{"moment1.", "moment2.", "master."};

// Settings that may change between the parts of one run without changing what it computes so far.
constexpr std::string_view free_settings[] = {
    "data",      "val",           "tokenizer",        "eval_every", "eval_tokens",  "target_loss",
    "workers",   "keep",          "checkpoint_every", "prefetch",   "sample_every", "sample_tokens",
    "recompute", "sample_prompt", "eval_documents",   "offload"};

using UpdateBits = std::array<uint32_t, sizeof(UpdateState) / sizeof(uint32_t)>;

json to_json(const Cursor& c) {
  json j{{"epoch", c.epoch}, {"shard", c.shard}, {"position", c.position}, {"tokens", c.tokens}};
  for (const SourceCursor& s : c.sources)
    j["sources"].push_back(
        {{"epoch", s.epoch}, {"shard", s.shard}, {"position", s.position}, {"tokens", s.tokens}});
  return j;
}

Cursor cursor_from_json(const json& j) {
  const auto number = [](const json& from, const char* key) { return from.at(key).get<int64_t>(); };
  Cursor c{number(j, "epoch"), number(j, "shard"), number(j, "position"), number(j, "tokens")};
  for (const json& s : j.value("sources", json::array()))
    c.sources.push_back(
        {number(s, "epoch"), number(s, "shard"), number(s, "position"), number(s, "tokens")});
  return c;
}

json to_json(const RunState& s) {
  return {{"step", s.step},
          {"tokens", s.tokens},
          {"cursor", to_json(s.cursor)},
          {"data", s.data},
          {"update", update_to_json(s.update)},
          {"reloads", s.reloads},
          {"good_step", s.good_step},
          {"spikes", s.spikes},
          {"logits_bytes", s.logits_bytes},
          {"loss_scale", s.loss_scale},
          {"scale_steps", s.scale_steps},
          {"best_val", s.best_val},
          {"last_val", s.last_val},
          {"losses", s.losses},
          {"batches", s.batches},
          {"log_bytes", s.log_bytes},
          {"samples_bytes", s.samples_bytes},
          {"train_seconds", s.train_seconds}};
}

RunState state_from_json(const json& j, const std::string& where) {
  try {
    RunState s;
    j.at("step").get_to(s.step), j.at("tokens").get_to(s.tokens);
    s.cursor = cursor_from_json(j.at("cursor"));
    s.data = j.value("data", "");  // older ones lack it
    s.update = update_from_json(j.at("update"));
    j.at("reloads").get_to(s.reloads);
    s.good_step = j.value("good_step", s.update.streak == 0 ? s.step : -1);  // older ones lack it
    s.spikes = j.value("spikes", int64_t(0));
    j.at("logits_bytes").get_to(s.logits_bytes);
    j.at("loss_scale").get_to(s.loss_scale), j.at("scale_steps").get_to(s.scale_steps);
    j.at("best_val").get_to(s.best_val), j.at("last_val").get_to(s.last_val);
    j.at("losses").get_to(s.losses), j.at("batches").get_to(s.batches);
    j.at("log_bytes").get_to(s.log_bytes), j.at("samples_bytes").get_to(s.samples_bytes);
    j.at("train_seconds").get_to(s.train_seconds);
    return s;
  } catch (const json::exception& e) {
    fail(where, "expected the state of a run, got {}", e.what());
  }
}

std::vector<int64_t> dims(const Shape& s) { return {s.dim.begin(), s.dim.begin() + s.rank}; }

std::vector<TensorToWrite> optimizer_tensors(ParamStore& store) {
  std::vector<TensorToWrite> out;
  for (size_t i = 0; i < optimizer_parts.size(); ++i) {
    const Part part = optimizer_parts[i];
    if (part == Part::master && !store.has_master()) continue;
    for (const ParamSpec& p : store.specs())
      if (p.trainable)
        out.push_back({part_names[i] + p.name, DType::f32, dims(p.shape),
                       [&store, part, name = p.name](const ByteSink& sink) {
                         const std::vector<float> v = store.values(part, name);
                         sink(std::as_bytes(std::span(v)));
                       }});
  }
  return out;
}

void load_optimizer(const fs::path& file, ParamStore& store) {
  const Safetensors saved(file);
  for (size_t i = 0; i < optimizer_parts.size(); ++i) {
    const Part part = optimizer_parts[i];
    if (part == Part::master && !store.has_master()) continue;
    for (const ParamSpec& p : store.specs()) {
      if (!p.trainable) continue;
      const StoredTensor& t = saved.at(part_names[i] + p.name);
      if (t.dtype != DType::f32 || t.shape != dims(p.shape))
        fail(file.string(), "expected {}{} as f32 {}, got another shape or dtype", part_names[i],
             p.name, to_string(p.shape));
      std::vector<float> v(size_t(t.numel()));
      std::memcpy(v.data(), t.bytes.data(), t.bytes.size());
      store.set(part, p.name, v);
    }
  }
}

std::vector<FileDigest> write_model(const fs::path& dir, const ModelCheckpoint& c,
                                    ParamStore& store, int32_t bos, int32_t eos) {
  write_file_atomic(dir / "config.json", hf_config_json(c.model, store.dtype(), bos, eos));
  return write_safetensors_model(dir, hf_tensors(c.model, store, store.dtype()));
}

}  // namespace

json update_to_json(const UpdateState& u) { return std::bit_cast<UpdateBits>(u); }

UpdateState update_from_json(const json& j) {
  return std::bit_cast<UpdateState>(j.get<UpdateBits>());
}

void expect_same_settings(const json& saved, const json& now,
                          std::span<const std::string_view> free, const std::string& where) {
  // What a checkpoint does not name is newer than its run, which went without.
  const auto off = [](const json& v) {
    return v.empty() || v == json(false) || v == json(0) || v == json("");
  };
  for (const auto& [key, value] : now.items())
    if (std::ranges::find(free, key) == free.end() &&
        (saved.contains(key) ? saved.at(key) != value : !off(value)))
      fail(where, "expected {} = {}, as the run began, got {}", key,
           saved.contains(key) ? saved.at(key).dump() : "none", value.dump());
}

namespace {

// One template is a file of its own; several go where they came from.
void write_chat_template(const fs::path& dir, const nlohmann::ordered_json& chat) {
  if (chat.is_string())
    return write_file_atomic(dir / "chat_template.jinja", chat.get<std::string>());
  if (chat.is_null()) return;
  const fs::path file = dir / "tokenizer_config.json";
  nlohmann::ordered_json config = parse_ordered_json(read_file(file), file.string());
  config["chat_template"] = chat;
  write_file_atomic(file, config.dump(1));
}

}  // namespace

fs::path save_model_checkpoint(const fs::path& run, const ModelCheckpoint& c, ParamStore& store) {
  const fs::path parent = run / "checkpoints";
  const std::string name = step_name(c.step);
  make_dirs(parent);
  CheckpointWriter w(parent, name);
  if (c.tokenizer) {
    c.tokenizer->save(w.dir());
    write_chat_template(w.dir(), c.chat_template);
  }
  const int32_t bos = c.tokenizer ? c.tokenizer->bos() : -1;
  const int32_t eos = c.tokenizer ? c.tokenizer->eos() : -1;
  // Beside adapters too: where their answers end is what they learned, not their base.
  write_file_atomic(w.path("generation_config.json"), hf_generation_config_json(bos, eos, c.ends));
  for (const FileDigest& d : c.model.lora ? write_adapter(w.dir(), c.model, store, c.base)
                                          : write_model(w.dir(), c, store, bos, eos))
    w.add(d);
  make_dirs(w.dir() / "state");
  FileDigest optimizer =
      write_safetensors(w.dir() / "state", "optimizer.safetensors", optimizer_tensors(store));
  optimizer.file = "state/optimizer.safetensors";
  w.add(optimizer);
  write_file_atomic(w.path("state/trainer.json"), c.trainer.dump(1));
  const fs::path dir = w.commit();

  set_link(run, "latest", fs::path("checkpoints") / name);
  if (c.best) set_link(run, "best", fs::path("checkpoints") / name);
  std::set<std::string> keep{name};
  if (c.good_step >= 0) keep.insert(step_name(c.good_step));
  std::error_code none;
  if (const fs::path b = fs::read_symlink(run / "best", none); !none) keep.insert(b.filename());
  rotate_checkpoints(parent, c.keep, keep);
  return dir;
}

json load_model_checkpoint(const fs::path& dir, const ModelConfig& model, ParamStore& store) {
  const fs::path file = dir / "state" / "trainer.json";
  const json j = read_json(file);
  if (!j.is_object() || j.value("version", 0) != 1)
    fail(file.string(), "expected version 1 of a run's state, got {}", j.dump().substr(0, 40));
  if (const LoraSpec& lora = model.lora; lora) {
    const AdapterSource adapter = AdapterSource::open(dir, model);
    if (adapter.spec().rank != lora.rank || adapter.spec().alpha != lora.alpha)
      fail(file.string(), "expected adapters of rank {} and alpha {}, got {} and {}", lora.rank,
           lora.alpha, adapter.spec().rank, adapter.spec().alpha);
    adapter.load(store);
  } else {
    ModelSource::open(dir).load(store);
  }
  load_optimizer(dir / "state" / "optimizer.safetensors", store);
  return j;
}

fs::path save_checkpoint(const fs::path& run, const CheckpointSpec& spec, ParamStore& store,
                         const RunState& state, bool best) {
  const json trainer{{"version", 1},
                     {"model", fields_to_json(spec.model)},
                     {"train", fields_to_json(spec.train)},
                     {"run", to_json(state)}};
  return save_model_checkpoint(run,
                               {.model = spec.model,
                                .base = spec.base,
                                .tokenizer = spec.tokenizer,
                                .trainer = trainer,
                                .step = state.step,
                                .keep = spec.train.keep,
                                .good_step = state.good_step,
                                .best = best},
                               store);
}

void drop_checkpoints_after(const fs::path& run, int64_t step) {
  set_link(run, "latest", fs::path("checkpoints") / step_name(step));
  remove_checkpoints_after(run / "checkpoints", step);
}

RunState load_checkpoint(const fs::path& dir, const CheckpointSpec& spec, ParamStore& store) {
  const std::string where = (dir / "state" / "trainer.json").string();
  const json j = read_json(where);
  if (j.is_object() && j.contains("model") && j.contains("train")) {
    expect_same_settings(j["model"], fields_to_json(spec.model), free_settings, where);
    expect_same_settings(j["train"], fields_to_json(spec.train), free_settings, where);
  }
  const json loaded = load_model_checkpoint(dir, spec.model, store);
  return state_from_json(loaded.value("run", json()), where);
}

}  // namespace hearth
