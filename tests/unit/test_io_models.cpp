// The llama2.c and minGPT-json readers, on the published models where present and on bad files.
#include <array>
#include <cmath>
#include <cstring>

#include "formats/json.h"
#include "formats/llama2c.h"
#include "formats/mingpt_json.h"
#include "test_io_support.h"

namespace hearth::test {
namespace {

namespace fs = std::filesystem;

float at(const StoredTensor& t, size_t i) {
  float v = 0;
  std::memcpy(&v, t.bytes.subspan(i * sizeof v, sizeof v).data(), sizeof v);
  return v;
}

// Sizes, then one float after another with the value of its index.
std::string llama2c_file(std::array<int32_t, 7> header, int floats) {
  std::string file(reinterpret_cast<const char*>(header.data()), sizeof header);
  for (int i = 0; i < floats; ++i) {
    const auto v = float(i);
    file.append(reinterpret_cast<const char*>(&v), sizeof v);
  }
  return file;
}

// dim 4, hidden 3, 2 layers, 2 heads, 1 kv head, vocab 5, seq 6
constexpr std::array<int32_t, 7> small = {4, 3, 2, 2, 1, 5, 6};
constexpr int small_floats = 20 + 8 + 32 + 16 + 16 + 32 + 8 + 24 + 24 + 24 + 4 + 6 + 6;

std::string llama_error(const std::string& file) {
  const std::vector<std::byte> bytes(to_bytes(file).begin(), to_bytes(file).end());
  return error_of([&] { parse_llama2c(bytes, "m.bin"); });
}

TEST(IoLlama2c, SmallFileHasEveryTensorInOrder) {
  const std::string file = llama2c_file(small, small_floats);
  const Llama2cTable t = parse_llama2c(to_bytes(file), "m.bin");
  EXPECT_TRUE(t.header.tied);
  EXPECT_EQ(t.header.vocab, 5);
  EXPECT_EQ(t.tensors.size(), 13u);
  EXPECT_EQ(t.tensors.at("wk").shape, (std::vector<int64_t>{2, 2, 4}));
  EXPECT_EQ(t.tensors.at("w2").shape, (std::vector<int64_t>{2, 4, 3}));
  EXPECT_EQ(t.tensors.at("freq_cis_imag").shape, (std::vector<int64_t>{6, 1}));
  EXPECT_EQ(at(t.tensors.at("rms_att"), 0), 20);
  EXPECT_EQ(at(t.tensors.at("wk"), 0), 60);
  EXPECT_EQ(at(t.tensors.at("wk").slice(1), 0), 68);
  EXPECT_EQ(at(t.tensors.at("rms_final"), 0), 204);
  EXPECT_EQ(at(t.tensors.at("freq_cis_imag"), 5), small_floats - 1);
}

TEST(IoLlama2c, NegativeVocabIsUntied) {
  auto header = small;
  header[5] = -5;
  const std::string file = llama2c_file(header, small_floats + 20);
  const Llama2cTable t = parse_llama2c(to_bytes(file), "m.bin");
  EXPECT_FALSE(t.header.tied);
  EXPECT_EQ(t.header.vocab, 5);
  EXPECT_EQ(at(t.tensors.at("wcls"), 0), small_floats);
}

TEST(IoLlama2c, BadFilesAreOneError) {
  EXPECT_EQ(llama_error(llama2c_file(small, small_floats)), "");
  expect_error(llama_error(llama2c_file(small, small_floats + 1)), "got 4 bytes");
  const std::string whole = llama2c_file(small, small_floats);
  for (size_t n = 0; n < whole.size(); ++n) expect_error(llama_error(whole.substr(0, n)), "m.bin");
  const auto with = [&](size_t i, int32_t v) {
    auto header = small;
    header[i] = v;
    return llama_error(llama2c_file(header, small_floats));
  };
  for (size_t i = 0; i < 7; ++i) {
    expect_error(with(i, 0), "expected");
    expect_error(with(i, INT32_MIN), "expected");
    expect_error(with(i, INT32_MAX), "expected");
    if (i != 5) expect_error(with(i, -1), "positive sizes");
  }
  expect_error(with(3, 3), "dim/heads");
  expect_error(with(3, 4), "dim/heads");
  constexpr int32_t big = 1 << 30;
  expect_error(llama_error(llama2c_file({big, big, big, 1, 1, 1, 1}, 10)), "expected");
}

TEST(IoLlama2c, ReadsATrainedModel) {
  const fs::path path = test_data("models/story/story.bin");
  const Llama2cFile f(path);
  EXPECT_EQ(f.header.dim, 48);
  EXPECT_EQ(f.header.kv_heads, 3);
  EXPECT_TRUE(f.header.tied);
  EXPECT_EQ(f.tensors.at("tok_emb").shape, (std::vector<int64_t>{512, 48}));
  // The rotation tables have known values, so they show that all before them is in its place.
  const StoredTensor &re = f.tensors.at("freq_cis_real"), &im = f.tensors.at("freq_cis_imag");
  ASSERT_EQ(re.shape, (std::vector<int64_t>{256, 4}));
  for (const size_t pos : {0, 1, 100}) {
    for (size_t i = 0; i < 4; ++i) {
      const double angle = double(pos) * std::pow(10000.0, -double(i) / 4);
      EXPECT_NEAR(at(re, pos * 4 + i), std::cos(angle), 1e-4);
      EXPECT_NEAR(at(im, pos * 4 + i), std::sin(angle), 1e-4);
    }
  }
  expect_error(error_of([&] { Llama2cFile g(path.parent_path() / "absent.bin"); }), "absent.bin");
}

std::string mingpt(std::string_view tensor) {
  return fmt::format(R"({{"config":{{"n_head":3}},"t":{}}})", tensor);
}

TEST(IoMingptJson, DecodesFloats) {
  // 1, -2, 0.5 in base64: 12 bytes, no padding; then one float alone, with padding
  const MingptJson m = parse_mingpt_json(
      R"({"config":{"n_head":3},
          "t":{"shape":[3,1],"dtype":"torch.float32","data":"AACAPwAAAMAAAAA/"},
          "s":{"shape":[],"dtype":"torch.float32","data":"AACAPw=="},
          "e":{"shape":[0,7],"dtype":"torch.float32","data":""}})",
      "m.json");
  EXPECT_EQ(m.config["n_head"], 3);
  EXPECT_EQ(m.tensors.at("t").data, (std::vector<float>{1, -2, 0.5f}));
  EXPECT_EQ(m.tensors.at("t").shape, (std::vector<int64_t>{3, 1}));
  EXPECT_EQ(m.tensors.at("s").data, std::vector<float>{1});
  EXPECT_TRUE(m.tensors.at("e").data.empty());
  EXPECT_EQ(at(m.tensors.at("t").view().slice(1), 0), -2);
}

TEST(IoMingptJson, BadFilesAreOneError) {
  const auto error = [](const std::string& text) {
    return error_of([&] { parse_mingpt_json(text, "m.json"); });
  };
  const auto tensor = [&](std::string_view shape, std::string_view dtype, std::string_view data) {
    return error(
        mingpt(fmt::format(R"({{"shape":{},"dtype":"{}","data":"{}"}})", shape, dtype, data)));
  };
  EXPECT_EQ(tensor("[1]", "torch.float32", "AACAPw=="), "");
  expect_error(tensor("[2]", "torch.float32", "AACAPw=="), "base64 of 8 bytes");
  expect_error(tensor("[1]", "torch.float16", "AACAPw=="), "torch.float32");
  expect_error(tensor("[1]", "torch.float32", "AACAPw"), "base64");
  expect_error(tensor("[1]", "torch.float32", "AACAPwA="), "base64");
  expect_error(tensor("[1]", "torch.float32", "AAC-Pw=="), "base64");
  expect_error(tensor("[-1]", "torch.float32", ""), "shape, dtype and data");
  expect_error(tensor("[4294967296,4294967296]", "torch.float32", ""), "data of its shape");
  expect_error(tensor("[1000000000000]", "torch.float32", "AAAA"), "data of its shape");
  expect_error(error(mingpt("7")), "shape, dtype and data");
  expect_error(error(mingpt("{}")), "shape, dtype and data");
  expect_error(error("{}"), "an object with config");
  expect_error(error("[]"), "an object with config");
  const std::string whole = mingpt(R"({"shape":[1],"dtype":"torch.float32","data":"AACAPw=="})");
  EXPECT_EQ(error(whole), "");
  for (size_t n = 0; n < whole.size(); ++n) expect_error(error(whole.substr(0, n)), "m.json");
}

TEST(IoMingptJson, ReadsGptNanoSortAndItsPartials) {
  const fs::path dir = test_data("models/gpt-nano-sort");
  const MingptJson model = read_mingpt_json(dir / "gpt-nano-sort-model.json");
  const MingptJson partials = read_mingpt_json(dir / "gpt-nano-sort-t0-partials.json");
  EXPECT_EQ(model.config["n_embd"], 48);
  EXPECT_EQ(model.tensors.at("transformer.h.2.mlp.c_fc.weight").shape,
            (std::vector<int64_t>{192, 48}));
  // The recorded embeddings are rows of the model's table.
  const auto& wte = model.tensors.at("transformer.wte.weight").data;
  const auto &idx = partials.tensors.at("idx").data, &emb = partials.tensors.at("tok_emb").data;
  ASSERT_EQ(emb.size(), idx.size() * 48);
  for (size_t i = 0; i < emb.size(); ++i)
    EXPECT_EQ(emb[i], wte.at(size_t(idx[i / 48]) * 48 + i % 48));
}

}  // namespace
}  // namespace hearth::test
