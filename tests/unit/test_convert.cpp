// convert: every source to folders and GGUF files and back, with what belongs to a model.
#include "model/files/convert.h"

#include <sys/stat.h>
#include <unistd.h>

#include "cpu/backend.h"
#include "formats/json.h"
#include "formats/safetensors.h"
#include "model/decoder.h"
#include "model/files/folder.h"
#include "model/files/gguf_model.h"
#include "text/chat/chat_template.h"
#include "text/tokenizer/tokenizer.h"
#include "text/tokenizer/train.h"
#include "tokenizer_data.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;
using test::error_of;
using test::expect_error;
using test::TempDir;

struct Model {
  std::unique_ptr<Backend> backend = make_cpu_backend(1);
  ModelConfig config;
  ParamStore params;

  explicit Model(const ModelConfig& c)
      : config(c.resolve()), params(*backend, decoder_params(c), DType::f32) {
    for (const ParamSpec& s : params.specs()) {
      std::vector<float> v(size_t(s.shape.numel()));
      draw(v, Init::normal(0.3f), 7, s.name);
      params.set(s.name, v);
    }
  }
  void save(const fs::path& dir, DType d = DType::f32) {
    make_dirs(dir);
    write_file_atomic(dir / "config.json", hf_config_json(config, d, 1, 2));
    write_safetensors_model(dir, hf_tensors(config, params, d));
  }
};

ModelConfig small(const char* base) {
  ModelConfig c = preset(base);
  c.vocab = 300, c.context = 24, c.layers = 2, c.dim = 32, c.heads = 4;
  c.kv_heads = 0, c.head_dim = 0, c.hidden = 64;
  return c.resolve();
}

ModelConfig llama_shape() {
  ModelConfig c = small("modern-124m");
  c.qk_norm = QkNorm::none;
  c.kv_heads = 2, c.head_dim = 10, c.tied = false;
  c.qkv_bias = c.out_bias = c.mlp_bias = true;
  c.rope_theta = 5e5;
  c.rope_scaling = RopeScaling::llama3;
  c.rope_factor = 8, c.rope_low = 1, c.rope_high = 4, c.rope_context = 16;
  return c.resolve();
}

// Every parameter of the model at `path` as the model has it.
void expect_same(const fs::path& path, Model& m) {
  const ModelSource source = ModelSource::open(path);
  Model other(source.config());
  source.load(other.params);
  ASSERT_EQ(other.params.specs().size(), m.params.specs().size());
  for (const ParamSpec& s : m.params.specs())
    EXPECT_EQ(m.params.values(Part::weight, s.name), other.params.values(Part::weight, s.name))
        << s.name;
}

Tokenizer small_tokenizer() {
  Threads threads(1);
  int left = 1;
  return train_bpe(
      {.vocab = 290, .special = {"<|endoftext|>", "<|pad|>"}},
      [&](std::string& text) {
        text = "the quick brown fox jumps over the lazy dog, then the fox rests";
        return left-- > 0;
      },
      threads);
}

TEST(Convert, ThroughGgufToTheBit) {
  ModelConfig qwen = small("modern-124m"), yarn = small("modern-124m");
  yarn.rope_scaling = RopeScaling::yarn, yarn.rope_factor = 4, yarn.rope_context = 12;
  yarn.rope_low = 1, yarn.rope_high = 32;
  ModelConfig qwen2 = qwen, mistral = qwen;
  qwen2.qk_norm = mistral.qk_norm = QkNorm::none;
  qwen2.qkv_bias = true, mistral.layout = "mistral";
  for (const ModelConfig& c : {small("gpt2"), llama_shape(), qwen, yarn, qwen2, mistral}) {
    TempDir dir;
    Model m(c);
    m.save(dir / "a");
    const Converted to = convert_model({.from = dir / "a", .gguf = dir / "m.gguf"}, *m.backend);
    EXPECT_EQ(to.params, count_params(c));
    EXPECT_EQ(to.model_type == "qwen2", c.qkv_bias && !c.out_bias);
    convert_model({.from = dir / "m.gguf", .to = dir / "b"}, *m.backend);
    expect_same(dir / "b", m);
    const ModelConfig back = ModelSource::open(dir / "b").config();
    EXPECT_EQ(rope_frequencies(back), rope_frequencies(c)) << to.model_type;
    EXPECT_EQ(back.norm_eps, c.norm_eps);
    EXPECT_EQ(back.hidden, c.hidden);
  }
}

// llama.cpp turns neighbours in a llama's heads, so they lie so in its files; qwen3's do not.
TEST(Convert, PermutesLlamasHeadsOnly) {
  for (const bool llama : {true, false}) {
    TempDir dir;
    ModelConfig c = small("modern-124m");
    if (llama) c.qk_norm = QkNorm::none;
    Model m(c);
    m.save(dir / "a");
    convert_model({.from = dir / "a", .gguf = dir / "m.gguf"}, *m.backend);
    const GgufFile f(dir / "m.gguf");
    const std::vector<float> q =
        from_ggml(f.tensors.at("blk.0.attn_q.weight").bytes, GgmlType::f32);
    const std::vector<float> qkv = m.params.values(Part::weight, "blocks.0.attn.qkv.weight");
    const int64_t C = c.dim, half = c.resolve().head_dim / 2;
    for (int64_t i = 0; i < half; ++i)
      for (int64_t second : {0, 1}) {
        const int64_t there = llama ? 2 * i + second : i + second * half;
        EXPECT_EQ(q[size_t(there * C)], qkv[size_t((i + second * half) * C)]);
      }
    EXPECT_EQ(f.text("general.architecture"), llama ? "llama" : "qwen3");
    EXPECT_EQ(f.whole("general.alignment"), 32);
  }
}

TEST(Convert, QuantisesMatricesAndSaysWhatItCouldNot) {
  TempDir dir;
  Model m(llama_shape());  // attention's output has rows of 40
  m.save(dir / "a");
  const Converted q8 =
      convert_model({.from = dir / "a", .gguf = dir / "m.gguf", .dtype = "q8_0"}, *m.backend);
  EXPECT_EQ(q8.widened, 2);
  EXPECT_EQ(q8.dtype, "q8_0 and fp16");
  // No row fits blocks of 256.
  const Converted q6 =
      convert_model({.from = dir / "a", .gguf = dir / "q6.gguf", .dtype = "q6_k"}, *m.backend);
  EXPECT_EQ(q6.dtype, q8.dtype);
  const GgufFile f(dir / "m.gguf");
  EXPECT_EQ(f.tensors.at("blk.0.ffn_up.weight").type, GgmlType::q8_0);
  EXPECT_EQ(f.tensors.at("blk.0.attn_output.weight").type, GgmlType::f16);
  EXPECT_EQ(f.tensors.at("blk.0.attn_norm.weight").type, GgmlType::f32);
  Model back(ModelSource::open(dir / "m.gguf").config());
  ModelSource::open(dir / "m.gguf").load(back.params);
  const auto a = m.params.values(Part::weight, "blocks.1.mlp.up.weight");
  const auto b = back.params.values(Part::weight, "blocks.1.mlp.up.weight");
  ASSERT_EQ(a.size(), b.size());
  EXPECT_NE(a, b);
  for (size_t i = 0; i < a.size(); ++i)
    ASSERT_NEAR(a[i], b[i], 0.006) << i;  // half a step of at most 1.5 / 127
}

// The types with blocks of 256: the head has more bits, and rows that do not fit get a wider type.
TEST(Convert, QuantisesInLargeBlocks) {
  TempDir dir;
  ModelConfig c = small("modern-124m");
  c.dim = 256, c.heads = 8, c.head_dim = 0, c.hidden = 96;
  Model m(c);
  m.save(dir / "a");
  const auto type_in = [&](const char* file, const char* tensor) {
    return GgufFile(dir / file).tensors.at(tensor).type;
  };
  const Converted q4 =
      convert_model({.from = dir / "a", .gguf = dir / "q4.gguf", .dtype = "q4_k"}, *m.backend);
  EXPECT_EQ(q4.widened, 2);  // what reads the hidden values
  EXPECT_EQ(q4.dtype, "q4_k and q8_0 and q6_k");
  EXPECT_EQ(GgufFile(dir / "q4.gguf").whole("general.file_type"), 14);
  EXPECT_EQ(type_in("q4.gguf", "blk.0.attn_q.weight"), GgmlType::q4_k);
  EXPECT_EQ(type_in("q4.gguf", "token_embd.weight"), GgmlType::q6_k);
  EXPECT_EQ(type_in("q4.gguf", "blk.1.ffn_down.weight"), GgmlType::q8_0);
  convert_model({.from = dir / "a", .gguf = dir / "q6.gguf", .dtype = "q6_k"}, *m.backend);
  EXPECT_EQ(type_in("q6.gguf", "blk.0.attn_q.weight"), GgmlType::q6_k);
  for (const auto& [file, most] : {std::pair{"q4.gguf", 0.08}, {"q6.gguf", 0.02}}) {
    Model back(ModelSource::open(dir / file).config());
    ModelSource::open(dir / file).load(back.params);
    const auto a = m.params.values(Part::weight, "blocks.1.mlp.up.weight");
    const auto b = back.params.values(Part::weight, "blocks.1.mlp.up.weight");
    double far = 0, all = 0;
    for (size_t i = 0; i < a.size(); ++i)
      far += std::pow(double(a[i]) - double(b[i]), 2), all += double(a[i]) * double(a[i]);
    EXPECT_GT(far, 0);
    EXPECT_LT(std::sqrt(far / all), most) << file;
  }
}

// Tokens that end a text besides eos, such as the one that closes a turn.
TEST(Convert, CarriesAllTokensThatEndATextToGgufAndBack) {
  for (const size_t more : {0, 1, 2, 4}) {
    TempDir dir;
    Model m(small("gpt2"));
    m.save(dir / "a", DType::f32);
    const Tokenizer t = small_tokenizer();
    t.save(dir / "a");
    std::vector<int32_t> ends{t.eos()};
    for (size_t i = 0; i < more; ++i) ends.push_back(int32_t(5 + i));
    write_file_atomic(dir / "a" / "generation_config.json", json{{"eos_token_id", ends}}.dump());
    convert_model({.from = dir / "a", .gguf = dir / "m.gguf"}, *m.backend);
    const GgufFile f(dir / "m.gguf");
    const char *turn = "tokenizer.ggml.eot_token_id", *message = "tokenizer.ggml.eom_token_id";
    EXPECT_EQ(f.has(turn) ? f.whole(turn) : -1, more > 0 ? 5 : -1);
    EXPECT_EQ(f.has(message) ? f.whole(message) : -1, more > 1 ? 6 : -1);
    EXPECT_EQ(generation_ends(dir / "m.gguf", t),
              std::vector<int32_t>(ends.begin() + 1, ends.end()));
    convert_model({.from = dir / "m.gguf", .to = dir / "b"}, *m.backend);
    const json back = read_json(dir / "b" / "generation_config.json").at("eos_token_id");
    EXPECT_EQ(back, more ? json(ends) : json(t.eos()));
  }
}

TEST(Convert, CarriesWhatBelongsToAModel) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a", DType::bf16);
  small_tokenizer().save(dir / "a");
  write_file_atomic(dir / "a" / "chat_template.jinja", "{{ messages[0].content }}");
  write_file_atomic(dir / "a" / "generation_config.json", "{\"temperature\": 0.5}");
  json config = read_json(dir / "a" / "config.json");
  config["eos_token_id"] = {5, 6};
  write_file_atomic(dir / "a" / "config.json", config.dump());
  const Converted c = convert_model(
      {.from = dir / "a", .to = dir / "b", .gguf = dir / "m.gguf", .shard_bytes = 40000},
      *m.backend);
  EXPECT_EQ(c.dtype, "bf16");
  for (const char* file :
       {"tokenizer.json", "tokenizer_config.json", "chat_template.jinja", "generation_config.json"})
    EXPECT_EQ(read_file(dir / "b" / file), read_file(dir / "a" / file)) << file;
  EXPECT_EQ(read_json(dir / "b" / "config.json").at("eos_token_id"), json({5, 6}));
  EXPECT_TRUE(fs::exists(dir / "b" / "model-00002-of-00002.safetensors"));
  EXPECT_EQ(ModelSource::open(dir / "b").dtype(), DType::bf16);

  convert_model({.from = dir / "m.gguf", .to = dir / "c"}, *m.backend);
  EXPECT_EQ(read_file(dir / "c" / "chat_template.jinja"), "{{ messages[0].content }}");
  const Tokenizer before = small_tokenizer(), after = Tokenizer::load(dir / "c");
  const std::string text = "the fox, the dog <|endoftext|> \xf0\x9f\x99\x82 caf\xc3\xa9\n";
  EXPECT_EQ(after.encode(text), before.encode(text));
  EXPECT_EQ(after.encode_with_special(text), before.encode_with_special(text));
  EXPECT_EQ(after.eos(), before.eos());
  EXPECT_EQ(after.bos(), before.bos());
  EXPECT_EQ(Tokenizer::load(dir / "m.gguf").encode(text), before.encode(text));
}

TEST(Convert, KeepsNamedChatTemplates) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  small_tokenizer().save(dir / "a");
  json config = read_json(dir / "a" / "tokenizer_config.json");
  config["chat_template"] = {{{"name", "default"}, {"template", "plain"}},
                             {{"name", "tool_use"}, {"template", "tools"}}};
  write_file_atomic(dir / "a" / "tokenizer_config.json", config.dump());
  convert_model({.from = dir / "a", .to = dir / "b", .gguf = dir / "m.gguf"}, *m.backend);
  const GgufFile f(dir / "m.gguf");
  EXPECT_EQ(f.text("tokenizer.chat_template"), "plain");
  EXPECT_EQ(f.text("tokenizer.chat_template.tool_use"), "tools");
  EXPECT_EQ(f.texts("tokenizer.chat_templates"), std::vector<std::string_view>{"tool_use"});
  convert_model({.from = dir / "m.gguf", .to = dir / "c", .gguf = dir / "n.gguf"}, *m.backend);
  for (const char* from : {"b", "m.gguf", "c", "n.gguf"}) {
    const ChatTemplate chat = ChatTemplate::load(dir / from);
    ChatRequest request{.messages = nlohmann::ordered_json::array()};
    EXPECT_EQ(chat.render(request).bytes, "plain") << from;
    request.variables = {{"tools", nlohmann::ordered_json::array()}};
    EXPECT_EQ(chat.render(request).bytes, "tools") << from;
  }
  config["chat_template"] = {{{"name", "a-b"}, {"template", ""}},
                             {{"name", "a_b"}, {"template", ""}}};
  write_file_atomic(dir / "a" / "tokenizer_config.json", config.dump());
  expect_error(error_of([&] { convert_model({.from = dir / "a", .gguf = dir / "x"}, *m.backend); }),
               "expected chat templates of different names, got \"a_b\" twice");
}

TEST(Convert, AStoryModelKeepsItsTokenizer) {
  const fs::path stories = test::test_data("models/story/story.bin");
  TempDir dir;
  const auto backend = make_cpu_backend(1);
  convert_model({.from = stories, .gguf = dir / "s.gguf"}, *backend);
  convert_model({.from = dir / "s.gguf", .to = dir / "s"}, *backend);
  EXPECT_EQ(read_file(dir / "s" / "tok512.bin"), read_file(stories.parent_path() / "tok512.bin"));
  const std::string text = "Once upon a time, Lily saw a caf\xc3\xa9.";
  EXPECT_EQ(Tokenizer::load(dir / "s.gguf").encode(text),
            Tokenizer::load(stories.parent_path() / "tok512.bin").encode(text));
}

TEST(Convert, RefusesWhatItCannotSay) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  const auto converting = [&](const ConvertSpec& s) {
    return error_of([&] { convert_model(s, *m.backend); });
  };
  expect_error(converting({.from = dir / "a"}), "expected --to DIR or --gguf FILE, got neither");
  expect_error(converting({.from = dir / "a", .to = dir / "b", .dtype = "q8_0"}),
               "expected fp32, bf16 or fp16 for a folder, got q8_0");
  expect_error(converting({.from = dir / "a", .to = dir / "b", .dtype = "f8"}), "got \"f8\"");
  expect_error(converting({.from = dir / "a", .to = dir / "a"}), "expected a new or empty folder");
  EXPECT_EQ(test::names_in(dir.path()), 1);
  ModelConfig own = small("nocap-d12");
  Model n(own);
  n.save(dir / "n");
  expect_error(converting({.from = dir / "n", .gguf = dir / "n.gguf"}),
               "no architecture that computes this model, so GGUF cannot hold it: llama cannot "
               "express rope_reverse = true");
  EXPECT_FALSE(fs::exists(dir / "n.gguf"));
  own = small("modern-124m");
  own.qk_norm = QkNorm::none, own.window = 4;
  Model window(own);
  window.save(dir / "w");
  expect_error(converting({.from = dir / "w", .gguf = dir / "w.gguf"}),
               "in GGUF cannot have a sliding window, got one of 4 tokens");
}

// An existing folder stays the same one: a mount point and the target of a link cannot be replaced.
TEST(Convert, FillsAnExistingFolder) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  fs::create_directories(dir / "real/lost+found");  // as a new file system has
  fs::create_directory_symlink("real", dir / "link");
  struct stat before {
  }, after{};
  ASSERT_EQ(stat((dir / "real").c_str(), &before), 0);
  convert_model({.from = dir / "a", .to = dir / "link", .gguf = dir / "link/sub/m.gguf"},
                *m.backend);
  ASSERT_EQ(stat((dir / "real").c_str(), &after), 0);
  EXPECT_EQ(after.st_ino, before.st_ino);
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
  expect_same(dir / "real", m);
  expect_same(dir / "real/sub/m.gguf", m);
  // lost+found, config, generation config, weights and sub
  EXPECT_EQ(test::names_in(dir / "real"), 5);
  EXPECT_EQ(test::names_in(dir.path()), 3);
}

TEST(Convert, FillsAMountPoint) {
  TempDir dir;
  const int code = test::run_in_child([&] {
    Model m(small("gpt2"));
    m.save(dir / "a");
    fs::create_directory(dir / "mount");
    if (!test::mount_tmpfs(dir / "mount", 0, "size=4m")) return test::no_mount;
    convert_model({.from = dir / "a", .to = dir / "mount"}, *m.backend);
    expect_same(dir / "mount", m);
    return 0;
  });
  if (code == test::no_mount) GTEST_SKIP() << "needs the right to mount a small tmpfs";
  EXPECT_EQ(code, 0);
}

TEST(Convert, PlacesTheGgufInsideTheFolder) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  convert_model({.from = dir / "a", .to = dir / "b", .gguf = dir / "b/sub/m.gguf"}, *m.backend);
  expect_same(dir / "b", m);
  expect_same(dir / "b/sub/m.gguf", m);
  const auto refused = [&](const char* to, const char* gguf, std::string_view part) {
    expect_error(error_of([&] {
                   convert_model({.from = dir / "a", .to = dir / to, .gguf = dir / gguf},
                                 *m.backend);
                 }),
                 part);
  };
  refused("c", "c", "expected a file, got the folder of --to or one that holds it");
  refused("c/d", "c", "expected a file, got the folder of --to or one that holds it");
  refused("c", "c/model.safetensors",
          "expected a name that ends in .gguf inside the folder of --to, got "
          "\"model.safetensors\"");
  write_file_atomic(dir / "file", "");
  fs::create_symlink("gone", dir / "broken");
  for (const char* to : {"file", "broken"})
    refused(to, "m.gguf", "expected a new or empty folder, got a file or a broken link");
  EXPECT_EQ(test::names_in(dir.path()), 4);
}

// Stopped at each check in turn, until none is left.
TEST(Convert, LeavesNothingWhenStopped) {
  struct Stop {};
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  ConvertSpec both{.from = dir / "a", .to = dir / "x/b", .gguf = dir / "y/z/m.gguf"};
  ConvertSpec inside = both, alone = both;
  inside.gguf = dir / "x/b/sub/m.gguf", alone.gguf.clear();
  for (ConvertSpec spec : {both, inside, alone}) {
    int stops = 0;
    for (bool stopped = true; stopped; stops += stopped) {
      stopped = false;
      std::atomic<int> left = stops;
      spec.check = [&left] {
        if (left-- <= 0) throw Stop{};
      };
      try {
        convert_model(spec, *m.backend);
      } catch (const Stop&) {
        stopped = true;
        EXPECT_EQ(test::names_in(dir.path()), 1) << stops;
      }
    }
    EXPECT_GT(stops, 2 * int(m.params.specs().size()));
    expect_same(spec.to, m);
    fs::remove_all(dir / "x"), fs::remove_all(dir / "y");
  }
}

// No file of a killed call is in the result of the next one, not even under the same process id.
TEST(Convert, RemovesLeftoversOfKilledCalls) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  const int dead = 1 << 30, own = getpid();  // above every process id
  for (const char* to : {"new", "empty"}) {
    const fs::path place = to == std::string_view("new") ? dir.path() : dir / "empty";
    for (const int pid : {dead, own}) {
      const fs::path left = place / fmt::format(".tmp-{}-{}", to, pid);
      make_dirs(left);
      write_file_atomic(left / "chat_template.jinja", "of another model");
    }
    convert_model({.from = dir / "a", .to = dir / to}, *m.backend);
    EXPECT_EQ(test::names_in(dir / to), 3) << to;
  }
  make_dirs(dir / fmt::format(".tmp-b-{}", getppid()));  // of a running process
  convert_model({.from = dir / "a", .to = dir / "b"}, *m.backend);
  EXPECT_EQ(test::names_in(dir.path()), 5);
}

TEST(Convert, RefusesATokenizerThatGgufCannotHoldFirst) {
  TempDir dir;
  Model m(small("gpt2"));
  m.save(dir / "a");
  small_tokenizer().save(dir / "a");
  ModelConfig narrow = m.config;
  narrow.vocab = small_tokenizer().vocab_size() - 1;
  expect_error(error_of([&] { expect_gguf(narrow, {.tokenizer = dir / "a"}); }),
               "expected a tokenizer with at most the model's");
  json config = read_json(dir / "a" / "tokenizer_config.json");
  config["chat_template"] = {{{"name", "a-b"}, {"template", ""}},
                             {{"name", "a_b"}, {"template", ""}}};
  write_file_atomic(dir / "a" / "tokenizer_config.json", config.dump());
  expect_error(
      error_of([&] { convert_model({.from = dir / "a", .gguf = dir / "new/m.gguf"}, *m.backend); }),
      "expected chat templates of different names");
  EXPECT_FALSE(fs::exists(dir / "new"));  // it is created after the checks, before the weights
}

TEST(Convert, NamesWhatIsWrongInAGguf) {
  TempDir dir;
  Model m(llama_shape());
  m.save(dir / "a");
  convert_model({.from = dir / "a", .gguf = dir / "m.gguf"}, *m.backend);
  const std::string good = read_file(dir / "m.gguf");
  const auto opening = [&](std::string_view from, std::string_view to) {
    std::string bad = good;
    bad.replace(bad.find(from), from.size(), to);
    write_file_atomic(dir / "bad.gguf", bad);
    return error_of([&] { ModelSource::open(dir / "bad.gguf"); });
  };
  expect_error(opening("blk.0.attn_k.weight", "blk.0.attn_x.weight"),
               "the tensor blk.0.attn_k.weight is missing");
  expect_error(opening("llama.block_count", "llama.block_cOunt"),
               "the key llama.block_count is missing");
  expect_error(opening("hearth.rope_context", "hearth.rope_cOntext"), "by Llama 3's rule");
  // Keys that would change the numbers: one with another value, one in place of another.
  const std::string_view width = "llama.attention.value_length";
  std::string other(good);
  other[other.find(width) + width.size() + 4] = 12;
  write_file_atomic(dir / "bad.gguf", other);
  expect_error(error_of([&] { ModelSource::open(dir / "bad.gguf"); }),
               "expected llama.attention.value_length to be 10");
  expect_error(opening("llama.rope.freq_base", "llama.residual_scale"),
               "expected llama.residual_scale to be 1, got 500000");
  other = good;
  other.replace(other.find("llama"), 5, "mamba");
  write_file_atomic(dir / "bad.gguf", other);
  expect_error(error_of([&] { ModelSource::open(dir / "bad.gguf"); }),
               "expected general.architecture to be one of gpt2, llama, qwen2, qwen3, smollm3");
}

}  // namespace
}  // namespace hearth
