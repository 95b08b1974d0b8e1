// Mixtures of experts on a tape: every token is computed by the k experts that a router chooses for
// it. Nothing depends on the host, so programs with experts are captured like any other.
#pragma once

#include <span>

#include "core/tape.h"

namespace hearth::inline ops {

// The choices of one layer's router; core/moe_args.h documents the values.
struct Routing {
  Var logits;                         // (T, E) acc
  Var ids, weights;                   // (T, k)
  Var offsets, order, tokens, place;  // the rows sorted by expert
  Var counts;   // (T) i32: 0 for a token that the losses leave out; absent: none
  Var counted;  // the offsets of those tokens; without `counts` the same as `offsets`
  RouteSpec spec;

  int64_t experts(const Tape& t) const { return t.shape(logits)[-1]; }
};

// The logits of all tokens of x (.., C), in acc; w is (E, C).
Var router_logits(Tape&, Var x, Var w);
// `bias` (E) moves the choice but not the weights; absent: none. `counts` (.., T) i32 is 0 for
// tokens that are padding, which the losses and the loads leave out; absent: all count.
Routing route(Tape&, Var logits, Var bias, int64_t k, const RouteSpec&, Var counts = {});

// Weights of experts are stacked: (E * N, C). The first product of the experts: (R, N) of x (..,
// C).
Var expert_linear(Tape&, Var x, Var w, const Routing&);
// The product of rows that are sorted by expert already: (R, N) of x (R, C).
Var expert_rows_linear(Tape&, Var x, Var w, const Routing&);
// The router's weights times act(x): (R, N).
Var expert_activation(Tape&, Var x, const Routing&, Act);
// The last product, added up for each token: residual + the sum of the token's rows of h wᵀ. The
// result has the shape `y`; w is (E * C, N). Without a residual it is the sum alone.
Var expert_join(Tape&, Var h, Var w, const Routing&, Var residual, Shape y);

// Adds the terms "balance_loss", "router_z_loss" and "router_entropy" to the tape, means over the
// layers, and counts the pairs of tokens and experts in the state `load` (layers, E) i32. The
// gradients of the first two come from route(), whose spec has their weights over all layers.
struct RouterTerms {
  float balance = 0, z = 0;  // weights of the terms
  std::string load;          // name of the state
};
void router_losses(Tape&, std::span<const Routing>, const RouterTerms&);
// Counts the pairs alone, without terms.
void router_loads(Tape&, std::span<const Routing>, const std::string& load);
// The name of that state for programs that share a tape's loss buffer.
inline std::string router_load_name(const Tape& t) { return t.loss_buffer + ".router_load"; }

}  // namespace hearth::inline ops
