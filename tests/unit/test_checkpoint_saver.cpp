// Checkpoints written beside training: the same bytes as by a plain writer, errors that reach the
// run, and nothing lost whenever the saver goes away.
#include "optim/optimizer.h"
#include "train/checkpoint/checkpoint_saver.h"

#include <sys/resource.h>

#include <atomic>
#include <csignal>
#include <map>
#include <new>

#include "cpu/backend.h"
#include "formats/checkpoint_dir.h"
#include "formats/json.h"
#include "formats/run_folder.h"
#include "lora_model.h"
#include "model/decoder.h"
#include "model/files/adapter.h"
#include "model/files/folder.h"
#include "model/files/hf_names.h"
#include "model/files/tensor_rows.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using namespace test;
using nlohmann::json;

// The CPU behind a wall: counts what crosses it.
class CountedBackend final : public Backend {
 public:
  std::byte* allocate_offloaded(int64_t n, const std::string& what) override {
    ++offloaded_buffers;
    if (refuse_offloaded) fail("card", "expected pinned memory for {}, got none", what);
    if (out_of_memory) throw std::bad_alloc();
    return inner_->allocate(n, what);
  }
  void download(void* host, const std::byte* device, int64_t n) override {
    ++downloads;
    inner_->download(host, device, n);
  }
  const Kernels& kernels() const override { return inner_->kernels(); }
  Stream& stream() override { return inner_->stream(); }
  std::string describe() const override { return "counted"; }
  std::byte* allocate(int64_t n, const std::string& what) override {
    return inner_->allocate(n, what);
  }
  void release(std::byte* p, int64_t n) override { inner_->release(p, n); }
  void upload(std::byte* to, const void* from, int64_t n) override { inner_->upload(to, from, n); }
  void synchronize() override {}
  int64_t free_bytes() const override { return inner_->free_bytes(); }

  int offloaded_buffers = 0;
  std::atomic<int> downloads = 0;
  bool refuse_offloaded = false, out_of_memory = false;

 private:
  const std::unique_ptr<Backend> inner_ = make_cpu_backend(1);
};

// A model in training: numbers of its own in every part.
struct Trained {
  Trained(const ModelConfig& c, DType dtype)
      : config(c.resolve()), params(backend, decoder_params(config), dtype) {
    params.declare(slots_of(UpdateSpec{}));
    train(1);
  }
  void train(uint64_t seed) {
    params.initialise(seed);
    for (const Part part : {slot_part(0), slot_part(1), Part::master}) {
      if (part == Part::master && !params.has_master()) continue;
      for (const ParamSpec& p : params.specs()) {
        if (!p.trainable) continue;
        std::vector<float> v(size_t(p.shape.numel()));
        draw(v, Init::normal(0.3f), seed * 10 + uint64_t(part), p.name);
        params.set(part, p.name, v);
      }
    }
  }
  ModelCheckpoint at(int64_t step, int64_t best = -1, int keep = 3) const {
    return {.model = config,
            .base = "somewhere/base",
            .trainer = {{"version", trainer_version},
                        {"run", {{"step", step}, {"best_step", best}, {"good_step", -1}}}},
            .step = step,
            .keep = keep};
  }

  ModelConfig config;
  CountedBackend backend;
  ParamStore params;
};

// Every file of a folder, by its name.
std::map<std::string, std::string> files_in(const fs::path& dir) {
  std::map<std::string, std::string> files;
  for (const auto& e : fs::recursive_directory_iterator(dir))
    if (e.is_regular_file()) files[e.path().lexically_relative(dir)] = read_file(e.path());
  return files;
}

// As the files were written before they were streamed: each tensor by way of vectors.
std::map<std::string, std::string> written_plainly(Trained& m) {
  const TempDir dir;
  std::vector<TensorToWrite> weights, optimizer;
  const DType dtype = m.params.dtype();
  const Part part = m.params.has_master() ? Part::master : Part::weight;
  for (const FileTensor& t : file_tensors(m.config, {.type = hf_type(m.config)}))
    weights.push_back({t.name, dtype, t.shape, [&m, t, part, dtype](const ByteSink& sink) {
                         sink(from_floats(from_rows(t, m.params.values(part, t.param)), dtype));
                       }});
  const std::pair<Part, const char*> parts[] = {
      {slot_part(0), "moment1."}, {slot_part(1), "moment2."}, {Part::master, "master."}};
  for (const auto& [p, prefix] : parts) {
    if (p == Part::master && !m.params.has_master()) continue;
    for (const ParamSpec& s : m.params.specs())
      optimizer.push_back({prefix + s.name,
                           DType::f32,
                           {s.shape.dim.begin(), s.shape.dim.begin() + s.shape.rank},
                           [&m, p = p, name = s.name](const ByteSink& sink) {
                             const std::vector<float> v = m.params.values(p, name);
                             sink(std::as_bytes(std::span(v)));
                           }});
  }
  write_safetensors(dir.path(), "model.safetensors", weights);
  write_safetensors(dir.path(), "optimizer.safetensors", optimizer);
  return {{"model.safetensors", read_file(dir / "model.safetensors")},
          {"state/optimizer.safetensors", read_file(dir / "optimizer.safetensors")}};
}

TEST(CheckpointSaver, WritesTheBytesOfThePlainWriter) {
  for (const ModelConfig& c : {gpt2_shape(), tiny_config(), interleaved_shape(), qwen3_shape()})
    for (const DType dtype : {DType::f32, DType::bf16}) {
      const TempDir run;
      Trained m(c, dtype);
      const auto wanted = written_plainly(m);
      CheckpointSaver saver(run.path());
      saver.save(m.at(1), m.params);
      m.train(2);  // while it is being written
      const fs::path dir = saver.finish().value();
      EXPECT_EQ(verify_checkpoint(dir), std::nullopt);
      auto files = files_in(dir);
      for (const auto& [name, bytes] : wanted) EXPECT_TRUE(files[name] == bytes) << name;

      Trained back(c, dtype);
      back.train(3), m.train(1);
      EXPECT_EQ(load_model_checkpoint(dir, m.config, back.params)["run"]["step"], 1);
      for (const ParamSpec& p : m.params.specs()) {
        EXPECT_EQ(back.params.values(slot_part(0), p.name), m.params.values(slot_part(0), p.name));
        EXPECT_EQ(back.params.values(slot_part(1), p.name), m.params.values(slot_part(1), p.name));
        if (m.params.has_master())
          EXPECT_EQ(back.params.values(Part::master, p.name),
                    m.params.values(Part::master, p.name));
        else
          EXPECT_EQ(back.params.values(Part::weight, p.name),
                    m.params.values(Part::weight, p.name));
      }
    }
}

// Beside training, in place, and of adapters.
TEST(CheckpointSaver, ASnapshotIsWrittenLikeTheStore) {
  for (const NamedShape& shape : shapes())
    for (const DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(shape.name);
      const TempDir run, other;
      Trained m(shape.config, dtype);
      CheckpointSaver saver(run.path()), in_place(other.path());
      saver.save(m.at(4), m.params);
      in_place.save_in_place(m.at(4), m.params);
      EXPECT_TRUE(files_in(saver.finish().value()) == files_in(in_place.finish().value()));
      EXPECT_TRUE(fs::exists(run / "latest/adapter_model.safetensors"));
    }
}

TEST(CheckpointSaver, TakesOneCopyOfEachPartIntoTheSameMemory) {
  const TempDir run;
  Trained m(tiny_config(), DType::bf16);
  CheckpointSaver saver(run.path());
  EXPECT_EQ(saver.finish(), std::nullopt);
  EXPECT_TRUE(saver.reserve(m.config, m.params));
  EXPECT_EQ(m.backend.offloaded_buffers, 3) << "two moments and the masters";
  for (int step = 1; step <= 3; ++step) {
    m.backend.downloads = 0;
    saver.save(m.at(step), m.params);
    saver.finish();
    EXPECT_EQ(m.backend.downloads, 3);
  }
  EXPECT_EQ(m.backend.offloaded_buffers, 3);
}

TEST(CheckpointSaver, TwoSavesInARowAreBothCommittedInOrder) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  CheckpointSaver saver(run.path());
  saver.save(m.at(1), m.params);
  const auto first = written_plainly(m);
  m.train(2);
  saver.save(m.at(2), m.params);
  const auto second = written_plainly(m);
  EXPECT_EQ(saver.finish(), run / "checkpoints/step-00000002");
  EXPECT_EQ(saver.finish(), run / "checkpoints/step-00000002");
  EXPECT_EQ(linked_step(run.path(), "latest"), 2);
  for (const auto& [name, bytes] : first)
    EXPECT_TRUE(read_file(run / "checkpoints/step-00000001" / name) == bytes) << name;
  for (const auto& [name, bytes] : second)
    EXPECT_TRUE(read_file(run / "checkpoints/step-00000002" / name) == bytes) << name;
}

TEST(CheckpointSaver, ADestroyedSaverHasWritten) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  { CheckpointSaver(run.path()).save(m.at(7), m.params); }
  EXPECT_EQ(find_newest_valid(run / "checkpoints").dir, run / "checkpoints/step-00000007");
  EXPECT_EQ(linked_step(run.path(), "latest"), 7);
  EXPECT_EQ(names_in(run / "checkpoints"), 1);
}

void limit_files(rlim_t bytes) {
  rlimit limit{};
  getrlimit(RLIMIT_FSIZE, &limit);
  limit.rlim_cur = bytes;
  setrlimit(RLIMIT_FSIZE, &limit);
}

// The disk refuses to write the optimizer state of step 2; the run hears of it at its next call.
TEST(CheckpointSaver, AFailedCheckpointIsTriedAgain) {
  const TempDir run;
  const int code = run_in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    Trained m(tiny_config(), DType::f32);
    std::string said;
    bool disk_is_freed = false;  // when the first attempt has failed
    CheckpointSaver saver(run.path(), {.warn = [&](const std::string& line) {
                            said += line;
                            if (disk_is_freed) limit_files(RLIM_INFINITY);
                          }});
    const auto fail_at = [&](int64_t step) {
      limit_files(3000);
      saver.save(m.at(step), m.params);
    };
    saver.save(m.at(1), m.params);
    saver.finish();

    // The disk is still full when it is tried again: that error is thrown, and nothing else saved.
    fail_at(2);
    expect_error(error_of([&] { saver.save(m.at(3), m.params); }), "File too large");
    expect_error(said, "could not be written and is tried again: ");
    expect_error(said, run.path().string());
    limit_files(RLIM_INFINITY);
    EXPECT_EQ(names_in(run / "checkpoints"), 1);
    // There is room for the second attempt: the checkpoint that failed is written, then the next.
    disk_is_freed = true;
    fail_at(4);
    saver.save(m.at(5), m.params);
    EXPECT_EQ(saver.finish(), run / "checkpoints/step-00000005");
    for (const char* step : {"step-00000004", "step-00000005"})
      EXPECT_EQ(verify_checkpoint(run / "checkpoints" / step), std::nullopt) << step;
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(CheckpointSaver, ADestroyedSaverSaysWhatItCouldNotWrite) {
  const TempDir run;
  const int code = run_in_child([&] {
    signal(SIGXFSZ, SIG_IGN);
    Trained m(tiny_config(), DType::f32);
    std::vector<std::string> lines;
    {
      CheckpointSaver saver(run.path(),
                            {.warn = [&](const std::string& s) { lines.push_back(s); }});
      limit_files(3000);
      saver.save(m.at(1), m.params);
    }
    limit_files(RLIM_INFINITY);
    EXPECT_EQ(lines.size(), 2u);  // that it is tried again, and that this failed, too
    if (!lines.empty()) {
      expect_error(lines.back(), "the last checkpoint was not written: [");
      expect_error(lines.back(), "File too large");
    }
    EXPECT_EQ(names_in(run / "checkpoints"), 0);
    return 0;
  });
  EXPECT_EQ(code, 0);
}

TEST(CheckpointSaver, WithoutRoomItWritesInPlaceAndSaysSoOnce) {
  for (const bool refused : {false, true}) {
    const TempDir run;
    Trained m(tiny_config(), DType::f32);
    m.backend.refuse_offloaded = refused;
    std::vector<std::string> lines;
    CheckpointSaver saver(run.path(), {.warn = [&](const std::string& s) { lines.push_back(s); },
                                       .snapshot_limit = refused ? -1 : 1000});
    const auto wanted = written_plainly(m);
    saver.save(m.at(1), m.params);
    EXPECT_EQ(linked_step(run.path(), "latest"), 1) << "before anything waits for it";
    saver.save(m.at(2), m.params);
    for (const auto& [name, bytes] : wanted)
      EXPECT_TRUE(read_file(saver.finish().value() / name) == bytes) << name;
    ASSERT_EQ(lines.size(), 1u);
    expect_error(lines[0], "no room in memory for a snapshot of a checkpoint");
    expect_error(lines[0], refused ? "got none" : "may be used");
  }
}

// The memory is planned first, and allocated beside training if there is time for that.
TEST(CheckpointSaver, ASnapshotIsAllocatedBesideTraining) {
  for (const double seconds : {0.0, 1e9}) {
    const TempDir run, other;
    Trained m(tiny_config(), DType::bf16);
    CheckpointSaver saver(run.path()), plain(other.path());
    EXPECT_TRUE(saver.plan(m.config, m.params));
    EXPECT_EQ(m.backend.offloaded_buffers, 0) << "a plan allocates nothing";
    saver.prepare(m.config, m.params, seconds);
    saver.prepare(m.config, m.params, seconds);
    if (seconds == 0) { EXPECT_EQ(m.backend.offloaded_buffers, 3) << "there was no time"; }
    saver.save(m.at(1), m.params);
    EXPECT_EQ(m.backend.offloaded_buffers, 3);
    plain.save(m.at(1), m.params);
    EXPECT_TRUE(files_in(saver.finish().value()) == files_in(plain.finish().value()));
  }
}

TEST(CheckpointSaver, SaysBeforeTheFirstStepThatASnapshotDoesNotFit) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  std::vector<std::string> lines;
  CheckpointSaver saver(run.path(), {.warn = [&](const std::string& s) { lines.push_back(s); },
                                     .snapshot_limit = 1000});
  EXPECT_FALSE(saver.plan(m.config, m.params));
  ASSERT_EQ(lines.size(), 1u);
  expect_error(lines[0], "may be used");
  saver.prepare(m.config, m.params, 1e9);
  EXPECT_EQ(m.backend.offloaded_buffers, 0);
  EXPECT_EQ(lines.size(), 1u);
}

// The allocation fails in the thread; the first save hears of it and writes in place.
TEST(CheckpointSaver, AllocationThatFailsBesideTrainingIsReportedAtTheSave) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  m.backend.refuse_offloaded = true;
  std::vector<std::string> lines;
  CheckpointSaver saver(run.path(), {.warn = [&](const std::string& s) { lines.push_back(s); }});
  saver.prepare(m.config, m.params, 1e9);
  EXPECT_TRUE(lines.empty());
  saver.save(m.at(1), m.params);
  EXPECT_EQ(linked_step(run.path(), "latest"), 1) << "before anything waits for it";
  ASSERT_EQ(lines.size(), 1u);
  expect_error(lines[0], "got none");
}

// As by an Error: training goes on, and waits while a checkpoint is written.
TEST(CheckpointSaver, AnyExceptionOfTheAllocationIsReportedAtTheSave) {
  for (const double seconds : {0.0, 1e9}) {  // here, or beside training
    const TempDir run;
    Trained m(tiny_config(), DType::f32);
    m.backend.out_of_memory = true;
    std::vector<std::string> lines;
    CheckpointSaver saver(run.path(), {.warn = [&](const std::string& s) { lines.push_back(s); }});
    saver.prepare(m.config, m.params, seconds);
    saver.save(m.at(1), m.params);
    EXPECT_EQ(linked_step(run.path(), "latest"), 1);
    ASSERT_EQ(lines.size(), 1u);
    expect_error(lines[0], "no room in memory for a snapshot of a checkpoint: std::bad_alloc");
  }
}

// JSON is UTF-8, so that the library refuses this state in both attempts.
TEST(CheckpointSaver, AnyExceptionOfTheWriterIsTriedAgain) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  std::string said;
  CheckpointSaver saver(run.path(), {.warn = [&](const std::string& s) { said += s; }});
  ModelCheckpoint bad = m.at(1);
  bad.trainer["task"] = "\xff";
  saver.save(bad, m.params);
  EXPECT_THROW(saver.finish(), json::exception);
  expect_error(said, "a checkpoint could not be written and is tried again: [json.exception");
  saver.save(m.at(2), m.params);
  EXPECT_EQ(saver.finish(), run / "checkpoints/step-00000002");
}

TEST(CheckpointSaver, ASaverMayGoWhileItsMemoryIsMade) {
  const TempDir run;
  Trained m(tiny_config(), DType::f32);
  { CheckpointSaver(run.path()).prepare(m.config, m.params, 1e9); }
  EXPECT_EQ(m.backend.offloaded_buffers, 3);
}

// What is too large for one file is cut into shards, which are loaded, verified and dropped alike.
TEST(CheckpointSaver, ALargeOptimizerStateIsCutIntoShards) {
  const TempDir run;
  Trained m(tiny_config(), DType::bf16), back(tiny_config(), DType::bf16);
  for (int64_t step = 1; step <= 3; ++step)
    save_model_checkpoint(run.path(), m.at(step, 1, 1), m.params, 20'000);
  const fs::path newest = run / "checkpoints/step-00000003",
                 best = run / "checkpoints/step-00000001";
  EXPECT_FALSE(fs::exists(newest / "state/optimizer.safetensors"));
  EXPECT_TRUE(fs::exists(newest / "state/optimizer.safetensors.index.json"));
  EXPECT_GT(names_in(newest / "state"), 4);
  EXPECT_EQ(verify_checkpoint(newest), std::nullopt);
  back.train(3);
  load_model_checkpoint(newest, m.config, back.params);
  for (const Part part : {slot_part(0), slot_part(1), Part::master})
    for (const ParamSpec& p : m.params.specs())
      EXPECT_EQ(back.params.values(part, p.name), m.params.values(part, p.name)) << p.name;

  EXPECT_EQ(verify_checkpoint(best), std::nullopt);
  EXPECT_EQ(names_in(best / "state"), 1) << "trainer.json";
  ModelSource::open(best).load(back.params);
  expect_error(error_of([&] { load_model_checkpoint(best, m.config, back.params); }),
               "this checkpoint keeps only its weights, so a run cannot go on from it");
}

}  // namespace
}  // namespace hearth
