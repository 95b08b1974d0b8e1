// The tokens that end a text, and the files that name them.
#include <gtest/gtest.h>

#include "cpu/backend.h"
#include "formats/json.h"
#include "infer/loaded_model.h"
#include "model/decoder.h"
#include "model/files/adapter.h"
#include "model/files/answer_ends.h"
#include "model/files/convert.h"
#include "served_folder.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::TempDir;
using Ids = std::vector<int32_t>;

struct EndsOfFolder : testing::Test {
  TempDir dir;
  std::unique_ptr<Backend> backend = make_cpu_backend(1);

  void name_ends(const fs::path& folder, const json& ends) {
    write_file_atomic(folder / "generation_config.json", json{{"eos_token_id", ends}}.dump());
  }
  fs::path folder(const json& ends, const char* chat_template) {
    fs::remove_all(dir / "a");
    write_served_folder(dir / "a", false);
    if (chat_template) write_file_atomic(dir / "a/chat_template.jinja", chat_template);
    name_ends(dir / "a", ends);
    return dir / "a";
  }
  json back(const fs::path& from) {
    fs::remove_all(dir / "b");
    convert_model({.from = from, .to = dir / "b"}, *backend);
    return read_json(dir / "b/generation_config.json").at("eos_token_id");
  }
  Ids loaded(const fs::path& model, const fs::path& adapter = {}) {
    const ModelSource source = ModelSource::open(model, adapter);
    const Ids all = answer_ends_of(source, nullptr, served_tokenizer());
    EXPECT_EQ(LoadedModel(source, *backend, {}).ends(), all);
    return all;
  }
};

TEST_F(EndsOfFolder, AnAdaptersEndsAreAddedToThoseOfItsBase) {
  const fs::path base = folder({256, 65}, nullptr), adapter = dir / "adapter";
  ModelConfig c = ModelSource::open(base).config();
  c.lora.rank = 2, c.lora.alpha = 4;
  ParamStore params(*backend, decoder_params(c), DType::f32);
  params.initialise(1);
  make_dirs(adapter);
  write_adapter(adapter, c, params, base.string());
  served_tokenizer().save(adapter);
  EXPECT_EQ(loaded(base, adapter), (Ids{256, 65}));
  name_ends(adapter, 66);
  EXPECT_EQ(loaded(base, adapter), (Ids{256, 65, 66}));
}

// As transformers takes them.
TEST_F(EndsOfFolder, AreThoseOfConfigJsonWithoutAGenerationConfig) {
  const fs::path model = folder({256, 65}, nullptr);
  json config = read_json(model / "config.json");
  config["eos_token_id"] = {70, 999, 71};
  write_file_atomic(model / "config.json", config.dump());
  EXPECT_EQ(loaded(model), (Ids{256, 65}));
  write_file_atomic(model / "generation_config.json", R"({"temperature": 0.5})");
  EXPECT_EQ(loaded(model), Ids{});
  fs::remove(model / "generation_config.json");
  EXPECT_EQ(loaded(model), (Ids{70, 71}));
  EXPECT_EQ(back(model), (json{256, 70, 71}));
  config.erase("eos_token_id");
  write_file_atomic(model / "config.json", config.dump());
  EXPECT_EQ(loaded(model), Ids{});
}

}  // namespace
}  // namespace hearth
