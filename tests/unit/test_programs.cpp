// The programs of a training run: what memory they say they need, and what an update does.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "cpu/reference/reference.h"
#include "model_cases.h"
#include "sys/error.h"
#include "train/pretrain/programs.h"
#include "unit/message_of.h"

namespace hearth {
namespace {

using cases::make_batch;
using cases::model_cases;

struct Training {
  Training(Backend& b, const ProgramSpec& s)
      : params(b, decoder_params(s.model), s.dtype), memory(b, &params) {
    params.initialise(21);
    programs = std::make_unique<Programs>(s, memory);
  }
  // One step on `batch`; the loss before it.
  double step(const Batch& batch, float lr, float clip = 1) {
    Scalars s;
    s.lr = lr, s.clip = clip, s.inv_targets = 1 / float(batch.count), s.step = steps++;
    programs->micro(batch, s, true);
    programs->update().run(s);
    return programs->loss();
  }
  std::vector<float> flat(Part p) {
    std::vector<float> all;
    for (const ParamSpec& s : params.specs())
      for (float x : params.values(p, s.name)) all.push_back(x);
    return all;
  }
  ParamStore params;
  Memory memory;
  std::unique_ptr<Programs> programs;
  uint32_t steps = 0;
};

ProgramSpec small(DType dtype = DType::f32) {
  ProgramSpec s{.model = model_cases()[0].config, .dtype = dtype, .B = 2, .T = 8};
  s.model.init_std = 0.02f;
  return s;
}

TEST(MemoryNeed, IsWhatARunReserves) {
  const auto backend = make_reference_backend();
  for (const cases::ModelCase& m : model_cases())
    for (DType dtype : {DType::f32, DType::bf16})
      for (bool accumulates : {false, true}) {
        const ProgramSpec s{.model = m.config,
                            .dtype = dtype,
                            .B = 2,
                            .T = 8,
                            .documents = m.documents,
                            .eval_documents = m.documents,
                            .accumulates = accumulates};
        const MemoryNeed need = memory_need(s);
        Training run(*backend, s);
        EXPECT_EQ(run.memory.arena_bytes(), need.activations) << m.name;
        EXPECT_EQ(run.params.part_bytes(Part::weight), need.weights);
        EXPECT_EQ(run.params.has_master() ? run.params.part_bytes(Part::master) : 0, need.masters);
        EXPECT_EQ(run.params.part_bytes(Part::grad), need.gradients);
        EXPECT_EQ(run.params.part_bytes(slot_part(0)) * 2, need.optimizer_state);
      }
}

TEST(MemoryNeed, LargestBatchFitsAndTheNextDoesNot) {
  ProgramSpec s = small();
  const auto need = [&](int64_t B) {
    s.B = B;
    return memory_need(s).total();
  };
  EXPECT_LT(need(3), need(4));
  EXPECT_EQ(largest_batch(s, 12, need(12)), 12);
  EXPECT_EQ(largest_batch(s, 12, need(12) - 1), 6);
  EXPECT_EQ(largest_batch(s, 12, need(5)), 4);  // 5 does not divide 12
  EXPECT_EQ(largest_batch(s, 7, need(6)), 1);
  EXPECT_EQ(largest_batch(s, 12, need(1) - 1), 0);
}

// Planning takes time in proportion to the batch: nothing beyond the next size is planned.
TEST(MemoryNeed, LargestDivisorAsksOnlyNearTheAnswer) {
  for (const int64_t n : {1, 7, 12, 360, 32768})
    for (const int64_t limit : {0, 1, 3, 9, 100, 40000}) {
      int64_t expected = 0, next = n;  // next: the first divisor of at least twice that
      for (int64_t d = n; d >= 1; --d)
        if (n % d == 0 && d <= limit) expected = std::max(expected, d);
      for (int64_t d = n; d >= std::max<int64_t>(1, 2 * expected); --d)
        if (n % d == 0) next = d;
      int64_t asked = 0;
      const int64_t found = largest_divisor(n, [&](int64_t size) {
        asked = std::max(asked, size);
        return size <= limit;
      });
      EXPECT_EQ(found, expected) << n << " " << limit;
      EXPECT_LE(asked, next) << n << " " << limit;
    }
}

TEST(MemoryNeed, IsDescribedInAUnitThatShowsIt) {
  MemoryNeed need{.weights = 3 << 20, .gradients = 3 << 20, .activations = 5 << 19};
  EXPECT_EQ(describe(need), "weights 3.00 + gradients 3.00 + activations 2.50 = 8.50 MiB");
  need.activations = int64_t(1) << 30;
  EXPECT_EQ(describe(need), "weights 0.00 + gradients 0.00 + activations 1.00 = 1.01 GiB");
}

TEST(MemoryNeed, SaysByPartWhatDoesNotFitAndWhatWould) {
  const ProgramSpec s{.model = preset("gpt2"), .B = 8, .T = 1024};
  const MemoryNeed need = memory_need(s);
  expect_fit(s, MemoryBudget(need.total()));
  const std::string m = message_of([&] { expect_fit(s, MemoryBudget(int64_t(6) << 30)); });
  EXPECT_EQ(m.find("[memory] expected a run within 6.00 GiB, got weights 0.46 + gradients 0.46 + "
                   "optimizer state 0.93 + activations "),
            0u)
      << m;
  EXPECT_NE(m.find(fmt::format("--batch {}", largest_batch(s, 8, int64_t(6) << 30))),
            std::string::npos)
      << m;
  EXPECT_NE(m.find("--recompute block"), std::string::npos) << m;
  EXPECT_NE(message_of([&] { expect_fit(s, MemoryBudget(1 << 20)); }).find("no batch fits"),
            std::string::npos);
}

// The programs of other windows replace those in use, and those of earlier windows come back.
TEST(Reshape, WindowsChooseThePrograms) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec wide{.model = model_cases()[0].config, .B = 2, .T = 8};
  ProgramSpec narrow = wide;
  narrow.model.window = 2;
  const Batch batch = make_batch(wide.model, wide.B, wide.T, false);
  const auto found = [&](Training& run) {
    run.programs->micro(batch, {.inv_targets = 1 / float(batch.count)}, true);
    return std::pair(run.flat(Part::grad), run.programs->evaluate(batch));
  };
  Training run(*backend, wide), fresh(*backend, narrow);
  const auto of_wide = found(run), of_narrow = found(fresh);
  EXPECT_NE(of_wide.first, of_narrow.first);
  EXPECT_NE(of_wide.second, of_narrow.second);
  run.programs->reshape(narrow);
  EXPECT_EQ(found(run), of_narrow);
  EXPECT_EQ(run.programs->spec().model.window, 2);
  run.programs->reshape(wide);
  EXPECT_EQ(found(run), of_wide);
}

// Evaluation runs the model as checkpoints store it, whatever windows training has reached.
TEST(Reshape, EvaluationKeepsTheWindowsOfTheStoredModel) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec stored{.model = model_cases()[0].config, .B = 2, .T = 8};
  ProgramSpec scheduled = stored;
  scheduled.model.window = 2, scheduled.eval_model = stored.model;
  const Batch batch = make_batch(stored.model, stored.B, stored.T, false);
  Training run(*backend, scheduled), fresh(*backend, stored);
  const double loss = fresh.programs->evaluate(batch);
  EXPECT_EQ(run.programs->evaluate(batch), loss);
  scheduled.model.window = 3;
  run.programs->reshape(scheduled);
  EXPECT_EQ(run.programs->evaluate(batch), loss);
  scheduled.eval_model.reset(), scheduled.model.window = 2;
  Training follows(*backend, scheduled);
  EXPECT_NE(follows.programs->evaluate(batch), loss);
}

// Only training has the losses of further tokens, so one program evaluates for all their weights.
TEST(Reshape, EvaluationIsRecordedOnceForAllWeights) {
  const auto backend = make_cpu_backend(2);
  const ModelConfig model = model_cases()[0].config;
  ParamStore params(*backend, decoder_params(model), DType::f32);
  params.initialise(21);
  Memory memory(*backend, &params);
  LogprobPrograms programs({.model = model}, memory);
  using Kind = LogprobPrograms::Kind;
  std::set<const Exec*> trains, evaluates;
  for (const float weight : {0.5f, 0.25f, 0.f, 0.5f}) {
    programs.set_weights(weight, weight);
    trains.insert(&programs.program({2, 8}, Kind::nll_first));
    evaluates.insert(&programs.program({2, 8}, Kind::nll_eval));
  }
  EXPECT_EQ(trains.size(), 3u);
  EXPECT_EQ(evaluates.size(), 1u);
}

// The scales of fp8 belong to the model and not to the programs of one shape.
TEST(Reshape, KeepsTheScalesOfFp8) {
  const auto backend = make_cpu_backend(2);
  ProgramSpec s{.model = model_cases()[0].config, .dtype = DType::bf16, .fp8 = Fp8Recording{}};
  s.model.dim = 32, s.model.hidden = 48, s.B = 2, s.T = 8;
  Training run(*backend, s);
  run.programs->update().set_state({});
  const auto known = [&] {
    std::vector<float> largest;
    std::vector<Fp8Site> sites(run.programs->update().fp8_formats().size());
    run.programs->update().fp8_sites().download_part(0, sites);
    for (const Fp8Site& site : sites) largest.push_back(site.previous);
    return largest;
  };
  run.step(make_batch(s.model, s.B, s.T, false), 0.01f);
  const std::vector<float> before = known();
  EXPECT_GT(*std::ranges::max_element(before), 0);
  s.T = 6, s.model.window = 2;
  run.programs->reshape(s);
  EXPECT_EQ(known(), before);
  run.step(make_batch(s.model, s.B, s.T, false), 0.01f);
  EXPECT_EQ(known().size(), before.size());
  EXPECT_NE(known(), before);
}

TEST(Update, LowersTheLossOnAFixedBatch) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(2);
  for (Backend* b : {reference.get(), fast.get()})
    for (DType dtype : {DType::f32, DType::bf16}) {
      SCOPED_TRACE(fmt::format("{} {}", b->describe(), to_string(dtype)));
      const ProgramSpec s = small(dtype);
      Training run(*b, s);
      const Batch batch = make_batch(s.model, s.B, s.T, false);
      const double first = run.step(batch, 0.01f);
      EXPECT_NEAR(first, std::log(double(s.model.vocab)), 0.3);
      double last = first;
      for (int i = 0; i < 60; ++i) last = run.step(batch, 0.01f);
      EXPECT_LT(last, 0.2 * first);
      EXPECT_EQ(run.programs->update().state().good_steps, 61);
      EXPECT_EQ(run.programs->update().state().skipped, 0);
    }
}

TEST(Update, TwoRunsGiveTheSameBits) {
  const auto backend = make_cpu_backend(2);
  for (DType dtype : {DType::f32, DType::bf16}) {
    const ProgramSpec s = small(dtype);
    const Batch batch = make_batch(s.model, s.B, s.T, false);
    std::vector<std::vector<float>> ends;
    for (int again = 0; again < 2; ++again) {
      Training run(*backend, s);
      for (int i = 0; i < 10; ++i) run.step(batch, 0.01f);
      ends.push_back(run.flat(Part::weight));
      ends.push_back(run.flat(slot_part(1)));
    }
    EXPECT_EQ(ends[0], ends[2]);
    EXPECT_EQ(ends[1], ends[3]);
  }
}

TEST(Update, LeavesPaddingZero) {
  const auto backend = make_cpu_backend(2);
  for (DType dtype : {DType::f32, DType::bf16}) {
    ProgramSpec s = small(dtype);
    s.model.vocab = 17, s.model.qkv_bias = true, s.update.decay_all = true;
    Training run(*backend, s);
    const Batch batch = make_batch(s.model, s.B, s.T, false);
    for (int i = 0; i < 3; ++i) run.step(batch, 0.1f);
    for (Part p : {Part::weight, Part::grad, slot_part(0), slot_part(1), Part::master}) {
      if (p == Part::master && !run.params.has_master()) continue;
      const Tensor flat = run.params.flat(p);
      cases::Numbers all = cases::read(*backend, flat);
      int64_t padding = int64_t(all.size());
      for (const ParamSpec& spec : run.params.specs()) {
        const Tensor t = run.params.get(p, spec.name);
        const int64_t at = (t.data - flat.data) / size_of(t.dtype);
        std::fill(all.begin() + at, all.begin() + at + t.numel(), 0.0);
        padding -= t.numel();
      }
      EXPECT_GT(padding, 0);
      for (double x : all) ASSERT_EQ(x, 0) << run.params.name(p);
    }
  }
}

// A step that is not finite changes nothing but the counts.
TEST(Update, SkipsWhatIsNotFinite) {
  const auto reference = make_reference_backend(), fast = make_cpu_backend(2);
  for (Backend* b : {reference.get(), fast.get()})
    for (DType dtype : {DType::f32, DType::bf16})
      for (float bad : {NAN, INFINITY}) {
        SCOPED_TRACE(fmt::format("{} {} {}", b->describe(), to_string(dtype), bad));
        const ProgramSpec s = small(dtype);
        Training run(*b, s);
        const Batch batch = make_batch(s.model, s.B, s.T, false);
        run.step(batch, 0.01f);
        const auto weights = run.flat(Part::weight), m = run.flat(slot_part(0));
        const auto v = run.flat(slot_part(1));
        Scalars scalars;
        scalars.lr = 0.01f, scalars.clip = 1;
        std::vector<float> g = run.params.values(Part::grad, "embed.weight");
        const std::vector<float> good = g;
        g[5] = bad;
        for (int streak = 1; streak <= 2; ++streak) {
          run.params.set(Part::grad, "embed.weight", g);
          run.programs->update().run(scalars);
          const UpdateState u = run.programs->update().state();
          EXPECT_EQ(u.skip, 1);
          EXPECT_EQ(u.streak, streak);
          EXPECT_EQ(u.skipped, streak);
          EXPECT_EQ(u.good_steps, 1);
        }
        EXPECT_EQ(run.flat(Part::weight), weights);
        EXPECT_EQ(run.flat(slot_part(0)), m);
        EXPECT_EQ(run.flat(slot_part(1)), v);
        run.params.set(Part::grad, "embed.weight", good);
        run.programs->update().run(scalars);
        const UpdateState u = run.programs->update().state();
        EXPECT_EQ(u.skip, 0);
        EXPECT_EQ(u.streak, 0);
        EXPECT_EQ(u.skipped, 2);
        EXPECT_EQ(u.good_steps, 2);
        EXPECT_NE(run.flat(Part::weight), weights);
      }
}

TEST(Update, ReportsAndClipsTheGradientNorm) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec s = small();
  const Batch batch = make_batch(s.model, s.B, s.T, false);
  const auto norm_of = [](const std::vector<float>& x) {
    double sum = 0;
    for (float v : x) sum += double(v) * v;
    return std::sqrt(sum);
  };
  Training free(*backend, s), clipped(*backend, s);
  free.step(batch, 0.01f, 0);
  const double norm = norm_of(free.flat(Part::grad));
  EXPECT_NEAR(free.programs->update().state().grad_norm, norm, 1e-5 * norm);
  clipped.step(batch, 0.01f, float(norm / 4));
  EXPECT_NEAR(clipped.programs->update().state().grad_norm, norm, 1e-5 * norm);
  EXPECT_NEAR(norm_of(clipped.flat(slot_part(0))) / norm_of(free.flat(slot_part(0))), 0.25, 1e-4);
}

TEST(Update, ResumesFromItsState) {
  const auto backend = make_cpu_backend(2);
  const ProgramSpec s = small();
  const Batch batch = make_batch(s.model, s.B, s.T, false);
  Training whole(*backend, s), second(*backend, s);
  for (int i = 0; i < 3; ++i) whole.step(batch, 0.01f);
  for (Part p : {Part::weight, slot_part(0), slot_part(1)})
    for (const ParamSpec& spec : whole.params.specs())
      second.params.set(p, spec.name, whole.params.values(p, spec.name));
  second.programs->update().set_state(whole.programs->update().state());
  second.steps = whole.steps;
  for (int i = 0; i < 3; ++i) whole.step(batch, 0.01f), second.step(batch, 0.01f);
  EXPECT_EQ(second.flat(Part::weight), whole.flat(Part::weight));
}

}  // namespace
}  // namespace hearth
