// convert and eval as a user calls them.
#include <cstring>

#include "e2e/short_runs.h"
#include "formats/safetensors.h"
#include "served_folder.h"
#include "tokenizer_data.h"

namespace hearth {
namespace {

// A model with its tokenizer, trained for a moment.
std::string story_run(const Folder& folder, const Arguments& more = {}) {
  const std::string text = folder / "stories.txt", tok = folder / "tok", out = folder / "tokens";
  json_of(run(folder, {"data", "stories", "--out", text, "--stories", "200", "--json"}));
  json_of(run(folder,
              {"tokenizer", "train", "--input", text, "--vocab", "400", "--out", tok, "--json"}));
  json_of(run(folder, {"data", "prepare", "--tokenizer", tok, "--input", text, "--out", out,
                       "--val-fraction", "0.1", "--json"}));
  json_of(run(folder, Arguments{"pretrain", "--preset", "tiny", "--vocab", "400", "--context", "64",
                                "--layers", "1", "--dim", "32", "--heads", "2", "--kv-heads", "1",
                                "--hidden", "64"} +
                          Arguments{"--tokenizer", tok, "--run", folder / "run", "--data",
                                    out + "/train_*.bin", "--steps", "20", "--batch", "4", "--seq",
                                    "64", "--lr", "1e-2", "--dtype", "fp32", "--json"} +
                          more));
  return folder / "run";
}

// A model's perplexity is the same from its run, from a folder and from GGUF; coarser types move it
// a little.
TEST(ConvertEval, OneModelInThreeFormats) {
  const Folder folder;
  const std::string model = story_run(folder), text = folder / "stories.txt";
  const auto perplexity = [&](const std::string& from, const std::string& weights = "plain") {
    const auto j = json_of(
        run(folder, {"eval", "--model", from, "--task", "perplexity", "--data", text, "--limit",
                     "20", "--weights", weights, "--device", "cpu", "--dtype", "fp32", "--json"}));
    EXPECT_EQ(j["metric"], "perplexity");
    EXPECT_EQ(j["n"], 20);
    EXPECT_GT(j["stderr"].get<double>(), 0);
    return j["value"].get<double>();
  };
  const double want = perplexity(model);
  EXPECT_GT(want, 1);
  EXPECT_LT(want, 400);
  const std::string hf = folder / "hf", gguf = folder / "m.gguf", q8 = folder / "q8.gguf";
  const auto done =
      json_of(run(folder, {"convert", "--from", model, "--to", hf, "--gguf", gguf, "--json"}));
  EXPECT_TRUE(done["tokenizer"].get<bool>());
  EXPECT_EQ(perplexity(hf), want);
  EXPECT_EQ(perplexity(gguf), want);
  EXPECT_EQ(run(folder, {"convert", "--from", hf, "--gguf", q8, "--dtype", "q8_0"}).status, 0);
  const double coarse = perplexity(q8);
  EXPECT_NE(coarse, want);
  EXPECT_NEAR(coarse, want, 0.02 * want);
  for (const auto& [weights, share] : {std::pair{"int8", 0.02}, {"int4", 0.2}}) {
    const double quantised = perplexity(hf, weights);
    EXPECT_NE(quantised, want);
    EXPECT_NEAR(quantised, want, share * want) << weights;
  }
  const auto rounded =
      json_of(run(folder, {"eval", "--model", hf, "--task", "perplexity", "--data", text, "--limit",
                           "20", "--kv", "fp8", "--dtype", "fp32", "--json"}));
  EXPECT_NE(rounded["value"].get<double>(), want);
  EXPECT_NEAR(rounded["value"].get<double>(), want, 0.02 * want);
  // The same windows once more, each with more context.
  const auto close = json_of(run(folder, {"eval", "--model", hf, "--task", "perplexity", "--data",
                                          text, "--limit", "20", "--stride", "16", "--json"}));
  EXPECT_EQ(close["n"], 20);
}

TEST(ConvertEval, ChoicesAndLastWords) {
  const Folder folder;
  const std::string model = story_run(folder);
  write_file_atomic(
      folder / "c.jsonl",
      "{\"context\": \"Once upon a\", \"choices\": [\"time\", \"xqz\"], \"gold\": 0}\n"
      "{\"context\": \"Once upon a\", \"choices\": [\"time\", \"xqz\"], \"gold\": 1}\n");
  const auto c = json_of(run(folder, {"eval", "--model", model, "--task", "choices", "--data",
                                      folder / "c.jsonl", "--json"}));
  EXPECT_EQ(c["metric"], "acc");
  EXPECT_EQ(c["value"], 0.5);
  EXPECT_EQ(c["stderr"], 0.5);  // sqrt(0.5) / sqrt(2)
  EXPECT_EQ(c["metrics"].size(), 3u);
  write_file_atomic(folder / "l.jsonl", "{\"text\": \"Once upon a time there was a dog\"}\n");
  const auto l = json_of(run(folder, {"eval", "--model", model, "--task", "lambada", "--data",
                                      folder / "l.jsonl", "--json"}));
  EXPECT_EQ(l["metrics"][1]["metric"], "acc");
  EXPECT_TRUE(l["stderr"].is_null());  // of one item
}

// A file of a single document's tokens says what its text says.
TEST(ConvertEval, TokenFiles) {
  const Folder folder;
  const std::string model = story_run(folder), text = folder / "one.txt", out = folder / "one";
  std::string story;
  for (int i = 0; i < 40; ++i) story += "Once upon a time there was a dog who had a ball. ";
  write_file_atomic(text, story);
  json_of(run(folder, {"data", "prepare", "--tokenizer", folder / "tok", "--input", text, "--out",
                       out, "--json"}));
  const auto of = [&](const std::string& data, const Arguments& more = {}) {
    return json_of(run(folder, Arguments{"eval", "--model", model, "--task", "perplexity", "--data",
                                         data, "--dtype", "fp32", "--json"} +
                                   more));
  };
  const std::string tokens = out + "/train_000001.bin";
  const auto as_text = of(text), as_tokens = of(tokens);
  EXPECT_EQ(as_tokens["value"], as_text["value"]);
  EXPECT_EQ(as_tokens["tokens"], as_text["tokens"]);
  EXPECT_EQ(as_tokens["metrics"].size(), 1u);
  EXPECT_EQ(of(out + "/{train_000001.bin,train_000001.bin}")["tokens"],
            2 * as_text["tokens"].get<int64_t>());
  EXPECT_EQ(of(tokens, {"--limit", "2"})["tokens"], 2 * 64);
  EXPECT_EQ(of(tokens, {"--limit", "3", "--stride", "16"})["tokens"], 64 + 2 * 16);
  EXPECT_EQ(of(tokens, {"--limit", "9223372036854775807"})["tokens"], as_text["tokens"]);
  std::string bad = read_file(tokens);
  bad[1024] = char(0x90), bad[1025] = 0x01;  // 400, the first id there is not
  write_file_atomic(folder / "bad.bin", bad);
  expect_error(
      run(folder, {"eval", "--model", model, "--task", "perplexity", "--data", folder / "bad.bin"}),
      1, "bad.bin");
}

// --limit counts documents, questions and texts; a document has several windows.
TEST(ConvertEval, NamesWhatItCounts) {
  const Folder folder;
  write_served_folder(folder / "model");
  const std::string row = R"({"context": "So", "choices": ["x", "y", "z"], "gold": 2})",
                    word = R"({"text": "one two"})";
  write_file_atomic(folder / "c.jsonl", row + "\n" + row + "\n" + row + "\n");
  write_file_atomic(folder / "l.jsonl", word + "\n" + word + "\n");
  write_file_atomic(folder / "t.jsonl", R"({"text": ")" + std::string(20, 'a') + "\"}\n" + word);
  write_chain(folder / "t.bin", 100, 1);
  const auto expect = [&](const std::string& task, const char* data, const char* limit,
                          const std::string& scored, const std::string& n) {
    const Ran r =
        run(folder, {"eval", "--model", folder / "model", "--task", task, "--data", folder / data,
                     "--limit", limit, "--context", "8", "--threads", "1"});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(r.err.ends_with("scored " + scored + "\n")) << r.err;
    EXPECT_NE(r.out.find("\nn " + n + ", "), std::string::npos) << r.out;
  };
  expect("perplexity", "t.jsonl", "1", "3 windows of 1 document", "1 document");
  expect("perplexity", "t.bin", "2", "2 windows", "2 windows");
  expect("choices", "c.jsonl", "2", "6 choices of 2 questions", "2 questions");
  expect("lambada", "l.jsonl", "2", "2 last words of 2 texts", "2 texts");
}

// What GGUF cannot hold is said before anything is written, and a call may be repeated.
TEST(ConvertEval, WritesBothFormatsOrNone) {
  const Folder folder;
  const std::string alibi = story_run(folder, {"--position", "alibi", "--stop-after-step", "1"});
  const std::string hf = folder / "hf";
  for (int i = 0; i < 2; ++i)
    expect_error(run(folder, {"convert", "--from", alibi, "--to", hf, "--gguf", folder / "m.gguf"}),
                 1, "[gguf] llama.cpp has no architecture that computes this model");
  EXPECT_FALSE(fs::exists(hf));
  // The file may lie in the new folder, or in one that is missing.
  write_served_folder(folder / "served");
  for (const auto& [to, gguf] : {std::pair<std::string, std::string>(hf, hf + "/m.gguf"),
                                 {folder / "deep", folder / "deep" / "gguf" / "m.gguf"},
                                 {folder / "other", folder / "new" / "m.gguf"}}) {
    const Ran r = run(folder, {"convert", "--from", folder / "served", "--to", to, "--gguf", gguf});
    EXPECT_EQ(r.status, 0) << r.err;
    EXPECT_TRUE(fs::exists(gguf) && fs::exists(fs::path(to) / "config.json")) << gguf;
  }
}

// The tokenizer of Mistral's models since v0.3: one space, at the start of a text.
TEST(ConvertEval, SaysWhereLlamaCppPutsMoreSpaces) {
  const Folder folder;
  const std::string served = folder / "served";
  const fs::path model = served;
  write_served_folder(model);
  nlohmann::json vocab{{"<unk>", 0}, {"\u2581", 257}, {"a", 258}, {"\u2581a", 259}};
  for (int b = 0; b < 256; ++b) vocab[fmt::format("<0x{:02X}>", b)] = b + 1;
  nlohmann::json file{{"added_tokens", {{{"id", 0}, {"content", "<unk>"}, {"special", true}}}},
                      {"pre_tokenizer",
                       {{"type", "Metaspace"},
                        {"replacement", "\u2581"},
                        {"prepend_scheme", "first"},
                        {"split", false}}},
                      {"decoder", test::piece_decoder(true)},
                      {"model", test::piece_model(vocab, nlohmann::json::array({"\u2581 a"}))}};
  write_file_atomic(model / "tokenizer.json", file.dump());
  write_file_atomic(model / "tokenizer_config.json", "{}");
  const auto said = [&](const std::string& gguf) {
    const Ran r = run(folder, {"convert", "--from", served, "--gguf", folder / gguf});
    EXPECT_EQ(r.status, 0) << r.err;
    return r.err.find("llama.cpp puts a space before every text") != r.err.npos;
  };
  EXPECT_TRUE(said("first.gguf"));
  file["pre_tokenizer"]["prepend_scheme"] = "never";
  file["decoder"] = test::piece_decoder(false);
  write_file_atomic(model / "tokenizer.json", file.dump());
  EXPECT_FALSE(said("never.gguf"));
}

TEST(ConvertEval, LogitsOfTheFirstLines) {
  const Folder folder;
  write_served_folder(folder / "served");
  write_file_atomic(folder / "ids.txt", "1 2 3\n4 5\n6\n");
  const Arguments call{"eval",   "--model",          folder / "served", "--task", "logits",
                       "--data", folder / "ids.txt", "--dtype",         "fp32"};
  const Ran r = run(folder, call + Arguments{"--limit", "2", "--out", folder / "two"});
  EXPECT_EQ(r.status, 0) << r.err;
  const Safetensors two(folder / "two");
  EXPECT_EQ(two.at("logits.1").shape, (std::vector<int64_t>{2, 260}));
  EXPECT_EQ(two.tensors().size(), 2u);
}

TEST(ConvertEval, ContextsBeginWithBosIfTheTokenizerDoes) {
  const Folder folder;
  write_served_folder(folder / "plain");
  write_served_folder(folder / "begins");
  auto j = nlohmann::json::parse(read_file(folder / "begins/tokenizer.json"));
  j["post_processor"] = {
      {"type", "TemplateProcessing"},
      {"single",
       {{{"SpecialToken", {{"id", "<|end|>"}, {"type_id", 0}}}},
        {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
      {"pair", nlohmann::json::array()},
      {"special_tokens",
       {{"<|end|>", {{"id", "<|end|>"}, {"ids", {served_eos}}, {"tokens", {"<|end|>"}}}}}}};
  write_file_atomic(folder / "begins/tokenizer.json", j.dump());
  write_file_atomic(folder / "words.jsonl", std::string_view("{\"text\": \"one two three\"}\n"));
  const auto perplexity = [&](const std::string& model, const char* bos) {
    return json_of(
        run(folder, {"eval", "--model", folder / model, "--task", "lambada", "--data",
                     folder / "words.jsonl", "--dtype", "fp32", "--json", "--bos", bos}))["value"];
  };
  EXPECT_NE(perplexity("plain", "on"), perplexity("plain", "off"));
  EXPECT_EQ(perplexity("plain", "auto"), perplexity("plain", "off"));
  EXPECT_EQ(perplexity("begins", "auto"), perplexity("begins", "on"));
  EXPECT_EQ(perplexity("begins", "off"), perplexity("plain", "off"));
}

TEST(ConvertEval, FlagsOfOtherTasksAreRefused) {
  const Folder folder;
  for (const char* line :
       {"logits --context 2", "logits --stride 2", "logits --bos on", "perplexity --bos off",
        "hellaswag --stride 64", "lambada --greedy 5", "choices --out x"}) {
    const Arguments task = words(line);
    expect_error(run(folder, Arguments{"eval", "--model", "m", "--data", "d", "--task"} + task), 2,
                 "[" + task[1] + "] has no effect with --task " + task[0] + "; leave it out");
  }
}

// A type has one name here and others in PyTorch, transformers and llama.cpp.
TEST(ConvertEval, TypesTakeTheirOtherNames) {
  const Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "text.txt", "Once upon a time.");
  const auto written = [&](const std::string& dtype) {
    const std::string to = folder / ("as-" + dtype);
    return json_of(run(folder, {"convert", "--from", folder / "model", "--gguf", to + ".gguf",
                                "--dtype", dtype, "--json"}))["dtype"];
  };
  for (const auto& [theirs, ours] : {std::pair{"f16", "fp16"},
                                     {"F16", "fp16"},
                                     {"float16", "fp16"},
                                     {"half", "fp16"},
                                     {"bfloat16", "bf16"},
                                     {"BF16", "bf16"},
                                     {"f32", "fp32"},
                                     {"float32", "fp32"}})
    EXPECT_EQ(written(theirs), ours);
  EXPECT_EQ(written("Q8_0"), written("q8_0"));
  expect_error(run(folder, {"convert", "--from", folder / "model", "--gguf", folder / "x.gguf",
                            "--dtype", "Float17"}),
               2, "[--dtype] expected fp32, bf16, fp16, q8_0, q6_k, q4_k or q4_0, got \"Float17\"");
  const Arguments eval{"eval",   "--model",    folder / "model", "--device",          "cpu",
                       "--task", "perplexity", "--data",         folder / "text.txt", "--json"};
  EXPECT_EQ(json_of(run(folder, eval + Arguments{"--dtype", "bfloat16", "--weights", "INT8"})),
            json_of(run(folder, eval + Arguments{"--dtype", "bf16", "--weights", "int8"})));
  write_chain(folder / "train.bin", 2000, 1);
  const Ran r = run(
      folder, tiny_run(folder / "train.bin", folder / "run", 1) + Arguments{"--dtype", "bfloat16"});
  EXPECT_EQ(r.status, 0) << r.err;
  EXPECT_NE(read_file(folder / "run/config.toml").find("\ndtype = \"bf16\"\n"), std::string::npos);
}

TEST(ConvertEval, WrongCalls) {
  const Folder folder;
  const std::string model = story_run(folder);
  expect_error(run(folder, {"convert", "--from", model}), 2, "expected --to DIR or --gguf FILE");
  expect_error(run(folder, {"convert", "--from", folder / "gone", "--to", folder / "x"}), 1,
               "a path that does not exist");
  expect_error(run(folder, {"convert", "--from", model, "--to", folder / "tok"}), 1,
               "new or empty");
  write_file_atomic(folder / "x.gguf", std::string_view("mine"));
  const Arguments over{"convert", "--from", model, "--gguf", folder / "x.gguf"};
  expect_error(run(folder, over), 1, "x.gguf] this file exists: choose another place, or --force");
  EXPECT_EQ(read_file(folder / "x.gguf"), "mine");
  EXPECT_EQ(run(folder, over + Arguments{"--force"}).status, 0);
  EXPECT_TRUE(read_file(folder / "x.gguf").starts_with("GGUF"));
  expect_error(run(folder, {"eval", "--model", model, "--task", "perplexity", "--data", "x",
                            "--weights", "int3"}),
               2, "expected plain, int8, int4 or fp8, got \"int3\"");
  expect_error(run(folder, {"eval", "--model", model, "--task", "perplexity", "--data", "x",
                            "--weights", "fp8", "--device", "cpu"}),
               2, "got fp8, which needs a GPU");
  for (const Arguments& command : {Arguments{"eval", "--task", "perplexity", "--data", "x"},
                                   {"generate"},
                                   {"chat"},
                                   {"serve"}})
    expect_error(run(folder, command + Arguments{"--model", model, "--kv", "fp4"}), 2,
                 "expected plain or fp8, got \"fp4\"");
  expect_error(run(folder, {"eval", "--model", model, "--task", "hela", "--data", "x"}), 2,
               "expected one of perplexity, hellaswag, lambada, choices, logits");
  expect_error(
      run(folder, {"eval", "--model", model, "--task", "lambada", "--data", folder / "gone"}), 1,
      "gone");
}

TEST(ConvertEval, AFolderForTheGgufIsRefusedFirst) {
  const Folder folder;
  write_served_folder(folder / "served");
  const std::string there = folder / "there", missing = folder / "missing/";
  fs::create_directory(there);
  const auto refused = [&](const std::string& gguf, const std::string& example) {
    for (const Arguments& more : {Arguments{}, Arguments{"--force"}})
      expect_error(
          run(folder, Arguments{"convert", "--from", folder / "served", "--gguf", gguf} + more), 2,
          "[--gguf] expected a file, got the folder " + gguf + ": give a name in it, such as " +
              example + "\n");
  };
  refused(there, there + "/model.gguf");
  refused(there + "/", there + "/model.gguf");
  refused(missing, missing + "model.gguf");
  EXPECT_TRUE(fs::is_empty(there));
  EXPECT_FALSE(fs::exists(missing));
}

// As a run that diverged may leave them.
TEST(ConvertEval, WeightsThatAreNotFiniteAreAnError) {
  const Folder folder;
  write_served_folder(folder / "model");
  write_file_atomic(folder / "text.txt", std::string_view("a text to score\n"));
  const fs::path file = folder / "model/model.safetensors";
  std::string bytes = read_file(file);
  uint64_t header = 0;
  std::memcpy(&header, bytes.data(), sizeof header);
  std::fill(bytes.begin() + int64_t(8 + header), bytes.end(), '\xff');  // NaN in every dtype
  write_file_atomic(file, bytes);
  expect_error(run(folder, {"eval", "--model", folder / "model", "--task", "perplexity", "--data",
                            folder / "text.txt", "--dtype", "fp32", "--threads", "1"}),
               1, "[eval] expected finite logits, got ");
}

}  // namespace
}  // namespace hearth
