// The tokens that end a text: the files that name them, and what GGUF files keep of them.
#include <gtest/gtest.h>

#include <cstring>

#include "cpu/backend.h"
#include "formats/gguf/gguf.h"
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

constexpr int32_t user = 257, assistant = 258, system_end = 259;
constexpr const char *turn = "tokenizer.ggml.eot_token_id",
                     *message = "tokenizer.ggml.eom_token_id", *list = "hearth.end_token_ids";

// A template whose turns end with <|system|>.
constexpr const char* other_template =
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}<|system|>{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}";

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
  fs::path to_gguf(const fs::path& from) {
    convert_model({.from = from, .gguf = dir / "m.gguf"}, *backend);
    return dir / "m.gguf";
  }
  json back(const fs::path& gguf) {
    fs::remove_all(dir / "b");
    convert_model({.from = gguf, .to = dir / "b"}, *backend);
    return read_json(dir / "b/generation_config.json").at("eos_token_id");
  }
  Ids loaded(const fs::path& model, const fs::path& adapter = {}) {
    const ModelSource source = ModelSource::open(model, adapter);
    const Ids all = answer_ends_of(source, nullptr, served_tokenizer());
    EXPECT_EQ(LoadedModel(source, *backend, {}).ends(), all);
    return all;
  }
};

int64_t id_in(const GgufFile& f, const char* key) { return f.has(key) ? f.whole(key) : -1; }

// Changes a whole number in a file.
void set_id(const fs::path& gguf, const std::string& key, uint32_t id) {
  std::string bytes = read_file(gguf);
  const size_t at = bytes.find(key);
  ASSERT_NE(at, bytes.npos);
  std::memcpy(bytes.data() + at + key.size() + sizeof(uint32_t), &id, sizeof id);
  write_file_atomic(gguf, bytes);
}

// llama.cpp appends the end of a turn to an answer that was interrupted.
TEST_F(EndsOfFolder, TheEndOfATurnInGgufIsTheOneOfTheTemplate) {
  struct Row {
    const char* chat_template;
    json ends;
    int64_t turn, message;
    Ids listed, read;
    json back;
  };
  const Row rows[] = {
      // Qwen 2.5: the end of a turn is eos.
      {served_template(), {256, user}, 256, user, {}, {256, user}, {256, user}},
      {served_template(), 256, 256, -1, {}, {256}, 256},
      // Llama 3.1: the ends of a text and of a message come before that of a turn.
      {other_template,
       {user, assistant, system_end},
       system_end,
       user,
       {user, assistant, system_end},
       {system_end, user, assistant},
       {256, system_end, user, assistant}},
      {other_template,
       {256, user, system_end},
       system_end,
       user,
       {},
       {system_end, user},
       {256, system_end, user}},
      // The file does not name it.
      {other_template, 256, system_end, -1, {}, {system_end}, {256, system_end}},
      {nullptr,
       {256, user, assistant},
       user,
       assistant,
       {},
       {user, assistant},
       {256, user, assistant}},
      {"{% turns of no known tag %}", {256, user}, user, -1, {}, {user}, {256, user}},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.ends.dump());
    const fs::path gguf = to_gguf(folder(row.ends, row.chat_template));
    const GgufFile f(gguf);
    EXPECT_EQ(id_in(f, turn), row.turn);
    EXPECT_EQ(id_in(f, message), row.message);
    EXPECT_EQ(f.has(list) ? f.wholes(list) : Ids{}, row.listed);
    EXPECT_EQ(loaded(gguf), row.read);
    EXPECT_EQ(back(gguf), row.back);
  }
}

TEST_F(EndsOfFolder, IdsOutsideTheVocabularyEndNothing) {
  const fs::path gguf = to_gguf(folder({256, user, assistant}, nullptr));
  EXPECT_FALSE(GgufFile(gguf).has(list)) << "as llama.cpp writes it";
  for (const uint32_t outside : {260u, 99999u, 0x7fffffffu, 0xffffffffu}) {
    set_id(gguf, turn, outside);
    EXPECT_EQ(loaded(gguf), Ids{assistant}) << outside;
  }
  set_id(gguf, message, 256);
  EXPECT_EQ(loaded(gguf), Ids{256});
  set_id(gguf, turn, 256);
  EXPECT_EQ(loaded(gguf), Ids{256});
  EXPECT_EQ(back(gguf), 256);
}

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
