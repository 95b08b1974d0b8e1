// The commands as a user strings them together: sizes, stories, tokens, a model, a text.
#include "e2e/command.h"
#include "served_folder.h"
#include "test_data.h"

namespace hearth {
namespace {

TEST(Info, PrintsExactCounts) {
  const Folder folder;
  const std::vector<std::pair<const char*, int64_t>> counts{
      {"gpt2", 124439808},      {"gpt2-medium", 354823168}, {"gpt2-large", 774030080},
      {"gpt2-xl", 1557611200},  {"nocap-d12", 123532032},   {"nocap-d24", 353453056},
      {"nocap-d36", 772117760}, {"nocap-d48", 1554971200},  {"llama3-16k", 32257920}};
  for (const auto& [name, count] : counts)
    EXPECT_EQ(json_of(run(folder, {"info", "--preset", name, "--json"}))["params"], count) << name;
}

TEST(Bench, FitIsAtItsBound) {
  const Folder folder;
  const auto j = json_of(run(folder, {"bench", "fit", "--preset", "gpt2", "--batch", "4", "--seq",
                                      "1024", "--dtype", "fp32", "--json"}));
  EXPECT_LT(j["over_bound"].get<double>(), 0.01);
  EXPECT_GT(j["activations"].get<double>(), 1e9);
}

// What is planned and timed is what pretrain starts on this machine.
TEST(Bench, ComputesInTheDtypeOfAuto) {
  const Folder folder;
  const std::string best =
      json_of(run(folder, {"info", "--json"}))["cpu"]["auto_dtype"]["training"]["dtype"];
  const Arguments model{"--preset", "tiny", "--layers", "1",   "--dim", "32",
                        "--heads",  "2",    "--device", "cpu", "--json"};
  const std::string name = "tiny layers 1 dim 32 heads 2 " + best;
  for (const Arguments& bench : {Arguments{"fit"}, {"train", "--steps", "1"}})
    EXPECT_EQ(json_of(run(folder, Arguments{"bench"} + bench +
                                      Arguments{"--batch", "1", "--seq", "8"} + model))["shape"],
              name + " 1x8")
        << bench[0];
  const Ran infer = run(
      folder, Arguments{"bench", "infer", "--prompt", "4", "--new", "4", "--repeats", "1"} + model);
  EXPECT_EQ(json_of(infer)["shape"], name + " batch 1 prompt 4 new 4");
  EXPECT_TRUE(infer.err.starts_with("hearth: computing in " + best)) << infer.err;
  expect_error(run(folder, {"bench", "train", "--device", "cpu", "--dtype", "fp16"}), 2,
               "[--dtype] expected fp32 or bf16 on the CPU, or fp8 for training, got fp16");
}

TEST(Bench, InferKeepsTheContext) {
  const Folder folder;
  const Arguments bench{"bench", "infer", "--preset", "tiny", "--device", "cpu", "--prompt", "12"};
  expect_error(run(folder, bench + Arguments{"--new", "501"}), 2,
               "[--new] expected --prompt and --new of at most 512 tokens together, the context of "
               "tiny, got 12 and 501; --context makes it longer");
}

// A reader of a pipe or file sees a row while the next one is measured.
TEST(Bench, EachRowIsWrittenAtOnce) {
  const Folder folder;
  const pid_t bench =
      start(folder, {"bench", "cache", "--device", "cpu", "--threads", "1", "--presets", "tiny",
                     "--contexts", "16,2048", "--batches", "4", "--steps", "300", "--json"});
  const fs::path out = folder / "run.out";
  const auto rows = [&] { return fs::exists(out) ? fs::file_size(out) : 0; };
  while (rows() == 0 && !has_ended(bench))
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
  EXPECT_FALSE(has_ended(bench)) << read_file(folder / "run.err");
  kill(bench, SIGKILL);
  wait_for(bench);
  EXPECT_NE(read_file(out).find("tiny"), std::string::npos);
}

TEST(Bench, CacheIsSmallOnTheCpu) {
  const Folder folder;
  const Ran r = run(
      folder, {"bench", "cache", "--device", "cpu", "--presets", "tiny", "--steps", "1", "--json"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_EQ(std::count(r.out.begin(), r.out.end(), '\n'), 4) << r.out;
  EXPECT_NE(r.out.find("context 1024 batch 4"), std::string::npos) << r.out;
}

TEST(Bench, MoePrintsDigitsOnACpu) {
  const Folder folder;
  const Ran r = run(folder, {"bench", "moe", "--device", "cpu", "--tokens", "32", "--dim", "32",
                             "--hidden", "32", "--experts", "4", "--top-k", "2", "--steps", "1"});
  ASSERT_EQ(r.status, 0) << r.err;
  EXPECT_NE(r.out.find(" GFLOP/s  "), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find(" 0.0 TFLOP/s"), std::string::npos) << r.out;
  EXPECT_EQ(r.out.find(" 0 TFLOP/s"), std::string::npos) << r.out;
}

// Memory is the limit of the largest batch, whatever --batch is.
TEST(Bench, FitFindsTheLargestBatch) {
  const Folder folder;
  const auto fit = [&](int64_t batch, const char* seq) {
    return json_of(run(folder, {"bench", "fit", "--preset", "tiny", "--seq", seq, "--json",
                                "--device", "cpu", "--batch", std::to_string(batch)}));
  };
  const auto one = fit(1, "512");
  const int64_t best = one["largest_batch"];
  EXPECT_EQ(one["largest_batch_limit"], "memory");
  EXPECT_GT(best, 1);
  EXPECT_LE(fit(best, "512")["value"], one["budget"]);
  EXPECT_GT(fit(best + 1, "512")["value"], one["budget"]);
}

// The plan of another machine, also on the CPU.
TEST(Bench, FitKeepsToAMemoryLimit) {
  const Folder folder;
  const Arguments fit{"bench", "fit", "--preset", "tiny", "--json", "--device", "cpu"};
  const auto all = json_of(run(folder, fit));
  const auto less = json_of(run(folder, fit + Arguments{"--memory-limit", "0.25"}));
  EXPECT_EQ(less["budget"], int64_t(0.9 * 0.25 * (1 << 30)));
  EXPECT_LT(less["largest_batch"], all["largest_batch"]);
  const auto more = json_of(run(folder, fit + Arguments{"--memory-limit", "1048576"}));
  EXPECT_LT(more["budget"], int64_t(1) << 49);  // not more than there is
}

TEST(Bench, TakesOnlyFlagsThatItUses) {
  const Folder folder;
  for (const char* bench : {"gemm", "attention"})
    for (const Arguments& flag : {Arguments{"--recompute", "block"},
                                  {"--optimizer", "lion"},
                                  {"--fp8-head", "off"},
                                  {"--offload"},
                                  {"--lora", "4"}})
      expect_error(run(folder, Arguments{"bench", bench} + flag), 2,
                   "expected a known flag, got " + flag[0]);
  expect_error(run(folder, {"bench", "fit", "--steps", "3"}), 2,
               "expected a known flag, got --steps");
}

TEST(Bench, InferCountsEveryToken) {
  const Folder folder;
  const Arguments bench{"bench",    "infer",   "--preset", "tiny", "--vocab", "300",
                        "--layers", "1",       "--dim",    "32",   "--heads", "2",
                        "--hidden", "64",      "--device", "cpu",  "--json",  "--kv-heads",
                        "1",        "--dtype", "fp32"};
  const auto batch = json_of(run(
      folder, bench + Arguments{"--batch", "3", "--prompt", "70", "--new", "9", "--repeats", "1"}));
  for (const char* key : {"device", "commit", "shape", "value", "unit", "ttft_ms", "share"})
    EXPECT_TRUE(batch.contains(key)) << key;
  const std::string model = "tiny vocab 300 layers 1 dim 32 heads 2 kv-heads 1 hidden 64";
  EXPECT_EQ(batch["shape"], model + " fp32 batch 3 prompt 70 new 9");
  EXPECT_GT(batch["value"].get<double>(), 0);
  const auto mix = json_of(run(folder, bench + Arguments{"--workload", "4", "--batch", "2"}));
  EXPECT_GE(mix["output_tokens"].get<int64_t>(), 4 * 100);
  EXPECT_LE(mix["output_tokens"].get<int64_t>(), 4 * 1024);
  EXPECT_GE(mix["itl_ms"]["p99"].get<double>(), mix["itl_ms"]["p50"].get<double>());
}

TEST(Bench, InferTimesConstrainedText) {
  const Folder folder;
  const std::string tokenizer = test::test_data("tokenizers/gpt2"), schema = folder / "s.json";
  write_file_atomic(schema, R"({"type": "array", "items": {"type": "integer"}, "minItems": 99})");
  const Arguments bench{"bench",    "infer",     "--preset", "tiny",     "--layers", "1",
                        "--dim",    "32",        "--heads",  "2",        "--hidden", "64",
                        "--device", "cpu",       "--json",   "--prompt", "4",        "--new",
                        "9",        "--repeats", "1",        "--batch",  "2",        "--kv-heads",
                        "1",        "--dtype",   "fp32"};
  const auto j =
      json_of(run(folder, bench + Arguments{"--tokenizer", tokenizer, "--json-schema", schema}));
  const std::string model = "tiny layers 1 dim 32 heads 2 kv-heads 1 hidden 64";
  EXPECT_EQ(j["shape"], model + " fp32 batch 2 prompt 4 new 9 json-schema");
  EXPECT_GT(j["value"].get<double>(), 0);
  EXPECT_EQ(json_of(run(folder,
                        bench + Arguments{"--tokenizer", tokenizer, "--regex", "[a-z]+"}))["shape"],
            model + " fp32 batch 2 prompt 4 new 9 regex");
  expect_error(run(folder, bench + Arguments{"--regex", "a"}), 2, "needs --tokenizer");
  expect_error(run(folder, bench + Arguments{"--tokenizer", tokenizer, "--regex", "(?=a)"}), 2,
               "lookahead");
}

TEST(Bench, OptimizerIsComparedWithItsLimit) {
  const Folder folder;
  const Arguments bench{"bench",   "optimizer", "--preset",   "tiny", "--layers", "2",
                        "--dim",   "64",        "--heads",    "2",    "--hidden", "128",
                        "--vocab", "300",       "--kv-heads", "1",    "--device", "cpu",
                        "--steps", "2",         "--json"};
  const std::string model = "tiny vocab 300 layers 2 dim 64 heads 2 kv-heads 1 hidden 128";
  const auto adamw = json_of(run(folder, bench + Arguments{"--dtype", "fp32"}));
  for (const char* key : {"device", "commit", "shape", "value", "unit", "floor_ms", "share"})
    EXPECT_TRUE(adamw.contains(key)) << key;
  EXPECT_EQ(adamw["shape"], model + " fp32 adamw all");
  EXPECT_FALSE(adamw.contains("tflops"));
  const auto muon = json_of(run(
      folder, bench + Arguments{"--dtype", "bf16", "--optimizer", "muon", "--group", "matrix"}));
  EXPECT_EQ(muon["shape"], model + " bf16 muon matrix");
  EXPECT_LT(muon["parameters"].get<int64_t>(), adamw["parameters"].get<int64_t>());
  EXPECT_GT(muon["product_tflop"].get<double>(), 0);
  EXPECT_GT(muon["share"].get<double>(), 0);
  expect_error(run(folder, bench + Arguments{"--group", "matrices"}), 2,
               "expected all, matrix, head, embedding or vector, got 'matrices'");
}

TEST(Commands, SayThatTheyCouldNotWrite) {
  if (!fs::exists("/dev/full")) GTEST_SKIP() << "needs /dev/full";
  const Folder folder;
  for (const Arguments& args : {Arguments{"info", "--preset", "gpt2", "--json"},
                                {"info", "--preset", "gpt2"},
                                {"--version"},
                                {"--help"},
                                {"pretrain", "--help"}})
    expect_error(run_into_full_disk(folder, args), 1, "stdout");
}

// What the standard library throws reads like an error of ours.
TEST(Commands, NameTheFileInTrouble) {
  const Folder folder;
  const std::string name(300, 'a');
  const Ran r = run(folder, {"generate", "--model", folder / name, "--prompt", "x"});
  expect_error(r, 1, name);
  expect_error(r, 1, "cannot be used: File name too long");
}

TEST(Commands, NameTheFlagOfAWrongValue) {
  const Folder folder;
  write_served_folder(folder / "model");
  const Arguments generate{"generate", "--model", folder / "model", "--prompt", "a"};
  write_file_atomic(folder / "rows.jsonl", std::string_view("{\"prompt\": \"a\"}\n"));
  const Arguments grpo{"grpo",  "--model",     folder / "model", "--data", folder / "rows.jsonl",
                       "--run", folder / "run"};
  const std::vector<std::pair<Arguments, std::string>> calls{
      {generate + Arguments{"--top-p", "2"}, "[--top-p] expected a number from 0 to 1, got 2"},
      {generate + Arguments{"--beams", "2", "--n", "3"}, "[--n] expected at most 2"},
      {{"info", "--preset", "gpt"}, "[--preset] expected"},
      {grpo + Arguments{"--reward", "none"}, "[--reward] expected"},
      {grpo, "[reward] at least one --reward is needed"},
  };
  for (const auto& [call, part] : calls) {
    SCOPED_TRACE(part);
    expect_error(run(folder, call), 2, part);
  }
}

TEST(Commands, GenerateCountsTheTokensOfAllSamples) {
  const Folder folder;
  write_served_folder(folder / "model");
  const Arguments generate{"generate",
                           "--model",
                           folder / "model",
                           "--prompt",
                           "a",
                           "--device",
                           "cpu",
                           "--threads",
                           "1",
                           "--seed",
                           "1",
                           "--max-tokens",
                           "5",
                           "--ignore-eos",
                           "--n"};
  const Ran one = run(folder, generate + Arguments{"1"});
  EXPECT_NE(one.err.find("5 tokens, prompt 1: first token "), std::string::npos) << one.err;
  const Ran three = run(folder, generate + Arguments{"3"});
  EXPECT_NE(three.err.find("15 tokens in 3 samples, prompt 1: first token "), std::string::npos)
      << three.err;
  EXPECT_NE(three.err.find(" tokens/s (length), "), std::string::npos) << three.err;
}

TEST(Quickstart, NamesADamagedFloor) {
  const Folder folder;
  fs::create_directories(folder / "run/data");
  write_file_atomic(folder / "run/data/floor.json", std::string_view("{}"));
  expect_error(run(folder, {"quickstart", "--run", folder / "run"}), 1, "floor.json");
}

TEST(Quickstart, LeavesAFolderThatIsNotItsOwn) {
  const Folder folder;
  fs::create_directories(folder / "run/data");
  write_file_atomic(folder / "run/data/mine.txt", std::string_view("mine"));
  const Ran r = run(folder, {"quickstart", "--run", folder / "run", "--steps", "1"});
  expect_error(r, 1, "run/data");
  EXPECT_EQ(read_file(folder / "run/data/mine.txt"), "mine");
  int entries = 0;
  for (const auto& entry : fs::directory_iterator(folder / "run")) ++entries, (void)entry;
  EXPECT_EQ(entries, 1);
}

TEST(Quickstart, RefusesStepsBeforeItMakesAnything) {
  const Folder folder;
  expect_error(run(folder, {"quickstart", "--run", folder / "run", "--steps", "-4"}), 2, "--steps");
  EXPECT_FALSE(fs::exists(folder / "run"));
}

// From nothing to a sampled text; every step's files feed the next.
TEST(Commands, FromStoriesToText) {
  const Folder folder;
  const std::string text = folder / "stories.txt", tok = folder / "tok", out = folder / "tokens";
  const auto stories =
      json_of(run(folder, {"data", "stories", "--out", text, "--stories", "300", "--json"}));
  EXPECT_GT(stories["nats_per_char"].get<double>(), 0.05);
  json_of(run(folder,
              {"tokenizer", "train", "--input", text, "--vocab", "512", "--out", tok, "--json"}));
  const auto prepared = json_of(run(folder, {"data", "prepare", "--tokenizer", tok, "--input", text,
                                             "--out", out, "--val-fraction", "0.1", "--json"}));
  EXPECT_GT(prepared["train_tokens"].get<int64_t>(), 10000);
  const auto stat = run(folder, {"data", "stat", out + "/train_*.bin", "--json"});
  expect_error(run(folder, {"data", "stat", out}), 1, "pass a pattern such as '" + out + "/*.bin'");
  EXPECT_EQ(stat.status, 0) << stat.err;
  json_of(run(folder, {"pretrain",
                       "--preset",
                       "tiny",
                       "--vocab",
                       "512",
                       "--layers",
                       "1",
                       "--dim",
                       "32",
                       "--heads",
                       "2",
                       "--kv-heads",
                       "1",
                       "--hidden",
                       "64",
                       "--tokenizer",
                       tok,
                       "--run",
                       folder / "run",
                       "--data",
                       out + "/train_*.bin",
                       "--val",
                       out + "/val_*.bin",
                       "--eval-documents",
                       "--document-mask",
                       "--batch",
                       "2",
                       "--seq",
                       "128",
                       "--steps",
                       "10",
                       "--json"}));
  const Arguments generate{
      "generate", "--model",      folder / "run", "--prompt", "Once upon a time",
      "--greedy", "--max-tokens", "12",           "--json"};
  const auto first = json_of(run(folder, generate));
  EXPECT_EQ(first["tokens"].size(), 12u);
  EXPECT_EQ(json_of(run(folder, generate + Arguments{"--threads", "1"}))["tokens"],
            first["tokens"]);
  EXPECT_EQ(json_of(run(folder, generate + Arguments{"--speculate", "3"}))["tokens"],
            first["tokens"]);
  // Naming the source of drafts is enough to ask for them.
  const Ran drafted = run(folder, generate + Arguments{"--draft", "lookup"});
  EXPECT_EQ(json_of(drafted)["tokens"], first["tokens"]);
  EXPECT_NE(drafted.err.find(", drafts accepted "), std::string::npos) << drafted.err;
  for (const Arguments& drafts : {Arguments{"--speculate", "3"}, {"--draft", "lookup"}})
    expect_error(run(folder, generate + drafts + Arguments{"--beams", "3"}), 2,
                 "[" + drafts[0] + "] has no effect: --beams 3 makes no drafts; leave it out");
  expect_error(run(folder, {"generate", "--model", folder / "none", "--prompt", "x"}), 1, "none");
}

}  // namespace
}  // namespace hearth
