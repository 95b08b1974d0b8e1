// Trained models, read from their own files: every recorded activation of one, the story that
// another tells.
#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>

#include "formats/json.h"
#include "formats/mingpt_json.h"
#include "infer/engine.h"
#include "unit/model_run.h"
#include "unit/test_io_support.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using test::BackendCase;
using test::LoadedModel;
using test::LogitsProgram;
using Numbers = std::vector<float>;

// --- gpt-nano-sort ---

fs::path nano_file(const std::string& name) {
  return test::test_data("models/gpt-nano-sort/" + name);
}

// What the nodes wrote, by "op scope", a second output by "op scope #1".
using Observed = std::map<std::string, Numbers>;

struct Shapes {
  int64_t B, T, C, H, D;
};

// x wᵀ + bias for rows of x.
Numbers affine(const Numbers& x, const Numbers& w, const Numbers& bias) {
  const size_t N = bias.size(), K = w.size() / N, M = x.size() / K;
  Numbers y(M * N);
  for (size_t m = 0; m < M; ++m)
    for (size_t n = 0; n < N; ++n) {
      double sum = bias[n];
      for (size_t k = 0; k < K; ++k) sum += double(x[m * K + k]) * w[n * K + k];
      y[m * N + n] = float(sum);
    }
  return y;
}

Numbers softmax_rows(const Numbers& x, size_t cols) {
  Numbers y(x.size());
  for (size_t r = 0; r < x.size(); r += cols) {
    const double top = *std::max_element(x.begin() + r, x.begin() + r + cols);
    double sum = 0;
    for (size_t c = 0; c < cols; ++c) sum += std::exp(x[r + c] - top);
    for (size_t c = 0; c < cols; ++c) y[r + c] = float(std::exp(x[r + c] - top) / sum);
  }
  return y;
}

// Part 0, 1 or 2 (q, k, v) of packed (B, T, 3, H, D) as (B, H, T, D).
Numbers heads_of(const Numbers& qkv, int part, const Shapes& s) {
  Numbers out;
  for (int64_t b = 0; b < s.B; ++b)
    for (int64_t h = 0; h < s.H; ++h)
      for (int64_t t = 0; t < s.T; ++t)
        for (int64_t d = 0; d < s.D; ++d)
          out.push_back(qkv[size_t((((b * s.T + t) * 3 + part) * s.H + h) * s.D + d)]);
  return out;
}

// q kᵀ / sqrt(D) of (B, H, T, D), -inf above the diagonal.
Numbers scores(const Numbers& q, const Numbers& k, const Shapes& s) {
  Numbers out;
  for (int64_t bh = 0; bh < s.B * s.H; ++bh)
    for (int64_t i = 0; i < s.T; ++i)
      for (int64_t j = 0; j < s.T; ++j) {
        double sum = 0;
        for (int64_t d = 0; d < s.D; ++d)
          sum += double(q[size_t((bh * s.T + i) * s.D + d)]) * k[size_t((bh * s.T + j) * s.D + d)];
        out.push_back(j > i ? -std::numeric_limits<float>::infinity()
                            : float(sum / std::sqrt(double(s.D))));
      }
  return out;
}

Numbers rows_of(const Numbers& table, const std::vector<int32_t>& ids, size_t cols) {
  Numbers out;
  for (const int32_t id : ids)
    out.insert(out.end(), table.begin() + ptrdiff_t(size_t(id) * cols),
               table.begin() + ptrdiff_t((size_t(id) + 1) * cols));
  return out;
}

// Every stage the file records: seen where the program has it as a node, else made from what was
// seen just before.
std::map<std::string, Numbers> stages(LoadedModel& m, const Observed& seen,
                                      const std::vector<int32_t>& tokens, const Shapes& s) {
  std::vector<int32_t> positions;
  for (int32_t t = 0; t < s.T; ++t) positions.push_back(t);
  std::map<std::string, Numbers> r;
  r["tok_emb"] = rows_of(m.weights("embed.weight"), tokens, size_t(s.C));
  r["pos_emb"] = rows_of(m.weights("positions.weight"), positions, size_t(s.C));
  r["x"] = seen.at("embed ");
  r["ln1"] = seen.at("layer_norm blocks.0.attn.norm");
  r["qkv"] = seen.at("linear blocks.0.attn.qkv");
  r["q"] = heads_of(r["qkv"], 0, s);
  r["k"] = heads_of(r["qkv"], 1, s);
  r["v"] = heads_of(r["qkv"], 2, s);
  r["att"] = scores(r["q"], r["k"], s);
  r["attSm"] = softmax_rows(r["att"], size_t(s.T));
  r["y"] = seen.at("attention blocks.0.attn");
  r["yProj"] =
      affine(r["y"], m.weights("blocks.0.attn.out.weight"), m.weights("blocks.0.attn.out.bias"));
  r["attnResid"] = seen.at("linear blocks.0.attn.out");
  r["ln2"] = seen.at("layer_norm blocks.0.mlp.norm");
  r["fc"] = seen.at("linear blocks.0.mlp.up #1");
  r["gelu"] = seen.at("linear blocks.0.mlp.up");
  r["mlp"] =
      affine(r["gelu"], m.weights("blocks.0.mlp.down.weight"), m.weights("blocks.0.mlp.down.bias"));
  r["mlpResid"] = r["block0"] = seen.at("linear blocks.0.mlp.down");
  r["block1"] = seen.at("linear blocks.1.mlp.down");
  r["block2"] = seen.at("linear blocks.2.mlp.down");
  r["ln_f"] = seen.at("layer_norm final_norm");
  r["lm_head"] = seen.at("linear ");
  r["probs"] = softmax_rows(r["lm_head"], size_t(m.config.vocab));
  return r;
}

void expect_close(const Numbers& got, const Numbers& want, const std::string& stage) {
  ASSERT_EQ(got.size(), want.size()) << stage;
  double far = 0;
  for (size_t i = 0; i < got.size(); ++i) {
    if (std::isinf(want[i]))
      ASSERT_EQ(got[i], want[i]) << stage << " " << i;
    else if (const double d = std::abs(double(got[i]) - want[i]); !(d <= far))
      far = d;
  }
  EXPECT_LE(far, 1e-5) << stage;
}

void expect_recorded_activations(const BackendCase& where) {
  SCOPED_TRACE(where.name);
  const MingptJson partials = read_mingpt_json(nano_file("gpt-nano-sort-t0-partials.json"));
  LoadedModel m(ModelSource::open(nano_file("gpt-nano-sort-model.json")), where);
  const ModelConfig& c = m.config;
  const MingptTensor& idx = partials.tensors.at("idx");
  const Shapes s{idx.shape[0], idx.shape[1], c.dim, c.heads, c.head_dim};
  const std::vector<int32_t> tokens(idx.data.begin(), idx.data.end());
  std::vector<int32_t> positions;
  for (int64_t i = 0; i < s.B * s.T; ++i) positions.push_back(int32_t(i % s.T));

  Observed seen;
  LogitsProgram(m, s.B, s.T).run(tokens, positions, [&](const Node& n, Out out) {
    for (size_t i = 0; i < out.size(); ++i)
      if (out[i]) {
        const std::string key = std::string(n.op->name) + " " + n.where;
        seen[i ? key + " #" + std::to_string(i) : key] = test::floats_of(*m.backend, out[i]);
      }
  });
  const auto got = stages(m, seen, tokens, s);
  EXPECT_EQ(got.size() + 1, partials.tensors.size());
  for (const auto& [stage, want] : partials.tensors)
    if (stage != "idx") {
      ASSERT_TRUE(got.contains(stage)) << stage;
      expect_close(got.at(stage), want.data, stage);
    }
}

TEST(GptNanoSort, EveryRecordedActivation) {
  for (const BackendCase& where : test::backend_cases()) expect_recorded_activations(where);
}

TEST(GptNanoSort, ConfigAndErrors) {
  const ModelSource source = ModelSource::open(nano_file("gpt-nano-sort-model.json"));
  EXPECT_EQ(source.config().context, 11);
  EXPECT_EQ(source.config().act, Act::gelu_tanh);
  EXPECT_FALSE(source.config().tied);
  EXPECT_TRUE(source.tokenizer().empty());
  test::TempDir dir;
  nlohmann::json j = read_json(nano_file("gpt-nano-sort-model.json"));
  j.erase("lm_head.weight");
  write_file_atomic(dir / "m.json", j.dump());
  test::expect_error(test::error_of([&] { ModelSource::open(dir / "m.json"); }),
                     "the tensor lm_head.weight (3, 48) is missing");
  j["config"].erase("block_size");
  write_file_atomic(dir / "m.json", j.dump());
  test::expect_error(test::error_of([&] { ModelSource::open(dir / "m.json"); }), "block_size");
}

// --- models in llama2.c's format ---

struct StoryModel {
  fs::path model, vocabulary;
  std::string_view begins;  // what it says after <s>, always taking the likeliest token
};

// The story of tests/data/models/story was computed by story_model.py, that of the published model
// by llama2.c, which may not be handed on with this repository.
std::vector<StoryModel> story_models() {
  const auto named = [](const std::string& dir, const std::string& file, std::string_view begins) {
    return StoryModel{test::test_data("models/" + dir + "/" + file),
                      test::test_data("models/" + dir + "/tok512.bin"), begins};
  };
  std::vector<StoryModel> all = {
      named("story", "story.bin",
            "This is the story of Wren, a quiet girl who lived in a stone village")};
  StoryModel published = named("stories260K", "stories260K.bin",
                               "Once upon a time, there was a little girl named Lily");
  if (fs::exists(published.model)) all.push_back(std::move(published));
  return all;
}

// tok512.bin: int32 longest, then per token float score, int32 length, bytes.
std::vector<std::string> read_pieces(const fs::path& path) {
  const std::string file = read_file(path);
  std::vector<std::string> pieces;
  for (size_t at = 4; at < file.size();) {
    int32_t length = 0;
    std::memcpy(&length, file.data() + at + 4, 4);
    pieces.push_back(file.substr(at + 8, size_t(length)));
    at += 8 + size_t(length);
  }
  return pieces;
}

std::string decode(const std::vector<int32_t>& ids, const fs::path& vocabulary) {
  const auto pieces = read_pieces(vocabulary);
  std::string text;
  for (size_t i = 1; i < ids.size(); ++i) text += pieces.at(size_t(ids[i]));
  return text.starts_with(' ') ? text.substr(1) : text;  // the space before the first word
}

int32_t best_of(const float* logits, int64_t vocab) {
  return int32_t(std::max_element(logits, logits + vocab) - logits);
}

constexpr int64_t context = 64, told = 31;  // tokens; what is compared takes fewer

// Greedy from bos by running the whole padded sequence for each token: what follows cannot matter.
std::vector<int32_t> tell_whole(LoadedModel& m) {
  LogitsProgram program(m, 1, context);
  std::vector<int32_t> positions, ids{1};
  for (int32_t i = 0; i < context; ++i) positions.push_back(i);
  while (int64_t(ids.size()) < told) {
    std::vector<int32_t> padded = ids;
    padded.resize(size_t(context));
    const Numbers logits = program.run(padded, positions);
    const int64_t V = m.config.vocab;
    ids.push_back(best_of(logits.data() + (int64_t(ids.size()) - 1) * V, V));
  }
  return ids;
}

// The same by the engine, one token at a time over its cache.
std::vector<int32_t> tell_cached(LoadedModel& m) {
  Engine engine(m.config, m.params, *m.backend, {.context = context});
  std::vector<Request> requests(1);  // in place: g++ 13 warns of copying a prompt of known length
  requests[0].prompt.push_back(1);
  requests[0].sampling = {.temperature = 0, .max_tokens = told - 1};
  std::vector<int32_t> ids = engine.run(requests)[0][0].tokens;
  ids.insert(ids.begin(), 1);
  return ids;
}

TEST(StoryModels, GreedyStoryWholeAndCached) {
  for (const StoryModel& story : story_models()) {
    const ModelSource source = ModelSource::open(story.model);
    EXPECT_EQ(source.tokenizer(), story.vocabulary);
    EXPECT_EQ(source.config().kv_heads, source.config().heads / 2);
    for (const BackendCase& where : test::backend_cases()) {
      SCOPED_TRACE(story.model.string() + " " + where.name);
      LoadedModel m(source, where);
      const std::vector<int32_t> ids = tell_whole(m);
      EXPECT_EQ(decode(ids, story.vocabulary).substr(0, story.begins.size()), story.begins);
      if (where.dtype == DType::f32) {  // the engine knows no f64
        EXPECT_EQ(tell_cached(m), ids);
      }
    }
  }
}

// Converted to a llama folder, and read as a program would that knows nothing of interleaved heads.
TEST(StoryModels, TellTheSameFromAFolder) {
  const ModelSource source = ModelSource::open(story_models().front().model);
  const BackendCase where = test::backend_cases().front();
  LoadedModel m(source, where);
  test::TempDir dir;
  auto config = nlohmann::json::parse(hf_config_json(m.config, DType::f32, 1, 2));
  EXPECT_EQ(config.at("model_type"), "llama");
  config.erase("hearth_config");
  write_file_atomic(dir / "config.json", config.dump());
  write_safetensors_model(dir.path(), hf_tensors(m.config, m.params, DType::f32));
  const ModelSource folder = ModelSource::open(dir.path());
  EXPECT_EQ(folder.config().rope_pairs, RopePairs::half);
  LoadedModel again(folder, where);
  EXPECT_EQ(tell_cached(again), tell_cached(m));
}

}  // namespace
}  // namespace hearth
