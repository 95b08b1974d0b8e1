#include "train/checkpoint/checkpoint.h"

#include <array>
#include <set>

#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "formats/run_folder.h"
#include "formats/safetensors.h"
#include "model/files/adapter.h"
#include "model/files/folder.h"
#include "optim/saved_state.h"
#include "sys/error.h"
#include "sys/files/files.h"
#include "sys/parallel.h"
#include "text/chat/chat_template.h"

namespace hearth::inline train {
namespace fs = std::filesystem;
using nlohmann::json;

namespace {

std::vector<FileDigest> write_weights(const fs::path& dir, const ModelCheckpoint& c,
                                      ParamStore& store) {
  store.backend().enter_thread();  // this may be a thread that in_parallel() started
  return c.model.lora ? write_adapter(dir, c.model, store, c.base)
                      : write_safetensors_model(dir, hf_tensors(c.model, store, store.dtype()));
}

std::vector<FileDigest> write_optimizer(const fs::path& dir,
                                        const std::vector<TensorToWrite>& tensors,
                                        int64_t shard_bytes) {
  make_dirs(dir / "state");
  auto digests = write_safetensors_shards(dir / "state", "optimizer", tensors, shard_bytes);
  for (FileDigest& d : digests) d.file = "state/" + d.file;
  return digests;
}

}  // namespace

fs::path save_model_checkpoint(const fs::path& run, const ModelCheckpoint& c, ParamStore& store,
                               int64_t shard_bytes) {
  const fs::path parent = run / "checkpoints";
  const std::string name = step_name(c.step);
  make_dirs(parent);
  for (const fs::path& log : c.logs) fsync_file(log);
  CheckpointWriter w(parent, name);
  if (c.tokenizer) {
    c.tokenizer->save(w.dir());
    write_chat_template(w.dir(), c.chat_template);
  }
  const int32_t bos = c.tokenizer ? c.tokenizer->bos() : -1;
  const int32_t eos = c.tokenizer ? c.tokenizer->eos() : -1;
  // Written with adapters too: the end of an answer is something the adapters learned, not their
  // base.
  write_file_atomic(w.path("generation_config.json"),
                    hf_generation_config_json(bos, eos, c.ends, c.generation));
  if (!c.model.lora)
    write_file_atomic(w.path("config.json"), hf_config_json(c.model, store.dtype(), bos, eos));
  // Before the threads start, since building this list may allocate buffers of the store.
  const std::vector<TensorToWrite> optimizer = optimizer_tensors(store);
  std::array<std::vector<FileDigest>, 2> digests;
  in_parallel(digests.size(), [&](size_t i) {
    digests[i] = i == 0 ? write_optimizer(w.dir(), optimizer, shard_bytes)
                        : write_weights(w.dir(), c, store);
  });
  for (const auto& list : digests)
    for (const FileDigest& d : list) w.add(d);
  write_file_atomic(w.path("state/trainer.json"), c.trainer.dump(1));
  const fs::path dir = w.commit();

  reconcile(run, dir, c.keep);
  return dir;
}

json load_model_checkpoint(const fs::path& dir, const ModelConfig& model, ParamStore& store) {
  const fs::path file = dir / "state" / "trainer.json";
  const json j = read_json(file);
  trainer_fields(j, file.string());
  if (has_dropped_files(dir))
    fail(dir.string(), "this checkpoint keeps only its weights, so a run cannot go on from it");
  if (const LoraSpec& lora = model.lora; lora) {
    const AdapterSource adapter = AdapterSource::open(dir, model);
    if (adapter.spec().rank != lora.rank || adapter.spec().alpha != lora.alpha)
      fail(file.string(), "expected adapters of rank {} and alpha {}, got {} and {}", lora.rank,
           lora.alpha, adapter.spec().rank, adapter.spec().alpha);
    adapter.load(store);
  } else {
    ModelSource::open(dir).load(store);
  }
  load_optimizer(dir / "state", store);
  return j;
}

void reconcile(const fs::path& run, const fs::path& checkpoint, int keep) {
  const fs::path parent = run / "checkpoints", file = checkpoint / "state" / "trainer.json";
  const nlohmann::json trainer = read_json(file);
  const StateFields state = trainer_fields(trainer, file.string()).object("run");
  const int64_t newest = state.integer("step", 0, max_step);
  if (checkpoint.filename() != step_name(newest))
    fail(file.string(), "expected run.step to be that of {}, got {}",
         checkpoint.filename().string(), newest);
  const KeptSteps kept = kept_steps(state);
  point_link(run, "latest", newest);
  if (kept.best < 0)
    remove_link(run, "best");
  else if (fs::exists(parent / step_name(kept.best)))
    point_link(run, "best", kept.best);
  std::set<std::string> resumable{step_name(newest)};
  if (kept.good >= 0) resumable.insert(step_name(kept.good));
  std::set<std::string> spared = resumable;
  if (kept.best >= 0) spared.insert(step_name(kept.best));
  for (const fs::path& dir : rotate_checkpoints(parent, keep, spared, newest))
    if (!resumable.contains(dir.filename().string())) drop_files(dir, "state/optimizer");
}

void go_back_to(const fs::path& run, const fs::path& checkpoint, int keep) {
  reconcile(run, checkpoint, keep);
  remove_checkpoints_after(run / "checkpoints", linked_step(run, "latest"));
}

}  // namespace hearth::inline train
