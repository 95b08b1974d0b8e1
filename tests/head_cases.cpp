// The op cases of the head: losses and log-probabilities.
#include <cmath>

#include "op_cases.h"

namespace hearth::cases {
namespace {

// The head's table is padded to whole tiles: these vocabularies give logits with padding columns.
std::vector<Dims> head_sizes() {
  return {{.B = 2, .T = 5, .C = 12, .V = 11},
          {.B = 1, .T = 2, .C = 3, .V = 2},
          {.B = 3, .T = 7, .C = 33, .V = 131}};
}
constexpr Dims large_head{.B = 2, .T = 256, .C = 768, .V = 50257};

Var head_table(Recorder& r) {
  const Init init = Init::uniform(float(1 / std::sqrt(double(r.d.C))));
  return r.t.param("w", {r.d.V, r.d.C}, init, Group::embedding);
}

// Gathers the rows that count, some of them padding, and applies the head.
OpCase logprob_case(const char* name, HeadLogprobSpec spec) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const auto padding = [](int64_t i) { return i % 4 == 2; };
    const int64_t R = B * T - 1;
    const Var rows = r.ids("rows", {1, R}, [=](int64_t i) { return padding(i) ? -1 : i + 1; });
    const Var targets =
        r.ids("targets", {1, R}, [=, V = V](int64_t i) { return padding(i) ? -1 : i * 7 % V; });
    const Var w = head_table(r);
    const Var x = r.x("x", {B, T, C}, 2);
    r.output(head_logprob(r.t, gather_rows(r.t, x, rows), w, targets, spec));
    if (spec.entropy) r.output(r.t.find("case.entropy"));
  };
  return {name, record, head_sizes(), large_head};
}

OpCase loss_case(const char* name, HeadSpec spec, bool masked) {
  spec.grad = true;
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var targets = r.ids("targets", {B, T}, [=, V = V](int64_t i) {
      return masked && i % 3 == 1 ? -100 : i * 7 % V;
    });
    const Var w = head_table(r);
    head_loss(r.t, r.x("x", {B, T, C}, 2), w, targets, spec);
    r.losses();
  };
  return {name, record, head_sizes(), large_head};
}

// Two heads on one tape: the gradients of their shared inputs add up.
void record_two_heads(Recorder& r) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const auto shifted = [V = V](int64_t by) { return [=](int64_t i) { return (i + by) * 7 % V; }; };
  const Var next = r.ids("targets", {B, T}, shifted(0)), after = r.ids("after", {B, T}, shifted(1));
  const Var x = r.x("x", {B, T, C}, 2), w = head_table(r);
  head_loss(r.t, x, w, next, {.grad = true, .z_loss = 0.1f});
  head_loss(r.t, linear(r.t, x, r.weight("w2", {C, C})), w, after,
            {.grad = true, .term = {.name = "further_token_2", .weight = 0.3f}});
  r.losses();
}

}  // namespace

std::vector<OpCase> head_cases() {
  return {
      loss_case("head_loss", {}, false),
      loss_case("head_loss_softcap", {.softcap = 1.5f}, false),
      loss_case("head_loss_scaled", {.scale = 0.3f, .softcap = 1.5f, .chunk_rows = 3}, true),
      loss_case("head_loss_chunked", {.chunk_rows = 3}, false),
      loss_case("head_loss_masked", {.softcap = 2, .chunk_rows = 4}, true),
      loss_case("head_loss_z", {.z_loss = 0.2f}, false),
      loss_case("head_loss_z_masked",
                {.softcap = 2,
                 .chunk_rows = 4,
                 .term = {.name = "next_token", .weight = 0.7f},
                 .z_loss = 0.4f},
                true),
      {"head_loss_two", record_two_heads, head_sizes(), large_head},
      logprob_case("head_logprob", {}),
      logprob_case("head_logprob_warm", {.temperature = 1.7f, .entropy = true}),
      logprob_case("head_logprob_chunked", {.temperature = 0.6f, .chunk_rows = 3}),
      logprob_case("head_logprob_kept", {.chunk_rows = 3, .keep_bytes = int64_t(1) << 30}),
      logprob_case("head_logprob_scaled", {.scale = 1.7f, .softcap = 1.5f, .chunk_rows = 3}),
      logprob_case("head_logprob_softcap", {.softcap = 1.5f, .temperature = 0.8f, .entropy = true}),
  };
}

}  // namespace hearth::cases
