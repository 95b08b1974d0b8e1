// A model loaded for inference: the same weights as in training, and nothing beside them.
#include "infer/loaded_model.h"

#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "model/decoder.h"
#include "served_folder.h"
#include "sys/files/files.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using test::error_of;
using test::expect_error;
using test::TempDir;

TEST(LoadedModel, HoldsTheWeightsOfTrainingWithoutMasters) {
  const TempDir dir;
  write_served_folder(dir.path());
  const auto backend = make_cpu_backend(1);
  for (const DType dtype : {DType::f32, DType::bf16}) {
    const ModelSource source = ModelSource::open(dir.path());
    ParamStore trained(*backend, decoder_params(source.config()), dtype);
    source.load(trained);
    LoadedModel model(ModelSource::open(dir.path()), *backend, {.dtype = dtype});
    for (const ParamSpec& p : trained.specs())
      EXPECT_EQ(model.params().values(Part::weight, p.name), trained.values(Part::weight, p.name))
          << p.name;
    for (const Part part : {Part::master, Part::grad})
      EXPECT_EQ(model.params().part_bytes(part), 0) << int(part);
  }
}

TEST(LoadedModel, HasTheTokenizerAndTheEndsOfItsFolder) {
  const TempDir dir;
  write_served_folder(dir.path());
  write_file_atomic(dir.path() / "generation_config.json", R"({"eos_token_id": [7, 9]})");
  const auto backend = make_cpu_backend(1);
  const LoadedModel model(ModelSource::open(dir.path()), *backend, {});
  EXPECT_EQ(model.tokenizer().vocab_size(), served_tokenizer().vocab_size());
  EXPECT_EQ(model.ends(), (std::vector<int32_t>{7, 9}));

  fs::remove(dir.path() / "tokenizer.json");
  const LoadedModel bare(ModelSource::open(dir.path()), *backend, {});
  EXPECT_TRUE(bare.ends().empty());
  expect_error(error_of([&] { (void)bare.tokenizer(); }), "this model has no tokenizer");
}

}  // namespace
}  // namespace hearth
