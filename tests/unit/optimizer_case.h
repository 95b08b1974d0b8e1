// Shared by the tests of optimizers: the update program over parameters of odd sizes, and a small
// model that is trained.
#pragma once

#include <memory>

#include <gtest/gtest.h>

#include "cpu/reference/reference.h"
#include "model_cases.h"
#include "op_cases.h"
#include "train/pretrain/programs.h"

namespace hearth::optim_test {

inline std::vector<ParamSpec> odd_params() {
  return {{"m", {7, 13}, Init::uniform(1), Group::matrix},
          {"wide", {3, 129}, Init::uniform(1), Group::matrix},
          {"h", {9, 5}, Init::uniform(1), Group::head},
          {"e", {5, 3}, Init::uniform(1), Group::embedding},
          {"frozen", {4, 4}, Init::uniform(1), Group::matrix, false},
          {"v", {131}, Init::uniform(1), Group::vector}};
}

// A store of odd sizes and the update program of an optimizer.
struct Update {
  Update(Backend& b, DType dtype, const UpdateSpec& spec,
         std::vector<ParamSpec> params = odd_params())
      : store(b, std::move(params), dtype), memory(b, &store) {
    store.initialise(3);
    Tape t(dtype);
    record_update(t, store, t.result("loss", {1}, t.acc()), spec);
    exec = std::make_unique<Exec>(std::move(t), memory);
  }
  void set_gradients(int step) {
    for (const ParamSpec& p : store.specs())
      if (p.trainable) store.set(Part::grad, p.name, gradient(p, step));
  }
  static std::vector<float> gradient(const ParamSpec& p, int step) {
    std::vector<float> g(size_t(p.shape.numel()));
    draw(g, Init::normal(1), uint64_t(100 + step), p.name);
    return g;
  }
  void run(int step, float lr) {
    set_gradients(step);
    run(Scalars{.lr = lr, .step = uint32_t(step), .momentum = 0.9f});
  }
  // With the gradients as they are.
  void run(const Scalars& s) {
    memory.state.write<Scalars>("scalars", std::span<const Scalars>(&s, 1));
    exec->run();
  }
  ParamStore store;
  Memory memory;
  std::unique_ptr<Exec> exec;
};

// All that training keeps in a store of a CPU backend.
inline std::vector<std::byte> bytes_of(ParamStore& store) {
  std::vector<std::byte> all;
  std::vector<Part> parts{Part::weight};
  if (store.has_master()) parts.push_back(Part::master);
  for (size_t i = 0; i < store.slots().size(); ++i) parts.push_back(slot_part(i));
  for (const Part p : parts) {
    const Tensor t = store.flat(p);
    all.insert(all.end(), t.data, t.data + t.bytes());
  }
  return all;
}

struct Training {
  Training(Backend& b, const ProgramSpec& s)
      : params(b, decoder_params(s.model), s.dtype), memory(b, &params) {
    params.initialise(21);
    programs = std::make_unique<Programs>(s, memory);
  }
  double step(const Batch& batch, float lr) {
    Scalars s;
    s.lr = lr, s.clip = 1, s.inv_targets = 1 / float(batch.count), s.step = steps++;
    s.momentum = 0.9f;
    programs->micro(batch, s, true);
    programs->update().run(s);
    return programs->loss();
  }
  std::vector<std::byte> bytes() { return bytes_of(params); }
  ParamStore params;
  Memory memory;
  std::unique_ptr<Programs> programs;
  uint32_t steps = 0;
};

inline ProgramSpec small(OptimizerKind kind, DType dtype) {
  ProgramSpec s{.model = cases::model_cases()[0].config, .dtype = dtype, .B = 2, .T = 8};
  s.model.init_std = 0.02f;
  s.update.optimizer = kind;
  if (const auto& betas = known_optimizers[size_t(kind)].betas)
    s.update.beta1 = (*betas)[0], s.update.beta2 = (*betas)[1];
  return s;
}

}  // namespace hearth::optim_test
