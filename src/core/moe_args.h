// The arguments of the kernels for mixtures of experts, by the conventions of core/kernel_args.h.
// T tokens choose k of E experts each. The R = T * k pairs of a token and an expert are computed as
// rows that are sorted by expert, so every shape is known when a program is recorded; how many rows
// an expert has is known on the device only.
#pragma once

#include "core/math.h"
#include "core/tensor.h"

// The part of the list in core/kernels.h for experts.
#define HEARTH_MOE_KERNELS(KERNEL)                       \
  KERNEL(route, RouteArgs)                               \
  KERNEL(route_bwd, RouteBwdArgs)                        \
  KERNEL(expert_rows, ExpertRowsArgs)                    \
  KERNEL(grouped_gemm, GroupedGemmArgs)                  \
  KERNEL(grouped_gemm_weights, GroupedGemmWeightsArgs)   \
  KERNEL(expert_activation, ExpertActivationArgs)        \
  KERNEL(expert_activation_bwd, ExpertActivationBwdArgs) \
  KERNEL(combine_rows, CombineRowsArgs)                  \
  KERNEL(router_stats, RouterStatsArgs)                  \
  KERNEL(balance_bias, BalanceBiasArgs)

namespace hearth::inline core {

// How logits become scores. `switch_top1` is softmax for one expert per token, as in Switch
// Transformers; kernels treat it as softmax.
enum class Router : uint8_t { softmax, sigmoid, switch_top1 };

constexpr int64_t most_experts = 1024;
constexpr int64_t most_top_k = 64;

struct RouteSpec {
  Router kind = Router::softmax;
  bool norm = true;  // divide the scores of the chosen experts by their sum
  float scale = 1;   // factor on the weights
  // Experts in equal groups of neighbours. A group's score is the sum of the two best of its
  // experts; only experts of the best top_groups groups may be chosen.
  int64_t groups = 1, top_groups = 1;
  // Gradient only: weights of the balance loss and of the z-loss of the logits (RouterStatsArgs).
  float balance = 0, z = 0;

  [[gnu::always_inline]] constexpr bool sigmoid() const { return kind == Router::sigmoid; }
};

// Chooses the k experts of each token with the highest scores, best first; with a bias, by score +
// bias. Of equal experts the one with the lower number comes first. NaN counts as the lowest score.
// weights = scale * score, or scale * score / (sum over the chosen + 1e-20) with spec.norm.
struct RouteArgs {
  Tensor ids;        // (T, k) i32
  Tensor weights;    // (T, k) acc
  Tensor logits;     // (T, E) acc
  Tensor bias = {};  // (E), any float dtype
  RouteSpec spec = {};
};

// dlogits = the gradient through the weights, plus the gradients of the two losses times their
// weights, the share of the micro-batch and the loss scale. The losses are means over the tokens
// that count.
struct RouteBwdArgs {
  Tensor dlogits;       // (T, E), any float dtype
  Tensor dweights;      // (T, k) acc
  Tensor logits;        // (T, E) acc
  Tensor ids;           // (T, k) i32
  Tensor offsets;       // (E + 1) i32, of ExpertRowsArgs; with `counts`, its `counted`
  Tensor scalars = {};  // Scalars; read with a loss only
  Tensor counts = {};   // (T) i32: 0 for a token that is padding; absent: all tokens count
  RouteSpec spec = {};
};

// Sorts the pairs of tokens and experts by expert; those of one expert stay in the order of tokens.
struct ExpertRowsArgs {
  Tensor offsets;  // (E + 1) i32: expert e has rows [offsets[e], offsets[e + 1]); the last is R
  Tensor order;    // (R) i32: the pair of a row, t * k + j
  Tensor tokens;   // (R) i32: the token of a row
  Tensor place;    // (T, k) i32: the row of a pair
  Tensor ids;      // (T, k) i32
  // Optional: the offsets as they would be without the tokens that do not count.
  Tensor counted = {};  // (E + 1) i32
  Tensor counts = {};   // (T) i32: 0 for a token that is padding
};

// c[r] = a[gather[r]] op(b[g]) for the rows r of group g. A row of c has the same bits whatever
// other rows there are, if the backend's products promise that. b may be packed by quantise() of
// core/quantised.h; each group then begins a panel, and rows of a are rounded as gemm_quantised
// rounds them.
struct GroupedGemmArgs {
  Tensor c;            // (R, N)
  Tensor a;            // (R, K); with gather (tokens, K)
  Tensor b;            // (G, N, K) with tb, else (G, K, N); or (G * N, K) packed, with tb
  Tensor offsets;      // (G + 1) i32: group g has rows [offsets[g], offsets[g + 1]); the last is R
  Tensor gather = {};  // (R) i32: the row of a for row r of c; absent: r
  bool tb = false;
};

// db[g] = [db[g] +] the sum over the rows r of group g of dc[r]^T a[gather[r]].
struct GroupedGemmWeightsArgs {
  Tensor db;           // (G, N, K) acc, or the dtype of a
  Tensor dc;           // (R, N)
  Tensor a;            // (R, K); with gather (tokens, K)
  Tensor offsets;      // (G + 1) i32
  Tensor gather = {};  // (R) i32: the row of a for row r of dc; absent: r
  bool add = false;    // db adds to its contents; otherwise a group without rows becomes 0
};

// y[r] = weights[order[r]] * act(x[r]); a GLU has twice as many columns in x.
struct ExpertActivationArgs {
  Tensor y;        // (R, N)
  Tensor x;        // (R, N), or (R, 2N) for a GLU
  Tensor weights;  // (T, k) acc
  Tensor order;    // (R) i32
  Act act = Act::none;
};

struct ExpertActivationBwdArgs {
  Tensor dx;        // shape of x
  Tensor dweights;  // (T, k) acc
  Tensor dy;        // (R, N)
  Tensor x;         // (R, N), or (R, 2N) for a GLU
  Tensor weights;   // (T, k) acc
  Tensor order;     // (R) i32
  Act act = Act::none;
};

// y[t] = prior[t] + the sum of x[place[t, j]] over j, in order.
struct CombineRowsArgs {
  Tensor y;           // (.., C), T rows
  Tensor x;           // (R, C)
  Tensor place;       // (T, k) i32
  Tensor prior = {};  // (.., C); may be y's memory
};

struct RouterStatsSpec {
  Router kind = Router::softmax;
  int64_t k = 1;            // experts per token
  float part = 1;           // factor on the values: 1 / layers that have experts
  bool add_values = false;  // values add to their contents
  bool add_load = false;    // load adds to its contents
};

// What a run logs about one layer's router. With p the scores of a token divided by their sum and
// f the fraction of all pairs that an expert received, the values are means over the tokens that
// count, times spec.part and the share of the micro-batch:
//   0: the balance loss, E * sum of f p, which is 1 if all experts have equal loads
//   1: the z-loss, the square of the log-sum-exp of the logits
//   2: the entropy of p
struct RouterStatsArgs {
  Tensor values;       // (3, 1) acc
  Tensor load;         // (1, E) i32: pairs of each expert
  Tensor parts;        // (row_parts, 3) acc: scratch
  Tensor logits;       // (T, E) acc
  Tensor offsets;      // (E + 1) i32; with `counts`, the `counted` of ExpertRowsArgs
  Tensor scalars;      // Scalars
  Tensor counts = {};  // (T) i32: 0 for a token that is padding; absent: all tokens count
  RouterStatsSpec spec = {};
};

// Moves every selection bias by rate * sign(mean load - load), unless the step is skipped.
struct BalanceBiasArgs {
  Tensor bias;  // (E) acc
  Tensor load;  // (1, E) i32
  Tensor gate;  // UpdateState
  float rate = 0;
};

}  // namespace hearth::inline core
