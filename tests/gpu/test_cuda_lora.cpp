// Adapters on the card: training steps, log-probabilities and gradients near the CPU's, the same
// bits whether kernels start early or one after the other, and decoding beside a base that is not
// merged.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "cuda_case.h"
#include "optim/update_program.h"
#include "sys/files/files.h"
#include "train/logprob_programs.h"
#include "unit/lora_model.h"

namespace hearth {
namespace {

namespace fs = std::filesystem;
using test::card;

// A llama with heads of a size that 16-bit attention takes, and weights of a real start.
ModelConfig adapted_llama(float init_std = 0.03f) {
  ModelConfig c = tiny_config();
  c.vocab = 300, c.context = 128, c.dim = 128, c.heads = 4, c.kv_heads = 2, c.head_dim = 32;
  c.hidden = 192, c.init_std = init_std;
  return with_lora(c, {.rank = 8, .alpha = 16});
}

// Both halves of every adapter do something.
void draw_both_halves(ParamStore& params, float deviation = 0.05f) {
  for (const ParamSpec& p : params.specs()) {
    if (!is_adapter(p.name)) continue;
    std::vector<float> v(size_t(p.shape.numel()));
    draw(v, Init::normal(deviation), 9, p.name);
    params.set(p.name, v);
  }
}

TokenBatch adapted_batch() {
  TokenBatch b{.B = 4, .T = 40};
  for (int32_t i = 0; i < 160; ++i) b.tokens.push_back((i * i * 7 + 3) % 300);
  for (int32_t i = 0; i < 160; ++i) {
    if (i % 4 == 1) continue;
    b.rows.push_back(i);
    b.targets.push_back((i * 11 + 5) % 300);
  }
  return b;
}

struct AdaptedSteps {
  std::vector<double> losses;                        // before each step
  std::vector<float> logprob;                        // after all of them
  std::map<std::string, std::vector<float>> grads;   // of the last step, adapters alone
  std::map<std::string, std::vector<float>> before;  // weights
  std::map<std::string, std::vector<float>> after;
};

std::map<std::string, std::vector<float>> weights_by_name(ParamStore& params) {
  std::map<std::string, std::vector<float>> all;
  for (const ParamSpec& p : params.specs()) all[p.name] = params.values(Part::weight, p.name);
  return all;
}

// Steps by both ways to a gradient: SFT's in one pass, and that of DPO and GRPO, which pauses.
AdaptedSteps adapted_steps(Backend& backend, DType dtype, uint32_t steps, float lr) {
  TinyModel m(backend, adapted_llama(), 7, dtype);
  draw_both_halves(m.params);
  Memory memory(backend, &m.params);
  LogprobPrograms programs({.model = m.config, .dtype = dtype}, memory);
  UpdateProgram update("examples", memory, {});
  update.set_state({});
  const TokenBatch b = adapted_batch();
  AdaptedSteps r;
  r.before = weights_by_name(m.params);
  for (uint32_t step = 0; step < steps; ++step) {
    Scalars s;
    s.lr = lr, s.clip = 1, s.inv_targets = 1 / float(b.rows.size()), s.step = step;
    double loss = 0;
    if (step % 2) {
      for (const float x : programs.forward(b, true).logprob) loss -= double(x);
      programs.backward(std::vector<float>(b.rows.size(), -s.inv_targets));
    } else {
      programs.launch_train(b, s, true);
      for (const float nll : programs.take_nll()) loss += double(nll);
    }
    r.losses.push_back(loss * double(s.inv_targets));
    if (step + 1 == steps)
      for (const ParamSpec& p : m.params.specs())
        if (p.trainable) r.grads[p.name] = m.params.values(Part::grad, p.name);
    update.set_loss(r.losses.back());
    update.run(s);
  }
  r.logprob = programs.score(b).logprob;
  r.after = weights_by_name(m.params);
  return r;
}

double relative_distance(const std::vector<float>& got, const std::vector<float>& want) {
  double off = 0, size = 0;
  for (size_t i = 0; i < want.size(); ++i) {
    off += std::pow(double(got[i]) - double(want[i]), 2);
    size += std::pow(double(want[i]), 2);
  }
  return std::sqrt(off / size);
}

// Gradients of the first step, before AdamW has made a whole learning rate of a rounding.
TEST(CudaLora, GradientsAreTheCpusWithinRounding) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  const AdaptedSteps want = adapted_steps(*cpu, DType::f32, 1, 0);
  for (const auto& [dtype, value, gradient] :
       {std::tuple{DType::f32, 1e-4, 1e-3}, std::tuple{DType::bf16, 1.5e-2, 5e-2}})
    for (const bool hopper : {true, false}) {
      SCOPED_TRACE(fmt::format("{} hopper {}", to_string(dtype), hopper));
      const AdaptedSteps got = adapted_steps(card(hopper), dtype, 1, 0);
      EXPECT_NEAR(got.losses[0], want.losses[0], value * want.losses[0]);
      EXPECT_LT(relative_distance(got.logprob, want.logprob), value);
      ASSERT_EQ(got.grads.size(), want.grads.size());
      for (const auto& [name, grads] : want.grads)
        EXPECT_LT(relative_distance(got.grads.at(name), grads), gradient) << name;
    }
}

TEST(CudaLora, StepsFollowTheCpu) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  const AdaptedSteps want = adapted_steps(*cpu, DType::f32, 8, 3e-3f);
  ASSERT_LT(want.losses.back(), want.losses.front() - 0.5);
  for (const auto& [dtype, tolerance] :
       {std::pair{DType::f32, 5e-3}, std::pair{DType::bf16, 3e-2}}) {
    SCOPED_TRACE(to_string(dtype));
    const AdaptedSteps got = adapted_steps(card(), dtype, 8, 3e-3f);
    for (size_t i = 0; i < want.losses.size(); ++i)
      EXPECT_NEAR(got.losses[i], want.losses[i], tolerance) << "step " << i;
    for (const auto& [name, weights] : got.before)
      EXPECT_EQ(got.after.at(name) == weights, !is_adapter(name)) << name;
    EXPECT_TRUE(adapted_steps(card(true, false), dtype, 8, 3e-3f).after == got.after)
        << "without graphs";
  }
}

// Sampled completions of the adapted model, with the log-probabilities of their sampler.
std::vector<Completion> sampled(TinyModel& m, const std::vector<int32_t>& prompt, int n) {
  Engine engine = m.engine({.max_batch = 8});
  const Request request{
      .prompt = prompt, .sampling = {.seed = 5, .max_tokens = 40, .logprobs = 0}, .n = n};
  return engine.run(std::span(&request, 1))[0];
}

TEST(CudaLora, GreedyTokensInFp32AreTheCpus) {
  HEARTH_NEEDS_A_CARD();
  const auto cpu = make_cpu_backend(2);
  std::vector<Request> requests;
  for (int i = 0; i < 12; ++i) {
    Request r{.prompt = tiny_prompt(1 + (i * 17) % 60, i)};
    r.sampling.temperature = 0, r.sampling.max_tokens = 40, r.sampling.logprobs = 1;
    requests.push_back(std::move(r));
  }
  const ModelConfig c = adapted_llama(0.15f);  // greedy paths that wander
  TinyModel want_model(*cpu, c);
  draw_both_halves(want_model.params, 0.15f);
  const auto want = want_model.engine({.max_batch = 12}).run(requests);
  const auto plain = base_of(want_model)->engine({.max_batch = 12}).run(requests);
  int changed = 0;
  for (const int64_t batch : {1, 12}) {
    TinyModel m(card(), c);
    draw_both_halves(m.params, 0.15f);
    const auto got = m.engine({.max_batch = batch}).run(requests);
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_EQ(got[i][0].tokens, want[i][0].tokens) << i;
      changed += got[i][0].tokens != plain[i][0].tokens;
    }
  }
  EXPECT_GT(changed, 12);  // the adapters are heard
}

TEST(CudaLora, TheSamplersLogprobsAreNearTheTrainers) {
  HEARTH_NEEDS_A_CARD();
  for (const auto& [dtype, most, mean] :
       {std::tuple{DType::f32, 1e-4, 1e-5}, std::tuple{DType::bf16, 0.05, 0.005}}) {
    TinyModel m(card(), adapted_llama(), 7, dtype);
    draw_both_halves(m.params);
    const std::vector<int32_t> prompt = tiny_prompt(9);
    Memory memory(card(), &m.params);
    LogprobPrograms programs({.model = m.config, .dtype = dtype}, memory);
    double worst = 0, sum = 0;
    int64_t count = 0;
    for (const Completion& c : sampled(m, prompt, 8)) {
      std::vector<int32_t> all = prompt;
      all.insert(all.end(), c.tokens.begin(), c.tokens.end());
      TokenBatch b{.B = 1, .T = int64_t(all.size()) - 1};
      b.tokens.assign(all.begin(), all.end() - 1);
      for (size_t i = prompt.size(); i < all.size(); ++i)
        b.rows.push_back(int32_t(i) - 1), b.targets.push_back(all[i]);
      const Logprobs y = programs.score(b);
      for (size_t i = 0; i < y.logprob.size(); ++i, ++count) {
        const double off = std::abs(double(y.logprob[i]) - double(c.logprobs[i].logprob));
        worst = std::max(worst, off), sum += off;
      }
    }
    EXPECT_EQ(count, 8 * 40);
    EXPECT_LT(worst, most) << to_string(dtype);
    EXPECT_LT(sum / double(count), mean) << to_string(dtype);
  }
}

// Everything the card makes of an adapted model, as bytes: steps in bf16, then what the trained
// adapters complete, one sequence alone and several at once.
std::string adapted_trace() {
  std::string all;
  const auto add = [&all](std::span<const float> v) {
    all.append(reinterpret_cast<const char*>(v.data()), v.size_bytes());
  };
  const AdaptedSteps steps = adapted_steps(card(), DType::bf16, 8, 3e-3f);
  for (const double x : steps.losses) all += fmt::format("{} ", x);
  add(steps.logprob);
  for (const auto& [name, v] : steps.after) add(v);
  TinyModel m(card(), adapted_llama(), 7, DType::bf16);
  for (const auto& [name, v] : steps.after) m.params.set(name, v);
  for (const int n : {1, 8})
    for (const Completion& c : sampled(m, tiny_prompt(70, n), n)) {
      all += fmt::format("{} ", fmt::join(c.tokens, " "));
      for (const TokenLogprob& p : c.logprobs) add(std::span(&p.logprob, 1));
    }
  return all;
}

// Runs the test below in a process of its own, which writes the trace: how kernels start is asked
// when a card is opened.
std::string trace_of_process(const fs::path& to, const char* early) {
  const pid_t child = fork();
  if (child == 0) {
    setenv("HEARTH_DEPENDENT_LAUNCH", early, 1);
    setenv("HEARTH_TEST_TRACE", to.c_str(), 1);
    // What it is asked to run is its own, whatever part of the suite this process has.
    for (const char* v : {"GTEST_OUTPUT", "GTEST_TOTAL_SHARDS", "GTEST_SHARD_INDEX"}) unsetenv(v);
    execl("/proc/self/exe", "hearth_gpu", "--gtest_filter=CudaLora.EarlyStartsChangeNoBit",
          "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int status = -1;
  EXPECT_EQ(waitpid(child, &status, 0), child);
  EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << early;
  return read_file(to);
}

TEST(CudaLora, EarlyStartsChangeNoBit) {
  HEARTH_NEEDS_A_CARD();
  if (const char* to = std::getenv("HEARTH_TEST_TRACE"))
    return write_file_atomic(to, adapted_trace());
  std::string name = (fs::temp_directory_path() / "hearth-lora-XXXXXX").string();
  ASSERT_NE(mkdtemp(name.data()), nullptr);
  const std::string early = trace_of_process(fs::path(name) / "early", "1");
  const std::string late = trace_of_process(fs::path(name) / "late", "0");
  fs::remove_all(name);
  EXPECT_GT(early.size(), 100000u);
  EXPECT_TRUE(early == late);
}

}  // namespace
}  // namespace hearth
