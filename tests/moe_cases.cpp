// The op cases of experts. N is the width of an expert, V the number of experts and D how many of
// them a token has.
#include "op_cases.h"
#include "ops/moe.h"

namespace hearth::cases {
namespace {

struct RouterCase {
  RouteSpec spec = {};
  bool bias = false;
  bool losses = false;
  bool padding = false;  // every third token does not count
};

Routing routed(Recorder& r, Var x, const RouterCase& c) {
  const auto [B, T, C, N, H, D, V] = r.d;
  const Var logits = router_logits(r.t, x, r.weight("router", {V, C}));
  Var counts;
  if (c.padding) {
    std::vector<int32_t> real;
    for (int64_t i = 0; i < B * T; ++i) real.push_back(i % 3 != 1);
    counts = r.t.constant("counts", {B, T}, std::span<const int32_t>(real));
  }
  return route(r.t, logits, c.bias ? r.vector("bias", V) : Var{}, D, c.spec, counts);
}

OpCase route_case(const char* name, const RouterCase& c, std::vector<Dims> small = {}) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, C}, 2);
    const Routing routing = routed(r, x, c);
    r.output(routing.weights);
    if (!c.losses) return;
    router_losses(r.t, std::span(&routing, 1),
                  {.balance = c.spec.balance, .z = c.spec.z, .load = "load"});
    r.losses();
  };
  if (small.empty())
    small = {{.B = 2, .T = 5, .C = 12, .D = 2, .V = 4},
             {.B = 1, .T = 1, .C = 3, .D = 1, .V = 2},
             {.B = 3, .T = 23, .C = 33, .D = 5, .V = 37}};
  return {name, record, small, {.B = 4, .T = 1024, .C = 768, .D = 4, .V = 64}};
}

enum class Residual { none, own };

OpCase experts_case(const char* name, Act act, const RouterCase& c, Residual residual) {
  const auto record = [=](Recorder& r) {
    const auto [B, T, C, N, H, D, V] = r.d;
    const Var x = r.x("x", {B, T, C}, 2);
    const Var sum = residual == Residual::own ? r.x("r", {B, T, C}) : Var{};
    const Routing routing = routed(r, x, c);
    const Var w1 = r.weight("w1", {V * (is_glu(act) ? 2 : 1) * N, C});
    const Var h = expert_activation(r.t, expert_linear(r.t, x, w1, routing), routing, act);
    r.output(expert_join(r.t, h, r.weight("w2", {V * C, N}), routing, sum, {B, T, C}));
  };
  // The second has experts without tokens, the third tiles of several rows.
  return {name,
          record,
          {{.B = 2, .T = 5, .C = 12, .N = 9, .D = 2, .V = 4},
           {.B = 1, .T = 2, .C = 3, .N = 2, .D = 1, .V = 7},
           {.B = 3, .T = 61, .C = 40, .N = 24, .D = 3, .V = 5},
           {.B = 1, .T = 150, .C = 64, .N = 48, .D = 1, .V = 2}},
          {.B = 4, .T = 1024, .C = 768, .N = 512, .D = 4, .V = 64}};
}

}  // namespace

std::vector<OpCase> moe_cases() {
  const RouterCase softmax, plain{.spec = {.norm = false}};
  const RouterCase sigmoid{.spec = {.kind = Router::sigmoid, .scale = 2.5f}, .bias = true};
  const std::vector<Dims> grouped{{.B = 2, .T = 5, .C = 12, .D = 3, .V = 12},
                                  {.B = 1, .T = 40, .C = 9, .D = 4, .V = 24}};
  return {
      route_case("route", softmax),
      route_case("route_plain", plain),
      route_case("route_sigmoid", sigmoid),
      route_case("route_sigmoid_plain",
                 {.spec = {.kind = Router::sigmoid, .norm = false}, .bias = true}),
      route_case("route_groups",
                 {.spec = {.kind = Router::sigmoid, .groups = 4, .top_groups = 2}, .bias = true},
                 grouped),
      route_case("route_groups_softmax", {.spec = {.groups = 3, .top_groups = 1}}, grouped),
      route_case("route_losses", {.spec = {.balance = 0.3f, .z = 0.2f}, .losses = true}),
      route_case("route_losses_sigmoid",
                 {.spec = {.kind = Router::sigmoid, .balance = 0.3f, .z = 0.2f},
                  .bias = true,
                  .losses = true}),
      route_case("route_losses_padding",
                 {.spec = {.balance = 0.3f, .z = 0.2f}, .losses = true, .padding = true}),
      experts_case("experts", Act::swiglu, softmax, Residual::own),
      experts_case("experts_plain", Act::geglu, plain, Residual::none),
      experts_case("experts_relu2", Act::relu2, sigmoid, Residual::own),
      experts_case("experts_gelu", Act::gelu_tanh, plain, Residual::own),
  };
}

}  // namespace hearth::cases
